"""Each reason for which a rank is refused has a kind."""

from __future__ import annotations

from node_agent import wire
from node_agent.core.commands import NotLaunched
from node_agent.core.expectations import Unfit
from node_agent.core.launch import REFUSES_LAUNCHES, RefusalReason
from node_agent.core.refusals import RefusalKind, kind_of

OF_THE_NODE = {
    RefusalReason.FENCED,
    RefusalReason.INTERNAL,
    RefusalReason.ISOLATION_FAILED,
    RefusalReason.CLAIMED_ELSEWHERE,
    RefusalReason.TOO_MANY_ATTEMPTS,
    RefusalReason.SPOOL_UNAVAILABLE,
    RefusalReason.SPAWN_FAILED,
    RefusalReason.RETIRED,
    RefusalReason.SHUTTING_DOWN,
}
"""Who else would be sent there would be refused, too."""


def test_only_what_is_about_the_node_itself_closes_it_for_others() -> None:
    closing = {reason for reason in REFUSES_LAUNCHES if kind_of(reason) is RefusalKind.NODE}
    assert closing <= OF_THE_NODE, "say whom it blames: node_agent/core/refusals.py"
    assert {kind_of(reason) for reason in Unfit} == {RefusalKind.DEVICES, RefusalKind.JOB_HERE}
    assert {each for each in NotLaunched if kind_of(each) is RefusalKind.NOBODY} == {
        NotLaunched.ABORTED,
        NotLaunched.STOPPED_BEFORE_START,
        NotLaunched.TAKEN_BACK,
    }


def test_every_kind_has_its_word_in_the_contract() -> None:
    assert set(wire.REFUSAL_KINDS) == set(RefusalKind)
