"""How far the scheduler's store was when this node heard last: kept for one whose own memory was put back, too.

It is sealed, and nothing here reads it (scheduler/store_position.py).
"""

from __future__ import annotations

import logging
from pathlib import Path

from gpufleet.host.whole_file import replace_file

_log = logging.getLogger(__name__)

POSITION_FILE = "store-position"
POSITION_CHARS_MAX = 1_000
"""Longer ones are of a newer contract, and are not kept."""


class StorePosition:
    """The newest position that was told, in a file of mode 0600 in the agent's data folder."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / POSITION_FILE
        self._is_writable = True
        self.text = self._read()

    def keep(self, text: str, *, is_synced: bool = False) -> None:
        """Take it in place of the one before. That it cannot be written is said once, and stops nothing."""
        if not text or text == self.text or len(text) > POSITION_CHARS_MAX:
            return
        self.text = text
        try:
            replace_file(self._file, text.encode(), is_synced=is_synced)
            self._is_writable = True
        except OSError as problem:
            if self._is_writable:
                _log.warning("how far the scheduler's store is cannot be written down: %s", problem.strerror)
            self._is_writable = False

    def _read(self) -> str:
        try:
            with self._file.open("rb") as file:
                return file.read(POSITION_CHARS_MAX).decode("ascii")
        except FileNotFoundError:
            return ""
        except (OSError, ValueError) as problem:
            _log.warning("what was told of the scheduler's store cannot be read: %s", problem)
            return ""
