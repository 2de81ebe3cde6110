"""Attempts are named by the scheduler's start that placed them, too, and none is taken for one of another start."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

import pytest

from gpufleet.jobs.runs import ExitCode, ExitSignal, StopCause
from scheduler.core.story import sentence
from scheduler.state.attempts import OutputEnd, OutputStream, PlacedDevice, Placement, RankExit
from scheduler.state.commands import ForgetAttempt, KeepAttempt, KillAttempt, LaunchAttempt
from scheduler.state.events import (
    GapReleaseRequested,
    HoldRequested,
    JobsSubmitted,
    NodeRefused,
    OutputSynced,
    RankExited,
    RankStarted,
    ReportedExited,
    ReportedRunning,
    SchedulerStarted,
    WantedJob,
)
from scheduler.state.gap import HistoryGap, Origin, digest_of_argv
from scheduler.state.ids import DeviceUuid, JobId, NodeName, RankKey, UserName
from scheduler.state.indices import Indices
from scheduler.state.jobs import Finished, Items, Queued, Running
from scheduler.state.limits import Limits
from scheduler.state.live import REFUSED_NODES_KEPT
from scheduler.state.records import (
    AttemptEnded,
    AttemptFound,
    AttemptGivenUp,
    AttemptPlaced,
    AttemptVoided,
    GapAccepted,
    GapNodeReported,
    GapOutlived,
    GapReleased,
    GapReleasedWhole,
    JobFinished,
    JobFound,
    NumbersRaised,
)
from scheduler.state.specs import Band, JobSpec, Outcome
from scheduler.state.units import SECOND, Instant, Span, after
from tests.core.fleet import FakeNode, Fleet, Turn, spec

FIRST, SECOND_START, THIRD_START = "1111111111111111", "2222222222222222", "3333333333333333"
KEY = RankKey(JobId(1), 1, 0, FIRST)
OTHER = replace(KEY, lineage="ffffffffffffffff")
RAN = ReportedRunning(run_span=Span(5 * SECOND))
ENDED = RankExit(exit=ExitCode(code=0), reason="EXITED")


def joined(fleet: Fleet, *, knows_lineages: bool = True, name: str = "n1") -> FakeNode:
    node = fleet.add_node(name, gpus=2)
    node.knows_lineages = knows_lineages
    fleet.join(node)
    return node


def launches(fleet: Fleet) -> list[RankKey]:
    turn = fleet.submit(spec(gpus=1))
    return [command.key for command in turn.commands if isinstance(command, LaunchAttempt)]


def test_an_attempt_has_the_lineage_of_the_start_that_placed_it_and_keeps_it() -> None:
    fleet = Fleet(lineage=FIRST)
    node = joined(fleet)
    assert launches(fleet) == [KEY]
    fleet.take_up(RankStarted(at=fleet.now, node=node.name, key=KEY, run_span=Span(0)))
    fleet.restart(SECOND_START)
    fleet.announce(node)
    assert fleet.inventory(node, [(KEY, RAN)]).commands == (KeepAttempt(node=node.name, key=KEY),)
    fleet.beat(node.name)
    assert launches(fleet) == [RankKey(JobId(2), 1, 0, SECOND_START)]
    ended = fleet.take_up(RankExited(at=fleet.now, node=node.name, key=KEY, exit=ENDED))
    assert ForgetAttempt(node=node.name, key=KEY) in ended.commands
    assert [attempt.lineage for attempt in fleet.job(1).past] == [FIRST]


def test_a_node_that_knows_no_lineages_is_told_of_none() -> None:
    fleet = Fleet(lineage=FIRST)
    node = joined(fleet, knows_lineages=False)
    assert launches(fleet) == [replace(KEY, lineage="")]
    # Its agent is replaced by a newer one, which finds the job as the older one had named it.
    node.knows_lineages, node.incarnation = True, 2
    fleet.announce(node)
    told = fleet.inventory(node, [(replace(KEY, lineage=""), RAN)])
    assert told.commands == (KeepAttempt(node=node.name, key=replace(KEY, lineage="")),)
    fleet.beat(node.name)
    assert launches(fleet) == [RankKey(JobId(2), 1, 0, FIRST)]


def test_what_another_lineage_calls_by_the_same_numbers_is_not_the_jobs() -> None:
    fleet = Fleet(lineage=FIRST)
    node = joined(fleet)
    assert launches(fleet) == [KEY]
    forget = ForgetAttempt(node=node.name, key=OTHER)
    assert fleet.take_up(RankExited(at=fleet.now, node=node.name, key=OTHER, exit=ENDED)).commands == (forget,)
    assert not fleet.take_up(RankStarted(at=fleet.now, node=node.name, key=OTHER, run_span=Span(0))).records
    assert fleet.job(1).attempt_count == 1 and not fleet.job(1).is_finished
    again = fleet.inventory(node, [(OTHER, ReportedExited(exit=ENDED))]).commands
    assert [command.key for command in again if isinstance(command, LaunchAttempt)] == [KEY], "its own never started"
    assert forget in again


def test_of_nodes_that_differ_a_gang_has_no_lineage() -> None:
    fleet = Fleet(lineage=FIRST)
    joined(fleet)
    fleet.join(fleet.add_node("n2", gpus=2))
    fleet.submit(spec(gpus=4, node_count=2))
    attempt = fleet.job(1).attempt
    assert attempt is not None and {rank.placement.node for rank in attempt.ranks} == {NodeName("n1"), NodeName("n2")}
    assert attempt.lineage == ""


GAP = "the database is older"
FENCE, UNREACHABLE = Span(60 * SECOND), Span(200 * SECOND)
LIMITS = replace(Limits(), requeue_fence=FENCE, unreachable_span=UNREACHABLE)


def test_after_a_gap_numbers_of_jobs_and_sessions_go_on_above_all_that_were_given() -> None:
    fleet = Fleet()
    fleet.submit(spec())
    turn = fleet.take_up(SchedulerStarted(at=fleet.now, gap=GAP, jobs_above=JobId(3_000), sessions_above=2_000))
    raised = NumbersRaised(at=fleet.now, next_job=JobId(3_001), next_session=2_001, reason=GAP)
    gap = HistoryGap(at=fleet.now, reason=GAP, jobs_below=JobId(2), jobs_from=JobId(3_001))
    assert turn.records == (raised, GapAccepted(at=fleet.now, gap=gap))
    assert fleet.state.durable.counters.next_session == 2_001
    fleet.submit(spec())
    assert fleet.job(3_001).attempt_count == 0
    again = fleet.take_up(SchedulerStarted(at=fleet.now, gap=GAP, jobs_above=JobId(3_000), sessions_above=2_000))
    assert [type(record) for record in again.records] == [GapAccepted], "the numbers are above those already"


def cut(fleet: Fleet, *specs: JobSpec) -> FakeNode:
    """A fleet of one node whose store is put back to where it knew these jobs as waiting; the node is away."""
    node = joined(fleet)
    fleet.disconnect(node.name)
    deque(fleet.advance(Span(10 * SECOND)), 0)
    if specs:
        fleet.submit(*specs)
    fleet.put_back(fleet.copy(), jobs_above=1_000, lineage=SECOND_START)
    return node


def placed(fleet: Fleet) -> list[JobId]:
    return [job.id for job in fleet.state.durable.jobs.values() if job.attempt is not None]


def test_a_job_of_before_a_gap_waits_for_every_node_and_for_the_fence_of_those_that_nobody_knows() -> None:
    fleet = Fleet(LIMITS, lineage=FIRST)
    node = cut(fleet, spec(gpus=1))
    began = fleet.now
    fleet.join(node)
    assert fleet.state.durable.gap is not None and not fleet.state.durable.gap.awaited
    fleet.submit(spec(gpus=1))
    assert placed(fleet) == [1_001], "what was submitted since was never run by anybody"
    assert fleet.reasons([fleet.job(1)])[JobId(1)].name == "STORE_GAP"
    deque(fleet.advance(Span(FENCE - SECOND)), 0)
    fleet.restart(THIRD_START)
    fleet.join(node)
    assert placed(fleet) == [1_001] and fleet.now < after(began, FENCE), "a start in between ends no wait"
    deque(fleet.advance(Span(2 * SECOND)), 0)
    assert placed(fleet) == [1, 1_001]


def test_a_node_that_the_copy_knows_is_waited_for_until_its_own_fence_has_passed() -> None:
    fleet = Fleet(LIMITS, lineage=FIRST)
    cut(fleet, spec(gpus=1))
    other = fleet.add_node("n2", gpus=2)
    fleet.join(other)
    deque(fleet.advance(Span(50 * SECOND)), 0)
    fleet.restart(THIRD_START)  # the span of a silent node begins anew
    fleet.join(other)
    deque(fleet.advance(Span(50 * SECOND)), 0)
    assert placed(fleet) == [] and "node n1" in fleet.reasons([fleet.job(1)])[JobId(1)].clause
    deque(fleet.advance(Span(15 * SECOND)), 0)
    assert placed(fleet) == [1]


def test_a_job_that_must_not_run_twice_outlives_the_fence_and_a_person_may_let_it_start() -> None:
    fleet = Fleet(LIMITS, lineage=FIRST)
    once = spec(gpus=1, is_requeueable=False)
    node = cut(fleet, once, once)
    fleet.join(node)
    deque(fleet.advance(Span(FENCE + 10 * SECOND)), 0)
    assert placed(fleet) == []
    released = HoldRequested(at=fleet.now, by=UserName("alice"), jobs=(JobId(2),), is_held=False)
    records = fleet.take_up(released).records
    assert [type(each) for each in records] == [GapReleased, GapOutlived, AttemptPlaced] and placed(fleet) == [2]
    deque(fleet.advance(UNREACHABLE), 0)
    assert placed(fleet) == [1, 2]
    assert fleet.state.durable.gap is not None and fleet.state.durable.gap.is_closed


def test_a_job_waits_while_a_node_ends_an_attempt_of_it_that_the_store_lacks() -> None:
    fleet = Fleet(LIMITS, lineage=FIRST)
    node = cut(fleet, spec(gpus=1))
    fleet.join(fleet.add_node("n2", gpus=2))
    fleet.announce(node)
    fleet.inventory(node, [(OTHER, RAN)])
    deque(fleet.advance(Span(FENCE + UNREACHABLE)), 0)
    assert placed(fleet) == [] and fleet.reasons([fleet.job(1)])[JobId(1)].node == "n1"
    fleet.take_up(RankExited(at=fleet.now, node=node.name, key=OTHER, exit=ENDED))
    assert placed(fleet) == [1]


def test_a_launch_that_may_have_been_given_up_is_not_sent_again_after_a_gap() -> None:
    fleet = Fleet(LIMITS, lineage=FIRST)
    node = joined(fleet)
    assert launches(fleet) == [KEY]
    fleet.put_back(fleet.copy(), jobs_above=1_000, lineage=SECOND_START)
    fleet.announce(node)
    turn = fleet.inventory(node)
    assert not [each for each in turn.commands if isinstance(each, LaunchAttempt)]
    assert [type(each) for each in turn.records] == [GapNodeReported, AttemptVoided]
    deque(fleet.advance(Span(FENCE)), 0)
    assert placed(fleet) == [1] and fleet.job(1).attempt_count == 2


def test_items_of_an_array_are_released_from_a_gap_together() -> None:
    fleet = Fleet(LIMITS, lineage=FIRST)
    node = cut(fleet)
    fleet.take_up(
        JobsSubmitted(
            at=fleet.now,
            user=UserName("alice"),
            jobs=(WantedJob(spec=spec(gpus=1), band=Band.NORMAL),),
            items=Items(indices=Indices.of_ranges([range(5)])),
        )
    )
    array = max(fleet.state.durable.arrays)
    fleet.put_back(fleet.copy(), jobs_above=array + 1_000, lineage=THIRD_START)
    fleet.join(node)
    assert placed(fleet) == []
    fleet.take_up(HoldRequested(at=fleet.now, by=UserName("alice"), jobs=(array,), is_held=False))
    assert placed(fleet) == [array + 1, array + 2]


def test_an_admin_lets_all_jobs_of_before_a_gap_start_at_once() -> None:
    fleet = Fleet(LIMITS, lineage=FIRST)
    fleet.join(cut(fleet, spec(gpus=1), spec(gpus=1)))
    deque(fleet.advance(Span(SECOND)), 0)
    assert placed(fleet) == []
    request = GapReleaseRequested(at=fleet.now, by=UserName("admin"))
    assert isinstance(fleet.take_up(request).records[0], GapReleasedWhole)
    assert placed(fleet) == [1, 2]
    assert not [each for each in fleet.take_up(request).records if isinstance(each, GapReleasedWhole)]
    gap = fleet.state.durable.gap
    assert gap is not None and gap.is_released and not gap.is_closed, "what nodes tell counts as before"


# --- what nodes tell of history that the store lacks


def origin(fleet: Fleet, number: int, node: str = "n1", device: int = 0, **changes: Any) -> Origin:
    """What a launch of this job would have said, on one device of a node."""
    job = fleet.job(number)
    placed = PlacedDevice(index=device, uuid=DeviceUuid(f"{node}-gpu{device}"), name="GPU")
    placement = Placement(node=NodeName(node), agent_id=f"agent-{node}", boot_id="boot-1", devices=(placed,))
    of_job = Origin(
        user=job.user,
        name=job.spec.name,
        submitted_at=job.submitted_at,
        placed_at=fleet.now,
        argv=job.spec.argv,
        argv_digest=digest_of_argv(job.spec.argv),
        placement=placement,
    )
    return replace(of_job, **changes)


def tells(
    fleet: Fleet,
    node: FakeNode,
    *entries: tuple[RankKey, ReportedRunning],
    ended: tuple[tuple[RankKey, ReportedExited], ...] = (),
    origins: tuple[tuple[RankKey, Origin], ...] = (),
) -> Turn:
    """A node opens its first stream behind a gap, and is asked for all."""
    fleet.announce(node)
    return fleet.inventory(node, entries, forgotten=ended, origins=origins)


def lost(job: int, attempt: int = 1) -> RankKey:
    return RankKey(JobId(job), attempt, 0, OTHER.lineage)


def end(code: int = 0, **changes: Any) -> ReportedExited:
    return ReportedExited(exit=replace(RankExit(exit=ExitCode(code=code), reason="EXITED"), **changes))


def test_an_attempt_that_runs_and_that_the_store_lacks_is_its_jobs_and_goes_on() -> None:
    fleet = Fleet(LIMITS, lineage=FIRST)
    node = cut(fleet, spec(gpus=1, time_limit=Span(100 * SECOND)))
    turn = tells(fleet, node, (lost(1), RAN), origins=((lost(1), origin(fleet, 1)),))
    assert [type(each) for each in turn.records] == [GapNodeReported, AttemptFound]
    assert KeepAttempt(node=node.name, key=lost(1)) in turn.commands
    assert not [each for each in turn.commands if isinstance(each, KillAttempt | ForgetAttempt)]
    job = fleet.job(1)
    assert isinstance(job.state, Running) and job.state.started_at == fleet.now - 5 * SECOND
    assert (
        set(fleet.state.durable.hold(node.name).ranks) == {lost(1)} and not fleet.state.live.nodes[node.name].lingering
    )
    fleet.restart(THIRD_START)
    fleet.announce(node)
    assert fleet.inventory(node, [(lost(1), RAN)]).commands[0] == KeepAttempt(node=node.name, key=lost(1))
    fleet.take_up(RankExited(at=fleet.now, node=node.name, key=lost(1), exit=ENDED))
    assert fleet.job(1).is_finished and [each.lineage for each in fleet.job(1).past] == [OTHER.lineage]


def test_a_job_that_had_ended_in_the_gap_ends_as_its_keeper_says_and_does_not_run_again() -> None:
    fleet = Fleet(LIMITS, lineage=FIRST)
    node = cut(fleet, spec(gpus=1), spec(gpus=1, retries=1))
    ended = ((lost(1), end(3)), (lost(2, 1), end(1)), (lost(2, 2), end(0)))
    origins = tuple((key, origin(fleet, key.job)) for key, _ in ended)
    turn = tells(fleet, node, ended=ended, origins=origins)
    assert [each.attempt.number for each in turn.records if isinstance(each, AttemptFound)] == [1, 2]
    assert not fleet.job(1).is_finished, "its output may not be stored yet"
    for key in (lost(1), lost(2, 2)):
        fleet.take_up(OutputSynced(at=fleet.now, key=key, ends=()))
    states = [fleet.job(number).state for number in (1, 2)]
    assert [each.outcome for each in states if isinstance(each, Finished)] == [Outcome.FAILED, Outcome.SUCCEEDED]
    deque(fleet.advance(Span(FENCE + UNREACHABLE)), 0)
    assert placed(fleet) == []


def test_an_end_whose_output_its_node_still_has_is_not_forgotten_before_that_is_stored() -> None:
    fleet = Fleet(LIMITS, lineage=FIRST)
    node = cut(fleet, spec(gpus=1))
    fleet.announce(node)
    turn = fleet.inventory(node, [(lost(1), end(3))], origins=[(lost(1), origin(fleet, 1))])
    assert [type(each) for each in turn.records] == [GapNodeReported, AttemptFound] and not turn.commands
    ended = fleet.take_up(OutputSynced(at=fleet.now, key=lost(1), ends=()))
    assert ForgetAttempt(node=node.name, key=lost(1)) in ended.commands and fleet.job(1).is_finished


def test_who_had_been_stopped_to_run_again_waits_again() -> None:
    fleet = Fleet(LIMITS, lineage=FIRST)
    node = cut(fleet, spec(gpus=1))
    stopped = end(0, exit=ExitSignal(signal=15), stop_cause=StopCause.PREEMPTED)
    tells(fleet, node, ended=((lost(1), stopped),), origins=((lost(1), origin(fleet, 1)),))
    fleet.take_up(OutputSynced(at=fleet.now, key=lost(1), ends=()))
    assert isinstance(fleet.job(1).state, Queued) and fleet.job(1).attempt_count == 1


def test_an_attempt_that_the_store_has_as_live_ends_by_its_tombstone() -> None:
    fleet = Fleet(LIMITS, lineage=FIRST)
    node = joined(fleet)
    assert launches(fleet) == [KEY]
    fleet.take_up(RankStarted(at=fleet.now, node=node.name, key=KEY, run_span=Span(0)))
    fleet.put_back(fleet.copy(), jobs_above=1_000, lineage=SECOND_START)
    tells(fleet, node, ended=((KEY, end(0)),))
    fleet.take_up(OutputSynced(at=fleet.now, key=KEY, ends=()))
    finished = fleet.job(1).state
    assert isinstance(finished, Finished) and finished.outcome is Outcome.SUCCEEDED


def test_a_node_that_lies_about_whose_an_attempt_is_ends_nobodys_job() -> None:
    fleet = Fleet(LIMITS, lineage=FIRST)
    node = cut(fleet, spec(gpus=1))
    others = (
        origin(fleet, 1, user=UserName("mallory")),
        origin(fleet, 1, submitted_at=after(fleet.now, SECOND)),
        origin(fleet, 1, argv_digest=digest_of_argv(("another",))),
    )
    for each in others:
        turn = tells(fleet, node, (lost(1), RAN), ended=((lost(1, 2), end(0)),), origins=((lost(1), each),))
        assert KillAttempt(node=node.name, key=lost(1)) in turn.commands
        assert isinstance(fleet.job(1).state, Queued) and not turn.records
    turn = tells(fleet, node, ended=((lost(1), end(0)),))
    assert isinstance(fleet.job(1).state, Queued), "without an origin nothing is taken for a job's"


def test_what_was_ended_as_one_that_counts_for_nothing_is_not_taken_up_later() -> None:
    fleet = Fleet(LIMITS, lineage=FIRST)
    node = cut(fleet, spec(gpus=1))
    stale = end(0, exit=ExitSignal(signal=9), stop_cause=StopCause.STALE)
    turn = tells(fleet, node, ended=((lost(1), stale),), origins=((lost(1), origin(fleet, 1)),))
    assert [type(each) for each in turn.records] == [GapNodeReported] and isinstance(fleet.job(1).state, Queued)
    deque(fleet.advance(Span(FENCE + SECOND)), 0)
    assert placed(fleet) == [1]


def test_a_job_that_may_run_does_not_time_out_in_the_queue_before_its_nodes_have_told() -> None:
    fleet = Fleet(LIMITS, lineage=FIRST)
    short = Span(15 * SECOND)
    node = cut(fleet, spec(gpus=1, queue_timeout=short), spec(gpus=2, queue_timeout=short))
    fleet.submit(spec(gpus=2, queue_timeout=short))
    passed = [each for turn in fleet.advance(Span(30 * SECOND)) for each in turn.records]
    assert [each.job for each in passed if isinstance(each, JobFinished)] == [1_001], "one of after the gap"
    turn = tells(fleet, node, (lost(1), RAN), origins=((lost(1), origin(fleet, 1)),))
    assert [each.job for each in turn.records if isinstance(each, AttemptFound)] == [1]
    deque(fleet.advance(FENCE), 0)
    assert isinstance(fleet.job(1).state, Running)
    assert fleet.job(2).is_finished, "nobody has told of it, and it has waited for longer than it may"


def test_a_job_that_an_earlier_gap_lost_is_kept_where_its_node_tells_of_it_behind_the_next() -> None:
    fleet = Fleet(LIMITS, lineage=FIRST)
    node = cut(fleet, spec(gpus=1))
    like = origin(fleet, 1)
    fleet.put_back(fleet.copy(), jobs_above=2_000, lineage=THIRD_START)
    told = ((lost(2), end(3)), (lost(1_500), end(3)))
    origins = tuple((key, replace(like, argv_digest=digest_of_argv(("x",)))) for key, _ in told)
    turn = tells(fleet, node, ended=told, origins=origins)
    assert [each.job.id for each in turn.records if isinstance(each, JobFound)] == [2, 1_500]
    fleet.put_back(fleet.copy(), jobs_above=3_000, lineage=FIRST)
    turn = tells(fleet, node, ended=told, origins=origins)
    assert not [each for each in turn.records if isinstance(each, JobFound)], "each is told once"


def test_nodes_that_were_refused_are_remembered_the_newest_and_not_those_that_are_connected() -> None:
    fleet = Fleet()
    joined(fleet)
    for number in range(REFUSED_NODES_KEPT + 2):
        refused = NodeRefused(at=fleet.now, node=NodeName(f"n{number}"), reason="STORE_RESTORED", message="why")
        turn = fleet.take_up(refused)
        assert (turn.records, turn.commands) == ((), ())
    names = list(fleet.state.live.refused_nodes)
    assert len(names) == REFUSED_NODES_KEPT and names[:1] == ["n2"], "n1 is connected, and n0 was the first"
    joined(fleet, name="n2")
    assert "n2" not in fleet.state.live.refused_nodes


def test_of_two_attempts_that_had_the_same_device_one_is_not_taken() -> None:
    fleet = Fleet(LIMITS, lineage=FIRST)
    node = cut(fleet, spec(gpus=1), spec(gpus=1))
    origins = tuple((lost(number), origin(fleet, number)) for number in (1, 2))
    turn = tells(fleet, node, (lost(1), RAN), (lost(2), RAN), origins=origins)
    assert [each.job for each in turn.records if isinstance(each, AttemptFound)] == [1]
    assert KillAttempt(node=node.name, key=lost(2)) in turn.commands
    assert [(each.key, each.is_running) for each in turn.records if isinstance(each, AttemptGivenUp)] == [
        (lost(2), True)
    ]


def test_jobs_that_the_store_lacks_are_kept_as_they_ended_and_what_runs_of_them_is_ended() -> None:
    fleet = Fleet(LIMITS, lineage=FIRST)
    node = cut(fleet, spec(gpus=1))
    origins = tuple((lost(number), origin(fleet, 1, user=UserName("bob"))) for number in (2, 3, 1_001))
    ended = ((lost(3), end(0)), (lost(1_001), end(0)))
    turn = tells(fleet, node, (lost(2), RAN), ended=ended, origins=origins)
    assert KillAttempt(node=node.name, key=lost(2)) in turn.commands
    assert sorted(fleet.store.finished) == [2, 3], "1,001 is above all that were given, and may be another's"
    ran, had_ended = (fleet.job(number) for number in (2, 3))
    assert isinstance(ran.state, Finished) and ran.state.reason == "STORE_GAP" and "was ended" in ran.state.message
    assert isinstance(had_ended.state, Finished) and had_ended.state.outcome is Outcome.SUCCEEDED
    assert had_ended.user == "bob" and had_ended.past[0].keys(had_ended.id) == (lost(3),)
    again = tells(fleet, node, ended=ended, origins=origins)
    assert not [each for each in again.records if isinstance(each, JobFound)]


def test_of_a_job_that_the_store_lacks_what_its_node_still_has_is_taken_in_before_its_end_counts() -> None:
    fleet = Fleet(LIMITS, lineage=FIRST)
    node = cut(fleet, spec(gpus=1))
    told = origin(fleet, 1, user=UserName("bob"))
    output = (OutputEnd(rank=0, stream=OutputStream.STDOUT, end_offset=9),)
    fleet.announce(node)
    turn = fleet.inventory(node, [(lost(2), end(0, output_ends=output))], origins=[(lost(2), told)])
    assert [type(each) for each in turn.records] == [GapNodeReported, JobFound, AttemptFound]
    assert ForgetAttempt(node=node.name, key=lost(2)) not in turn.commands and not fleet.store.finished
    ended = fleet.take_up(OutputSynced(at=fleet.now, key=lost(2), ends=output))
    assert ForgetAttempt(node=node.name, key=lost(2)) in ended.commands
    state = fleet.job(2).state
    assert isinstance(state, Finished) and state.outcome is Outcome.SUCCEEDED and fleet.job(2).user == "bob"


@pytest.mark.parametrize(("of", "why"), [({"node_count": 2}, "several nodes"), ({"serves": "model"}, "a worker")])
def test_what_is_not_taken_up_ends_and_the_story_says_that_it_may_be_done_twice(of: dict[str, Any], why: str) -> None:
    fleet = Fleet(LIMITS, lineage=FIRST)
    node = cut(fleet, spec(gpus=1), spec(gpus=1))
    origins = tuple((lost(number), origin(fleet, number, **of)) for number in (1, 2))
    turn = tells(fleet, node, (lost(1), RAN), ended=((lost(2), end(0)),), origins=origins)
    assert KillAttempt(node=node.name, key=lost(1)) in turn.commands
    told = [each for each in turn.records if isinstance(each, AttemptGivenUp)]
    assert [(each.key, each.node, each.is_running) for each in told] == [
        (lost(1), node.name, True),
        (lost(2), node.name, False),
    ]
    assert all(why in sentence(each) and "may be done twice" in sentence(each) for each in told)
    assert all(isinstance(fleet.job(number).state, Queued) for number in (1, 2))
    again = tells(fleet, node, ended=((lost(2), end(0)),), origins=origins)
    assert not [each for each in again.records if isinstance(each, AttemptGivenUp)], "it is told once"
    gap = fleet.state.durable.gap
    assert gap is not None and gap.given_up == ((1, "n1"), (2, "n1"))


def behind_by_an_attempt() -> tuple[Fleet, FakeNode, FakeNode]:
    """Job 1 runs on n1, as a copy says that was put back; the lost history has placed it anew since."""
    fleet = Fleet(LIMITS, lineage=FIRST)
    first = joined(fleet)
    assert launches(fleet) == [KEY]
    second = joined(fleet, name="n2")
    fleet.take_up(RankStarted(at=fleet.now, node=first.name, key=KEY, run_span=Span(0)))
    deque(fleet.advance(Span(SECOND)), 0)
    fleet.put_back(fleet.copy(), jobs_above=1_000, lineage=SECOND_START)
    return fleet, first, second


def test_a_newer_attempt_of_a_job_that_the_store_has_as_running_goes_on_and_the_older_one_is_over() -> None:
    fleet, first, second = behind_by_an_attempt()
    key = lost(1, 2)
    turn = tells(fleet, second, (key, RAN), origins=((key, origin(fleet, 1, "n2")),))
    assert [type(each) for each in turn.records] == [GapNodeReported, AttemptEnded, AttemptFound]
    assert KeepAttempt(node=second.name, key=key) in turn.commands
    job = fleet.job(1)
    assert isinstance(job.state, Running) and job.attempt is not None and job.attempt.number == 2
    assert [each.reason for each in job.past] == ["STORE_GAP"]
    # Its old node comes back with what it has: nothing of that counts any more.
    late = tells(fleet, first, ended=((KEY, end(0)),))
    assert fleet.job(1).attempt == job.attempt and not [each for each in late.records if isinstance(each, JobFinished)]
    fleet.take_up(RankExited(at=fleet.now, node=second.name, key=key, exit=ENDED))
    assert fleet.job(1).is_finished and [each.number for each in fleet.job(1).past] == [1, 2]


def test_the_same_on_one_node_whose_tombstone_of_the_older_attempt_ends_nothing() -> None:
    fleet, first, _ = behind_by_an_attempt()
    key = lost(1, 2)
    fenced = end(0, exit=ExitSignal(signal=9), stop_cause=StopCause.REQUEUED)
    turn = tells(fleet, first, (key, RAN), ended=((KEY, fenced),), origins=((key, origin(fleet, 1)),))
    assert KeepAttempt(node=first.name, key=key) in turn.commands
    assert not [each for each in turn.commands if isinstance(each, KillAttempt)]
    job = fleet.job(1)
    assert isinstance(job.state, Running) and job.attempt is not None and job.attempt.number == 2


def test_a_newer_attempt_that_had_ended_ends_the_job_that_the_store_has_as_running() -> None:
    fleet, _, second = behind_by_an_attempt()
    key = lost(1, 2)
    tells(fleet, second, ended=((key, end(3)),), origins=((key, origin(fleet, 1, "n2")),))
    fleet.take_up(OutputSynced(at=fleet.now, key=key, ends=()))
    finished = fleet.job(1).state
    assert isinstance(finished, Finished) and finished.outcome is Outcome.FAILED


def test_of_two_attempts_that_run_the_one_that_the_store_has_stays_and_the_story_says_so() -> None:
    fleet, first, second = behind_by_an_attempt()
    fleet.announce(first)
    fleet.inventory(first, [(KEY, RAN)])
    key = lost(1, 2)
    turn = tells(fleet, second, (key, RAN), origins=((key, origin(fleet, 1, "n2")),))
    assert KillAttempt(node=second.name, key=key) in turn.commands
    (told,) = [each for each in turn.records if isinstance(each, AttemptGivenUp)]
    assert "attempt 1/1 of the job is there" in sentence(told)
    attempt = fleet.job(1).attempt
    assert attempt is not None and attempt.number == 1


def test_an_attempt_that_was_placed_before_the_stores_own_is_no_newer_one() -> None:
    fleet, _, second = behind_by_an_attempt()
    key = lost(1, 2)
    told = origin(fleet, 1, "n2", placed_at=Instant(1))
    turn = tells(fleet, second, (key, RAN), origins=((key, told),))
    assert KillAttempt(node=second.name, key=key) in turn.commands
    assert [type(each) for each in turn.records if isinstance(each, AttemptGivenUp | AttemptEnded)] == [AttemptGivenUp]


def test_what_runs_goes_on_beside_what_has_ended_there_and_holds_its_cpus_until_its_output_is_looked_for() -> None:
    fleet = Fleet(LIMITS, lineage=FIRST)
    node = fleet.add_node("n1", cpus=2)
    node.knows_lineages = True
    fleet.join(node)
    fleet.submit(spec(gpus=0, cpus=2))
    fleet.submit(spec(gpus=0, cpus=2))
    fleet.take_up(RankStarted(at=fleet.now, node=node.name, key=KEY, run_span=Span(0)))
    assert placed(fleet) == [1]
    fleet.put_back(fleet.copy(), jobs_above=1_000, lineage=SECOND_START)
    output = (OutputEnd(rank=0, stream=OutputStream.STDOUT, end_offset=9),)
    told = origin(fleet, 2)
    told = replace(told, placement=replace(told.placement, devices=(), cpus=2))
    fleet.announce(node)
    ended = end(0, output_ends=output)
    turn = fleet.inventory(node, [(KEY, ended), (lost(2), RAN)], origins=[(lost(2), told)])
    assert KeepAttempt(node=node.name, key=lost(2)) in turn.commands
    assert [type(fleet.job(number).state) for number in (1, 2)] == [Running, Running]
    assert fleet.state.durable.hold(node.name).cpus == 4
    fleet.submit(spec(gpus=0, cpus=1))
    reason = fleet.reasons([fleet.job(1_001)])[JobId(1_001)]
    assert "has 0 of 2 CPUs free" in reason.clause
    fleet.take_up(OutputSynced(at=fleet.now, key=KEY, ends=output))
    assert fleet.job(1).is_finished and fleet.state.durable.hold(node.name).cpus == 2


def test_what_came_out_of_a_backlog_holds_its_device_beside_the_first_of_its_slot_that_has_ended() -> None:
    """What was found to have ended holds nothing, also for those that had its place after it."""
    fleet = Fleet(LIMITS, lineage=FIRST)
    node = cut(fleet, spec(gpus=1), spec(gpus=1))
    node.keeps_backlog = True
    output = (OutputEnd(rank=0, stream=OutputStream.STDOUT, end_offset=9),)
    origins = ((lost(1), origin(fleet, 1)), (lost(2), origin(fleet, 2, slot=lost(1))))
    fleet.announce(node)
    fleet.inventory(node, [(lost(1), end(0, output_ends=output)), (lost(2), RAN)], origins=origins)
    assert [type(fleet.job(number).state) for number in (1, 2)] == [Running, Running]
    assert fleet.state.durable.hold(node.name).devices == {DeviceUuid("n1-gpu0"): JobId(2)}
    fleet.take_up(OutputSynced(at=fleet.now, key=lost(1), ends=output))
    assert fleet.job(1).is_finished
    assert fleet.state.durable.hold(node.name).devices == {DeviceUuid("n1-gpu0"): JobId(2)}


def test_what_came_out_of_a_backlog_shares_its_place_with_who_had_it_before_as_the_store_has_it() -> None:
    fleet = Fleet(LIMITS, lineage=FIRST)
    node = joined(fleet)
    fleet.submit(spec(gpus=1))
    fleet.take_up(RankStarted(at=fleet.now, node=node.name, key=KEY, run_span=Span(0)))
    fleet.submit(spec(gpus=1), held=True)
    fleet.put_back(fleet.copy(), jobs_above=1_000, lineage=SECOND_START)
    first = fleet.job(1).attempt
    assert first is not None
    told = origin(fleet, 2, slot=KEY, placement=first.ranks[0].placement)
    output = (OutputEnd(rank=0, stream=OutputStream.STDOUT, end_offset=9),)
    fleet.announce(node)
    turn = fleet.inventory(node, [(KEY, end(0, output_ends=output)), (lost(2), RAN)], origins=[(lost(2), told)])
    assert KeepAttempt(node=node.name, key=lost(2)) in turn.commands, "it is not ended for a place that is its own"
    assert len(fleet.state.durable.hold(node.name).slots) == 1
    fleet.take_up(OutputSynced(at=fleet.now, key=KEY, ends=output))
    assert fleet.job(1).is_finished and set(fleet.state.durable.hold(node.name).devices.values()) == {2}
