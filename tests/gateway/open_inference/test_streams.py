"""Streams of requests through a gateway in this process: order, errors of single ones, and what bounds them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
from gpufleet.v1.open_inference import open_inference_pb2 as pb

from gateway.open_inference import room, streaming
from gpufleet.errors import Reason
from gpufleet.net.channel import bearer
from gpufleet.net.status import from_rpc_error
from tests.e2e.processes import DEADLINE_SECONDS, until
from tests.gateway.open_inference.test_calls import LOGIN, Held, asked, calling, echo, held_by, says
from tests.gateway.proxy.stage import Call, Stage, program
from tests.gateway.proxy.test_gpu_choice import serve as serve_with_cpu_model


def numbered(number: int, model: str = "m", raw: bytes = bytes(8)) -> pb.ModelInferRequest:
    request = asked(model, raw)
    request.id = str(number)
    return request


async def next_of(call: Any) -> Any:
    async with asyncio.timeout(DEADLINE_SECONDS):
        return await call.read()


async def ended(call: Any) -> grpc.aio.AioRpcError:
    """What a stream ends with."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        while await next_of(call) is not grpc.aio.EOF:
            pass
    return caught.value


def is_nothing_held(at: Stage) -> bool:
    assert at.grpc is not None
    of = at.grpc.service.room
    return not (of.held or of.streams or of.calls or of.reading)


class Turned:
    """A program that answers its first request after its second one."""

    def __init__(self) -> None:
        self.has_second = asyncio.Event()
        self.answered: list[str] = []

    async def __call__(self, call: Call) -> None:
        body = await call.body()
        size = int(call.head["inference-header-content-length"])
        said = json.loads(body[:size])
        if said["id"] == "0":
            await self.has_second.wait()
        self.answered.append(said["id"])
        self.has_second.set()
        head = json.dumps({"model_name": "m", "id": said["id"], "outputs": said["inputs"]}).encode()
        await call.reply(head + body[size:], headers={"Inference-Header-Content-Length": str(len(head))})


async def test_requests_are_computed_side_by_side_and_answered_in_their_order() -> None:
    turned = Turned()
    async with calling() as (at, stub), program("r1", turned) as replica:
        await at.serve("m", replica)
        call = stub.ModelStreamInfer()
        for number in range(3):
            await call.write(numbered(number))
        answers = [await next_of(call) for _ in range(3)]
        assert [each.infer_response.id for each in answers] == ["0", "1", "2"] and not answers[0].error_message
        assert answers[0].infer_response.raw_output_contents == [bytes(8)]
        assert turned.answered[0] != "0"
        await call.done_writing()
        assert await next_of(call) is grpc.aio.EOF and await call.code() is grpc.StatusCode.OK
        await until("nothing is held", lambda: is_nothing_held(at))


async def test_each_request_has_an_error_of_its_own_and_the_stream_goes_on() -> None:
    busy = says("429 Too Many Requests", b'{"error": "1024 items wait already"}', Retry_After="3")
    async with calling() as (at, stub), program("r1", echo) as replica, program("r2", busy) as full:
        await at.serve("m", replica)
        await at.serve("closed", replica, access=LOGIN)
        await at.serve("full", full)
        wrong = numbered(1)
        wrong.inputs.add(name="y", datatype="FP32", shape=[1])

        async def requests() -> AsyncIterator[pb.ModelInferRequest]:
            for each in (wrong, numbered(2, "full"), numbered(3, "nope"), numbered(4, "closed"), numbered(5)):
                yield each

        answers = [each async for each in stub.ModelStreamInfer(requests())]
    told = [(each.infer_response.id, each.infer_response.parameters["code"].string_param) for each in answers[:4]]
    assert told == [
        ("1", "INVALID_ARGUMENT"),
        ("2", "RESOURCE_EXHAUSTED"),
        ("3", "NOT_FOUND"),
        ("4", "UNAUTHENTICATED"),
    ]
    assert answers[0].error_message.startswith("[request id: 1] raw_input_contents: has 1 tensors")
    assert answers[1].error_message == "[request id: 2] 1024 items wait already"
    assert answers[1].infer_response.model_name == "full"
    assert answers[4].infer_response.raw_output_contents == [bytes(8)] and not answers[4].error_message


async def test_a_message_that_is_no_request_is_told_so_in_the_stream() -> None:
    async with calling() as (at, _), program("r1", echo) as replica:
        await at.serve("m", replica)
        assert at.grpc is not None
        async with grpc.aio.insecure_channel(str(at.grpc.address)) as raw:
            path: Any = raw.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
            answers = [pb.ModelStreamInferResponse.FromString(each) async for each in path(iter([b"\xff\xff"]))]
        assert "is no ModelInferRequest" in answers[0].error_message and len(answers) == 1


