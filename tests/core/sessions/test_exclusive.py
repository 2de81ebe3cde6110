"""Programs of an exclusive group: who goes to sleep for whom, as a choice and under random requests."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.jobs.runs import ExitCode
from scheduler.core.sessions.exclusive import TURN_KEPT
from scheduler.policy.letting_go import measured_memory, would_be_placed, would_have_room
from scheduler.policy.sessions.exclusive import MEMBERS_MAX, Holder, sleepers
from scheduler.state.attempts import RankExit
from scheduler.state.commands import LaunchAttempt, StopAttempt
from scheduler.state.events import Event, RankExited, RankStarted
from scheduler.state.ids import JobId, RankKey, UserName
from scheduler.state.jobs import Queued
from scheduler.state.nodes import DeviceProcess
from scheduler.state.records import WorkerDrained
from scheduler.state.replies import Refused
from scheduler.state.sessions.commands import DrainWorker
from scheduler.state.sessions.events import (
    RequestsReported,
    ServeRequested,
    WorkerJoined,
    WorkerReported,
    WorkerState,
)
from scheduler.state.sessions.serving import Requests
from scheduler.state.sessions.session import HttpService, Model, ModelName, WorkerId
from scheduler.state.specs import Band, JobSpec, Resources
from scheduler.state.units import GB, SECOND, Instant, after
from tests.core.fleet import Fleet, Turn

ALICE = UserName("alice")
AT = Instant(100)

holders = st.builds(
    Holder,
    model=st.sampled_from([ModelName(name) for name in "abcde"]),
    job=st.integers(1, 1000).map(JobId),
    sleeps_from=st.integers(0, 200).map(Instant),
    used_at=st.one_of(st.none(), st.integers(0, 100).map(Instant)),
    awake_since=st.integers(0, 100).map(Instant),
    memory_bytes=st.integers(0, 3),
)


@given(st.lists(holders, max_size=8, unique_by=lambda each: each.model), st.integers(0, 9))
def test_as_few_go_as_will_do_and_none_that_may_not(group: list[Holder], wanted: int) -> None:
    def fits(gone: Sequence[Holder]) -> bool:
        return len(gone) >= wanted

    gone = sleepers(group, fits, AT)
    able = [each for each in group if each.sleeps_from <= AT]
    assert set(gone) <= set(able), "one goes that has not been awake for long enough, or that is no member"
    assert len(gone) == (wanted if len(able) >= wanted else 0), "more go than are needed, or in vain"
    stay = [each for each in able if each not in gone]
    for each in gone:
        for other in stay:
            if each.used_at is None:
                assert other.used_at is None, "one with requests goes before one without"
                assert each.awake_since <= other.awake_since, "one goes whose turn is the shorter one"
            elif other.used_at is not None:
                assert each.used_at <= other.used_at, "one goes that was asked later"


@given(st.lists(holders, min_size=1, max_size=6, unique_by=lambda each: each.model), st.integers(1, 8))
def test_what_makes_no_difference_stays(group: list[Holder], needed: int) -> None:
    """Only what some of them hold is of use, such as the GPUs of one node."""
    of_use = {each.model for number, each in enumerate(group) if needed & (1 << number)}
    gone = sleepers(group, lambda gone: of_use <= {each.model for each in gone}, AT)
    assert {each.model for each in gone} in (of_use, set())


def test_among_equals_the_one_goes_of_which_least_must_be_loaded_again() -> None:
    large = Holder(model=ModelName("a"), job=JobId(1), sleeps_from=AT, used_at=AT, awake_since=AT, memory_bytes=40 * GB)
    small = replace(large, model=ModelName("b"), job=JobId(2), memory_bytes=10 * GB)
    assert sleepers([large, small], lambda gone: bool(gone), AT) == (small,)


def test_of_a_busy_program_with_two_replicas_one_goes_before_another_program_sleeps() -> None:
    alone = Holder(model=ModelName("a"), job=JobId(1), sleeps_from=AT, used_at=None, awake_since=Instant(1))
    first = replace(alone, model=ModelName("b"), job=JobId(2), awake_since=Instant(50))
    second = replace(first, job=JobId(3), is_last=False)
    assert sleepers([alone, first, second], lambda gone: bool(gone), AT) == (second,)


# --- by what was measured


def program(name: str, share_milli: int = 0, gpus: int = 1, **more: object) -> Model:
    resources = Resources(gpus=gpus, share_milli=share_milli, cpus=1, min_memory_bytes=None if share_milli else 0)
    spec = JobSpec(argv=("w",), name=name, cwd="/", resources=resources, serves=ModelName(name))
    http = HttpService(argv=("serve",))
    model = Model(name=ModelName(name), owner=ALICE, worker=spec, min_workers=0, max_workers=1, http=http)
    return replace(model, **{"exclusive_group": "small", **more})  # type: ignore[arg-type]


def test_what_a_program_was_measured_to_use_is_what_comes_free_of_a_shared_gpu() -> None:
    """Shares of 0.4 and 0.6 of 80 GB: the smaller one uses 70 GB in fact, so that the larger one frees too little."""
    fleet = Fleet()
    node = fleet.add_node("n1", gpus=1)
    fleet.join(node)

    def submit(name: str, share_milli: int) -> int:
        spec = program(name, share_milli).worker
        assert spec is not None
        fleet.submit(replace(spec, serves=ModelName("")))
        return fleet.state.durable.counters.next_job - 1

    small, large = submit("small", 400), submit("large", 600)
    (uuid,) = node.samples
    used = (
        DeviceProcess(pid=7, memory_bytes=70 * GB, job=JobId(small)),
        DeviceProcess(pid=8, memory_bytes=5 * GB, job=JobId(large)),
    )
    node.samples[uuid] = replace(
        node.samples[uuid], memory_used_bytes=75 * GB, memory_free_bytes=5 * GB, processes=used
    )
    fleet.beat(node.name)
    waiting = fleet.job(submit("waiting", 400))
    assert isinstance(waiting.state, Queued)
    assert [measured_memory(fleet.state, fleet.job(each)) for each in (small, large)] == [70 * GB, 5 * GB]
    # By what they asked for 0.6 of the GPU are enough; by what is used only the 70 GB are.
    assert not would_be_placed(fleet.state, waiting, [fleet.job(large)], fleet.now)
    assert would_be_placed(fleet.state, waiting, [fleet.job(small)], fleet.now)
    assert not would_be_placed(fleet.state, waiting, [], fleet.now)


def test_what_comes_free_by_itself_goes_by_the_queue_and_what_is_given_does_not() -> None:
    fleet = Fleet()
    fleet.join(fleet.add_node("n1", gpus=1))
    spec = JobSpec(argv=("w",), name="j", cwd="/", resources=Resources(gpus=1, min_memory_bytes=0))
    for band in (Band.HIGH, Band.URGENT, Band.HIGH):
        fleet.submit(spec, band=band)
    holding, urgent, waiting = (fleet.job(number) for number in (1, 2, 3))
    assert would_be_placed(fleet.state, urgent, [holding], fleet.now)
    assert not would_be_placed(fleet.state, waiting, [holding], fleet.now), "the urgent job would get it"
    assert would_have_room(fleet.state, waiting, [holding], fleet.now)


# --- who may be in a group


def serve(fleet: Fleet, model: Model) -> Refused | None:
    reply = fleet.take_up(ServeRequested(at=fleet.now, model=model)).reply
    return reply if isinstance(reply, Refused) else None


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"min_workers": 1}, "model.min_workers"),
        ({"http": None, "entry_point": "m:C"}, "model.exclusive_group"),
        ({"band": Band.NORMAL}, "model.worker.band"),
    ],
)
def test_what_cannot_be_in_a_group_is_refused(changed: dict[str, object], field: str) -> None:
    fleet = Fleet()
    assert serve(fleet, program("chat")) is None
    refused = serve(fleet, program("draw", **changed))  # type: ignore[arg-type]
    assert refused is not None and refused.field == field and refused.next_step
    assert ModelName("draw") not in fleet.state.durable.models
    # The same is well in another person's group of that name, or in none.
    assert field != "model.worker.band" or serve(fleet, program("draw", owner=UserName("bob"), **changed)) is None  # type: ignore[arg-type]


def test_a_group_has_a_bound() -> None:
    fleet = Fleet()
    for number in range(MEMBERS_MAX):
        assert serve(fleet, program(f"p{number}")) is None
    refused = serve(fleet, program("one-more"))
    assert refused is not None and refused.field == "model.exclusive_group"
    assert serve(fleet, program("p0", max_workers=2)) is None, "who is in it is changed as any program"


# --- under random requests


class Group:
    """Programs of alice's group, one of bob's of that name, and one without any; their replicas are ready at once."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.fleet = Fleet()
        self.node = self.fleet.add_node("n1", gpus=self.random.choice([1, 2, 3]), model="GPU")
        self.streams = 0
        self.ready: dict[JobId, WorkerId] = {}
        self.slept: dict[ModelName, list[Instant]] = {}
        self.woke: dict[ModelName, Instant] = {}
        for turn in self.fleet.join(self.node):
            self.follow(turn)
        self.own = [ModelName(name) for name in ("a", "b", "c", "d")]
        for name in self.own:
            self.do(ServeRequested(at=self.now, model=program(name)))
        self.do(ServeRequested(at=self.now, model=program("bobs", owner=UserName("bob"))))
        self.do(ServeRequested(at=self.now, model=program("alone", exclusive_group="")))
        self.others = [ModelName("bobs"), ModelName("alone")]
        self.asked: dict[ModelName, Requests] = {}

    @property
    def now(self) -> Instant:
        return self.fleet.now

    def do(self, event: Event) -> None:
        self.follow(self.fleet.take_up(event))

    def follow(self, turn: Turn) -> None:
        for record in turn.records:
            if isinstance(record, WorkerDrained) and "gave its GPU" in record.reason:
                name = self.fleet.job(record.job).spec.serves
                assert name in self.own, "somebody else's program goes"
                assert record.reason.split(" to ")[1].split(",")[0] in self.own, "it goes for somebody else's program"
                assert self.now >= after(self.woke[name], self.fleet.limits.least_awake), "it was awake for too short"
                self.slept.setdefault(name, []).append(self.now)
        for command in turn.commands:
            if isinstance(command, LaunchAttempt):
                self.call(command.key)
            elif isinstance(command, StopAttempt):
                self.end(command.key)
        for news in turn.session_commands:
            if isinstance(news, DrainWorker):
                job = next(job for job, worker in self.ready.items() if worker == news.worker)
                self.end(RankKey(job, 1, 0))

    def call(self, key: RankKey) -> None:
        job = self.fleet.job(key.job)
        self.do(RankStarted(at=self.now, node=self.node.name, key=key))
        self.streams += 1
        worker = self.ready[key.job] = WorkerId(f"w{key.job}")
        joined = {"at": self.now, "worker": worker, "stream": self.streams}
        self.do(WorkerJoined(**joined, model=job.spec.serves, endpoint="h:1", by=ALICE, job=key.job))  # type: ignore[arg-type]
        self.woke[job.spec.serves] = self.now
        self.do(WorkerReported(**joined, state=WorkerState.READY, seats=4))  # type: ignore[arg-type]

    def end(self, key: RankKey) -> None:
        self.ready.pop(key.job, None)
        exit_ = RankExit(exit=ExitCode(code=0), reason="EXITED")
        self.do(RankExited(at=self.now, node=self.node.name, key=key, exit=exit_))

    def ask(self, name: ModelName, count: int) -> None:
        """So many requests of a program; those of one that is awake are under way."""
        is_awake = any(self.fleet.job(job).spec.serves == name for job in self.ready)
        said = Requests(under_way=count) if is_awake else Requests(waiting=count, waits_since=self.now)
        self.asked[name] = said
        told = {each: of for each, of in self.asked.items() if of.under_way or of.waiting}
        self.do(RequestsReported(at=self.now, gateway=1, requests=told))

    def advance(self, seconds: int) -> None:
        for turn in self.fleet.advance(seconds * SECOND):
            self.follow(turn)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_asked_for_nobody_changes_twice_in_a_span_and_everybody_has_a_turn(seed: int) -> None:
    group = Group(seed)
    for _ in range(60):
        if group.random.random() < 0.7:
            group.ask(group.random.choice([*group.own, *group.own, *group.others]), group.random.choice([0, 0, 1, 3]))
        else:
            group.advance(group.random.choice([1, 5, 20]))
    for times in group.slept.values():
        spans = [later - sooner for sooner, later in pairwise(times)]
        assert all(span >= group.fleet.limits.least_awake for span in spans), "one goes to sleep twice in a span"
    # What nobody asks for any more leaves its GPU to the others; each of the group is called in its turn.
    for name in group.others:
        group.ask(name, 0)
    group.advance(11 * 60)
    began = dict(group.woke)
    for _ in range(8):
        for name in group.own:
            group.ask(name, 2)
        group.advance(40)
    again = [name for name in group.own if group.woke.get(name, 0) != began.get(name, 0)]
    assert len(again) == len(group.own) or len(group.node.info.devices) > 1, f"only {again} had a turn"
    assert set(group.own) <= group.woke.keys(), "one never had a turn"


def test_a_program_whose_requests_gave_up_waiting_has_its_turn_all_the_same() -> None:
    """Where two others are busy, a request waits for longer than the gateway lets it, and comes again."""
    group = next(each for each in map(Group, range(20)) if len(each.node.info.devices) == 1)
    a, b, c = group.own[:3]
    group.ask(a, 1)
    group.ask(b, 1)
    group.advance(2)
    group.ask(c, 1)
    (waiting,) = group.fleet.state.durable.services[b]
    group.ask(b, 0)
    group.advance(TURN_KEPT // SECOND - 1)
    assert isinstance(group.fleet.job(waiting).state, Queued), "its turn was taken from it at once"
    group.ask(b, 1)
    group.advance(60)
    assert group.woke[b] < group.woke[c], "one that began to wait later went before it"
    group.ask(a, 1)
    group.advance(2)
    (waiting,) = group.fleet.state.durable.services[a]
    group.ask(a, 0)
    group.advance(TURN_KEPT // SECOND)
    assert a not in group.fleet.state.durable.services, "it is kept although nobody came again"
