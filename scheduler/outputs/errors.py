"""What can go wrong with stored output, by what the caller must do about it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..state.attempts import OutputStream
from ..state.ids import RankKey

if TYPE_CHECKING:
    from .segment_store import SegmentKey


class OutputStoreUnavailable(Exception):
    """The bytes cannot be stored or read now (disk full, connection lost): offer them again later.

    What was synced is still there. Ask for the end before appending again: it may have gone back to the synced offset.
    """


class UnsyncedBytesLost(OutputStoreUnavailable):
    """A sync failed in a way after which nobody knows what of the unsynced bytes reached the disk."""


class SegmentsGone(UnsyncedBytesLost):
    """Somebody removed segments that are being written; `lost` are those. What they held is lost, synced or not."""

    def __init__(self, lost: Sequence["SegmentKey"], why: str) -> None:
        super().__init__(why)
        self.lost = lost


class OutputHole(ValueError):
    """Bytes were offered beyond the known end; offer those from `end` on first."""

    def __init__(self, key: RankKey, stream: OutputStream, offset: int, end: int) -> None:
        super().__init__(f"{stream.name.lower()} of {key}: bytes from {offset} on would leave a hole behind {end}")
        self.end = end
