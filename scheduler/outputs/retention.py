"""Which stored output is dropped by age or size, and up to when any was: what is missing beyond that was lost."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from gpufleet.host.whole_file import replace_file

from ..state.ids import JobId
from ..state.units import Instant
from .segment_store import StoredJob


def jobs_to_drop(
    stored: Iterable[StoredJob], *, before: Instant, bytes_max: int, live: frozenset[JobId]
) -> list[StoredJob]:
    """The jobs to drop, oldest first. Output of a live job counts towards the size and is never dropped."""
    oldest_first = sorted(stored, key=lambda each: (each.written_at, each.job))
    excess = sum(each.size_bytes for each in oldest_first) - bytes_max
    dropped: list[StoredJob] = []
    for each in oldest_first:
        if each.job not in live and (each.written_at < before or excess > 0):
            dropped.append(each)
            excess -= each.size_bytes
    return dropped


class DropMark:
    """A file with the time of the newest output that was ever dropped, by the wall clock."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Instant | None:
        """That time; None where nobody knows."""
        try:
            return Instant(int(self._path.read_text()))
        except (OSError, ValueError):
            return None

    def note(self, newest: Instant) -> None:
        """Output as new as this is dropped now. Where that cannot be written, on a full disk, nobody knows any more."""
        known = self.read()
        if known is not None and known >= newest:
            return
        try:
            replace_file(self._path, f"{newest}\n".encode(), is_synced=False)
        except OSError:
            with suppress(OSError):
                self._path.unlink()
