"""No field of a model, of a session or of what gateways and workers tell is dropped in silence."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gpufleet.v1 import inference_pb2, job_pb2, sessions_pb2

from cli.sessions.serve_options import ProgramOptions, TurnOptions, WorkerOptions
from cli.sessions.serving import limits_of as limits_typed
from cli.sessions.serving import model_of, program_of
from gpufleet.errors import GpufleetError
from gpufleet.model import Card
from inference import wire
from scheduler.api.sessions.sessions import _WorkerReader
from scheduler.state.durable import Durable
from scheduler.state.ids import ModelName, UserName
from scheduler.state.sessions.commands import EndTurn, ExpectTurn, TellEnd, TellPerson, TellPlace
from scheduler.state.sessions.events import Connection
from scheduler.state.sessions.session import Card as ShownCard
from scheduler.state.sessions.session import EndReason, HttpService, Model, SessionId, SessionLimits, WorkerId
from scheduler.state.sessions.turns import Turns, WorkerLive
from scheduler.state.units import SECOND, Instant
from scheduler.wire import convert_sessions as convert
from scheduler.wire.updated_models import asked_of
from scheduler.wire.validate_models import (
    UNFIT,
    arguments_of,
    entry_point_of,
    group_of,
    http_of,
    limits_of,
    worker_of,
    workers_of,
)
from tests.core.sessions.session_transcript import SessionTranscript
from tests.fields.asked import BASE, ENVIRONMENT, FOLDER, NEEDS, VALUES
from tests.fields.filled import BEGIN_SECONDS, paths, unheard, unsaid, unsaid_of

NOW = Instant(0)
HASH = "scrypt$16384$8$5$" + "A" * 22 + "$" + "A" * 43
NAME = ModelName("canvas")

# --- a model, as it is asked for

TYPED: dict[str, Any] = {
    "gpus": 2,
    "gpu_share": "0.5",
    "min_workers": 3,
    "max_workers": 5,
    "model_arg": ["steps=32"],
    "python": "/usr/bin/python3",
    "cwd": "/data",
    "env": ["A=1"],
    "secret": ["hf=TOKEN"],
    "min_memory": "4GB",
    "gpu_model": ["h100"],
    "node_gpu_ids": "n1:0,1",
    "allow_busy": True,
    "cpus": 3,
    "memory": "1GB",
    "nodelist": ["n1"],
    "exclude": ["n2"],
    "node_label": ["zone=east"],
    "label": ["a=b"],
    "band": "low",
    "preemptible": True,
    "image": "busybox:1",
    "mount": ["/data:/sets:ro"],
    "image_secret": "hub",
}
BESIDE: dict[str, dict[str, Any]] = {each: {"gpus": 1} for each in ("min_memory", "gpu_model", "allow_busy")}
BESIDE |= {each: {"image": "busybox:1"} for each in ("mount", "image_secret")}


@pytest.mark.parametrize("option", [each.name for each in fields(WorkerOptions)])
def test_every_option_of_a_worker_is_in_the_model(option: str) -> None:
    def asked(**options: Any) -> sessions_pb2.Model:
        return model_of("canvas", "canvas", WorkerOptions(**options), TurnOptions(), ENVIRONMENT, FOLDER)

    beside = BESIDE.get(option, {})
    assert asked(**beside) != asked(**beside, **{option: TYPED[option]})


@pytest.mark.parametrize("option", [each.name for each in fields(TurnOptions)])
def test_every_number_of_the_line_is_in_the_model(option: str, tmp_path: Path) -> None:
    phrase = tmp_path / "phrase"
    phrase.write_text("open sesame\n")
    phrase.chmod(0o600)
    typed: dict[str, Any] = {"access": "login", "pass_phrase_file": str(phrase)}
    number = 7 if "int" in str(TurnOptions.__annotations__[option]) else "7s"
    assert limits_typed(TurnOptions()) != limits_typed(TurnOptions(**{option: typed.get(option, number)}))


SET_BY_THE_SCHEDULER = {
    "owner": "who serves it",
    "waiting_count": "counted",
    "turn_count": "counted",
    "workers": "those that are there",
    "failure": "what it found",
    "card": "its workers tell",
    "request_count": "counted",
    "http": "in place of an entry point: below",
    "revision": "counted",
    "former_revision": "counted",
    "update": "what follows from a change",
    "in_group": "what becomes of it",
}
"""Fields of a model that say nothing in a request."""

REFUSED = {
    *(field for field, _ in UNFIT),
    "container",
    "kind",
    "serves",
    "gpu_mode",
    "devices",
    "no_span",
    "hidden_fields",
}
"""Where a spec is refused: `container` with a class; `no_span`, which a worker has, for GPUs of several nodes."""

OF_NO_WORKER = {
    "worker.name": "a worker's job has the name of its model",
    "worker.trace_context": "a worker is started when it is needed, by nobody's submit",
    "worker.no_span": "a worker is one process, on one node, and never spread",
}
"""Fields of a spec that say nothing for a worker."""


def test_every_field_of_a_model_reaches_the_state() -> None:
    base = sessions_pb2.Model(name="canvas", entry_point="canvas", worker=BASE)

    def heard(model: sessions_pb2.Model) -> object:
        try:
            worker = worker_of(model, ModelName(model.name))
        except GpufleetError as refused:
            field = refused.violations[0].field.removeprefix("model.worker.")
            assert field.partition(".")[0].partition("[")[0] in REFUSED, refused
            return model.SerializeToString(deterministic=True)  # that is not silence
        rest = workers_of(model), arguments_of(model), limits_of(model.limits), group_of(model)
        return worker, model.name, entry_point_of(model.entry_point), rest

    known = list(paths(base.DESCRIPTOR))
    values = {f"worker.{path}": value for path, value in VALUES.items()}
    values |= {"entry_point": "package.module:Class", "limits.pass_phrase_hash": HASH, "min_workers": 1}
    values |= {f"limits.{name}": timedelta(seconds=9) for name in ("idle", "turn", "turn_warning", "grace")}
    values |= {"limits.idle_warning": timedelta(seconds=4), "limits.access": sessions_pb2.MODEL_ACCESS_LOGIN}
    values |= {"worker.band": job_pb2.BAND_LOW}
    needs = {
        f"worker.{path}": {f"worker.{key}": each for key, each in others.items()} for path, others in NEEDS.items()
    }
    theirs = {path: why for path in known for name, why in SET_BY_THE_SCHEDULER.items() if path.split(".")[0] == name}
    assert not unheard(heard, base, values=values, needs=needs, exceptions={**OF_NO_WORKER, **theirs})


def test_every_field_of_a_program_reaches_the_state_and_its_replicas() -> None:
    base = sessions_pb2.HttpService(argv=["serve"])
    values = {"ready_path": "/health", "concurrency": 100, "target_concurrency": 5}
    values["gpu_mode"] = job_pb2.GPU_MODE_PREFERRED
    needs = {"gpu_mode": {"cpu_model": "slow"}}

    def read(http: sessions_pb2.HttpService) -> HttpService:
        return http_of(http, in_container=True)

    assert not unheard(read, base, values=values, needs=needs)
    worker = job_pb2.JobSpec(container=job_pb2.ContainerSettings(image="busybox:1"))

    def started(http: sessions_pb2.HttpService) -> object:
        return worker_of(sessions_pb2.Model(worker=worker), ModelName("chat"), read(http))

    scaling = "how many replicas there are"
    exceptions = dict.fromkeys(("target_concurrency", "target_wait", "idle"), scaling)
    exceptions |= dict.fromkeys(("cpu_model", "gpu_mode"), "which of two programs gateways send a request to")
    assert not unheard(started, base, values=values, needs=needs, exceptions=exceptions)


def test_every_field_of_its_container_reaches_a_replica() -> None:
    base = job_pb2.ContainerSettings(image="busybox:1")

    def heard(container: job_pb2.ContainerSettings) -> object:
        http = http_of(sessions_pb2.HttpService(port=80), in_container=True)
        worker = job_pb2.JobSpec(container=container)
        return worker_of(sessions_pb2.Model(worker=worker), ModelName("chat"), http)

    def of_container(values: Mapping[str, Any]) -> dict[str, Any]:
        return {path.removeprefix("container."): each for path, each in values.items() if path.startswith("container.")}

    needs = {path: of_container(others) for path, others in of_container(NEEDS).items()}
    assert not unheard(heard, base, values=of_container(VALUES), needs=needs)


@pytest.mark.parametrize("option", [each.name for each in fields(WorkerOptions) if each.name != "model_arg"])
def test_a_program_of_which_some_is_changed_is_asked_for_as_it_was(option: str) -> None:
    workers = WorkerOptions(**BESIDE.get(option, {}), **{option: TYPED[option]})
    asked = program_of("chat", ["serve", "$PORT"], ProgramOptions(), workers, TurnOptions(), ENVIRONMENT, FOLDER)
    name, in_container = ModelName("chat"), asked.worker.HasField("container")
    http = http_of(asked.http, in_container=in_container)
    worker, band = worker_of(asked, name, http)
    least, most = workers_of(asked)
    model = Model(
        name=name,
        owner=UserName("ann"),
        worker=worker,
        band=band,
        http=http,
        min_workers=least,
        max_workers=most,
        exclusive_group="small",
    )
    again = asked_of(model)
    http_again = http_of(again.http, in_container=in_container)
    assert (worker_of(again, name, http_again), http_again) == ((worker, band), http)
    assert (workers_of(again), group_of(again)) == ((least, most), "small")


def test_every_field_of_a_program_is_shown() -> None:
    assert not unsaid(convert.http_proto, HttpService)


def test_the_requests_of_a_gateway_reach_the_state() -> None:
    model = Model(name=ModelName("chat"), owner=UserName("ann"), http=HttpService(argv=("serve",)))

    def heard(said: sessions_pb2.ServedRequests) -> object:
        return convert.served_requests([said], {model.name: model}, Instant(BEGIN_SECONDS * SECOND))

    base = sessions_pb2.ServedRequests(model="chat", waiting=1)
    assert not unheard(heard, base, values={"model": "another", "waiting": 2})


def test_the_requests_that_gateways_have_on_a_replica_are_its_load() -> None:
    name, start = ModelName("chat"), WorkerId("w1")
    model = Model(name=name, owner=UserName("ann"), http=HttpService(argv=("serve",)))
    turns = Turns()
    at = Instant(BEGIN_SECONDS * SECOND)
    turns.workers[start] = WorkerLive(id=start, model=name, endpoint="h:1", stream=1, job=None, heard_at=at, seats=10)
    said = sessions_pb2.ServedRequests(model="chat", under_way=3)
    said.replicas.add(worker_start="w1", under_way=2)
    said.replicas.add(worker_start="gone", under_way=1)
    heard = convert.served_requests([said], {name: model}, at)[name]
    turns.requests[name] = {1: heard, 2: heard}
    shown = convert.model_proto(model, Durable(), turns, lambda jobs: {})
    assert [(each.taken_seats, each.load) for each in shown.workers] == [(4, 0.4)]
    assert shown.request_count == 6


def test_a_worker_that_an_update_replaces_is_shown_as_it_goes_and_so_is_its_successor() -> None:
    transcript = SessionTranscript()

    def shown() -> list[tuple[str, int, int]]:
        state = transcript.fleet.state
        model = convert.model_proto(
            state.durable.models[ModelName("chat")], state.durable, state.live.turns, lambda jobs: {}
        )
        name = inference_pb2.WorkerState.Name
        return [
            (name(each.state).removeprefix("WORKER_STATE_"), each.revision, each.replaces_job_id)
            for each in model.workers
        ]

    for line in ("node n1 gpus=2", "serve chat program gpus=1", "started 1/1", "call w1 job=1"):
        transcript.answer(line)
    transcript.answer("serve chat program gpus=1 cpus=2")
    assert shown() == [("READY", 1, 0), ("STARTING", 2, 1)]
    for line in ("started 2/1", "call w2 job=2", "gone w1"):
        transcript.answer(line)
    assert shown() == [("READY", 2, 1), ("DRAINING", 1, 0)]
    transcript.answer("exited 1/1")
    assert shown() == [("READY", 2, 0)]


def test_what_does_not_fit_a_worker_is_refused_and_never_left_out() -> None:
    known = {path.partition(".")[0] for path in paths(job_pb2.JobSpec.DESCRIPTOR)}
    assert {field for field, _ in UNFIT} <= known


# --- a model, as it is shown


def test_every_number_of_a_model_is_shown() -> None:
    exceptions = {"pass_phrase_hash": "the hash of a pass phrase is for nobody"}
    assert not unsaid(convert.limits_proto, SessionLimits, exceptions=exceptions)


def test_everything_that_a_model_is_asked_for_is_shown() -> None:
    def shown(model: Model) -> object:
        return convert.model_proto(model, Durable(), Turns(), lambda jobs: {})

    exceptions = {
        "worker": "as any job's spec: field by field in test_job_fields.py",
        "limits.pass_phrase_hash": "the hash of a pass phrase is for nobody",
        "chosen": "which numbers follow the settings",
        "has_been_ready": "for the rules of its workers' ends",
        "deaths": "for the rules of its workers' ends",
        **dict.fromkeys(("failure.attempt", "failure.lineage"), "for the last lines of its output"),
        **dict.fromkeys(("update.failure.attempt", "update.failure.lineage"), "for the last lines of its output"),
        "revisions": "for the number of the next one",
        "former.[!n]*": "it comes back with a rollback, and is shown then",
    }
    assert not unsaid(shown, Model, exceptions=exceptions)


def test_everything_that_is_heard_of_a_worker_is_shown() -> None:
    def shown(worker: WorkerLive) -> object:
        return convert.worker_proto(worker, Durable(), certificate=worker.certificate)

    own = "the scheduler's own"
    assert not unsaid(
        shown, WorkerLive, exceptions={"model": "it stands with its model", "stream": own, "reports": own}
    )


# --- cards: of a worker's class, on the wire, kept, shown


def test_a_card_survives_wire_state_and_wire() -> None:
    base = sessions_pb2.ModelCard()
    values = {"picture": b"\x89PNG\r\n\x1a\n" + bytes(8)}
    exceptions = {"picture_tag": "made by the scheduler, of the picture"}
    assert not unheard(convert.card_of, base, values=values, exceptions=exceptions)
    assert not unsaid(lambda card: convert.card_proto(card, with_picture=True), ShownCard)
    assert {field.name for field in fields(Card)} == {field.name for field in fields(ShownCard)} - {"picture_tag"}
    shown = wire.card(Card(title="t", about="a", controls="c", keys=("k",), picture=b"p"))
    assert {field.name for field, _ in shown.ListFields()} == {field.name for field in fields(Card)}


# --- what people and workers are told


IT: dict[str, Any] = {"connection": Connection(1, 1), "session": SessionId(7)}
OTHER: dict[str, Any] = {"connection": Connection(2, 3), "session": SessionId(8)}
TO_A_PERSON = {"connection": "whom it is sent to", "session": "the connection has one"}


def test_every_field_of_what_a_person_is_told_is_sent() -> None:
    def told(command: Any) -> object:
        is_place = isinstance(command, TellPlace)
        return convert.place_info(command, "key", NOW) if is_place else convert.notice_of(command, NOW)

    later, latest = Instant(5_000_000), Instant(9_000_000)
    place = TellPlace(**IT, place=1, line_length=2, estimate=None, bound=None)
    other = TellPlace(**OTHER, place=3, line_length=4, estimate=later, bound=latest, bound_cause="a turn")
    assert not unsaid_of(told, place, other, exceptions={"connection": "whom it is sent to"})
    news = TellPerson(**IT, reason="IDLE", message="one")
    others = TellPerson(**OTHER, reason="TURN", message="two", ends_at=later)
    assert not unsaid_of(told, news, others, exceptions=TO_A_PERSON)
    end = TellEnd(**IT, reason=EndReason.IDLE, message="one")
    assert not unsaid_of(told, end, TellEnd(**OTHER, reason=EndReason.LEFT, message="two"), exceptions=TO_A_PERSON)


@pytest.mark.parametrize(
    ("tell", "cls"), [(lambda each: convert.expect_command(each, NOW), ExpectTurn), (convert.end_command, EndTurn)]
)
def test_every_field_of_what_a_worker_is_told_is_sent(tell: Callable[[Any], object], cls: type[Any]) -> None:
    assert not unsaid(tell, cls, exceptions={"worker": "whom it is sent to"})


# --- what people and workers say


class Heard:
    """An engine that keeps what is posted."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.view = SimpleNamespace(durable=Durable())

    def now(self) -> Instant:
        return NOW

    def report(self, event: object) -> Any:
        self.events.append(event)
        return asyncio.sleep(0)


