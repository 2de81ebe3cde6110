"""What an agent writes down of what its attempts used, so that the figures go on when the agent starts anew.

One file an attempt, `usages/<job.attempt.rank>`, put in place as a whole: who is killed in the middle leaves the one
from before. Like the keeper's records these files must survive the agent, not the machine: nothing waits for the disk.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from gpufleet.devices.kept_tallies import from_json, to_json
from gpufleet.devices.tally import AttemptTally

from .core.outcome import AttemptKey

UNFINISHED = ".new"


class UsageRecords:
    """The files of one agent. Every method may raise OSError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, key: AttemptKey, tally: AttemptTally) -> None:
        """Put a tally in place of the one before. Takes some 20 ms with many points: for a thread, and a copy."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        unfinished = self._folder / f"{key}{UNFINISHED}"
        unfinished.write_text(json.dumps(to_json(tally), separators=(",", ":")))
        unfinished.replace(self._folder / str(key))

    def read(self, key: AttemptKey) -> AttemptTally | None:
        """The tally of an attempt; None where there is none, or nothing that could be one."""
        try:
            return from_json(json.loads((self._folder / str(key)).read_text()))
        except FileNotFoundError:
            return None
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError):
            return None  # a disk that was full, a machine that lost power, or another version wrote it

    def end(self, key: AttemptKey) -> None:
        """Nothing of it is needed any more."""
        (self._folder / str(key)).unlink(missing_ok=True)

    def drop_others(self, keys: Collection[AttemptKey]) -> None:
        """Delete what is of no attempt that anybody knows of, and what was never finished."""
        known = {str(key) for key in keys}
        for path in self._folder.iterdir() if self._folder.is_dir() else ():
            if path.name not in known:
                path.unlink(missing_ok=True)
