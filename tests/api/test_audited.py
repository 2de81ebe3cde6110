"""What is written down of every call of the contract, and what a real scheduler tells of who did what."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp
from gpufleet.v1 import job_pb2, node_agent_pb2, scheduler_pb2, sessions_pb2

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.passed_on import CLIENT_ADDRESS, PASSED_ON_BY, passed_on
from gpufleet.net.refusing import refuse
from gpufleet.security.tokens import make_token
from scheduler.api.audited_calls import AUDITED_RPCS, About, Kept
from scheduler.api.auditing import AuditInterceptor
from scheduler.state.audited import AuditedCall
from tests.api.calls import METHODS, Caller
from tests.api.test_roles import make
from tests.e2e.client import Client, refusal
from tests.e2e.fleet import Fleet
from tests.store.samples import at

s = scheduler_pb2

CHANGING = {
    *("Submit", "Ingest", "Cancel", "UpdateJob", "SignalJob", "RequeueJob"),
    *("AttachJob", "ForwardPort", "ExecJob", "AccessFiles", "KeepFiles"),
    *("UpdateNode", "ForgetNode", "ApproveNode", "RevokeNode", "UpdateServer", "Register"),
    *("ServeModel", "StopModel", "OpenSession", "CloseSession", "DrainWorker", "ConnectWorker"),
    *("UploadBlob", "CheckFiles", "CreateToken", "JoinProgram", "RevokeToken", "SetSecret", "RemoveSecret"),
    *("Login", "Logout", "SetGroup", "RenameGroup", "RemoveGroup"),
}
"""What somebody does to something, written by hand; what is not here only reads, or is a program's routine."""


@dataclass
class FakeLog:
    """Keeps what is taken down."""

    calls: list[AuditedCall] = field(default_factory=list)
    counted: list[bool] = field(default_factory=list)

    def now(self) -> Any:
        return at(1)

    def add(self, call: AuditedCall, *, counts_alike: bool = False) -> None:
        self.calls.append(call)
        self.counted.append(counts_alike)


class FakeContext:
    """What a handler is given."""

    def peer(self) -> str:
        return "ipv4:10.0.0.7:5000"

    async def abort_with_status(self, status: Any) -> None:
        raise grpc.aio.AbortError


NO_GATEWAY: Any = SimpleNamespace(known=lambda secret: (_ for _ in ()).throw(GpufleetError(Reason.TOKEN_INVALID)))


async def served(name: str, error: GpufleetError | None) -> FakeLog:
    """What is taken down of a call of nobody's that a handler refuses, or answers."""
    return await asyncio.create_task(_served(name, error), context=contextvars.Context())


async def _served(name: str, error: GpufleetError | None) -> FakeLog:
    method, log = METHODS[name], FakeLog()
    interceptor: Any = AuditInterceptor(log, NO_GATEWAY)  # type: ignore[arg-type]
    request = GetMessageClass(method.input_type)()

    async def answered(asked: Any, context: Any) -> Any:
        if method.client_streaming:
            async for _ in asked:
                pass
        if error is not None:
            await refuse(context, error, asked)
        return GetMessageClass(method.output_type)()

    async def told(asked: Any, context: Any) -> AsyncIterator[Any]:
        yield await answered(asked, context)

    async def one() -> AsyncIterator[Any]:
        yield request

    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    function = told if method.server_streaming else answered
    handler = getattr(grpc, f"{kind}_rpc_method_handler")(function)

    async def go_on(details: Any) -> Any:
        return handler

    details = SimpleNamespace(method=f"/gpufleet.v1.{name}", invocation_metadata=())
    audited = getattr(await interceptor.intercept_service(go_on, details), kind)
    asked = one() if method.client_streaming else request
    try:
        if method.server_streaming:
            async for _ in audited(asked, FakeContext()):
                pass
        else:
            await audited(asked, FakeContext())
    except grpc.aio.AbortError:
        assert error is not None
    return log


def test_the_table_has_a_row_for_every_call_and_a_reason_for_each_that_is_left_out() -> None:
    assert set(AUDITED_RPCS) == set(METHODS)
    written = {name.partition("/")[2] for name, rpc in AUDITED_RPCS.items() if rpc.kept is not Kept.REFUSED}
    assert written == CHANGING
    assert not [name for name, rpc in AUDITED_RPCS.items() if rpc.kept is Kept.REFUSED and not rpc.why]


