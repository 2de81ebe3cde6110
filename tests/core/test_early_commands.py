"""What leaves before its commit while the store takes none: exactly these commands and answers, and no record."""

from __future__ import annotations

from gpufleet.jobs.runs import StopCause
from scheduler.core.early_commands import early_signals, early_stops
from scheduler.state.commands import SignalAttempt, StopAttempt
from scheduler.state.events import CancelRequested, RankStarted, SignalRequested
from scheduler.state.ids import JobId, NodeName, RankKey, UserName
from scheduler.state.replies import JobsChanged, Refused
from scheduler.state.units import Span
from tests.core.fleet import Fleet, spec

ALICE = UserName("alice")
N1 = NodeName("n1")
KEY = RankKey(JobId(1), 1, 0)
FULL = "the disk is full"


def one_runs_and_one_waits() -> Fleet:
    fleet = Fleet()
    fleet.join(fleet.add_node("n1", gpus=1))
    fleet.submit(spec(gpus=1), spec(gpus=1))
    fleet.take_up(RankStarted(at=fleet.now, node=N1, key=KEY, run_span=Span(0)))
    return fleet


def cancelled(fleet: Fleet, *jobs: int, is_abandoned: bool = False) -> CancelRequested:
    return CancelRequested(at=fleet.now, by=ALICE, jobs=tuple(map(JobId, jobs)), is_abandoned=is_abandoned)


def signalled(fleet: Fleet, *jobs: int) -> SignalRequested:
    return SignalRequested(at=fleet.now, by=ALICE, jobs=tuple(map(JobId, jobs)), signal=10)


def words(reply: object) -> list[str]:
    assert isinstance(reply, JobsChanged)
    return [change.message for change in reply.changes]


def test_only_what_runs_on_a_node_that_hears_is_told_to_stop() -> None:
    fleet = one_runs_and_one_waits()
    early = early_stops(fleet.state, cancelled(fleet, 1, 2, 3, 1), FULL)
    assert early is not None
    (stop,) = early.commands
    assert isinstance(stop, StopAttempt) and (stop.node, stop.key, stop.cause) == (N1, KEY, StopCause.CANCELLED)
    assert early.jobs == (JobId(1),)
    assert words(early.reply) == [
        "job 1 is told to stop; not yet stored: the disk is full",
        "job 2 is left as it is: the store takes no commits (the disk is full)",
        "job 3 is left as it is: the store takes no commits (the disk is full)",
    ]
    assert early_stops(fleet.state, cancelled(fleet, 2), FULL) is None
    assert early_stops(fleet.state, cancelled(fleet, 1, is_abandoned=True), FULL) is None
    fleet.disconnect(N1)
    assert early_stops(fleet.state, cancelled(fleet, 1), FULL) is None


def test_a_signal_leaves_for_what_runs_and_waits_where_it_is_not_known_what_runs() -> None:
    fleet = one_runs_and_one_waits()
    early = early_signals(fleet.state, signalled(fleet, 1, 2), FULL, is_decided=False)
    assert early is not None
    assert early.commands == (SignalAttempt(node=N1, key=KEY, signal=10),) and early.jobs == (JobId(1),)
    assert words(early.reply) == [
        "signal 10 is sent to job 1; not yet stored: the disk is full",
        "job 2 does not run",
    ]
    assert early_signals(fleet.state, signalled(fleet, 1, 2), FULL, is_decided=True) is None
    assert early_signals(fleet.state, signalled(fleet, 2), FULL, is_decided=False) is None
    fleet.disconnect(N1)
    unheard = early_signals(fleet.state, signalled(fleet, 1), FULL, is_decided=False)
    assert unheard is not None and not unheard.commands
    assert isinstance(unheard.reply, Refused) and unheard.reply.reason == "NODE_UNREACHABLE"


def test_a_signal_that_left_early_is_stored_and_sent_no_second_time() -> None:
    fleet = one_runs_and_one_waits()
    event = SignalRequested(at=fleet.now, by=ALICE, jobs=(JobId(1),), signal=10, is_sent=True)
    fleet.disconnect(N1)
    turn = fleet.take_up(event)
    assert [type(record).__name__ for record in turn.records] == ["SignalSent"] and not turn.commands
