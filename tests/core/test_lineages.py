"""Attempts are named by the scheduler's start that placed them, too, and none is taken for one of another start."""

from __future__ import annotations

from dataclasses import replace

from gpufleet.jobs.runs import ExitCode
from scheduler.state.attempts import RankExit
from scheduler.state.commands import ForgetAttempt, KeepAttempt, LaunchAttempt
from scheduler.state.events import RankExited, RankStarted, ReportedExited, ReportedRunning, SchedulerStarted
from scheduler.state.ids import JobId, NodeName, RankKey
from scheduler.state.records import NumbersRaised
from scheduler.state.units import SECOND, Span
from tests.core.fleet import FakeNode, Fleet, spec

FIRST, SECOND_START = "1111111111111111", "2222222222222222"
KEY = RankKey(JobId(1), 1, 0, FIRST)
OTHER = replace(KEY, lineage="ffffffffffffffff")
RAN = ReportedRunning(run_span=Span(5 * SECOND))
ENDED = RankExit(exit=ExitCode(code=0), reason="EXITED")


def joined(fleet: Fleet, *, knows_lineages: bool = True) -> FakeNode:
    node = fleet.add_node("n1", gpus=2)
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


def test_after_a_gap_numbers_of_jobs_go_on_above_all_that_were_given() -> None:
    fleet = Fleet()
    fleet.submit(spec())
    turn = fleet.take_up(SchedulerStarted(at=fleet.now, gap="the database is older", jobs_above=JobId(3_000)))
    assert turn.records == (NumbersRaised(at=fleet.now, next_job=JobId(3_001), reason="the database is older"),)
    fleet.submit(spec())
    assert fleet.job(3_001).attempt_count == 0
    assert not fleet.take_up(SchedulerStarted(at=fleet.now, gap="the same", jobs_above=JobId(3_000))).records