@pytest.mark.parametrize("name", METHODS)
async def test_a_row_says_what_a_call_is_and_how_it_ended_and_is_there_once(name: str) -> None:
    call = name.partition("/")[2]
    for error in (GpufleetError(Reason.PERMISSION_DENIED), GpufleetError(Reason.TOKEN_MISSING)):
        (refused,) = (await served(name, error)).calls
        assert (refused.call, refused.code, refused.reason) == (call, error.code.name, error.reason.name)
        assert (refused.peer, refused.user, refused.message) == ("10.0.0.7", "", error.message)
    failed = (await served(name, GpufleetError(Reason.INVALID_ARGUMENT, "said with a value"))).calls
    assert [(each.code, each.message) for each in failed] == [("INVALID_ARGUMENT", "")] * (call in CHANGING)
    done = await served(name, None)
    assert [(each.call, each.code) for each in done.calls] == [(call, "OK")] * (call in CHANGING)
    assert done.counted == [AUDITED_RPCS[name].kept is Kept.ALIKE_ONCE] * len(done.calls)


@pytest.mark.parametrize(
    "name", [name for name in METHODS if METHODS[name].server_streaming and name.partition("/")[2] in CHANGING]
)
async def test_a_stream_that_is_closed_behind_its_end_is_written_down_without_asking_the_call(name: str) -> None:
    class Context(FakeContext):
        is_over = False

        def peer(self) -> str:
            assert not self.is_over, "gRPC's own ends the program by SIGSEGV"
            return super().peer()

    async def told(asked: Any, context: Any) -> AsyncIterator[Any]:
        while True:
            yield GetMessageClass(METHODS[name].output_type)()

    async def go_on(details: Any) -> Any:
        return grpc.stream_stream_rpc_method_handler(told)

    context, log = Context(), FakeLog()
    interceptor: Any = AuditInterceptor(log, NO_GATEWAY)  # type: ignore[arg-type]
    details = SimpleNamespace(method=f"/gpufleet.v1.{name}", invocation_metadata=())
    stream = (await interceptor.intercept_service(go_on, details)).stream_stream(None, context)
    await anext(stream)
    context.is_over = True
    await stream.aclose()
    assert [(each.code, each.peer) for each in log.calls] == [("CANCELLED", "10.0.0.7")]


async def test_a_fault_in_what_reads_a_request_is_none_of_the_calls(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*messages: Any) -> About:
        raise ValueError("no such number")

    for name in ("Scheduler/Cancel", "Scheduler/UpdateNode"):
        came = None if AUDITED_RPCS[name].came is None else fails
        monkeypatch.setitem(AUDITED_RPCS, name, replace(AUDITED_RPCS[name], about=fails, came=came))
        (done,) = (await served(name, None)).calls
        (refused,) = (await served(name, GpufleetError(Reason.NOT_YOUR_JOB))).calls
        assert (done.code, done.target, refused.reason) == ("OK", "", "NOT_YOUR_JOB")
    assert "without what it is about" in caplog.text


SECRET_VALUE = "nobody may read this"


def filled(message: Any, depth: int = 0) -> Any:
    """A message with something in every field: long texts with control characters, and numbers that no enum has.

    A field mask names every field.
    """
    if message.DESCRIPTOR.full_name == "google.protobuf.FieldMask":
        message.paths.extend(["band", "is_held", "time_limit", "name", "x" * 1_000_000])
        return message
    for each in message.DESCRIPTOR.fields:
        if each.message_type is not None:
            if each.message_type.GetOptions().map_entry:
                value = each.message_type.fields_by_name["value"]
                if value.type == value.TYPE_STRING:
                    getattr(message, each.name)["KEY"] = SECRET_VALUE
            elif depth < 3:
                filled(
                    getattr(message, each.name).add() if each.is_repeated else getattr(message, each.name), depth + 1
                )
        elif each.type == each.TYPE_STRING:
            is_kept_secret = each.name in ("value", "secret", "digest", "note", "argv", "command")
            text = SECRET_VALUE if is_kept_secret else "name\n\x1b[31m" + "x" * (1_000_000 if depth == 0 else 300)
            if each.is_repeated:
                getattr(message, each.name).append(text)
            elif each.containing_oneof is None or message.WhichOneof(each.containing_oneof.name) is None:
                setattr(message, each.name, text)
        elif each.type == each.TYPE_BYTES and not each.is_repeated:
            if each.containing_oneof is None:
                setattr(message, each.name, SECRET_VALUE.encode())
        elif each.type == each.TYPE_ENUM and each.containing_oneof is None:
            getattr(message, each.name).append(99) if each.is_repeated else setattr(message, each.name, 99)
        elif each.type in (each.TYPE_INT64, each.TYPE_INT32) and each.containing_oneof is None:
            getattr(message, each.name).append(41) if each.is_repeated else setattr(message, each.name, 41)
    return message


