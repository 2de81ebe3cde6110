"""An agent of a version without a backlog begins whatever it is told at once: it is told of nothing behind others."""

from __future__ import annotations

import pytest

from scheduler.state.commands import LaunchAttempt
from scheduler.state.events import RankStarted, ReportedRunning
from scheduler.state.ids import RankKey
from scheduler.state.jobs import Job, Queued, Starting
from scheduler.state.units import SECOND, Span
from tests.core.fleet import FakeNode, Fleet, Turn, spec

SHORT = spec(time_limit=Span(1 * SECOND))


def key_of(job: Job) -> RankKey:
    assert job.attempt is not None
    return job.attempt.keys(job.id)[0]


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