async def test_who_cancels_a_stream_leaves_the_replicas() -> None:
    held = Held()
    async with calling() as (at, stub), program("r1", held) as replica:
        await at.serve("m", replica)
        call = stub.ModelStreamInfer()
        await call.write(numbered(1))
        async with asyncio.timeout(DEADLINE_SECONDS):
            await held.has_come.wait()
        assert held_by(at)
        call.cancel()
        async with asyncio.timeout(DEADLINE_SECONDS):
            await held.is_left.wait()
        await until("nothing is held", lambda: is_nothing_held(at))


async def test_a_stream_has_so_many_requests_under_way_and_reads_on_when_one_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streaming, "REQUESTS_MAX", 2)
    begun, let_go = asyncio.Semaphore(0), asyncio.Semaphore(0)

    async def answer(call: Call) -> None:
        begun.release()
        await let_go.acquire()
        await echo(call)

    async with calling() as (at, stub), program("r1", answer) as replica:
        await at.serve("m", replica)
        call = stub.ModelStreamInfer()
        for number in range(4):
            await call.write(numbered(number))
        async with asyncio.timeout(DEADLINE_SECONDS):
            await begun.acquire()
            await begun.acquire()
        assert len(replica.calls) == 2
        let_go.release()
        let_go.release()
        await next_of(call)
        async with asyncio.timeout(DEADLINE_SECONDS):
            await begun.acquire()
        let_go.release()
        let_go.release()
        await call.done_writing()
        assert [await next_of(call) is grpc.aio.EOF for _ in range(4)] == [False, False, False, True]


async def test_streams_are_so_many_of_a_caller_and_one_that_is_idle_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "CALLER_STREAMS_MAX", 1)
    async with calling() as (at, stub), program("r1", echo) as replica:
        await at.serve("m", replica)
        first = stub.ModelStreamInfer()
        await first.write(numbered(1))
        assert (await next_of(first)).infer_response.raw_output_contents
        refused = from_rpc_error(await ended(stub.ModelStreamInfer()))
        assert refused.reason is Reason.TOO_MANY_STREAMS and refused.retry_after_s
        ann = stub.ModelStreamInfer(metadata=bearer(at.person("ann")))
        await ann.write(numbered(2))
        assert (await next_of(ann)).infer_response.id == "ann", "somebody else has streams of their own"
        ann.cancel()
        first.cancel()
        await until("nothing is held", lambda: is_nothing_held(at))
        monkeypatch.setattr(streaming, "IDLE_S_MAX", 0.05)
        idle = await ended(stub.ModelStreamInfer())
        assert idle.code() is grpc.StatusCode.DEADLINE_EXCEEDED and "no request came" in str(idle.details())


async def test_answers_that_nobody_reads_are_held_as_the_callers_and_stop_the_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    big = bytes(8_000_000)
    monkeypatch.setattr(room, "CALLER_BYTES_MAX", 30_000_000)
    async with calling() as (at, _), program("r1", echo) as replica:
        await at.serve("m", replica)
        assert at.grpc is not None
        of = at.grpc.service.room
        options = [("grpc.max_receive_message_length", -1)]
        async with grpc.aio.insecure_channel(str(at.grpc.address), options=options) as channel:
            call: Any = channel.stream_stream(
                "/inference.GRPCInferenceService/ModelStreamInfer",
                request_serializer=pb.ModelInferRequest.SerializeToString,
                response_deserializer=pb.ModelStreamInferResponse.FromString,
            )()

            async def write() -> None:
                for number in range(8):
                    await call.write(numbered(number, raw=big))
                await call.done_writing()

            writing = asyncio.create_task(write())
            await until("the caller's room is full", lambda: sum(of.held.values()) >= 30_000_000)
            assert len(replica.calls) < 8
            sizes = []
            while (said := await next_of(call)) is not grpc.aio.EOF:
                sizes.append(len(said.infer_response.raw_output_contents[0]))
            await writing
        assert sizes == [len(big)] * 8
        await until("nothing is held", lambda: is_nothing_held(at))


async def test_an_answer_of_the_cpu_model_says_why_it_is() -> None:
    async with calling() as (at, stub), program("c", echo) as cpu:
        await at.serve("slow", cpu)
        await serve_with_cpu_model(at, lacks_gpu_nodes=True)
        metadata = (("gpufleet-gpu-mode", "preferred"),)
        answer = await stub.ModelInfer(asked("faces"), metadata=metadata)
        assert answer.parameters["gpufleet_fell_back"].string_param == "NO_GPU_NODE"
        call = stub.ModelStreamInfer(metadata=metadata)
        await call.write(numbered(1, "faces"))
        streamed = (await next_of(call)).infer_response
        assert streamed.parameters["gpufleet_fell_back"].string_param == "NO_GPU_NODE"
        await call.done_writing()
        assert await next_of(call) is grpc.aio.EOF
        assert not (await stub.ModelInfer(asked("slow"))).parameters
