"""What builds wrote, for each rank that has one made or found it made: kept longer than an environment that failed.

ENVIRONMENTS/written/JOB.ATTEMPT.RANK   a link to the output of what made its environment
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from gpufleet.jobs.runs import RankKey

RANKS_MAX = 256
"""Of so many ranks it is kept, those of the newest jobs."""


@dataclass(frozen=True, slots=True)
class Written:
    """What was written, by rank. Each file is a link: where several ranks had one made, they have one file."""

    folder: Path

    def keep(self, key: RankKey, output: Path) -> None:
        """This is, or will be, the output of what makes a rank's environment."""
        with contextlib.suppress(OSError):  # it tells less then, and hinders nothing
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            place = self.folder / key.name
            place.unlink(missing_ok=True)
            os.link(output, place)
            for old in sorted(self.folder.iterdir(), key=_age)[:-RANKS_MAX]:
                old.unlink(missing_ok=True)

    def of(self, key: RankKey, offset: int = 0) -> tuple[bytes, int]:
        """What was written so far for a rank from a byte on, and how much it is in all; nothing where none is known."""
        try:
            written = (self.folder / key.name).read_bytes()
        except OSError:
            return b"", 0
        return written[max(0, offset) :], len(written)


def _age(file: Path) -> tuple[int, str]:
    job = file.name.partition(".")[0]
    return (int(job) if job.isdecimal() else 0, file.name)
