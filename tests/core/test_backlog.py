"""What waits on a node behind others, where its agent is of another version, lies, or is told of otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.state.commands import LaunchAttempt
from scheduler.state.events import RankRefused, RankStarted, ReportedRunning
from scheduler.state.ids import NodeName, RankKey
from scheduler.state.jobs import Job, Queued, Starting
from scheduler.state.live import BACKLOG_PAUSE
from scheduler.state.records import AttemptPlaced
from scheduler.state.units import SECOND, Span
from tests.core.fleet import FakeNode, Fleet, Turn, spec

SHORT = spec(time_limit=Span(1 * SECOND))


def key_of(job: Job) -> RankKey:
    assert job.attempt is not None
    return job.attempt.keys(job.id)[0]


def on(job: Job) -> NodeName:
    assert job.attempt is not None
    return job.attempt.ranks[0].placement.node


def with_a_backlog() -> tuple[Fleet, FakeNode]:
    """A node on which job 1 runs, and job 2 waits behind it."""
    fleet = Fleet()
    node = fleet.add_node("n1", cpus=1, keeps_backlog=True)
    fleet.join(node)
    fleet.submit(*[SHORT] * 4)
    fleet.take_up(RankStarted(at=fleet.now, node=node.name, key=key_of(fleet.job(1)), run_span=Span(0)))
    second = fleet.job(2).attempt
    assert second is not None and second.slot == key_of(fleet.job(1))
    return fleet, node


def starts_anew(fleet: Fleet, node: FakeNode) -> Turn:
    """Its agent starts anew: what waited there is not known any more, and what runs is."""
    fleet.disconnect(node.name)
    node.incarnation += 1
    fleet.announce(node)
    return fleet.inventory(node, [(key_of(fleet.job(1)), ReportedRunning(run_span=Span(0)))])


@pytest.mark.parametrize("keeps_backlog", [True, False])
def test_what_waited_is_launched_again_where_it_can_wait_and_is_in_line_where_not(keeps_backlog: bool) -> None:
    fleet, node = with_a_backlog()
    node.keeps_backlog = keeps_backlog
    turn = starts_anew(fleet, node)
    launched = [command.key.job for command in turn.commands if isinstance(command, LaunchAttempt)]
    if keeps_backlog:
        assert 2 in launched and isinstance(fleet.job(2).state, Starting)
    else:
        assert not launched and isinstance(fleet.job(2).state, Queued)


def hands_back(fleet: Fleet, node: FakeNode, number: int) -> Turn:
    """A node says that a job waits there no more, and has not begun."""
    key = key_of(fleet.job(number))
    return fleet.take_up(RankRefused(at=fleet.now, node=node.name, key=key, reason="TAKEN_BACK"))


def test_a_node_that_hands_back_unasked_is_given_nothing_in_advance_for_a_moment() -> None:
    """Else one that lies has the scheduler place and void for ever, as fast as the two can."""
    fleet, node = with_a_backlog()
    turn = hands_back(fleet, node, 2)
    assert isinstance(fleet.job(2).state, Queued)
    assert not [each for each in turn.records if isinstance(each, AttemptPlaced)]
    live = fleet.state.live.nodes[node.name]
    assert live.backlog_paused_until == fleet.now + BACKLOG_PAUSE and not live.left_out_until


def test_a_node_that_hands_back_what_never_waited_there_is_left_out() -> None:
    fleet, _ = with_a_backlog()
    fleet.add_node("n2", cpus=1)
    fleet.join(fleet.nodes[NodeName("n2")])
    (other,) = [each for each in fleet.state.durable.jobs.values() if each.attempt and on(each) == "n2"]
    hands_back(fleet, fleet.nodes[NodeName("n2")], other.id)
    assert fleet.state.live.nodes[NodeName("n2")].left_out_until > fleet.now


def test_nothing_is_placed_behind_others_on_a_node_that_is_not_what_is_asked_for_any_more() -> None:
    fleet = Fleet()
    node = fleet.add_node("n1", cpus=1, keeps_backlog=True, labels=(("zone", "a"),))
    fleet.join(node)
    labelled = replace(SHORT, resources=replace(SHORT.resources, node_labels=(("zone", "a"),)))
    fleet.submit(*[labelled] * 4)
    node.info = replace(node.info, labels=(("zone", "b"),))
    fleet.announce(node)
    fleet.take_up(RankStarted(at=fleet.now, node=node.name, key=key_of(fleet.job(1)), run_span=Span(0)))
    assert isinstance(fleet.job(2).state, Queued)