def of_worker(request: sessions_pb2.ConnectWorkerRequest) -> object:
    async def read() -> object:
        heard, sent = Heard(), list[object]()
        link = SimpleNamespace(worker="w", number=1, outbox=SimpleNamespace(put=sent.append))
        reader = _WorkerReader(heard, link)  # type: ignore[arg-type]
        if request.WhichOneof("body") == "report":
            reader._engine.report = lambda event: heard.events.append(event)  # type: ignore[method-assign,assignment,return-value]
            reader._report(request.report)
        elif request.WhichOneof("body") == "ended":
            await reader._ended(request.ended)
        return heard.events, sent

    return asyncio.run(read())


def test_every_field_that_a_worker_says_is_heard() -> None:
    descriptor = sessions_pb2.ConnectWorkerRequest.DESCRIPTOR
    state = {"report.state": inference_pb2.WORKER_STATE_LOADING}
    turn = {**state, "report.turns.session": "s7"}
    needs: dict[str, dict[str, Any]] = {}
    for path in paths(descriptor):
        needs[path] = {"ended.session": "s7"} if path.startswith("ended.") else state if "report." in path else {}
        if path.startswith("report.turns."):
            needs[path] = {**turn, "report.turns.is_attached": True, "report.turns.since_input": timedelta(seconds=1)}
        if path.startswith("report.card."):
            needs[path] = {**state, "report.card.keys": ["a key"]}
    needs["report.turns.is_attached"] = {**turn, "report.turns.since_input": timedelta(seconds=1)}
    values = {
        "report.turns.session": "s8",
        "report.state": inference_pb2.WORKER_STATE_READY,
        "report.suspects": ["s9"],
        "report.progress": 0.5,
        "report.load": 0.5,
        "report.card.picture": b"\x89PNG\r\n\x1a\n" + bytes(8),
        "ended.session": "s8",
        "ended.reason": "LEFT",
    }
    first = "the first message: test_hello_fields.py"
    hello = {path: first for path in paths(descriptor) if path.startswith("hello.")}
    exceptions = {**hello, "report.card.picture_tag": "made by the scheduler, of the picture"}
    base = sessions_pb2.ConnectWorkerRequest()
    assert not unheard(of_worker, base, values=values, needs=needs, exceptions=exceptions)


def test_a_turn_that_a_worker_lists_is_heard_whole() -> None:
    made = wire.live_turn("s7", 3, age_us=1, idle_us=2, is_attached=True, frames_per_second=24.0, delay_us=5)
    assert {field.name for field, _ in made.ListFields()} == {field.name for field in made.DESCRIPTOR.fields}
    seen = convert.reported_turn(made)
    assert seen is not None
    assert None not in (seen.since_input, seen.latency)
