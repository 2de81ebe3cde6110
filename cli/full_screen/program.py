"""The loop of a program that fills the terminal: keys, another size of the window, Ctrl-Z, and drawing on change."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from gpufleet.fleet.exit_codes import SIGNALLED

from ..quitting import Left
from .terminal import Terminal
from .view import KeyReader, View, Wish

KEY_BYTES_MAX = 1024
ESCAPE_S = 0.05
"""What follows Esc within this belongs to one key."""
AGE_STEP_S = 1.0
"""How often the ages that are shown move on when nothing else does."""


class FullScreen:
    """Shows the lines of `picture` until q is pressed.

    Whoever has news calls `changed`. `picture` takes columns and lines; `refresh` is what the key r asks for.
    """

    def __init__(
        self,
        view: View[Any],
        picture: Callable[[int, int], list[str]],
        refresh: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self.terminal = Terminal()
        self._view = view
        self._picture = picture
        self._refresh = refresh
        self._news = asyncio.Event()
        self._keys = KeyReader()
        self._has_left = asyncio.Event()
        self._is_hung_up = False
        self._refreshing: asyncio.Task[None] | None = None
        self._escape: asyncio.TimerHandle | None = None

    def changed(self) -> None:
        """There is something new to draw."""
        self._news.set()

    async def run(self, following: Coroutine[Any, Any, Any]) -> None:
        """Stay until q is pressed or what is followed ends. Raises what that raises, and Left for a closed window."""
        self.terminal.open()
        with self._listening():
            try:
                await _first_of(following, self._draw_for_ever(), self._has_left.wait())
                if self._is_hung_up:
                    raise Left(SIGNALLED + signal.SIGHUP)  # the end of the keys may be seen before the signal is
            finally:
                if self._refreshing is not None:
                    self._refreshing.cancel()
                    await asyncio.gather(self._refreshing, return_exceptions=True)

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        has_keys = sys.stdin.isatty()
        if has_keys:
            loop.add_reader(sys.stdin.fileno(), self._on_typed)
        loop.add_signal_handler(signal.SIGWINCH, self._on_resize)
        loop.add_signal_handler(signal.SIGTSTP, self._on_suspend)
        try:
            yield
        finally:
            if has_keys:
                loop.remove_reader(sys.stdin.fileno())
            loop.remove_signal_handler(signal.SIGWINCH)
            loop.remove_signal_handler(signal.SIGTSTP)

    async def _draw_for_ever(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AGE_STEP_S):
                    await self._news.wait()
            self._news.clear()
            size = self.terminal.size
            self.terminal.draw(self._picture(size.columns, size.lines))

    def _on_resize(self) -> None:
        self.terminal.forget()
        self.changed()

    def _on_suspend(self) -> None:
        """Ctrl-Z: give the terminal back, stop as any program does, and take it again when told to go on."""
        self.terminal.close()
        os.kill(os.getpid(), signal.SIGSTOP)
        self.terminal.open()
        self.changed()

    def _on_typed(self) -> None:
        try:
            typed = os.read(sys.stdin.fileno(), KEY_BYTES_MAX)
        except OSError:  # its window was closed
            typed = b""
        if not typed:
            self._is_hung_up = True
            self._has_left.set()
        if self._escape is not None:
            self._escape.cancel()
        self._press(self._keys.feed(typed))
        if self._keys.is_pending:
            loop = asyncio.get_running_loop()
            self._escape = loop.call_later(ESCAPE_S, lambda: self._press(self._keys.flush()))

    def _press(self, keys: list[str]) -> None:
        for key in keys:  # a key that is held down, or a fast hand, comes as several at once
            match self._view.press(key):
                case Wish.LEAVE:
                    self._has_left.set()
                case Wish.REFRESH:
                    if self._refreshing is None or self._refreshing.done():
                        self._refreshing = asyncio.create_task(self._refresh(), name="screen-refresh")
                case Wish.NOTHING:
                    pass
        if keys:
            self.changed()


async def _first_of(*works: Coroutine[Any, Any, Any]) -> None:
    """Wait for the first of them to end, raise what it raised, and end the others."""
    running = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)
