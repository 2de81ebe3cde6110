"""The keeper's only loop: descriptors, signals and deadlines, and no tick when there is nothing to do."""

import contextlib
import os
import selectors
import signal
import traceback
from collections.abc import Callable

from .linux import BoottimeTimer, boottime_us

Callback = Callable[[], None]

ERRORS_MAX = 1000
"""Unexpected errors are logged and lived with, up to this many."""


class Reactor:
    """Calls back when a descriptor is ready, a signal came, or an instant of CLOCK_BOOTTIME has come."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timer = BoottimeTimer()
        self._deadlines: dict[Callback, int] = {}
        self._armed_us: int | None = None
        self._signals: dict[int, Callback] = {}
        self._after_turn: dict[Callback, None] = {}
        self._errors = 0
        self._is_running = False
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self.call_when_readable(self._wake_read, self._take_signals)
        self.call_when_readable(self._timer.fd, self._take_deadlines)

    def call_when_readable(self, fd: int, callback: Callback) -> None:
        """Call back whenever the descriptor is readable or closed at its other end."""
        self._selector.register(fd, selectors.EVENT_READ, callback)

    def call_when_writable(self, fd: int, callback: Callback) -> None:
        """Call back whenever the descriptor takes bytes, or will never take any."""
        self._selector.register(fd, selectors.EVENT_WRITE, callback)

    def watch_writable(self, fd: int, is_wanted: bool) -> None:
        """Call the same callback also (or no longer) when a watched descriptor takes bytes."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if is_wanted else 0)
        key = self._selector.get_key(fd)
        if key.events != events:
            self._selector.modify(fd, events, key.data)

    def forget(self, fd: int) -> None:
        """Stop watching a descriptor; one that is not watched is no error."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(fd)

    def call_on_signal(self, number: int, callback: Callback) -> None:
        """Call back in the loop, never inside of the handler."""
        self._signals[number] = callback
        signal.signal(number, _leave_it_to_the_loop)

    def call_at(self, callback: Callback, at_us: int | None) -> None:
        """Set this callback's only deadline; None takes it back."""
        if at_us is None:
            self._deadlines.pop(callback, None)
        else:
            self._deadlines[callback] = at_us

    def call_after_turn(self, callback: Callback) -> None:
        """Call back once, when everything that is ready now has been handled."""
        self._after_turn[callback] = None

    def run(self) -> None:
        """Turn until stopped."""
        self._is_running = True
        while True:
            self._finish_turn()
            if not self._is_running:
                break
            for key, _ in self._selector.select():
                # An earlier callback of this turn may have given this descriptor up, even to another owner.
                if self._selector.get_map().get(key.fd) is key:
                    self._call(key.data)

    def stop(self) -> None:
        """Leave `run` at the end of this turn."""
        self._is_running = False

    def close(self) -> None:
        """Give all descriptors back."""
        signal.set_wakeup_fd(-1)
        self._selector.close()
        self._timer.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _finish_turn(self) -> None:
        while self._after_turn:
            callbacks, self._after_turn = self._after_turn, {}
            for callback in callbacks:
                self._call(callback)
        earliest_us = min(self._deadlines.values(), default=None)
        if earliest_us != self._armed_us:
            self._timer.arm(earliest_us)
            self._armed_us = earliest_us

    def _call(self, callback: Callback) -> None:
        """One attempt's trouble must not end the others; a loop that fails without end must."""
        try:
            callback()
        except Exception:
            self._errors += 1
            if self._errors > ERRORS_MAX:
                raise
            traceback.print_exc()

    def _take_signals(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for number in set(os.read(self._wake_read, 4096)):
                if number in self._signals:
                    self._signals[number]()

    def _take_deadlines(self) -> None:
        self._timer.clear()
        self._armed_us = None
        now_us = boottime_us()
        for callback in [each for each, at_us in self._deadlines.items() if at_us <= now_us]:
            if self._deadlines.pop(callback, None) is not None:
                self._call(callback)


def _leave_it_to_the_loop(number: int, frame: object) -> None:
    """Only the wake-up descriptor matters; a handler must exist for Python to write to it."""
