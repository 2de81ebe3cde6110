"""The scheduler's data folder, as far as it remembers the store: the real one, for as long as a run takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from gpufleet.errors import GpufleetError, Reason
from scheduler.known_store import KnownStore, Memory, read_known
from scheduler.store.reading import Began, Meta
from tests.simulation.world import Broken


class DataFolder:
    """No store is put back in it: so it tells of each one that was."""

    def __init__(self) -> None:
        self._folder = TemporaryDirectory(prefix="simulation-")
        self.path = Path(self._folder.name)
        self._is_ahead = False
        """Whether it knows of history that the store lacks, and that nobody has given up for good."""

    def put_back(self, starts: Sequence[Began], newest_sequence: int) -> None:
        """The store goes on from here."""
        known = read_known(self.path)
        if known is not None:
            is_of_these = any(each.lineage == known.lineage for each in starts)
            self._is_ahead = not is_of_these or known.sequence > newest_sequence

    def admit(self, found: Meta | None, starts: Sequence[Began]) -> tuple[Memory, int]:
        """What a start remembers, and the term that its own is to be above.

        It must be refused where the store lacks history, and nowhere else; then a person accepts that.
        """
        memory = Memory(self.path)
        try:
            above = memory.admit(found, starts)
        except GpufleetError as refusal:
            if refusal.reason is not Reason.STORE_RESTORED or not self._is_ahead:
                raise Broken(f"a store that lacks nothing is refused: {refusal}") from refusal
            memory = Memory(self.path, accepts=True)
            return memory, memory.admit(found, starts)
        if self._is_ahead:
            raise Broken("a store that was put back is taken for the newest one")
        return memory, above

    def note(self, memory: Memory, known: KnownStore) -> None:
        """From here on it is this store that it knows."""
        memory.note(known, is_synced=True)
        self._is_ahead = False

    def remove(self) -> None:
        """The run is over."""
        self._folder.cleanup()
