"""Which inputs a step takes: nothing interesting is lost or turned round, and the pointer is where it is."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from inference.core.inputs import INPUTS_WAITING_MAX, PATH_MAX, Kind, WaitingInputs

KINDS = st.sampled_from(Kind)
STORY = st.lists(st.one_of(KINDS, st.just("step")), max_size=200)


@dataclass
class Told:
    """What was added and what steps took."""

    waiting: WaitingInputs[int]
    sequence: int = 0
    interesting: list[int] = field(default_factory=list)
    moves: int = 0
    position: int | None = None
    events: list[int] = field(default_factory=list)
    coalesced: int = 0
    moves_taken: int = 0
    newest: int = 0

    def add(self, kind: Kind) -> None:
        self.sequence += 1
        assert self.waiting.add(self.sequence, kind, self.sequence)
        if kind is Kind.MOVE:
            self.moves += 1
        else:
            self.interesting.append(self.sequence)
        if kind is not Kind.OTHER:
            self.position = self.sequence

    def step(self) -> None:
        taken = self.waiting.take()
        self.events += taken.events
        self.coalesced += taken.coalesced
        assert taken.pointer == self.position
        assert self.newest <= taken.newest <= self.sequence
        self.newest = taken.newest
        # A frame that says "up to here" shows every interesting input up to there.
        assert [each for each in self.interesting if each <= self.newest] == self.events


@given(STORY, st.booleans())
def test_every_interesting_input_comes_once_in_order_and_the_pointer_is_the_newest(
    story: list[Kind | str], takes_one: bool
) -> None:
    told = Told(WaitingInputs(takes_one=takes_one))
    for each in story:
        if isinstance(each, Kind):
            told.add(each)
        else:
            told.step()
    while told.waiting:
        told.step()
    assert told.events == told.interesting
    assert told.newest == told.sequence
    assert told.coalesced <= told.moves


def test_a_step_takes_all_waiting_clicks_and_one_at_a_time_models_one() -> None:
    for takes_one, first in ((False, (1, 2, 4)), (True, (1,))):
        waiting = WaitingInputs[int](takes_one=takes_one)
        for sequence, kind in ((1, Kind.BUTTON), (2, Kind.OTHER), (3, Kind.MOVE), (4, Kind.BUTTON), (5, Kind.MOVE)):
            waiting.add(sequence, kind, sequence)
        taken = waiting.take()
        assert (taken.events, taken.pointer, taken.newest) == (first, 5, 1 if takes_one else 5)
        assert taken.coalesced == 1
        assert bool(waiting) == takes_one


def test_a_number_that_does_not_rise_changes_nothing() -> None:
    waiting = WaitingInputs[int]()
    assert waiting.add(5, Kind.BUTTON, 5)
    assert not waiting.add(5, Kind.BUTTON, 6)
    assert not waiting.add(4, Kind.MOVE, 7)
    assert waiting.take().events == (5,)


def test_what_waits_outlives_its_stream_and_bears_no_number_of_the_new_one() -> None:
    waiting = WaitingInputs[str](takes_one=True)
    for sequence, each in ((7, "a"), (8, "b")):
        waiting.add(sequence, Kind.OTHER, each)
    waiting.begin_stream()
    assert waiting.add(1, Kind.OTHER, "c")
    taken = [waiting.take() for _ in range(3)]
    assert [each.events for each in taken] == [("a",), ("b",), ("c",)]
    assert [each.newest for each in taken] == [0, 0, 1]


def test_the_path_goes_as_far_as_what_is_taken_and_is_bounded() -> None:
    waiting = WaitingInputs[int](takes_one=True)
    for sequence, kind in ((1, Kind.MOVE), (2, Kind.BUTTON), (3, Kind.MOVE), (4, Kind.OTHER), (5, Kind.MOVE)):
        waiting.add(sequence, kind, sequence)
    assert [waiting.take().path for _ in range(3)] == [(1, 2, 3), (5,), ()]
    waiting.add(6, Kind.MOVE, 6)
    waiting.begin_stream()
    waiting.add(1, Kind.MOVE, 7)
    assert waiting.take().path == (6, 7)
    for sequence in range(2, 2 * PATH_MAX):
        waiting.add(sequence, Kind.MOVE, sequence)
    assert waiting.take().path == tuple(range(PATH_MAX, 2 * PATH_MAX))


def test_a_step_that_was_asked_for_is_one_without_inputs() -> None:
    waiting = WaitingInputs[int]()
    assert not waiting
    waiting.ask()
    assert waiting and waiting.take().events == ()
    assert not waiting


def test_it_says_when_it_is_full() -> None:
    waiting = WaitingInputs[int]()
    for sequence in range(1, INPUTS_WAITING_MAX + 1):
        assert not waiting.is_full
        waiting.add(sequence, Kind.OTHER, sequence)
    assert waiting.is_full
    assert len(waiting.take().events) == INPUTS_WAITING_MAX
    assert not waiting.is_full
