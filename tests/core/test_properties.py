"""Whatever happens, in whatever order, nonsense included: the core never breaks its own rules.

`Fleet` checks every invariant after every event, that the loaded entities make the same state, and that the view
follows; here come the events, and the proof that records alone make the same state again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpufleet.jobs.runs import ExitCode, ExitSignal, StopCause
from scheduler.state.access import Role, Token
from scheduler.state.apply import apply
from scheduler.state.attempts import OutputEnd, OutputStream, RankExit
from scheduler.state.durable import Durable
from scheduler.state.events import (
    BandRequested,
    CancelRequested,
    DrainRequested,
    EntryRequested,
    ForgetRequested,
    HoldRequested,
    JobsSubmitted,
    NodeDisconnected,
    OutputSynced,
    RankExited,
    RankReady,
    RankRefused,
    RankStarted,
    ReadingResumed,
    ReportedExited,
    ReportedRefused,
    ReportedRunning,
    ReportedStarting,
    ReportedState,
    RequeueRequested,
    RevokeRequested,
    SignalRequested,
    SpoolFilled,
    TokenRequested,
    UpdateRequested,
    WantedJob,
)
from scheduler.state.ids import JobId, NodeName, RankKey, TokenId, UserName
from scheduler.state.indices import Indices
from scheduler.state.jobs import Items
from scheduler.state.specs import Band, Dependency, EndWanted, NodePins
from scheduler.state.units import DAY, HOUR, MINUTE, SECOND, Instant, Span
from tests.core.fleet import FakeNode, Fleet, assert_same, spec
from tests.rings.choosing import examples

pytestmark = pytest.mark.slow

ALICE = UserName("alice")
SPANS = (SECOND // 2, 7 * SECOND, 31 * SECOND, 61 * SECOND, 11 * MINUTE, 2 * HOUR, DAY + HOUR)
REFUSALS = ("DEVICE_BUSY", "DEVICE_UNHEALTHY", "CWD_MISSING", "COMMAND_TOO_OLD", "TAKEN_BACK", "NEW_REASON")
NODES = ("n1", "n2", "n3")


class World:
    """Turns three small numbers into an event that the fleet takes up."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        for name, gpus in zip(NODES, (2, 4, 0), strict=True):
            self.fleet.add_node(name, gpus=gpus, cpus=6, is_virtual=name == "n2", keeps_backlog=name != "n3")

    def run(self, name: str, a: int, b: int, c: int) -> None:
        STEPS[name](self, a, b, c)

    # --- what numbers stand for

    def node(self, number: int) -> FakeNode:
        return self.fleet.nodes[NodeName(NODES[number % len(NODES)])]

    def job(self, number: int) -> JobId:
        """One of the jobs there are, or the next one, which there is not."""
        return JobId(1 + number % self.fleet.state.durable.counters.next_job)

    def key(self, job: int, attempt: int) -> RankKey:
        """Mostly a live rank; sometimes one that is over, was never there, or has another rank's number."""
        job_id = self.job(job)
        known = self.fleet.state.durable.jobs.get(job_id)
        number = known.attempt_count if known is not None else 1
        ranks = len(known.attempt.ranks) if known is not None and known.attempt is not None else 1
        rank = (job + attempt) % ranks if attempt % 16 != 5 else ranks
        return RankKey(job_id, number if attempt % 4 else 1 + attempt % 7, rank)

    def exit(self, kind: int, size: int) -> RankExit:
        ends = (OutputEnd(rank=0, stream=OutputStream.STDOUT, end_offset=size % 3 * 10),) if size % 2 else ()
        cause = list(StopCause)[size % len(StopCause)]
        match kind % 5:
            case 0:
                return RankExit(exit=ExitCode(code=0), reason="EXITED", output_ends=ends)
            case 1:
                return RankExit(exit=ExitCode(code=size % 3), reason="EXITED", output_ends=ends)
            case 2:
                return RankExit(exit=ExitSignal(signal=15), reason="SIGNALLED", output_ends=ends, stop_cause=cause)
            case 3:
                return RankExit(exit=ExitCode(code=0), reason="EXITED", output_ends=ends, stop_cause=cause)
            case _:
                return RankExit(exit=None, reason="EXIT_UNKNOWN", output_ends=ends, output_is_complete=False)

    def seen(self, kind: int, size: int) -> ReportedState:
        match kind % 4:
            case 0:
                return ReportedRunning(run_span=Span(size * SECOND))
            case 1:
                return ReportedStarting()
            case 2:
                return ReportedExited(exit=self.exit(size, kind))
            case _:
                return ReportedRefused(reason=REFUSALS[size % len(REFUSALS)])

    def reporter(self, key: RankKey, other: int) -> NodeName:
        """The node that a rank is on, mostly."""
        job = self.fleet.state.durable.jobs.get(key.job)
        if job is not None and job.attempt is not None and other % 8:
            return job.attempt.ranks[key.rank % len(job.attempt.ranks)].placement.node
        return self.node(other).name if other % 3 else NodeName("n9")

    # --- jobs

    def submit(self, a: int, b: int, c: int) -> None:
        pins: tuple[NodePins, ...] = (NodePins(node=NodeName("n2"), indices=(b % 5,)),) if c % 7 == 0 else ()
        if b % 9 == 3:
            pins = (NodePins(node=NodeName("n2"), indices=(c % 5,)), NodePins(node=NodeName("n1"), indices=(0,)))
        nodes = 2 if not pins and c % 3 == 0 else 0
        asked = spec(
            gpus=sum(len(each.indices) for each in pins) if pins else a % 6 // (nodes or 1) * (nodes or 1),
            pins=pins,
            share_milli=(0, 0, 300, 500)[b % 4] if pins or a % 4 else 0,
            node_count=nodes,
            no_span=a % 7 == 6 and not nodes,
            cpus=1 + b % 3,
            is_requeueable=c % 3 > 0,
            requeue_fence=None if b % 4 else Span(30 * SECOND),
            min_memory_bytes=None if a % 2 else 0,
            begin_at=Instant(self.fleet.now + c * SECOND) if b % 7 == 1 else None,
            after=(Dependency(job=self.job(b), wanted=list(EndWanted)[a % 3]),) if c % 4 == 1 else (),
            queue_timeout=Span((1 + b) * SECOND) if a % 5 == 2 else None,
            retries=c % 2,
            is_preemptible=c % 5 > 2,
        )
        indices = Indices.of_ranges([range(c, c + 1 + c % 6)])
        items = Items(indices=indices, active_max=a % 3, failures_max=b % 3) if (a + b) % 3 == 0 else None
        self.fleet.take_up(
            JobsSubmitted(
                at=self.fleet.now,
                user=ALICE,
                jobs=(WantedJob(spec=asked, band=list(Band)[a % 4], is_held=b % 5 == 4),),
                count=1 if items else 1 + c % 3,
                items=items,
                request_id=f"r{a % 3}" if b % 2 else "",
                request_digest=str(a % 6),
                is_dry_run=c % 11 == 10,
            )
        )

    def flood(self, a: int, b: int, c: int) -> None:
        """Short jobs that are alike: they come into backlogs."""
        asked = spec(gpus=a % 2, time_limit=SECOND, is_preemptible=b % 2 == 0, min_memory_bytes=0)
        user = UserName(("alice", "bob")[b % 2])
        jobs = (WantedJob(spec=asked, band=list(Band)[1 + c % 2]),)
        self.fleet.take_up(JobsSubmitted(at=self.fleet.now, user=user, jobs=jobs, count=4 + c))

    def cancel(self, a: int, b: int, c: int) -> None:
        jobs = (self.job(a), self.job(b))
        self.fleet.take_up(CancelRequested(at=self.fleet.now, by=ALICE, jobs=jobs, is_abandoned=c % 3 == 0))

    def hold(self, a: int, b: int, c: int) -> None:
        jobs = (self.job(a), self.job(b))
        self.fleet.take_up(HoldRequested(at=self.fleet.now, by=ALICE, jobs=jobs, is_held=c % 2 == 0))

    def band(self, a: int, b: int, c: int) -> None:
        band = list(Band)[c % 4]
        self.fleet.take_up(BandRequested(at=self.fleet.now, by=ALICE, jobs=(self.job(a),), band=band))

    def update(self, a: int, b: int, c: int) -> None:
        limit = None if b % 4 == 0 else Span((1 + b % 5) * MINUTE)
        self.fleet.take_up(
            UpdateRequested(
                at=self.fleet.now,
                by=ALICE,
                jobs=(self.job(a),),
                name=f"named-{c}" if c % 3 else None,
                time_limit=limit,
                is_unlimited=limit is None and c % 2 == 0,
                may_extend=c % 2 == 0,
            )
        )

    def requeue(self, a: int, b: int, c: int) -> None:
        self.fleet.take_up(RequeueRequested(at=self.fleet.now, by=ALICE, jobs=(self.job(a), self.job(b))))

    def signal(self, a: int, b: int, c: int) -> None:
        request = f"r{b % 3}" if c % 2 else ""
        jobs = (self.job(a),)
        self.fleet.take_up(
            SignalRequested(at=self.fleet.now, by=ALICE, jobs=jobs, signal=10, request_id=request, request_digest="s")
        )

    def enter(self, a: int, b: int, c: int) -> None:
        self.fleet.take_up(
            EntryRequested(at=self.fleet.now, by=ALICE, job=self.job(a), attempt=1 + b % 3, port=c % 2, command="c")
        )

    # --- reports

    def ready(self, a: int, b: int, c: int) -> None:
        key = self.key(a, b)
        self.fleet.take_up(RankReady(at=self.fleet.now, node=self.reporter(key, c), key=key, master_port=29500 + c % 2))

    def all_ready(self, a: int, b: int, c: int) -> None:
        """Every rank of a gang says so."""
        job = self.fleet.state.durable.jobs.get(self.job(a))
        if job is not None and job.attempt is not None and job.attempt.is_gang:
            for number, rank in enumerate(job.attempt.ranks):
                key = RankKey(job.id, job.attempt.number, number)
                ready = RankReady(at=self.fleet.now, node=rank.placement.node, key=key, master_port=29500)
                self.fleet.take_up(ready)

    def started(self, a: int, b: int, c: int) -> None:
        key = self.key(a, b)
        self.fleet.take_up(
            RankStarted(at=self.fleet.now, node=self.reporter(key, c), key=key, run_span=Span(c * SECOND))
        )

    def exited(self, a: int, b: int, c: int) -> None:
        key = self.key(a, b)
        self.fleet.take_up(
            RankExited(at=self.fleet.now, node=self.reporter(key, c + 1), key=key, exit=self.exit(c, b + c))
        )

    def refused(self, a: int, b: int, c: int) -> None:
        key = self.key(a, b)
        self.fleet.take_up(
            RankRefused(at=self.fleet.now, node=self.reporter(key, c + 1), key=key, reason=REFUSALS[c % len(REFUSALS)])
        )

    def synced(self, a: int, b: int, c: int) -> None:
        ends = (OutputEnd(rank=0, stream=OutputStream.STDOUT, end_offset=c),)
        self.fleet.take_up(OutputSynced(at=self.fleet.now, key=self.key(a, b), ends=ends))

    def spool(self, a: int, b: int, c: int) -> None:
        key = self.key(a, b)
        self.fleet.take_up(SpoolFilled(at=self.fleet.now, node=self.reporter(key, c), key=key, is_full=c % 2 == 0))

    # --- nodes

    def join(self, a: int, b: int, c: int) -> None:
        self.fleet.join(self.node(a))

    def announce(self, a: int, b: int, c: int) -> None:
        """Another start of the agent, another boot of the machine, or another agent under the name."""
        node = self.node(a)
        again = replace(
            node,
            incarnation=max(1, node.incarnation + b % 3 - (b % 9 == 8)),
            boot_id=f"boot-{c % 3}",
            agent_id=node.agent_id if c % 5 else "agent-x",
        )
        self.fleet.announce(again)
        known = self.fleet.state.durable.nodes.get(node.name)
        if known is not None and (known.agent_id, known.incarnation) == (again.agent_id, again.incarnation):
            self.fleet.nodes[node.name] = again

    def inventory(self, a: int, b: int, c: int) -> None:
        node = self.node(a)
        ranks = sorted(self.fleet.state.durable.hold(node.name).ranks)
        entries = [(key, self.seen(b + at, c + at)) for at, key in enumerate(ranks) if (b + at) % 5]
        if c % 4 == 0:
            entries.append((RankKey(JobId(1 + c), 9, 0), self.seen(c, b)))
        self.fleet.inventory(node, entries)

    def disconnect(self, a: int, b: int, c: int) -> None:
        node = self.node(a)
        stream = node.stream - (b % 4 == 0)
        self.fleet.take_up(NodeDisconnected(at=self.fleet.now, node=node.name, stream=stream))

    def beat(self, a: int, b: int, c: int) -> None:
        node = self.node(a)
        for uuid, sample in tuple(node.samples.items())[: b % 2]:
            node.samples[uuid] = replace(sample, is_healthy=c % 5 > 0, unhealthy_reason="XID 79")
        self.fleet.beat(node.name)

    def drain(self, a: int, b: int, c: int) -> None:
        self.fleet.take_up(DrainRequested(at=self.fleet.now, by=ALICE, node=self.node(a).name, is_draining=b % 2 == 0))

    def forget(self, a: int, b: int, c: int) -> None:
        self.fleet.take_up(ForgetRequested(at=self.fleet.now, by=ALICE, node=self.node(a).name))

    def token(self, a: int, b: int, c: int) -> None:
        name = TokenId(f"t{a % 2}")
        token = Token(id=name, user=ALICE, role=Role.USER, digest="00", created_at=self.fleet.now)
        if b % 2:
            self.fleet.take_up(TokenRequested(at=self.fleet.now, by=ALICE, token=token))
        else:
            self.fleet.take_up(RevokeRequested(at=self.fleet.now, by=ALICE, token=name))

    # --- time

    def advance(self, a: int, b: int, c: int) -> None:
        list(self.fleet.advance(SPANS[a % len(SPANS)], beats=False))

    def stalled(self, a: int, b: int, c: int) -> None:
        gap = Span((a + 1) * SECOND)
        self.fleet.now = Instant(self.fleet.now + gap)
        self.fleet.take_up(ReadingResumed(at=self.fleet.now, gap=gap))

    def restart(self, a: int, b: int, c: int) -> None:
        self.fleet.now = Instant(self.fleet.now + a * SECOND)
        self.fleet.restart()


STEPS: dict[str, Callable[[World, int, int, int], None]] = {
    name: step
    for name, step in vars(World).items()
    if name not in {"run", "node", "job", "key", "exit", "seen", "reporter"} and not name.startswith("_")
}
OFTEN = (
    *("submit", "submit", "join", "all_ready", "all_ready", "started", "started", "started", "exited", "exited"),
    *("inventory", "advance", "beat"),
)

small = st.integers(0, 31)
step = st.tuples(st.sampled_from((*STEPS, *OFTEN)), small, small, small)
# A list of any length, drawn length first: lists drawn otherwise are mostly too short for anything to happen.
steps = st.integers(1, 120).flatmap(lambda length: st.lists(step, min_size=length, max_size=length))


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(steps)
def test_any_sequence_of_events_keeps_the_invariants_and_the_records_alone_make_the_state(
    events: list[tuple[str, int, int, int]],
) -> None:
    world = World()
    for event in events:
        world.run(*event)
    again = Durable()
    for record in world.fleet.store.records:
        apply(again, record)
    assert_same(again, world.fleet.state.durable)
