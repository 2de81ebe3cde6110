"""When a follower opens, asks and gives up: the rules of 15 minutes and two hours, without waiting for them."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.fleet.following.core import REDIAL_S_MAX, Action, Follower, TimeOuts

DEFAULTS = TimeOuts()


@dataclass
class Simulated:
    """A follower and a clock: `until` lets time pass, and notes when what was asked for."""

    follower: Follower = field(default_factory=lambda: Follower(DEFAULTS, 0.0))
    now: float = 0.0
    done: list[tuple[float, Action]] = field(default_factory=list)

    def note(self, actions: list[Action]) -> None:
        self.done += [(self.now, action) for action in actions]

    def until(self, end: float, *, each_ask: str = "unanswered", each_open: str = "hangs") -> None:
        """Pass the time; questions are `answered` or not, streams that are opened `flow`, `hang` or `break`."""
        while (wake_at := self.follower.wake_at()) <= end and not self.has_left:
            self.now = max(self.now, wake_at)
            actions = self.follower.time_passed(self.now)
            self.note(actions)
            for action in actions:
                if action is Action.ASK and each_ask == "answered":
                    self.note(self.follower.answered(self.now))
                if action is Action.OPEN and each_open == "flows":
                    self.note(self.follower.heard(self.now, is_news=False))
                if action is Action.OPEN and each_open == "breaks":
                    self.note(self.follower.broke(self.now))
        self.now = max(self.now, end) if not self.has_left else self.now

    @property
    def has_left(self) -> bool:
        return bool(self.done) and self.done[-1][1] in (Action.GIVE_UP_SESSION, Action.GIVE_UP_UNANSWERED)

    def times(self, action: Action) -> list[float]:
        return [when for when, what in self.done if what is action]


def begun() -> Simulated:
    simulated = Simulated()
    simulated.note(simulated.follower.begin(0.0))
    simulated.note(simulated.follower.heard(0.0, is_news=True))
    return simulated


def test_a_silent_stream_is_asked_about_after_five_minutes_and_given_up_fifteen_minutes_later() -> None:
    simulated = begun()
    simulated.until(7000)
    asked = simulated.times(Action.ASK)
    assert asked == [300 + 30 * n for n in range(30)]
    assert simulated.done[-1] == (300 + 30 * 30, Action.GIVE_UP_UNANSWERED)


def test_a_job_that_is_silent_and_lives_is_asked_about_every_five_minutes_and_followed_to_the_sessions_end() -> None:
    simulated = begun()
    simulated.until(10_000, each_ask="answered", each_open="flows")
    assert simulated.times(Action.ASK) == [300.0 * n for n in range(1, 24)]
    assert simulated.done[-1] == (7200, Action.GIVE_UP_SESSION)


def test_any_answer_sets_the_count_to_zero() -> None:
    simulated = begun()
    simulated.until(300 + 30 * 29)  # 29 questions in a row were not answered
    assert simulated.follower.unanswered == 29
    simulated.note(simulated.follower.answered(simulated.now))
    assert simulated.follower.unanswered == 0
    simulated.until(7000)
    assert simulated.done[-1] == (300 + 30 * 29 + 300 + 30 * 30, Action.GIVE_UP_UNANSWERED)


def test_output_sets_the_count_to_zero_as_well() -> None:
    simulated = begun()
    simulated.until(1000)
    simulated.note(simulated.follower.heard(1000, is_news=True))
    assert simulated.follower.unanswered == 0 and not simulated.follower.is_cut_off(1000)
    assert simulated.follower.wake_at() == 1300


def test_signs_of_life_are_answers_but_no_output() -> None:
    simulated = begun()
    for now in range(10, 300, 10):
        simulated.now = now
        simulated.note(simulated.follower.heard(now, is_news=False))
    simulated.until(300)
    assert simulated.times(Action.ASK) == [300]
    simulated.note(simulated.follower.heard(301, is_news=False))
    assert simulated.follower.unanswered == 0


def test_a_lost_stream_is_opened_again_at_once_then_ever_more_slowly_for_fifteen_minutes() -> None:
    simulated = begun()
    simulated.now = 100
    simulated.note(simulated.follower.broke(100))
    simulated.until(7000, each_open="breaks")
    opened = simulated.times(Action.OPEN)[1:]
    pauses = [later - earlier for earlier, later in zip([100.0, *opened], opened, strict=False)]
    assert [round(pause, 6) for pause in pauses[:7]] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, REDIAL_S_MAX]
    assert max(pauses) <= REDIAL_S_MAX + 1e-6
    assert simulated.done[-1] == (100 + 900, Action.GIVE_UP_UNANSWERED)


def test_a_scheduler_that_is_back_in_time_is_followed_on() -> None:
    simulated = begun()
    simulated.note(simulated.follower.broke(0))
    simulated.until(800, each_open="breaks")
    simulated.until(820, each_open="flows")
    assert not simulated.follower.is_cut_off(820)
    simulated.until(1100, each_ask="answered", each_open="flows")
    assert not simulated.has_left


def test_a_dial_that_hangs_is_tried_again_after_the_connection_time_out() -> None:
    simulated = Simulated()
    simulated.note(simulated.follower.begin(0.0))
    simulated.until(100)
    assert simulated.times(Action.OPEN) == [0, 30, 60, 90]


def test_a_stream_that_is_mute_while_the_scheduler_answers_is_opened_again() -> None:
    simulated = begun()
    simulated.until(300, each_ask="answered")
    assert simulated.done[-2:] == [(300, Action.ASK), (300, Action.OPEN)]


def test_a_moments_reconnection_is_not_worth_a_word() -> None:
    follower = Follower(DEFAULTS, 0.0)
    follower.begin(0)
    follower.heard(0, is_news=True)
    follower.broke(10)
    assert not follower.is_cut_off(11.9)
    assert follower.is_cut_off(12)
    follower.heard(13, is_news=True)
    assert not follower.is_cut_off(13)


def test_a_doubt_is_asked_about_at_once_and_again_until_it_is_answered() -> None:
    simulated = begun()
    simulated.now = 5
    simulated.note(simulated.follower.doubted(5))
    simulated.until(70)
    assert simulated.times(Action.ASK) == [5, 35, 65]


@given(
    events=st.lists(
        st.tuples(st.sampled_from(["news", "life", "broke", "answered", "doubted", "time"]), st.floats(0, 400)),
        max_size=40,
    )
)
def test_whatever_happens_the_next_wake_up_is_ahead_and_a_stream_is_open_or_being_dialled(
    events: list[tuple[str, float]],
) -> None:
    follower = Follower(DEFAULTS, 0.0)
    follower.begin(0.0)
    now = 0.0
    for what, pause in events:
        now += pause
        match what:
            case "news":
                follower.heard(now, is_news=True)
            case "life":
                follower.heard(now, is_news=False)
            case "broke":
                follower.broke(now)
            case "answered":
                follower.answered(now)
            case "doubted":
                follower.doubted(now)
            case _:
                actions = follower.time_passed(now)
                if actions and actions[-1] in (Action.GIVE_UP_SESSION, Action.GIVE_UP_UNANSWERED):
                    return
        for _ in range(4):  # what is overdue is done in a few steps, and then there is a wait
            if follower.wake_at() > now:
                break
            actions = follower.time_passed(now)
            if actions and actions[-1] in (Action.GIVE_UP_SESSION, Action.GIVE_UP_UNANSWERED):
                return
        assert follower.wake_at() > now
        states = [follower.flowing_since, follower.redial_at, follower.opened_at]
        assert sum(state is not None for state in states) == 1


def test_a_session_that_began_in_another_way_ends_at_its_time_all_the_same() -> None:
    follower = Follower(DEFAULTS, 0.0)
    assert follower.begin(2.0) == [Action.OPEN]
    simulated = Simulated(follower, now=2.0)
    simulated.note(follower.heard(2.0, is_news=True))
    simulated.until(10_000, each_ask="answered", each_open="flows")
    assert simulated.done[-1] == (7200.0, Action.GIVE_UP_SESSION)
    assert Follower(DEFAULTS, 0.0).begin(7200.0) == [Action.GIVE_UP_SESSION]
