"""Reading several streams of a job together, in the order in which their bytes arrived."""

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

from ...output_hub import StreamKey
from ...ports import Gap, Mark, OutputStore, Piece
from .beginnings import READ_BYTES

PARTS_MAX = 256
"""Parts that are read at once, however short they are: nobody else uses the store's thread meanwhile."""

Found = list[tuple[StreamKey, Piece | Gap]]
_Order = tuple[int, int, StreamKey]
_LAST = 1 << 63


@dataclass(slots=True)
class _Stream:
    position: int
    marks: list[Mark]


class ArrivalOrder:
    """What is stored of some streams behind a position in each. Both methods block; they are for the output thread.

    Between two streams of an attempt the order is that of their marks (outputs/times.py); what has no mark comes last,
    and an attempt behind the one before it. Errors of both: those of the store.
    """

    def __init__(self, store: OutputStore, positions: Mapping[StreamKey, int]) -> None:
        self._store = store
        is_alone = len(positions) == 1
        self._streams = {
            key: _Stream(offset, [] if is_alone else store.arrivals(*key)) for key, offset in positions.items()
        }
        self._waiting = [self._order(key) for key in positions]
        heapq.heapify(self._waiting)

    def next(self) -> Found:
        """The next parts, READ_BYTES at most; none behind the last one that there is now."""
        found: Found = []
        size = 0
        while self._waiting and size < READ_BYTES and len(found) < PARTS_MAX:
            key = heapq.heappop(self._waiting)[2]
            stream = self._streams[key]
            end = self._end(stream, key)
            limit = READ_BYTES if end is None else min(READ_BYTES, end - stream.position)
            part = self._store.read(*key, stream.position, limit)
            if part is None:
                continue
            if isinstance(part, Gap):
                stream.position = part.end
            else:
                stream.position += len(part.data)
                size += len(part.data)
            found.append((key, part))
            heapq.heappush(self._waiting, self._order(key))
        return found

    def _order(self, key: StreamKey) -> _Order:
        """When the next byte of a stream is known to have been there."""
        stream = self._streams[key]
        index = bisect_right(stream.marks, stream.position, key=lambda mark: mark.end)
        return key[0].attempt, stream.marks[index].at if index < len(stream.marks) else _LAST, key

    def _end(self, stream: _Stream, key: StreamKey) -> int | None:
        """How far a stream is read before another one is to go on; None: as far as it goes."""
        if not self._waiting or self._waiting[0][0] != key[0].attempt:
            return None
        index = bisect_right(stream.marks, stream.position, key=lambda mark: mark.end)
        if index == len(stream.marks):
            return None
        earlier = bisect_left(stream.marks, self._waiting[0][1], key=lambda mark: mark.at) - 1
        return stream.marks[max(index, earlier)].end