@pytest.mark.parametrize("name", METHODS)
def test_of_what_a_request_holds_only_bounded_names_get_into_a_row_and_no_value(name: str) -> None:
    method, rpc = METHODS[name], AUDITED_RPCS[name]
    request = filled(GetMessageClass(method.input_type)())
    answer = filled(GetMessageClass(method.output_type)())
    told = [rpc.about(request), rpc.about(GetMessageClass(method.input_type)())]
    if rpc.came is not None:
        told += [rpc.came(request, answer), rpc.came(request, GetMessageClass(method.output_type)())]
    for about in told:
        for text in (about.target, about.detail):
            assert text.isprintable(), text
            assert len(text) <= 1_000
            assert SECRET_VALUE not in text
        assert all(0 < first <= last for first, last in about.jobs)


@pytest.mark.parametrize(
    ("name", "request_", "about"),
    [
        ("Cancel", s.CancelRequest(jobs={"job_ids": [44, 41, 42]}), About([(41, 42), (44, 44)])),  # type: ignore[arg-type]
        ("Cancel", s.CancelRequest(jobs={"all_mine": True}, reason="r"), About([], "all jobs of the caller", "r")),  # type: ignore[arg-type]
        ("Cancel", s.CancelRequest(jobs={"name": "train"}), About([], "job named train")),  # type: ignore[arg-type]
        (
            "UpdateJob",
            s.UpdateJobRequest(jobs={"job_ids": [1]}, is_held=True, update_mask={"paths": ["is_held", "name"]}),  # type: ignore[arg-type]
            About([(1, 1)], "", "held, name"),
        ),
        ("SignalJob", s.SignalJobRequest(jobs={"job_ids": [1]}, signal=15), About([(1, 1)], "", "signal 15")),  # type: ignore[arg-type]
        (
            "UpdateNode",
            s.UpdateNodeRequest(node="n1", is_draining=True, reason="disk"),
            About([], "node n1", "drain: disk"),
        ),
        ("UpdateNode", s.UpdateNodeRequest(node="n1"), About([], "node n1", "resume")),
        ("UpdateServer", s.UpdateServerRequest(log_level="debug"), About([], "", "log level debug")),
        ("ServeModel", sessions_pb2.ServeModelRequest(model={"name": "echo"}), About([], "model echo")),  # type: ignore[arg-type]
        ("CloseSession", sessions_pb2.CloseSessionRequest(id="7", reason="r"), About([], "session 7", "r")),
        ("CreateToken", s.CreateTokenRequest(user="bob", role=s.ROLE_USER), About([], "user bob", "role user")),
        ("CreateToken", s.CreateTokenRequest(user="bob", role=99), About([], "user bob", "role 99")),  # type: ignore[arg-type]
        ("RevokeToken", s.RevokeTokenRequest(id="ab12"), About([], "token ab12")),
        ("SetSecret", s.SetSecretRequest(name="hub", value="v"), About([], "secret hub")),
        ("SetSecret", s.SetSecretRequest(name="hub", value="v", user="bob"), About([], "secret hub of bob")),
        ("SetGroup", s.SetGroupRequest(name="ml", gpus_max=1), About([], "group ml")),
        ("RenameGroup", s.RenameGroupRequest(name="ml", new_name="nlp"), About([], "group ml")),
        ("Submit", s.SubmitRequest(specs=[{"name": "train"}]), About([], "", "train")),  # type: ignore[list-item]
        ("Submit", s.SubmitRequest(rerun_failed_job_id=7), About([(7, 7)], "", "what failed, again")),
        ("GetJob", s.GetJobRequest(job_id=41), About([(41, 41)])),
        ("Register", node_agent_pb2.RegisterRequest(node="n1"), About([], "node n1")),
    ],
)
def test_what_a_request_is_about(name: str, request_: Any, about: About) -> None:
    (full,) = [each for each in METHODS if each.endswith(f"/{name}")]
    assert AUDITED_RPCS[full].about(request_) == about


def test_submitted_jobs_are_named_by_their_numbers_and_an_array_with_its_items() -> None:
    rpc = AUDITED_RPCS["Scheduler/Submit"]
    assert rpc.came is not None
    many = s.SubmitResponse(first_job_id=41, count=10)
    assert rpc.came(s.SubmitRequest(), many) == About([(41, 50)], "", "10 jobs")
    array = s.SubmitResponse(
        first_job_id=41,
        count=1,
        job=job_pb2.Job(spec={"name": "sweep"}, array_counts={"items": 3}),  # type: ignore[arg-type]
    )
    assert rpc.came(s.SubmitRequest(), array) == About([(41, 44)], "", "sweep")


