"""When a follower opens its stream again, asks whether the job lives, or gives up. Pure: time comes in as an argument.

Four spans rule it. *Silence*: no news for `max_wait_s` makes it ask. *Patience*: a question that is not answered
within `connection_s` counts and is asked again; `unanswered_max` such counts in a row and it gives up. *The session*:
after `session_s` it leaves, whatever happens. A lost stream is a question too, asked by dialling again and again:
whatever is not heard for `connection_s` counts the same. Anything heard sets the count to 0.
With the defaults a scheduler may be away for 15 minutes before its followers leave; no job ever ends by it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import Enum, auto

REDIAL_S_MIN = 0.1
REDIAL_S_MAX = 5.0
"""The pause between two dials doubles from the first to the second."""

FOLLOWING_REDIAL_S_MAX = 1.0
"""The same where a standby may take over: it is to be found within a second or so."""

CUT_OFF_AFTER_S = 2.0
"""A lost stream that is back within this is not worth a word."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeOuts:
    """The time-outs of a follower, in seconds."""

    connection_s: float = 30.0
    max_wait_s: float = 300.0
    unanswered_max: int = 30
    session_s: float = 7200.0
    redial_s_max: float = REDIAL_S_MAX
    """The longest pause between two dials."""

    def without_end(self) -> TimeOuts:
        """The same for a view that never gives up: it shows how old it is."""
        return replace(self, unanswered_max=2**62, session_s=math.inf)


class Action(Enum):
    """What the shell is to do now."""

    OPEN = auto()
    """Open the stream where the last one broke off; let go of an older one."""
    ASK = auto()
    """Ask whether the job lives; let go of an older question."""
    GIVE_UP_UNANSWERED = auto()
    """Leave: too many questions in a row were not answered. The job goes on."""
    GIVE_UP_SESSION = auto()
    """Leave: the session lasted as long as it may. The job goes on."""


