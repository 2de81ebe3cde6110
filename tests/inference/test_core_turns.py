"""Epochs: the newest has the turn, and what an older one still says does nothing."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from inference.core.presence import MOVE_MIN, Presence
from inference.core.rhythm import Ticker
from inference.core.turns import CLAIM_US_MAX, KEPT_US_MAX, TICKET_US_MAX, NotOpened, Opened, Turns

S = 1_000_000
SESSIONS = st.sampled_from(["a", "b", "c"])
WORDS = st.lists(
    st.tuples(st.sampled_from(["open", "detach", "end", "expect", "wait", "overdue"]), SESSIONS, st.integers(0, 6)),
    max_size=60,
)


def opened(turns: Turns, session: str, epoch: int, now_us: int = 0, identity: str = "me") -> Opened:
    found = turns.open(session, epoch, identity, now_us)
    assert isinstance(found, Opened)
    return found


@given(WORDS, st.integers(1, 3))
def test_whatever_comes_no_epoch_opens_twice_and_no_seat_is_held_twice(
    words: list[tuple[str, str, int]], seats: int
) -> None:
    turns = Turns(seats)
    used: dict[str, set[int]] = {}
    now_us = 0
    for word, session, epoch in words:
        before = {each.session: each for each in turns.live()}
        match word:
            case "open":
                found = turns.open(session, epoch, "me", now_us)
                if isinstance(found, Opened):
                    assert epoch not in used.setdefault(session, set())
                    assert all(epoch > each for each in used[session])
                    used[session].add(epoch)
                    assert found.is_resumed == (session in before)
                else:
                    assert {each.session: each for each in turns.live()} == before
            case "detach":
                if turns.detach(session, epoch, now_us):
                    assert before[session].epoch == epoch
            case "end":
                ended = turns.end(session, epoch, now_us)
                assert ended is None or ended.epoch <= epoch
            case "expect":
                turns.expect(session, epoch, "me", now_us)
                assert {each.session: each for each in turns.live()} == before
            case "wait":
                # Never as long as an epoch is remembered: a ticket does not live longer either.
                now_us += 200_000
            case _:
                for turn in turns.overdue(now_us):
                    assert turns.end(turn.session, turn.epoch, now_us) in (turn, None)
        assert len(turns.live()) <= seats


def test_a_higher_epoch_takes_over_and_the_older_ones_words_do_nothing() -> None:
    turns = Turns(1)
    assert opened(turns, "s", 1).replaced_epoch is None
    second = opened(turns, "s", 2, 5 * S)
    assert (second.is_resumed, second.replaced_epoch, second.turn.began_us) == (True, 1, 0)
    assert not turns.detach("s", 1, 6 * S)
    assert turns.end("s", 1, 6 * S) is None
    assert turns.of("s", 2) is not None and turns.of("s", 1) is None
    assert turns.open("s", 2, "me", 7 * S) is NotOpened.USED
    assert turns.open("s", 1, "me", 7 * S) is NotOpened.USED


def test_a_turn_waits_for_its_stream_and_is_overdue_then() -> None:
    turns = Turns(1)
    opened(turns, "s", 1)
    assert turns.detach("s", 1, S)
    assert not turns.detach("s", 1, 2 * S)
    assert turns.overdue(S + KEPT_US_MAX - 1) == ()
    assert [each.session for each in turns.overdue(S + KEPT_US_MAX)] == ["s"]
    assert opened(turns, "s", 2, 3 * S).replaced_epoch is None
    assert turns.overdue(60 * S) == ()


def test_an_announced_turn_keeps_its_seat_for_a_while_and_voids_older_tickets() -> None:
    turns = Turns(1)
    turns.expect("s", 3, "me", 0)
    assert turns.open("t", 1, "you", 1) is NotOpened.NO_SEAT
    assert turns.open("s", 2, "me", 1) is NotOpened.USED
    assert turns.open("s", 3, "you", 1) is NotOpened.OTHER_IDENTITY
    assert isinstance(turns.open("t", 1, "you", CLAIM_US_MAX), Opened)
    assert turns.open("s", 3, "me", CLAIM_US_MAX) is NotOpened.NO_SEAT


def test_the_end_of_what_was_never_opened_voids_its_ticket() -> None:
    turns = Turns(1)
    turns.expect("s", 1, "me", 0)
    assert turns.end("s", 1, S) is None
    assert turns.open("s", 1, "me", 2 * S) is NotOpened.USED
    assert isinstance(turns.open("t", 1, "you", 2 * S), Opened)


def test_a_late_end_leaves_what_was_announced_anew() -> None:
    turns = Turns(1)
    opened(turns, "s", 1)
    turns.expect("s", 2, "me", S)
    assert turns.end("s", 1, S) is None
    assert opened(turns, "s", 2, 2 * S).is_resumed


def test_a_draining_worker_takes_who_was_announced_or_is_there_and_nobody_else() -> None:
    turns = Turns(3)
    opened(turns, "s", 1)
    turns.expect("t", 1, "me", 0)
    turns.is_draining = True
    assert turns.open("u", 1, "me", S) is NotOpened.DRAINING
    assert isinstance(turns.open("s", 2, "me", S), Opened)
    assert isinstance(turns.open("t", 1, "me", S), Opened)


def test_nothing_of_ended_sessions_is_kept_for_good() -> None:
    turns = Turns(1)
    for number in range(1_000):
        now_us = number * TICKET_US_MAX
        opened(turns, f"s{number}", 1, now_us)
        turns.end(f"s{number}", 1, now_us)
    assert len(turns._epochs) <= 2


def test_idle_time_runs_from_the_first_frame_and_rests_while_the_stream_is_lost() -> None:
    presence = Presence()
    presence.attach(0)
    assert presence.idle_us(50 * S) == 0
    presence.begin(10 * S)
    assert presence.idle_us(14 * S) == 4 * S
    presence.detach(14 * S)
    presence.detach(15 * S)
    assert presence.idle_us(30 * S) == 4 * S
    presence.attach(30 * S)
    assert presence.idle_us(31 * S) == 5 * S
    presence.real(31 * S)
    assert presence.idle_us(33 * S) == 2 * S


FACTS: dict[str, Callable[[Presence, int], None]] = {
    "the model answers": lambda presence, at_us: presence.begin(at_us),
    "a stream comes": lambda presence, at_us: presence.attach(at_us),
    "a step is late": lambda presence, at_us: presence.set_step_late(True, at_us),
    "it is late no longer": lambda presence, at_us: presence.set_step_late(False, at_us),
    "the stream is lost": lambda presence, at_us: presence.detach(at_us),
}


@given(st.lists(st.sampled_from(list(FACTS)), max_size=12))
def test_idle_time_runs_whenever_there_is_a_frame_and_a_stream_whichever_came_first(happened: list[str]) -> None:
    presence, idle_us = Presence(), 0
    has_begun = has_stream = is_late = False
    for number, fact in enumerate(happened, start=1):
        idle_us += S if has_begun and has_stream and not is_late else 0
        FACTS[fact](presence, number * S)
        has_begun = has_begun or fact == "the model answers"
        has_stream = fact == "a stream comes" or (has_stream and fact != "the stream is lost")
        is_late = fact == "a step is late" or (is_late and fact != "it is late no longer")
        assert presence.is_running == (has_begun and has_stream and not is_late)
        assert presence.idle_us(number * S) == idle_us


def test_a_trembling_hand_is_no_real_input_and_a_slow_one_is() -> None:
    presence = Presence()
    presence.attach(0)
    presence.begin(0)
    assert presence.moved(0.5, 0.5, 0), "the first move of a turn counts"
    for each in range(1, 100):
        assert not presence.moved(0.5 + (each % 2) * MOVE_MIN / 2, 0.5, each * S)
    assert presence.idle_us(100 * S) == 100 * S
    moved = [presence.moved(0.5 + each * MOVE_MIN / 5, 0.5, 100 * S + each) for each in range(30)]
    assert 4 <= sum(moved) <= 6
    assert presence.idle_us(101 * S) < S + 1


@given(st.floats(0.5, 500), st.lists(st.integers(0, 2_000_000), max_size=50))
def test_ticks_are_on_one_grid_and_missed_ones_are_left_out(rate: float, gaps: list[int]) -> None:
    ticker, now_us = Ticker(rate), 0
    assert ticker.is_due(0)
    for gap in gaps:
        now_us += gap
        due_us = ticker.next_us(now_us)
        assert due_us is not None and due_us % max(1, round(1e6 / rate)) == 0
        assert ticker.is_due(now_us) == (now_us >= due_us)
        assert not ticker.is_due(now_us)


def test_a_model_that_only_answers_has_no_ticks() -> None:
    ticker = Ticker(0.0)
    assert ticker.next_us(5) is None and not ticker.is_due(5)
