"""What ranks left: which manifest each of them brought, and what is not in it. Contents are blobs of the job's user.

    FOLDER/JOB/KEY.json     of one rank; written and synced once all of its contents are stored

One that is there is never changed; it goes when it is older than [files] keep_results, and its contents with it.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gpufleet.errors import GpufleetError, Reason
from gpufleet.host.whole_file import replace_file
from gpufleet.jobs.files import is_digest

from ..state.ids import JobId, RankKey, UserName
from ..state.units import SECOND, Instant

MISSING_CHARS_MAX = 300
"""Of the sentence about what is missing."""
BYTES_MAX = 4 * 2**20
"""More than any of these files has."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What a rank left: whose it is, the digest of its manifest, what is not in that; `is_new`: it came just now.
    `stored_at` is known of what was read."""

    user: UserName
    digest: str
    problems: tuple[str, ...]
    is_new: bool = False
    stored_at: Instant | None = field(default=None, compare=False)


def missing_words(problems: tuple[str, ...]) -> str:
    """The first of what is missing, and how many more there are; empty where nothing is."""
    if not problems:
        return ""
    first, *others = problems
    more = f", and {len(others):,} more" if others else ""
    return f"not among it: {first[:MISSING_CHARS_MAX]}{more}"


class Results:
    """Every method reads or writes files, and may be called from any thread. Errors of the disk: STORE_UNAVAILABLE."""

    def __init__(self, folder: Path, wall_clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._now = wall_clock
        self.trouble: dict[RankKey, str] = {}
        """Why what a rank left could not be taken when it was sent last; of ranks that still bring theirs."""

    def add(self, key: RankKey, stored: Stored) -> None:
        """Make durable what a rank left."""
        file = self._file(key)
        content = json.dumps({"user": stored.user, "digest": stored.digest, "problems": stored.problems})
        try:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(file, content.encode())
        except OSError as problem:
            raise GpufleetError(Reason.STORE_UNAVAILABLE, f"what a job left cannot be noted: {problem}") from None

    def of(self, key: RankKey) -> Stored | None:
        """What a rank left; None where it has brought nothing yet, or it was dropped."""
        return _read(self._file(key))

    def all(self) -> Iterator[Stored]:
        """What every rank left."""
        for folder in self._jobs():
            for file in folder.glob("*.json"):
                if (found := _read(file)) is not None:
                    yield found

    def prune(self, kept_s: float) -> int:
        """Forget what is older; how many."""
        before, dropped = self._now() - kept_s, 0
        for folder in self._jobs():
            for file in folder.glob("*.json"):
                if file.stat().st_mtime < before:
                    file.unlink(missing_ok=True)
                    dropped += 1
            if not any(folder.iterdir()):
                shutil.rmtree(folder, ignore_errors=True)
        return dropped

    def _jobs(self) -> list[Path]:
        with suppress(FileNotFoundError):
            return [Path(entry.path) for entry in os.scandir(self._folder) if entry.is_dir(follow_symlinks=False)]
        return []

    def _file(self, key: RankKey) -> Path:
        return self._folder / str(JobId(key.job)) / f"{key.name}.json"


def _read(file: Path) -> Stored | None:
    try:
        with file.open("rb") as opened:
            found = json.loads(opened.read(BYTES_MAX))
            at = Instant(round(os.fstat(opened.fileno()).st_mtime * SECOND))
        problems = tuple(map(str, found["problems"]))
        stored = Stored(UserName(found["user"]), found["digest"], problems, stored_at=at)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return stored if is_digest(stored.digest) else None
