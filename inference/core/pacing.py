"""How many frames may be under way to one client, and which one waits: a credit window, and one replaceable frame.

The client says which frame it has shown. The window of frames that were not said to be shown is 1 to 16; it grows
while (delay of a sign - lowest round trip) < one frame interval, and is halved beyond two: a delay above the lowest
one is a queue somewhere on the way, and a frame in a queue is stale. Behind the window one frame waits, and a newer
one replaces it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

WINDOW_MIN = 1
WINDOW_START = 2
WINDOW_MAX = 16
"""Frames that were sent and not said to be shown."""

INTERVAL_US_MIN = 8_333
"""A model that gives frames faster than displays show them (120/s) needs no shorter queue than one of these."""

INTERVAL_US_MAX = 100_000
INTERVAL_SHARE = 8
"""Each new interval counts for one part in so many."""

DELAY_SHARE = 8

ALONE_COUNT = 8
"""After so many frames in a row that were under way alone, the lowest round trip is the lowest of theirs.

A frame alone has no queue of ours before it, so that its delay is honest. A route that became longer halves the window
down to one frame, whose delays then tell so; and a queue that stands for long is never taken for the route.
"""

Frame = TypeVar("Frame")


@dataclass(slots=True)
class LowestDelay:
    """The lowest round trip, as far as it is known."""

    _lowest_us: int | None = None
    _alone_us: deque[int] = field(default_factory=lambda: deque(maxlen=ALONE_COUNT))

    def note(self, delay_us: int, *, was_alone: bool) -> int:
        """Take a delay in; the lowest now."""
        if was_alone:
            self._alone_us.append(delay_us)
        else:
            self._alone_us.clear()
        if self._lowest_us is None or delay_us < self._lowest_us:
            self._lowest_us = delay_us
        elif len(self._alone_us) == ALONE_COUNT:
            self._lowest_us = min(self._alone_us)
        return self._lowest_us


@dataclass(slots=True)
class Outlet(Generic[Frame]):
    """The way of frames to one stream: `offer` each picture; encode and send what comes back.

    A frame goes through: waiting (the newest only) → encoding (one at a time) → under way (numbered) → shown.
    """

    window: int = WINDOW_START
    waiting: Frame | None = None
    replaced_count: int = 0
    shown_count: int = 0
    last_sent: int = 0
    delay_us: int | None = None
    """From sending a frame to the word that it was shown, the newest for one part in DELAY_SHARE."""

    _is_encoding: bool = False
    _is_limited: bool = False
    _halved_at: int = 0
    _grow_at: int = 0
    _interval_us: int = INTERVAL_US_MIN
    _offered_us: int | None = None
    _under_way: deque[tuple[int, int, bool]] = field(default_factory=deque)
    """Of each: its number, when it was sent, and whether nothing else was under way then."""

    _lowest: LowestDelay = field(default_factory=LowestDelay)

    @property
    def under_way_count(self) -> int:
        """Frames that were sent and not said to be shown."""
        return len(self._under_way)

    @property
    def interval_us(self) -> int:
        """The usual time between two pictures, within the bounds."""
        return min(max(self._interval_us, INTERVAL_US_MIN), INTERVAL_US_MAX)

    def offer(self, frame: Frame, at_us: int) -> Frame | None:
        """A new picture, which replaces the one that waits; answers the frame to encode now, if any."""
        if self._offered_us is not None:
            gap_us = min(at_us - self._offered_us, INTERVAL_US_MAX)
            self._interval_us += (gap_us - self._interval_us) // INTERVAL_SHARE
        self._offered_us = at_us
        self.replaced_count += self.waiting is not None
        self.waiting = frame
        return self.next()

    def sent(self, at_us: int) -> int:
        """The frame that was being encoded goes on its way; answers its number. Then ask `next`."""
        assert self._is_encoding
        self._is_encoding = False
        self.last_sent += 1
        self._under_way.append((self.last_sent, at_us, not self._under_way))
        return self.last_sent

    def left_out(self) -> None:
        """The frame that was being encoded is not sent: it shows what the client has. Then ask `next`."""
        assert self._is_encoding
        self._is_encoding = False

    def next(self) -> Frame | None:
        """The frame to encode now, after `sent` or `left_out`."""
        if self.waiting is None or self._is_encoding:
            return None
        if len(self._under_way) >= self.window:
            self._is_limited = True
            return None
        frame, self.waiting = self.waiting, None
        self._is_encoding = True
        return frame

    def shown(self, number: int, at_us: int) -> Frame | None:
        """The client has shown this frame; answers the one to encode now, if any.

        It stands for all frames before it. A number that is not under way changes nothing.
        """
        if not self._under_way or not self._under_way[0][0] <= number <= self.last_sent:
            return None
        sent_us, was_alone = at_us, False
        while self._under_way and self._under_way[0][0] <= number:
            _, sent_us, was_alone = self._under_way.popleft()
            self.shown_count += 1
        delay_us = at_us - sent_us
        self.delay_us = delay_us if self.delay_us is None else self.delay_us + (delay_us - self.delay_us) // DELAY_SHARE
        self._judge(number, delay_us, was_alone=was_alone)
        return self.next()

    def _judge(self, number: int, delay_us: int, *, was_alone: bool) -> None:
        queued_us = delay_us - self._lowest.note(delay_us, was_alone=was_alone)
        if queued_us < self.interval_us:
            # Only a window that held something back can be too small.
            if self._is_limited and self.window < WINDOW_MAX and number >= self._grow_at:
                self._change(self.window + 1)
        elif queued_us > 2 * self.interval_us and number > self._halved_at:
            # Once for the frames under way: their delays tell of one and the same queue.
            self._change(max(WINDOW_MIN, self.window // 2))
            self._halved_at = self.last_sent

    def _change(self, window: int) -> None:
        # The last frame of a whole window is the first to tell what the window does.
        self.window, self._grow_at, self._is_limited = window, self.last_sent + window, False


QUALITIES = (75, 60, 45, 30)
"""Of JPEG and WebP, the best first."""

JUDGED_EVERY_US = 1_000_000
FRAMES_PER_SECOND_LOW = 20.0
"""Below so many frames that arrive, while more are made, a smaller picture is tried."""

RAISE_AFTER_S_MIN = 4
RAISE_AFTER_S_MAX = 64
"""A better picture is tried after so many good seconds; the time doubles with each try that failed."""


@dataclass(slots=True)
class Quality:
    """How good a picture the client's link carries: lower while frames come too slowly, higher when there is room.

    Judged once in a second by what arrived. Where a better quality turned out to be too much, the next try waits for
    twice as long, so that a link just below a step is not tried every few seconds.
    """

    step: int = 0
    _judged_us: int | None = None
    _shown: int = 0
    _replaced: int = 0
    _good_seconds: int = 0
    _raise_after_s: int = RAISE_AFTER_S_MIN
    _is_on_trial: bool = False

    @property
    def value(self) -> int:
        """Out of 100, for the next frame."""
        return QUALITIES[self.step]

    def note(self, *, shown_count: int, replaced_count: int, at_us: int) -> None:
        """Tell how many frames were shown, and were replaced before they were sent, since the stream began."""
        if self._judged_us is None:
            self._begin(shown_count, replaced_count, at_us)
            return
        span_us = at_us - self._judged_us
        if span_us < JUDGED_EVERY_US:
            return
        shown_per_second = (shown_count - self._shown) * 1e6 / span_us
        is_held_back = replaced_count > self._replaced
        self._begin(shown_count, replaced_count, at_us)
        if is_held_back and shown_per_second < FRAMES_PER_SECOND_LOW:
            self._lower()
        else:
            self._hold_or_raise()

    def _begin(self, shown_count: int, replaced_count: int, at_us: int) -> None:
        self._judged_us, self._shown, self._replaced = at_us, shown_count, replaced_count

    def _lower(self) -> None:
        if self._is_on_trial:
            self._raise_after_s = min(2 * self._raise_after_s, RAISE_AFTER_S_MAX)
        self._is_on_trial = False
        self._good_seconds = 0
        self.step = min(self.step + 1, len(QUALITIES) - 1)

    def _hold_or_raise(self) -> None:
        self._good_seconds += 1
        if self._is_on_trial and self._good_seconds >= RAISE_AFTER_S_MIN:
            self._is_on_trial = False
            self._raise_after_s = RAISE_AFTER_S_MIN
        if self.step > 0 and self._good_seconds >= self._raise_after_s:
            self.step -= 1
            self._good_seconds = 0
            self._is_on_trial = True
