"""What is kept of the use of an attempt whose end nobody tells: what its nodes told last."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpufleet.jobs.runs import ExitCode
from scheduler.state.attempts import RankExit
from scheduler.state.events import CancelRequested, NodeBeat, RankExited, RankStarted
from scheduler.state.ids import JobId, NodeName, RankKey, UserName
from scheduler.state.units import HOUR, MINUTE, SECOND, Span
from scheduler.state.used import RankUse, ReportedUse
from tests.core.fleet import Fleet, spec

USE = RankUse(span=Span(60 * SECOND), sample_count=60)
N1 = NodeName("n1")
KEY = RankKey(JobId(1), 1, 0)


def read(told: bytes) -> RankUse | None:
    """An agent's words in these tests are the number of its samples."""
    return replace(USE, sample_count=int(told)) if told.isdigit() else None


def running(*told: bytes, gpus: int = 1, **asked: Any) -> Fleet:
    """Job 1 runs on a node that tells these, beat after beat."""
    fleet = Fleet()
    fleet.join(fleet.add_node("n1", gpus=gpus))
    fleet.submit(spec(gpus=gpus, **asked))
    fleet.take_up(RankStarted(at=fleet.now, node=N1, key=KEY, run_span=Span(0)))
    for each in told:
        tell(fleet, KEY, each)
    return fleet


def tell(fleet: Fleet, key: RankKey, told: bytes) -> None:
    stream = fleet.nodes[N1].stream
    usages = ((key, ReportedUse(told, read)),)
    fleet.take_up(NodeBeat(at=fleet.now, node=N1, stream=stream, usages=usages))


def kept(fleet: Fleet) -> RankUse | None:
    (ended,) = fleet.job(1).past
    exit_ = ended.ranks[0].exit
    assert exit_ is not None
    return exit_.use


@pytest.mark.parametrize("requeue", [True, False])
def test_an_attempt_that_is_presumed_dead_keeps_what_its_node_told_last(requeue: bool) -> None:
    fleet = running(b"5", b"9", is_requeueable=requeue)
    fleet.disconnect(N1)
    list(fleet.advance(Span(25 * HOUR)))
    assert kept(fleet) == replace(USE, sample_count=9, is_last_told=True)


def test_an_attempt_of_which_nothing_was_told_that_can_be_read_keeps_nothing() -> None:
    fleet = running(b"not a number")
    fleet.disconnect(N1)
    list(fleet.advance(Span(11 * MINUTE)))
    assert kept(fleet) is None


def test_a_machine_that_starts_again_takes_nothing_of_what_it_told_away() -> None:
    fleet = running(b"7")
    node = fleet.nodes[N1] = replace(fleet.nodes[N1], boot_id="boot-2", incarnation=2)
    fleet.join(node)
    assert kept(fleet) == replace(USE, sample_count=7, is_last_told=True)


def test_an_abandoned_attempt_keeps_it_too() -> None:
    fleet = running(b"7")
    fleet.disconnect(N1)
    cancel = CancelRequested(at=fleet.now, by=UserName("alice"), jobs=(JobId(1),), is_abandoned=True)
    fleet.take_up(cancel)
    assert kept(fleet) == replace(USE, sample_count=7, is_last_told=True)


def test_an_end_that_is_told_says_itself_what_was_used() -> None:
    fleet = running(b"7")
    exit_ = RankExit(exit=ExitCode(code=0), reason="EXITED", use=USE)
    fleet.take_up(RankExited(at=fleet.now, node=N1, key=KEY, exit=exit_))
    assert kept(fleet) == USE
