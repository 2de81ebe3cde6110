"""The clock never goes back, follows the wall by 1 % at most, and never follows a step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler import clock as module
from scheduler.clock import STEP_SPAN, SlewedClock
from scheduler.state.units import HOUR, MINUTE, SECOND, Instant

WALL = 1_700_000_000 * SECOND


class Machine:
    """The two clocks of a machine."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall = WALL
        self.counted = 5 * SECOND
        monkeypatch.setattr(module, "_wall_time_us", lambda: self.wall)
        monkeypatch.setattr(module, "boot_time_us", lambda: self.counted)

    def passes(self, span: int, *, wall: int | None = None) -> None:
        self.counted += span
        self.wall += span if wall is None else wall


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


def test_it_begins_with_the_wall_and_goes_on_with_the_machines_count(machine: Machine) -> None:
    clock = SlewedClock(Instant(0))
    assert clock.now() == WALL
    machine.passes(1)
    assert clock.now() == WALL + 1
    machine.passes(HOUR)
    assert clock.now() == WALL + HOUR + 1
    assert not clock.has_stepped


def test_it_is_never_at_or_below_the_newest_stored_instant(machine: Machine) -> None:
    newest = Instant(WALL + SECOND)
    clock = SlewedClock(newest)
    assert clock.now() > newest
    machine.passes(10 * MINUTE)
    assert clock.now() == machine.wall, "the wall has caught up"
    assert not clock.has_stepped


def test_a_store_from_the_future_is_reported_and_goes_on_from_there(machine: Machine) -> None:
    clock = SlewedClock(Instant(WALL + HOUR))
    machine.passes(SECOND)
    assert clock.now() == WALL + HOUR + 1 + SECOND
    assert clock.has_stepped


@pytest.mark.parametrize("step", [HOUR, -HOUR, STEP_SPAN + 1, -STEP_SPAN - 1])
def test_a_step_is_reported_and_not_followed(machine: Machine, step: int) -> None:
    clock = SlewedClock(Instant(0))
    machine.wall += step
    for minute in range(1, 10):
        machine.passes(MINUTE)
        assert clock.now() == WALL + minute * MINUTE
    assert clock.has_stepped


@pytest.mark.parametrize("asked_every", [1, 7, 60, 99, 100, 101, 1_000, SECOND])
@pytest.mark.parametrize("off", [3_000, -3_000])
def test_however_often_it_is_asked_it_follows_the_wall_by_one_percent(
    machine: Machine, asked_every: int, off: int
) -> None:
    clock = SlewedClock(Instant(0))
    machine.wall += off
    sign = 1 if off > 0 else -1
    passed = 0
    while passed < 150_000:
        machine.passes(asked_every)
        passed += asked_every
        due = min(passed // 100, abs(off))
        assert clock.now() - WALL - passed == sign * due
    machine.passes(SECOND)
    assert clock.now() == machine.wall


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(-8 * SECOND, 8 * SECOND)), max_size=200))
def test_it_never_goes_back(passes: list[tuple[int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        machine = Machine(patch)
        clock = SlewedClock(Instant(0))
        before = clock.now()
        for counted, wall in passes:
            machine.passes(counted, wall=wall)
            now = clock.now()
            assert before <= now <= before + counted + (counted + 99) // 100
            before = now
