"""Calls of gRPC through a gateway in this process: who may, and what becomes of errors and of callers that leave."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2
from gpufleet.v1 import inference_pb2, sessions_pb2
from gpufleet.v1.open_inference import open_inference_pb2 as pb
from gpufleet.v1.open_inference.open_inference_pb2_grpc import GRPCInferenceServiceStub
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from gateway.open_inference import room
from gateway.open_inference.server import Server, channel_options
from gateway.open_inference.service import SERVICE
from gateway.open_inference.statuses import CODE_OF, PROGRAM_DOMAIN, code_of
from gateway.proxy import counting
from gpufleet.config.gateway_settings import GatewaySettings
from gpufleet.errors import Code, GpufleetError, Reason
from gpufleet.net.channel import bearer
from gpufleet.net.status import from_rpc_error
from tests.e2e.processes import DEADLINE_SECONDS, until
from tests.gateway.proxy.stage import Call, Replica, Stage, program, stage

LOGIN = sessions_pb2.MODEL_ACCESS_LOGIN


async def echo(call: Call) -> None:
    """Gives the inputs back, and says who asked in the answer's id."""
    body = await call.body()
    size = int(call.head["inference-header-content-length"])
    head = {"model_name": "m", "id": call.head["gpufleet-user"], "outputs": json.loads(body[:size])["inputs"]}
    text = json.dumps(head).encode()
    await call.reply(text + body[size:], headers={"Inference-Header-Content-Length": str(len(text))})


def says(status: str, body: bytes, **headers: str) -> Callable[[Call], Coroutine[Any, Any, None]]:
    """A program that always answers so."""

    async def answer(call: Call) -> None:
        await call.body()
        await call.reply(body, status, {name.replace("_", "-"): value for name, value in headers.items()})

    return answer


