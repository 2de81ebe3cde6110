"""What a place for whole files must be able to do, and what a reader of one of them can."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..on_disk import FoundBlob, Key

MARKER = ".gpufleet-store"
"""Names the fleet whose files are there."""
NOTES = ".results"
"""Where notes of what jobs left are, JOB/KEY.json below it. No user is called so."""
NOTE_BYTES_MAX = 4 * 2**20
"""More than any note has."""


@dataclass(frozen=True, slots=True)
class FoundNote:
    """A note by its name below NOTES; `at` is when it was stored, in seconds of the wall clock."""

    name: str
    at: float


class Reader(Protocol):
    """A whole file that is read. Errors of `read`: STORE_UNAVAILABLE; FILE_NOT_UPLOADED where it was dropped since."""

    size: int

    def read(self, offset: int, size: int) -> bytes:
        """The bytes from there on, as many as were asked for, and fewer at the file's end alone."""
        ...

    def close(self) -> None:
        """Give back what reading it took."""


class Backend(Protocol):
    """Files by user and digest, and notes. Every method may be called from any thread, and from several at once.

    Errors of all: STORE_UNAVAILABLE, while the place cannot be reached or answers wrongly; that nothing is stored under
    a name is said only where the place itself is there.
    """

    place: str
    """Where it is, for people; nothing secret is in it."""
    is_remote: bool
    """Whether calls may take long, or fail for a while, and somebody else may store there, too."""

    def prepare(self) -> None:
        """Make what has to be there before anything is. Errors: CONFIG_INVALID where the settings cannot be right."""

    def files(self) -> Iterator[FoundBlob]:
        """Every whole file, a page at a time."""
        ...

    def find(self, key: Key) -> FoundBlob | None:
        """What is known of a file; None where it is not stored."""

    def put(self, key: Key, part: Path) -> None:
        """Store a part whose digest was checked, under its name or not at all; it is durable after `settle`."""

    def settle(self, key: Key) -> None:
        """Make durable that the files of this one's user have their names."""

    def open(self, key: Key) -> Reader | None:
        """Read a file; None where it is not stored."""

    def touch(self, key: Key, at: float) -> bool:
        """Note when a file was last needed, where the place can keep that; False where it is known not to be there."""
        ...

    def remove(self, key: Key) -> None:
        """Drop a file, if it is there."""

    def read_note(self, name: str) -> tuple[bytes, float] | None:
        """A note, and when it was stored, in seconds of the wall clock; None where there is none."""

    def write_note(self, name: str, content: bytes) -> None:
        """Store a note, durably."""

    def notes(self) -> Iterator[FoundNote]:
        """Every note."""
        ...

    def remove_note(self, name: str) -> None:
        """Drop a note, if it is there."""

    def read_marker(self) -> str | None:
        """The fleet whose files are there; None where nobody's are."""

    def write_marker(self, fleet: str) -> None:
        """Say whose files are there."""

    def close(self) -> None:
        """Give up what is under way, and what connects to the place."""