@dataclass(slots=True)
class Follower:
    """The state of one follower. Each method answers what to do; `wake_at` says when to call `time_passed` next."""

    limits: TimeOuts
    started_at: float
    news_at: float = field(init=False)
    """When there was news last, or an answer that there is none: silence counts from here."""
    heard_at: float = field(init=False)
    """When the stream brought anything last."""
    question_at: float | None = field(init=False, default=None)
    """When the question that is not answered yet was asked."""
    unanswered: int = field(init=False, default=0)
    redial_at: float | None = field(init=False, default=None)
    """When to open the lost stream again; None while there is one."""
    redial_s: float = field(init=False, default=REDIAL_S_MIN)
    opened_at: float | None = field(init=False, default=None)
    """When the stream was opened that brought nothing yet."""
    flowing_since: float | None = field(init=False, default=None)
    """When the stream that is open now brought its first message."""
    lost_at: float | None = field(init=False, default=None)
    """When the stream was lost; None once another one flows."""

    def __post_init__(self) -> None:
        self.news_at = self.heard_at = self.started_at

    def is_cut_off(self, now: float) -> bool:
        """Whether it is worth telling that the scheduler is away: not for a moment's reconnection."""
        return self.unanswered > 0 or (self.lost_at is not None and now - self.lost_at >= CUT_OFF_AFTER_S)

    def begin(self, now: float) -> list[Action]:
        """The first thing to do; `now` is later than the start of who followed in another way before."""
        if now >= self._session_ends_at():
            return [Action.GIVE_UP_SESSION]
        self.opened_at = self.news_at = self.heard_at = now
        return [Action.OPEN]

    def heard(self, now: float, *, is_news: bool) -> list[Action]:
        """The stream brought something: news, or only a sign that it lives."""
        self.heard_at = now
        self._answer()
        if self.flowing_since is None:
            self.flowing_since = now
        self.opened_at = self.redial_at = self.lost_at = None
        if is_news:
            self.news_at = now
        return []

    def doubted(self, now: float) -> list[Action]:
        """The stream brought something that leaves a question: ask now."""
        self.heard(now, is_news=True)
        self.question_at = now
        return [Action.ASK]

    def broke(self, now: float) -> list[Action]:
        """The stream was lost, or could not be opened."""
        if self.flowing_since is not None and now - self.flowing_since >= REDIAL_S_MAX:
            self.redial_s = REDIAL_S_MIN  # it worked for a while: not another of a row of short-lived streams
        self.opened_at = self.flowing_since = None
        self.redial_at = now + self.redial_s
        self.redial_s = min(self.redial_s * 2, self.limits.redial_s_max)
        if self.lost_at is None:
            self.lost_at = now
        if self.question_at is None:
            self.question_at = now
        return []

    def answered(self, now: float) -> list[Action]:
        """The scheduler answered that the job is there: a silent but living job goes on."""
        self._answer()
        self.news_at = now
        is_mute = now - self.heard_at >= self.limits.max_wait_s
        if is_mute and self.redial_at is None and self.opened_at is None:
            # Not even a sign of life on the stream, and yet the scheduler answers: this stream is dead.
            return self._open(now)
        return []

    def time_passed(self, now: float) -> list[Action]:
        """The clock reached `wake_at`, or went past it."""
        if now >= self._session_ends_at():
            return [Action.GIVE_UP_SESSION]
        actions: list[Action] = []
        if self.question_at is not None and now >= self.question_at + self.limits.connection_s:
            self.unanswered += 1
            if self.unanswered >= self.limits.unanswered_max:
                return [Action.GIVE_UP_UNANSWERED]
            self.question_at = now
            actions.append(Action.ASK)
        elif self.question_at is None and now >= self._silence_ends_at():
            self.question_at = now
            actions.append(Action.ASK)
        if (self.redial_at is not None and now >= self.redial_at) or (
            self.opened_at is not None and now >= self.opened_at + self.limits.connection_s
        ):
            actions += self._open(now)
        return actions

    def wake_at(self) -> float:
        """When `time_passed` has something to do at the earliest."""
        times = [self._session_ends_at()]
        if self.question_at is not None:
            times.append(self.question_at + self.limits.connection_s)
        else:
            times.append(self._silence_ends_at())
        if self.redial_at is not None:
            times.append(self.redial_at)
        if self.opened_at is not None:
            times.append(self.opened_at + self.limits.connection_s)
        return min(times)

    def _session_ends_at(self) -> float:
        return self.started_at + self.limits.session_s

    def _silence_ends_at(self) -> float:
        return self.news_at + self.limits.max_wait_s

    def _answer(self) -> None:
        self.question_at = None
        self.unanswered = 0

    def _open(self, now: float) -> list[Action]:
        self.redial_at = self.flowing_since = None
        self.opened_at = now
        return [Action.OPEN]


SECOND_WITHIN_S = 3.0
"""A second Ctrl-C within this, in seconds, cancels the job; a later one is a first one again."""


class Meaning(Enum):
    """What an interrupt asks for."""

    FORWARD = auto()
    """Send the job SIGINT, as the terminal would."""
    CANCEL = auto()
    """Cancel the job, and stay to see its end."""
    LEAVE = auto()
    """Leave at once."""


@dataclass(slots=True)
class Interrupts:
    """The interrupts of one attached session. Without a terminal the first one cancels: there is nobody to ask."""

    has_terminal: bool
    forwarded_at: float | None = None
    has_cancelled: bool = False

    def interrupted(self, now: float) -> Meaning:
        """Another interrupt came."""
        if self.has_cancelled:
            return Meaning.LEAVE
        is_second = self.forwarded_at is not None and now - self.forwarded_at <= SECOND_WITHIN_S
        if not self.has_terminal or is_second:
            self.has_cancelled = True
            return Meaning.CANCEL
        self.forwarded_at = now
        return Meaning.FORWARD
