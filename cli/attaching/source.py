"""Standard input, read as long as somebody has room for it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable


class Source:
    """A descriptor that is read in the loop; `on_bytes` is given what comes, and nothing at its end."""

    def __init__(self, fd: int, on_bytes: Callable[[bytes], None], room_bytes: Callable[[], int]) -> None:
        self._fd = fd
        self._on_bytes = on_bytes
        self._room_bytes = room_bytes
        self._is_wanted = False
        self._is_watched = False
        self._has_ended = False
        self._soon: asyncio.Handle | None = None

    def want(self, is_wanted: bool) -> None:
        """Read from now on, or no more."""
        self._is_wanted = is_wanted
        self.look()

    def look(self) -> None:
        """There may be room again, or none any more."""
        must_watch = self._is_wanted and not self._has_ended and self._room_bytes() > 0
        if must_watch == self._is_watched:
            return
        self._is_watched = must_watch
        loop = asyncio.get_running_loop()
        if not must_watch:
            loop.remove_reader(self._fd)
            if self._soon is not None:
                self._soon.cancel()
            return
        try:
            loop.add_reader(self._fd, self._read)
        except PermissionError:  # a regular file: it can always be read
            self._soon = loop.call_soon(self._read_file)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, self._room_bytes())
        except BlockingIOError:
            return
        except OSError:  # EIO: the terminal is gone
            data = b""
        if not data:
            self._has_ended = True
        self._on_bytes(data)
        self.look()

    def _read_file(self) -> None:
        self._read()
        if self._is_watched:
            self._soon = asyncio.get_running_loop().call_soon(self._read_file)
