"""The credit window over simulated links: enough under way for a far client, hardly any queue for a slow one."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.core.pacing import QUALITIES, RAISE_AFTER_S_MIN, WINDOW_MAX, WINDOW_MIN, WINDOW_START, Outlet, Quality


@dataclass(order=True)
class Event:
    at_us: int
    number: int
    is_frame: bool = field(compare=False)
    made_us: int = field(compare=False, default=0)


@dataclass
class Link:
    """A model with a fixed rate, a link that carries one frame at a time, and a client that says what it shows."""

    interval_us: int
    one_way_us: int
    transmit_us: int
    outlet: Outlet[int] = field(default_factory=Outlet)
    ages_us: list[int] = field(default_factory=list)
    free_at_us: int = 0
    end_us: int = 0
    events: list[Event] = field(default_factory=lambda: [Event(0, 0, True)])

    def run(self, seconds: float) -> None:
        events = self.events
        self.end_us += round(seconds * 1e6)
        while events[0].at_us < self.end_us:
            event = heapq.heappop(events)
            if event.is_frame:
                heapq.heappush(events, Event(event.at_us + self.interval_us, event.number + 1, True))
                ready = self.outlet.offer(event.at_us, event.at_us)
            else:
                self.ages_us.append(event.at_us - self.one_way_us - event.made_us)
                ready = self.outlet.shown(event.number, event.at_us)
            while ready is not None:
                number = self.outlet.sent(event.at_us)
                self.free_at_us = max(self.free_at_us, event.at_us) + self.transmit_us
                shown_us = self.free_at_us + 2 * self.one_way_us
                heapq.heappush(events, Event(shown_us, number, False, ready))
                ready = self.outlet.next()
            assert WINDOW_MIN <= self.outlet.window <= WINDOW_MAX
            assert self.outlet.under_way_count <= WINDOW_MAX


def test_a_client_50_ms_away_gets_every_frame_of_30_a_second() -> None:
    link = Link(interval_us=33_333, one_way_us=25_000, transmit_us=3_000)
    link.run(10)
    late = link.ages_us[30:]
    assert len(late) >= 29 * 8.9
    assert max(late) <= 60_000


@pytest.mark.parametrize("transmit_us", [60_000, 100_000, 300_000])
def test_a_link_that_is_too_slow_holds_no_old_frames(transmit_us: int) -> None:
    link = Link(interval_us=33_333, one_way_us=10_000, transmit_us=transmit_us)
    link.run(30)
    settled = link.ages_us[len(link.ages_us) // 2 :]
    # The link is always busy, and what arrives has waited for little more than the one frame before it.
    assert len(link.ages_us) >= 0.75 * 30e6 / (transmit_us + 20_000)
    assert max(settled) <= 2.5 * transmit_us + 2 * 33_333 + 10_000


def test_a_route_that_becomes_longer_gets_its_frame_rate_back() -> None:
    link = Link(interval_us=33_333, one_way_us=5_000, transmit_us=2_000)
    link.run(5)
    link.one_way_us = 60_000
    link.run(10)
    link.ages_us.clear()
    link.run(5)
    assert len(link.ages_us) >= 29 * 5 - 5
    assert max(link.ages_us) <= 100_000


@given(st.lists(st.sampled_from(["offer", "sent", "left out", "shown", "nonsense"]), max_size=200))
def test_only_the_newest_picture_waits_and_credit_is_never_lost(story: list[str]) -> None:
    outlet = Outlet[int]()
    made = encoding = at_us = 0
    has_encoding = False
    sent: list[int] = []
    for each in story:
        at_us += 1_000
        ready: int | None = None
        if each == "offer":
            made += 1
            ready = outlet.offer(made, at_us)
        elif each == "sent" and has_encoding:
            assert outlet.sent(at_us) == len(sent) + 1
            sent.append(encoding)
            has_encoding = False
            ready = outlet.next()
        elif each == "left out" and has_encoding:
            outlet.left_out()
            has_encoding = False
            ready = outlet.next()
        elif each == "shown":
            ready = outlet.shown(len(sent), at_us)
        elif each == "nonsense":
            ready = outlet.shown(len(sent) + 5, at_us)
            assert ready is None
        if ready is not None:
            assert not has_encoding and ready == made
            encoding, has_encoding = ready, True
        assert outlet.waiting in (None, made)
        assert outlet.under_way_count <= WINDOW_MAX
        assert outlet.shown_count + outlet.under_way_count == len(sent)
        # Nothing waits while there is room for it.
        assert outlet.waiting is None or has_encoding or outlet.under_way_count >= outlet.window
    assert sent == sorted(set(sent))


def test_the_window_begins_small_and_halves_once_for_one_queue() -> None:
    outlet = Outlet[int](window=8)
    for at_us in range(0, 80_000, 10_000):
        assert outlet.offer(at_us, at_us) is not None
        outlet.sent(at_us)
    assert outlet.shown(1, 90_000) is None
    assert outlet.window == 8
    for number in range(2, 9):
        outlet.shown(number, 1_000_000)
    assert outlet.window == 4
    assert Outlet[int]().window == WINDOW_START


def feed(quality: Quality, seconds: int, *, shown: int, replaced: int, state: list[int]) -> None:
    for _ in range(seconds):
        state[0] += 1
        state[1] += shown
        state[2] += replaced
        quality.note(shown_count=state[1], replaced_count=state[2], at_us=state[0] * 1_000_000)


def test_quality_falls_while_frames_come_slowly_and_rises_again() -> None:
    quality, state = Quality(), [0, 0, 0]
    quality.note(shown_count=0, replaced_count=0, at_us=0)
    feed(quality, 2, shown=8, replaced=20, state=state)
    assert quality.value == QUALITIES[2]
    feed(quality, 10, shown=8, replaced=20, state=state)
    assert quality.value == QUALITIES[-1]
    feed(quality, 4 * RAISE_AFTER_S_MIN, shown=30, replaced=0, state=state)
    assert quality.value == QUALITIES[0]


def test_quality_stays_where_the_model_is_what_is_slow() -> None:
    quality, state = Quality(), [0, 0, 0]
    feed(quality, 60, shown=5, replaced=0, state=state)
    assert quality.value == QUALITIES[0]


def test_a_step_that_is_too_much_is_tried_ever_more_rarely() -> None:
    """A link just below a step: good at 60, too slow at 75."""
    quality, state = Quality(), [0, 0, 0]
    tries = 0
    for _ in range(300):
        before = quality.step
        is_too_much = quality.step == 0
        feed(quality, 1, shown=10 if is_too_much else 30, replaced=20 if is_too_much else 0, state=state)
        tries += before == 1 and quality.step == 0
    assert 3 <= tries <= 8
