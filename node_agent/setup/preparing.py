"""What this node says of the ranks that it prepares: what is being done, and for how long nothing has moved.

The scheduler gives up a gang of which a node says nothing, or that nothing moves. What has a time limit of its own, an
image that comes or an environment that is made, moves until that is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from gpufleet.v1 import node_agent_pb2

from gpufleet.jobs.run_protos import key_to_proto
from gpufleet.jobs.runs import RankKey
from gpufleet.text.units import format_size

from ..core.launch import InputFile, InputFolder
from ..keeper.linux import boottime_us
from ..wire import duration

TOLD_MAX = 256
"""Ranks that a beat tells of; those that began first go first."""


def bytes_of(files: Iterable[InputFile], folder: InputFolder | None) -> int:
    """The bytes of the files that go with a rank."""
    return sum(each.size_bytes for each in files) + (0 if folder is None else folder.content_bytes)


@dataclass(slots=True)
class _Work:
    moved_us: int
    does: str = ""
    has_limit: bool = False
    wanted_bytes: int = 0
    come_bytes: int = 0

    @property
    def message(self) -> str:
        if not self.wanted_bytes:
            return self.does
        # What is in the files twice comes once, and the list of them comes, too.
        come_bytes = min(self.come_bytes, self.wanted_bytes)
        return f"its files come: {format_size(come_bytes)} of {format_size(self.wanted_bytes)}"


class Preparations:
    """The ranks that are prepared now. `now_us` is a clock that only goes forward."""

    def __init__(self, now_us: Callable[[], int] = boottime_us) -> None:
        self._now_us = now_us
        self._works: dict[RankKey, _Work] = {}
        self._came_us = now_us()

    def begin(self, key: RankKey) -> None:
        """Begin with a rank."""
        self._works[key] = _Work(self._now_us())

    def does(self, key: RankKey, message: str, *, has_limit: bool = False) -> None:
        """Note what is being done for a rank, and whether that has a time limit of its own."""
        self._works[key] = _Work(self._now_us(), does=message, has_limit=has_limit)

    def fetches(self, key: RankKey, wanted_bytes: int) -> None:
        """Note that the files of a rank are fetched, of so many bytes."""
        self._works[key] = _Work(self._now_us(), does="its files come", wanted_bytes=wanted_bytes)

    def came(self, key: RankKey, count: int) -> None:
        """Note that bytes for a rank came. Ranks wait for each other's files, so that all of them move with it."""
        self._came_us = self._now_us()
        if (work := self._works.get(key)) is not None:
            work.come_bytes += count

    def end(self, key: RankKey) -> None:
        """A rank is ready, or is not wanted any more."""
        self._works.pop(key, None)

    def as_protos(self) -> list[node_agent_pb2.Preparation]:
        """What the next beat says of them."""
        return [
            node_agent_pb2.Preparation(
                key=key_to_proto(key), message=work.message, still=duration(self._still_us(work))
            )
            for key, work in islice(self._works.items(), TOLD_MAX)
        ]

    def _still_us(self, work: _Work) -> int:
        return 0 if work.has_limit else self._now_us() - max(work.moved_us, self._came_us)