# --- of a real scheduler


async def entries(client: Client, **asked: Any) -> list[s.AuditEntry]:
    answer = await client.stub.ListAuditEntries(s.ListAuditEntriesRequest(page_size=1_000, **asked))
    return list(answer.entries)


@asynccontextmanager
async def somebody(fleet: Fleet, admin: Client, name: str) -> AsyncIterator[tuple[Client, s.Token]]:
    """A user of their own, so that what others do in this fleet does not matter."""
    made = await admin.stub.CreateToken(s.CreateTokenRequest(user=name, role=s.ROLE_USER))
    async with fleet.client(made.secret) as client:
        yield client, made.token


async def test_an_entry_says_who_did_what_from_where_and_how_it_ended(fleet: Fleet, admin: Client) -> None:
    async with somebody(fleet, admin, "audited-ann") as (ann, token), somebody(fleet, admin, "audited-bob") as (bob, _):
        job = await ann.submit("true", is_held=True, name="train")
        with pytest.raises(grpc.aio.AioRpcError):
            await bob.cancel(job)
        await ann.stub.Submit(s.SubmitRequest(specs=[ann.spec("true")], dry_run=True))
        await ann.cancel(job, reason="not\nneeded")
        cancelled, submitted = await entries(admin, user="audited-ann")
        assert (submitted.action, submitted.target, submitted.sentence) == ("Submit", f"job {job}", "train")
        assert (submitted.user, submitted.role, submitted.token) == ("audited-ann", "user", token.id)
        assert (submitted.peer, submitted.passed_on_by, submitted.code) == ("127.0.0.1", "", "OK")
        assert (cancelled.action, cancelled.sentence) == ("Cancel", "not needed")
        (refused,) = await entries(admin, user="audited-bob")
        assert (refused.action, refused.target) == ("Cancel", f"job {job}")
        assert (refused.code, refused.reason) == ("PERMISSION_DENIED", "NOT_YOUR_JOB")
        assert f"job {job}" in refused.message
        by_job = await entries(admin, target=f"job:{job}")
        assert [each.action for each in by_job] == ["Cancel", "Cancel", "Submit"]
        assert await entries(admin, target=f"job {job}", only_refused=True) == [refused]
        assert await entries(admin, user="audited-ann", call="Cancel") == [cancelled]
        later = Timestamp()
        later.FromMicroseconds(cancelled.time.ToMicroseconds() + 1)
        assert await entries(admin, user="audited-ann", since_time=cancelled.time) == [cancelled]
        assert await entries(admin, user="audited-ann", since_time=later) == []
        assert await entries(admin, user="audited-ann", after_sequence=submitted.sequence) == [cancelled]


async def test_pages_follow_each_other_and_a_token_is_of_its_own_question(fleet: Fleet, admin: Client) -> None:
    async with somebody(fleet, admin, "audited-cat") as (cat, _):
        jobs = [await cat.submit("true", is_held=True) for _ in range(5)]
        await cat.cancel(*jobs)
        asked = s.ListAuditEntriesRequest(user="audited-cat", page_size=2)
        found = []
        while True:
            page = await admin.stub.ListAuditEntries(asked)
            assert len(page.entries) <= 2
            found += [each.target for each in page.entries]
            if not page.next_page_token:
                break
            asked.page_token = page.next_page_token
        spans = f"jobs {jobs[0]}-{jobs[-1]}"
        assert found == [spans, *(f"job {job}" for job in reversed(jobs))]
        asked.call = "Submit"
        assert (await refusal(admin.stub.ListAuditEntries(asked))).reason is Reason.PAGE_TOKEN_INVALID
        assert [each.action for each in await entries(admin, target=f"job {jobs[2]}")] == ["Cancel", "Submit"]


