"""How good a picture the client's link carries: lower while frames come too slowly, higher again when there is room.

Judged once in a second by what arrived. Where a better quality turned out to be too much, the next try waits for
twice as long, so that a link just below a step is not tried every few seconds.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    """The quality for one stream."""

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
