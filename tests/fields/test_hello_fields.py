"""No field of what workers, gateways and browsers say first is dropped in silence."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
from gpufleet.v1 import inference_pb2, sessions_pb2

from gateway import lines, protocol, turn
from gateway.person import Person
from gpufleet.errors import GpufleetError
from gpufleet.net.addresses import Address
from gpufleet.net.channel import Target
from gpufleet.security.pass_phrases import hash_pass_phrase
from gpufleet.security.tickets import make_place_key
from inference.joining import Joining as WorkersJoining
from scheduler.api.fleet.scheduler_runs import connected_gateway
from scheduler.api.roles import Caller, _caller
from scheduler.api.sessions import sessions
from scheduler.api.sessions.joining import Joining
from scheduler.session_links import GatewayLink, Outbox
from scheduler.state.access import Role
from scheduler.state.attempts import Attempt, Placement, Rank
from scheduler.state.ids import NodeName, TokenId, UserName
from scheduler.state.sessions.session import Access
from scheduler.state.units import Instant
from tests.fields.filled import paths, unheard, unsaid_of

NOW = Instant(0)


async def messages(*said: Any) -> AsyncIterator[Any]:
    """A stream that ends behind these."""
    for each in said:
        yield each


class Written:
    """A call that takes what is written."""

    async def write(self, message: Any) -> None:
        """Take it."""


class Engine:
    """An engine that keeps what is posted."""

    def __init__(self, view: Any = None) -> None:
        self.events: list[object] = []
        self.view = view

    def now(self) -> Instant:
        return NOW

    def report(self, event: object) -> Any:
        self.events.append(event)

    def request(self, event: object) -> Any:
        self.events.append(event)
        return asyncio.get_running_loop().create_future()


# --- a worker's first message

CERTIFICATE = ssl.DER_cert_to_PEM_cert(b"certificate")
OF_LAUNCH = {"attempt": "of a launch only, with job_id, which is refused here"}


def hello_heard(hello: sessions_pb2.WorkerHello, job: Any) -> tuple[object, object]:
    """What the stream keeps of a hello with the token of a job or of a person, and what the state is told."""
    kept: list[object] = []

    def join_worker(*given: object, **more: object) -> object:
        kept.extend((given, more))
        return SimpleNamespace(worker=given[0], number=1, outbox=Outbox())

    links = SimpleNamespace(
        join_worker=join_worker,
        leave_worker=lambda link: None,
        speaker_of=lambda worker: None,
        is_closed=False,
        secrets=SimpleNamespace(ticket_secret=lambda key: f"secret of {key}".encode()),
    )
    models = {name: SimpleNamespace(owner="ada") for name in ("canvas", "other")}
    engine = Engine(SimpleNamespace(durable=SimpleNamespace(models=models, tokens={})))
    calls: Any = object.__new__(sessions.SessionCalls)
    calls.engine, calls.session_links = engine, links
    _caller.set(Caller(UserName("ada"), Role.ADMIN, TokenId("t"), job))
    method: Any = sessions.SessionCalls.ConnectWorker
    request = sessions_pb2.ConnectWorkerRequest(hello=hello)
    try:
        asyncio.run(method.__wrapped__(calls, messages(request), Written()))
    except GpufleetError as refused:
        return str(refused), str(refused)
    return kept, engine.events


def test_every_field_of_a_workers_hello_is_heard() -> None:
    base = sessions_pb2.WorkerHello(model="canvas", endpoint="h:1", worker_start="w", ticket_secret=b"s" * 32)
    values: dict[str, Any] = {"model": "other", "ticket_secret": b"t" * 32, "certificate": CERTIFICATE}
    values["local_key"] = b"k" * 32
    kept = {"model": "the state's"}
    kept["worker_version"] = "the state's"
    told = {
        "ticket_secret": "the stream's alone: it signs tickets",
        "local_key": "the stream's alone: gateways alone are told",
    }
    assert not unheard(lambda hello: hello_heard(hello, None)[0], base, values=values, exceptions={**kept, **OF_LAUNCH})
    assert not unheard(lambda hello: hello_heard(hello, None)[1], base, values=values, exceptions={**told, **OF_LAUNCH})
    placed = Placement(node=NodeName("n1"), agent_id="a", boot_id="b")
    attempt = Attempt(number=2, placed_at=Instant(0), ranks=(Rank(placement=placed),))
    job: Any = SimpleNamespace(id=3, attempt=attempt, spec=SimpleNamespace(serves="canvas"))
    base = sessions_pb2.WorkerHello(model="canvas", endpoint="h:1", worker_start="w", job_id=3, attempt=2)
    values |= {"job_id": 4, "attempt": 5}
    assert not unheard(lambda hello: hello_heard(hello, job), base, values=values)
    assert "secret of 3/2" in str(hello_heard(base, job))


def test_a_workers_hello_says_all_that_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUFLEET_JOB_ID", "3")
    monkeypatch.setenv("GPUFLEET_ATTEMPT", "2")
    joining: Any = object.__new__(WorkersJoining)
    joining.endpoint, joining.certificate, joining.secret = "h:1", "PEM", b"s" * 32
    joining.local_key, joining.version = b"k" * 32, "1.2.3"
    joining.schedulers = (Address("127.0.0.1"),)
    joining._given = SimpleNamespace(worker_id="w1", device="cpu")
    said: dict[str, object] = {}
    for joining.is_launched in (False, True):
        link = joining.link(SimpleNamespace(), model="mine", start="this one")
        said |= {field.name: value for field, value in link._hello().ListFields()}
    assert said == {
        "model": "mine",
        "endpoint": "h:1",
        "job_id": 3,
        "attempt": 2,
        "ticket_secret": b"s" * 32,
        "worker_start": "this one",
        "certificate": "PEM",
        "local_key": b"k" * 32,
        "worker_version": "1.2.3",
    }
    assert set(said) == set(sessions_pb2.WorkerHello.DESCRIPTOR.fields_by_name)


# --- what a gateway says of a person, and what lets that person in

KEY = make_place_key()
PHRASE = hash_pass_phrase("pass_phrase")


def people_heard(request: sessions_pb2.OpenSessionRequest) -> object:
    """What the scheduler makes of a message about a person, and what it answers."""

    async def read() -> object:
        models = {
            name: SimpleNamespace(limits=SimpleNamespace(access=access, pass_phrase_hash=PHRASE))
            for name, access in (("open", Access.OPEN), ("phrased", Access.PASS_PHRASE), ("team", Access.LOGIN))
        }
        known = SimpleNamespace(
            by_identity={"back": 7}, by_id={7: SimpleNamespace(model="open")}, by_key=dict.fromkeys([f"{KEY} of back"])
        )
        engine = Engine(SimpleNamespace(durable=SimpleNamespace(models=models, sessions=known)))
        authenticator = SimpleNamespace(caller_of=lambda method, token: SimpleNamespace(user=f"user of {token}"))
        calls: Any = object.__new__(sessions.SessionCalls)
        calls.engine, calls.joining = engine, Joining(engine.view, authenticator)  # type: ignore[arg-type]
        link = GatewayLink(number=1)
        await calls._read_people(link, compared(calls, request))
        return engine.events, link.keys, link.name, link.version, list(link.outbox._waiting)

    async def compared(calls: Any, request: Any) -> AsyncIterator[Any]:
        yield request
        # The pass phrase is compared beside the stream, which stays until then.
        others = [task for task in asyncio.all_tasks() if task.get_name().startswith("pass-phrase")]
        await asyncio.gather(*others)

    return asyncio.run(read())


def test_every_field_that_a_gateway_says_of_a_person_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "make_place_key", lambda: "a new key")
    monkeypatch.setattr(sessions, "hash_place_key", lambda key, identity: f"{key} of {identity}")
    join = {"join.model": "open", "join.identity": "someone"}
    needs: dict[str, dict[str, Any]] = {
        path: join for path in paths(sessions_pb2.OpenSessionRequest.DESCRIPTOR) if path.startswith("join.")
    }
    needs["connection"] = {"closed": True}
    needs |= {f"step_broken.{name}": {"step_broken.epoch": 1} for name in ("epoch", "input_digest", "has_frame")}
    needs["join.pass_phrase"] = {**join, "join.model": "phrased"}
    needs["join.login_token"] = {**join, "join.model": "team"}
    needs["join.place_key"] = {**join, "join.identity": "back"}
    values = {
        "join.model": "other",
        "join.identity": "another",
        "join.place_key": KEY,
        "step_broken.input_digest": "0" * 16,
        "step_broken.epoch": 2,
    }
    assert not unheard(people_heard, sessions_pb2.OpenSessionRequest(), values=values, needs=needs)


def test_a_gateways_hello_says_all_that_it_knows_and_all_of_it_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "first_installed", lambda _: "1.2.3")
    said = lines.Lines(Target(address=Address("127.0.0.1")), "g1")._hello.hello
    assert {field.name: value for field, value in said.ListFields()} == {"gateway": "g1", "gateway_version": "1.2.3"}
    assert {field.name for field, _ in said.ListFields()} == set(said.DESCRIPTOR.fields_by_name)
    link = GatewayLink(number=1, address="10.0.0.9", since=Instant(5_000_000), name="g1", version="1.2.3")
    shown = connected_gateway(link)
    assert {field.name for field, _ in shown.ListFields()} == set(shown.DESCRIPTOR.fields_by_name)
    assert (shown.gateway, shown.gateway_version, shown.address) == ("g1", "1.2.3", "10.0.0.9")


HELLO = protocol.Hello("canvas", "a key", 1, 2, ("jpeg",))
OTHER = protocol.Hello("other", "another", 3, 4, ("png",), True, 2.0, True, "open sesame")


def gone_up(hello: protocol.Hello) -> list[Any]:
    """What goes to the scheduler and to the worker of a browser's hello."""
    said: list[Any] = []

    async def serve() -> None:
        class Lines:
            def join(self, join: sessions_pb2.JoinLine, listener: Any) -> object:
                said.append(join)
                return object()

            def leave(self, *_: object, **__: object) -> None: ...

        person: Any = Person(None, "who", Lines(), None, 1.0, address="a", login_token="t")  # type: ignore[arg-type]

        async def first() -> protocol.Hello:
            return hello

        async def left() -> dict[str, bool]:
            return {"leave": True}

        person._hello, person._read = first, left
        await person.serve()
        said.append(await opened(hello))

    asyncio.run(serve())
    return said