async def test_who_is_no_admin_sees_themselves_and_what_was_done_to_their_own_jobs(fleet: Fleet, admin: Client) -> None:
    async with somebody(fleet, admin, "audited-dan") as (dan, _), somebody(fleet, admin, "audited-eve") as (eve, _):
        job = await dan.submit("true", is_held=True)
        await admin.cancel(job)
        assert {each.user for each in await entries(dan)} == {"audited-dan"}
        by_admin, by_dan = await entries(dan, target=f"job {job}")
        assert (by_dan.peer, by_dan.user) == ("127.0.0.1", "audited-dan")
        assert by_admin.action == "Cancel" and by_admin.user and not by_admin.peer and not by_admin.token
        error = await refusal(eve.stub.ListAuditEntries(s.ListAuditEntriesRequest(user="audited-dan")))
        assert error.reason is Reason.PERMISSION_DENIED and "gpuctl audit" in error.next_step
        error = await refusal(eve.stub.ListAuditEntries(s.ListAuditEntriesRequest(target=f"job {job}")))
        assert error.reason is Reason.NOT_YOUR_JOB
        assert [each.action for each in await entries(eve)] == ["ListAuditEntries"] * 2
        viewer = (await make(admin, "viewer")).secret
        async with fleet.client(viewer) as client:
            error = await refusal(client.stub.ListAuditEntries(s.ListAuditEntriesRequest()))
            assert error.reason is Reason.PERMISSION_DENIED


@pytest.mark.parametrize(
    ("asked", "field_"),
    [
        (s.ListAuditEntriesRequest(call="Sumbit"), "call"),
        (s.ListAuditEntriesRequest(call="x" * 1_000_000), "call"),
        (s.ListAuditEntriesRequest(user="x" * 1_000_000), "user"),
        (s.ListAuditEntriesRequest(target="x" * 1_000_000), "target"),
        (s.ListAuditEntriesRequest(after_sequence=-1), "after_sequence"),
        (s.ListAuditEntriesRequest(since_time={"seconds": 1 << 60}), "since_time"),  # type: ignore[arg-type]
        (s.ListAuditEntriesRequest(page_size=-1), "page_size"),
    ],
)
async def test_a_wrong_question_is_refused_with_its_field(
    admin: Client, asked: s.ListAuditEntriesRequest, field_: str
) -> None:
    error = await refusal(admin.stub.ListAuditEntries(asked))
    assert [each.field for each in error.violations] == [field_]
    assert error.next_step and len(error.message) < 300


async def test_a_flood_of_wrong_tokens_is_a_few_entries(fleet: Fleet, admin: Client, caller: Caller) -> None:
    before = (await entries(admin, only_refused=True))[:1]
    after = before[0].sequence if before else 0
    for _ in range(300):
        assert await caller.reason("Scheduler/Queue", token=make_token()) is Reason.TOKEN_INVALID
    found = await entries(admin, only_refused=True, after_sequence=after)
    assert len([each for each in found if each.reason == "TOKEN_INVALID" and each.count == 1]) < 250
    assert not [each for each in found if each.user and each.reason == "TOKEN_INVALID"]


async def test_an_address_is_believed_of_a_gateway_alone(fleet: Fleet, admin: Client, caller: Caller) -> None:
    gateway = fleet.scheduler.token("gateway")
    address = "203.0.113.9"
    async with somebody(fleet, admin, "audited-fay") as (fay, _):
        job = await fay.submit("true", is_held=True)
        made = await admin.stub.CreateToken(s.CreateTokenRequest(user="audited-fay", role=s.ROLE_USER))
        authorization = ("authorization", f"Bearer {made.secret}")
        call = caller.channel.unary_unary("/gpufleet.v1.Scheduler/Cancel")
        asked = s.CancelRequest(jobs={"job_ids": [job]}).SerializeToString()  # type: ignore[arg-type]
        for said in (
            (("x-forwarded-for", address), ("forwarded", f"for={address}")),
            ((CLIENT_ADDRESS, address),),
            passed_on(address, made.secret),
            passed_on(address, make_token()),
            ((CLIENT_ADDRESS, "not an address\n"[:-1]), (PASSED_ON_BY, f"Bearer {gateway}")),
        ):
            await call(asked, metadata=(authorization, *said))
        forged = [each for each in await entries(admin, user="audited-fay") if each.action == "Cancel"]
        assert [(each.peer, each.passed_on_by) for each in forged] == [("127.0.0.1", "")] * 5
        await call(asked, metadata=(authorization, *passed_on(address, gateway)))
        newest = (await entries(admin, user="audited-fay"))[0]
        assert (newest.peer, newest.user, newest.token) == (address, "audited-fay", made.token.id)
        assert newest.passed_on_by.endswith(" at 127.0.0.1")


async def test_nodes_and_programs_are_told_by_their_credentials(fleet: Fleet, admin: Client) -> None:
    registered = await entries(admin, call="Register", target="node n1")
    assert registered and registered[-1].code == "OK"
    assert registered[-1].role in ("agent", "node")