def asked(model: str = "m", raw: bytes = bytes(8)) -> pb.ModelInferRequest:
    tensor = pb.ModelInferRequest.InferInputTensor(name="x", datatype="INT64", shape=[len(raw) // 8])
    return pb.ModelInferRequest(model_name=model, inputs=[tensor], raw_input_contents=[raw])


@asynccontextmanager
async def channel_to(at: Stage) -> AsyncIterator[grpc.aio.Channel]:
    assert at.grpc is not None
    options = [("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(str(at.grpc.address), options=options) as channel:
        yield channel


@asynccontextmanager
async def calling() -> AsyncIterator[tuple[Stage, Any]]:
    async with stage(has_grpc=True) as at, channel_to(at) as channel:
        yield at, GRPCInferenceServiceStub(channel)


async def refused(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async with asyncio.timeout(DEADLINE_SECONDS):
            await call
    return caught.value


def detail(problem: grpc.aio.AioRpcError, empty: Any) -> Any:
    found: status_pb2.Status | None = rpc_status.from_call(problem)
    assert found is not None
    assert any(each.Unpack(empty) for each in found.details), found
    return empty


async def test_the_server_says_what_it_is_and_lists_what_a_caller_may_use() -> None:
    async with calling() as (at, stub), program("r1", echo) as replica:
        assert (await stub.ServerLive(pb.ServerLiveRequest())).live

        async def is_ready() -> bool:
            return bool((await stub.ServerReady(pb.ServerReadyRequest())).ready)

        await until("the scheduler is heard", is_ready)
        said = await stub.ServerMetadata(pb.ServerMetadataRequest())
        assert said.name == "gpufleet" and said.version and not said.extensions
        await at.serve("closed", replica, access=LOGIN)
        ann = bearer(at.person("ann"))
        nobody = await refused(stub.RepositoryIndex(pb.RepositoryIndexRequest()))
        assert nobody.code() is grpc.StatusCode.UNAUTHENTICATED
        assert "authorization" in from_rpc_error(nobody).next_step
        wrong = await refused(stub.RepositoryIndex(pb.RepositoryIndexRequest(), metadata=bearer("gf_" + "x" * 43)))
        assert from_rpc_error(wrong).reason is Reason.TOKEN_INVALID
        index = await stub.RepositoryIndex(pb.RepositoryIndexRequest(), metadata=ann)
        assert [(each.name, each.state) for each in index.models] == [("closed", "UNAVAILABLE")]
        ready = await stub.RepositoryIndex(pb.RepositoryIndexRequest(ready=True), metadata=ann)
        assert not ready.models
        other = await refused(stub.RepositoryIndex(pb.RepositoryIndexRequest(repository_name="r"), metadata=ann))
        assert from_rpc_error(other).violations[0].field == "repository_name"


async def test_strangers_are_listed_the_open_programs_alone_and_use_no_other_one() -> None:
    async with calling() as (at, stub), program("r1", echo) as replica:
        await at.serve("closed", replica, access=LOGIN)
        await at.serve("open", replica)
        assert [each.name for each in (await stub.RepositoryIndex(pb.RepositoryIndexRequest())).models] == ["open"]
        assert (await stub.ModelInfer(asked("open"))).id == ""
        for metadata in ((), bearer("gf_" + "x" * 43), bearer("another's"), (("cookie", at.cookie(at.person("ann"))),)):
            problem = await refused(stub.ModelInfer(asked("closed"), metadata=metadata))
            assert problem.code() is grpc.StatusCode.UNAUTHENTICATED
        forged = (*bearer(at.person("bob")), ("gpufleet-user", "ann"), ("x-forwarded-for", "1.2.3.4"))
        assert (await stub.ModelInfer(asked("closed"), metadata=forged)).id == "bob"
        assert replica.calls[-1].all("x-forwarded-for") == ["127.0.0.1"] and not replica.calls[-1]["authorization"]


async def test_requests_count_as_their_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "GATHER_S", 0.0)
    async with calling() as (at, stub), program("r1", echo) as replica:
        await at.serve("m", replica)
        await stub.ModelInfer(asked(), metadata=bearer(at.person("ann")))
        await until("it is counted", lambda: at.scheduler.count("m", "ann") == 1)
        assert at.scheduler.count("m", "ann", "failed_count") == 0


async def test_what_is_no_model_and_what_is_no_call_is_said() -> None:
    async with calling() as (at, stub), channel_to(at) as opened:
        channel: Any = opened
        for name in ("nope", "a/b", ""):
            problem = await refused(stub.ModelInfer(asked(name)))
            assert from_rpc_error(problem).reason is Reason.MODEL_NOT_FOUND
            assert (await refused(stub.ModelReady(pb.ModelReadyRequest(name=name)))).code() is problem.code()
            assert (await refused(stub.ModelMetadata(pb.ModelMetadataRequest(name=name)))).code() is problem.code()
        for method in ("RepositoryModelLoad", "TraceSetting", "SystemSharedMemoryRegister"):
            problem = await refused(channel.unary_unary(f"/{SERVICE.full_name}/{method}")(b""))
            assert (
                problem.code() is grpc.StatusCode.UNIMPLEMENTED
                and problem.details() == f"{method} is not answered here"
            )
            assert "ModelInfer" in from_rpc_error(problem).next_step
        streamed = channel.stream_stream(f"/{SERVICE.full_name}/ModelStreamIn")(iter([b""]))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await streamed.read()
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        no_message = channel.stream_unary(f"/{SERVICE.full_name}/ModelInfer")(iter([]))
        assert (await refused(no_message)).code() is grpc.StatusCode.INVALID_ARGUMENT
        garbage = channel.unary_unary(f"/{SERVICE.full_name}/ModelInfer")(b"\xff\xff\xff")
        assert (await refused(garbage)).code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_message_that_is_too_long_is_refused_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.open_inference.server.MESSAGE_BYTES_MAX", 100_000)
    monkeypatch.setattr("gateway.open_inference.asking.MESSAGE_BYTES_MAX", 1_000)
    async with calling() as (at, stub), program("r1", echo) as replica:
        await at.serve("m", replica)
        request = await refused(stub.ModelInfer(asked(raw=bytes(200_000))))
        assert request.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and not replica.calls
        answer = await refused(stub.ModelInfer(asked(raw=bytes(2_000))))
        assert from_rpc_error(answer).reason is Reason.MESSAGE_TOO_LARGE
        assert (await stub.ModelInfer(asked())).raw_output_contents == [bytes(8)]


@pytest.mark.parametrize(
    ("status", "code"),
    [*CODE_OF.items(), (418, Code.FAILED_PRECONDITION), (599, Code.INTERNAL), (302, Code.UNIMPLEMENTED)],
)
def test_each_status_has_a_code(status: int, code: Code) -> None:
    assert code_of(status) is code


def test_the_page_has_each_status_with_its_code() -> None:
    page = (Path(__file__).parents[3] / "docs" / "predict.md").read_text()
    rows = re.findall(r"^\| `([A-Z_]+)` \| (\d.*) \|$", page, re.MULTILINE)
    assert {int(status): Code[code] for code, said in rows for status in re.findall(r"\b\d{3}\b", said)} == CODE_OF


async def test_a_programs_refusal_is_told_with_its_items_and_when_to_ask_again() -> None:
    said = {"error": "ValueError: bad", "parameters": {"errors": {"0": "ValueError: bad"}, "statuses": {"0": 422}}}
    busy = says("429 Too Many Requests", b'{"error": "1024 items wait already"}', Retry_After="3")
    async with (
        calling() as (at, stub),
        program("r1", says("422 Unprocessable Content", json.dumps(said).encode())) as items,
        program("r2", busy) as full,
        program("r3", says("500 Internal Server Error", b"<html>")) as broken,
        program("r4", says("200 OK", b"<html>")) as page,
    ):
        for name, replica in (("items", items), ("full", full), ("broken", broken), ("page", page)):
            await at.serve(name, replica)
        problem = await refused(stub.ModelInfer(asked("items")))
        assert (problem.code(), problem.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "ValueError: bad")
        info = detail(problem, error_details_pb2.ErrorInfo())
        assert (info.domain, info.reason) == (PROGRAM_DOMAIN, "HTTP_422")
        assert json.loads(info.metadata["statuses"]) == {"0": 422}
        problem = await refused(stub.ModelInfer(asked("full")))
        assert problem.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert detail(problem, error_details_pb2.RetryInfo()).retry_delay.seconds == 3
        problem = await refused(stub.ModelInfer(asked("broken")))
        assert problem.code() is grpc.StatusCode.INTERNAL
        assert problem.details() == "the program broken answered with the status 500"
        problem = await refused(stub.ModelInfer(asked("page")))
        assert problem.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "does not speak the Open Inference Protocol" in (problem.details() or "")


async def test_a_model_is_ready_when_a_replica_says_so() -> None:
    metadata = {"name": "m", "versions": ["1"], "platform": "p", "inputs": [], "outputs": []}
    said = says("200 OK", json.dumps(metadata).encode())
    async with (
        calling() as (at, stub),
        program("r1", said) as ready,
        program("r2", says("503 Service Unavailable", b'{"error": "the model is loading"}')) as loading,
    ):
        await at.serve("m", ready)
        await at.serve("n", loading)
        assert (await stub.ModelReady(pb.ModelReadyRequest(name="m", version="2"))).ready
        assert (ready.calls[-1].method, ready.calls[-1].target) == ("GET", "/v2/models/m/versions/2/ready")
        assert not (await stub.ModelReady(pb.ModelReadyRequest(name="n"))).ready
        found = await stub.ModelMetadata(pb.ModelMetadataRequest(name="m"))
        assert (found.platform, ready.calls[-1].target) == ("p", "/v2/models/m")
        problem = await refused(stub.ModelMetadata(pb.ModelMetadataRequest(name="n")))
        assert (problem.code(), problem.details()) == (grpc.StatusCode.UNAVAILABLE, "the model is loading")


class Held:
    """A program that says when a request has come, and when its caller has left."""

    def __init__(self) -> None:
        self.has_come = asyncio.Event()
        self.is_left = asyncio.Event()

    async def __call__(self, call: Call) -> None:
        call.keeps = False
        try:
            await call.body()
            self.has_come.set()
            await call.is_left()
        finally:  # on a busy machine also before the body has come
            self.is_left.set()


async def test_who_cancels_or_reaches_the_deadline_leaves_the_replica_too() -> None:
    held = Held()
    async with calling() as (at, stub), program("r1", held) as replica:
        await at.serve("m", replica)
        call = stub.ModelInfer(asked())
        async with asyncio.timeout(DEADLINE_SECONDS):
            await held.has_come.wait()
        call.cancel()
        async with asyncio.timeout(DEADLINE_SECONDS):
            await held.is_left.wait()
        assert "x-request-timeout-ms" not in replica.calls[0].text.decode()
        held.is_left.clear()
        # However busy the machine is: the replica answers nothing, and the call ends by its deadline.
        problem = await refused(stub.ModelInfer(asked(), timeout=2))
        assert problem.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        if len(replica.calls) > 1:  # a machine that is too busy sends nothing within the deadline
            assert 1 <= int(replica.calls[1]["x-request-timeout-ms"]) <= 3_000
            async with asyncio.timeout(DEADLINE_SECONDS):
                await held.is_left.wait()
        assert at.grpc is not None
        await until("nothing is held", lambda: not (held_by(at) or at.grpc.service.room.reading))


def held_by(at: Stage) -> Any:
    assert at.grpc is not None
    return at.grpc.service.room.held


async def closes(call: Call) -> None:
    """Takes the request, and breaks off."""
    await call.body()
    call.keeps = False


async def test_a_request_goes_elsewhere_if_no_replica_has_seen_it_and_fails_if_one_has() -> None:
    async with calling() as (at, stub), program("r1", closes) as breaks, program("r2", echo) as good:
        gone = Replica("r0", echo, port=1)
        await at.serve("m", gone, good)
        for _ in range(4):
            assert (await stub.ModelInfer(asked())).raw_output_contents == [bytes(8)]
        await at.serve("n", breaks)
        problem = await refused(stub.ModelInfer(asked("n")))
        assert from_rpc_error(problem).reason is Reason.REPLICA_FAILED
        assert problem.code() is grpc.StatusCode.UNAVAILABLE and len(breaks.calls) == 1


async def test_a_request_waits_for_a_replica_and_one_that_waits_too_long_is_told_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with calling() as (at, stub), program("r1", echo) as replica:
        await at.serve("m")
        waits = stub.ModelInfer(asked())
        await until("it waits", lambda: at.scheduler.reported("m") == (0, 1))
        await at.serve("m", replica)
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert (await waits).raw_output_contents == [bytes(8)]
        monkeypatch.setattr("gateway.proxy.serving.WAIT_S_MAX", 0.0)
        await at.serve("none")
        problem = await refused(stub.ModelInfer(asked("none")))
        assert from_rpc_error(problem).reason is Reason.WORKER_NOT_READY
        assert detail(problem, error_details_pb2.RetryInfo()).retry_delay.seconds >= 1
        assert not (await stub.ModelReady(pb.ModelReadyRequest(name="none"))).ready


async def test_a_program_that_has_failed_is_told_at_once() -> None:
    async with calling() as (at, stub):
        await at.serve("m")
        at.scheduler.models["m"].failure.message = "it ended with exit code 3"
        await at.scheduler.changed()
        problem = await refused(stub.ModelInfer(asked(), metadata=bearer(at.person("ann"))))
        assert from_rpc_error(problem).reason is Reason.MODEL_DOWN
        assert problem.code() is grpc.StatusCode.UNAVAILABLE and "exit code 3" in str(problem.details())
        status = rpc_status.from_call(problem)
        assert not [each for each in status.details if each.Is(error_details_pb2.RetryInfo.DESCRIPTOR)]
        assert not (await stub.ModelReady(pb.ModelReadyRequest(name="m"))).ready


async def test_statistics_say_of_how_many_replicas_they_are() -> None:
    told = says("200 OK", b'{"model_stats": [{"name": "m", "inference_count": 2, "last_inference": 9}]}')
    async with calling() as (at, stub), program("r1", told) as first, program("r2", told) as second:
        await at.serve("m", first, second)
        for others, of_replicas, count in (([second], "2/2", 4), ([], "1/1", 2)):
            await at.serve("m", first, *others)

            async def is_told() -> bool:
                call = stub.ModelStatistics(pb.ModelStatisticsRequest(name="m"))
                (model,) = (await call).model_stats
                metadata = dict(await call.trailing_metadata())
                assert (model.last_inference, metadata["gpufleet-replicas"]) in ((9, "2/2"), (9, "1/1"))
                return (metadata["gpufleet-replicas"], model.inference_count) == (of_replicas, count)  # noqa: B023

            await until(f"it is of {of_replicas}", is_told)


async def test_who_holds_much_is_read_from_once_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "CALLER_BYTES_MAX", 1)
    held = Held()
    async with calling() as (at, stub), program("r1", held) as replica, program("r2", echo) as quick:
        await at.serve("m", replica)
        await at.serve("n", quick)
        first = stub.ModelInfer(asked())
        async with asyncio.timeout(DEADLINE_SECONDS):
            await held.has_come.wait()
        second = asyncio.ensure_future(stub.ModelInfer(asked("n")))
        other = await stub.ModelInfer(asked("n"), metadata=bearer(at.person("ann")))
        assert other.id == "ann" and len(quick.calls) == 1, "somebody else has room of their own"
        first.cancel()
        async with asyncio.timeout(DEADLINE_SECONDS):
            await second
        monkeypatch.setattr(room, "ROOM_S_MAX", 0.0)
        monkeypatch.setattr(room, "CALLER_BYTES_MAX", 0)
        problem = await refused(stub.ModelInfer(asked("n")))
        assert from_rpc_error(problem).reason is Reason.QUOTA_EXCEEDED
        assert detail(problem, error_details_pb2.RetryInfo()).retry_delay.seconds > 0


async def test_an_address_has_so_many_requests_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "ADDRESS_CALLS_MAX", 1)
    held = Held()
    async with calling() as (at, stub), program("r1", held) as replica:
        await at.serve("m", replica)
        first = stub.ModelInfer(asked())
        async with asyncio.timeout(DEADLINE_SECONDS):
            await held.has_come.wait()
        problem = await refused(stub.ModelInfer(asked(), metadata=bearer(at.person("ann"))))
        assert from_rpc_error(problem).reason is Reason.TOO_MANY_STREAMS
        first.cancel()
        async with asyncio.timeout(DEADLINE_SECONDS):
            await held.is_left.wait()
        await until("it is counted no longer", lambda: at.grpc is not None and not at.grpc.service.room.calls)


async def test_a_port_that_is_taken_is_named_with_its_flag() -> None:
    async with calling() as (at, _):
        assert at.grpc is not None
        nothing: Any = None
        with pytest.raises(GpufleetError) as caught:
            Server(GatewaySettings(), at.grpc.address.port, nothing, bool)
        assert caught.value.reason is Reason.PORT_TAKEN and "--grpc-port" in caught.value.next_step
    assert [key for key, _ in GatewaySettings(port=7000, grpc_port=7000).conflicts()] == ["grpc_port"]
    assert not list(GatewaySettings(port=0, grpc_port=0).conflicts())


async def test_health_and_reflection_are_as_at_the_scheduler() -> None:
    async with calling() as (at, _), channel_to(at) as channel:
        for name in ("", SERVICE.full_name):
            said = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=name))
            assert said.status == health_pb2.HealthCheckResponse.SERVING
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        async for answer in stub.ServerReflectionInfo(iter([request])):
            names = {each.name for each in answer.list_services_response.service}
            assert {SERVICE.full_name, "grpc.health.v1.Health"} <= names


async def test_the_states_of_programs_are_the_protocols() -> None:
    from gateway.open_inference.service import _state

    def model(*states: Any, **more: Any) -> sessions_pb2.Model:
        return sessions_pb2.Model(workers=[sessions_pb2.WorkerInfo(state=each) for each in states], **more)

    assert _state(model(inference_pb2.WORKER_STATE_FAILED, inference_pb2.WORKER_STATE_READY)) == ("READY", "")
    assert _state(model(inference_pb2.WORKER_STATE_QUEUED, inference_pb2.WORKER_STATE_STARTING))[0] == "LOADING"
    assert _state(model(inference_pb2.WORKER_STATE_QUEUED))[1] == "a replica waits for a device"
    failed = model(failure=sessions_pb2.ModelFailure(message="/home/bob/x.py is missing"))
    assert _state(failed) == ("UNAVAILABLE", "its replicas fail")
    assert _state(model())[1].startswith("asleep")


def test_calls_that_come_at_once_are_not_cancelled_by_chance() -> None:
    options = channel_options()
    assert options["grpc.server.max_pending_requests"] >= room.CALLS_MAX
    assert options["grpc.server.max_pending_requests_hard_limit"] >= room.CALLS_MAX
