"""What a Ctrl-C means, and what it does to a real process on a real terminal."""

from __future__ import annotations

from gpufleet.fleet.following.core import Interrupts, Meaning


def test_on_a_terminal_the_first_is_forwarded_a_quick_second_cancels_and_the_third_leaves() -> None:
    interrupts = Interrupts(has_terminal=True)
    assert [interrupts.interrupted(now) for now in (0, 2.9, 3)] == [Meaning.FORWARD, Meaning.CANCEL, Meaning.LEAVE]


def test_a_slow_second_one_is_a_first_one_again() -> None:
    interrupts = Interrupts(has_terminal=True)
    meanings = [interrupts.interrupted(now) for now in (0, 3.1, 7, 9)]
    assert meanings == [Meaning.FORWARD, Meaning.FORWARD, Meaning.FORWARD, Meaning.CANCEL]


def test_the_third_leaves_however_late_it_comes() -> None:
    interrupts = Interrupts(has_terminal=True)
    assert [interrupts.interrupted(now) for now in (0, 1, 500)][-1] is Meaning.LEAVE


def test_without_a_terminal_the_first_cancels_and_the_second_leaves() -> None:
    interrupts = Interrupts(has_terminal=False)
    assert [interrupts.interrupted(now) for now in (0, 10)] == [Meaning.CANCEL, Meaning.LEAVE]