async def opened(hello: protocol.Hello) -> inference_pb2.OpenTurn:
    """What opens the stream to the worker."""
    grant = sessions_pb2.TurnGrant(ticket="ticket")
    stream: Any = turn.Turn(grant, hello, None)  # type: ignore[arg-type]
    written: list[inference_pb2.StreamRequest] = []

    class Carrier:
        async def write(self, message: inference_pb2.StreamRequest) -> None:
            written.append(message)

        async def read(self) -> inference_pb2.StreamResponse:
            return inference_pb2.StreamResponse()

        async def explain(self) -> None: ...

        def cancel(self) -> None: ...

    async def talk(*_: object) -> None: ...

    stream._talk = talk
    await stream._run(Carrier(), None)
    return written[0].open


def test_every_field_of_a_browsers_hello_goes_up() -> None:
    assert not unsaid_of(gone_up, HELLO, OTHER)
    join, opening = gone_up(OTHER)
    for message in (join, opening):
        assert {field.name for field, _ in message.ListFields()} == set(message.DESCRIPTOR.fields_by_name)


def test_every_word_of_a_browsers_hello_is_read() -> None:
    said: dict[str, Any] = {
        "type": "hello",
        "version": 1,
        "model": "other",
        "place_key": "another",
        "width": 3,
        "height": 4,
    }
    said |= {"encodings": ["png"], "keeps_other": True, "density": 2, "deliberate": True, "pass_phrase": "open sesame"}
    assert protocol.read_hello(json.dumps(said)) == OTHER
    assert {field.name for field in fields(OTHER) if getattr(OTHER, field.name) != getattr(HELLO, field.name)} == {
        field.name for field in fields(OTHER)
    }
