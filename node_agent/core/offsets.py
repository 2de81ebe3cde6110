"""Which spooled bytes may be deleted, sent, or still taken in. Offsets count from the stream's first byte.

For each stream:   starts <= synced <= sent <= ends.   Below `starts` the spool is deleted; `synced` is what
the scheduler has on its disk, and only below it anything is ever deleted; `sent` is what was sent on the
present connection (a new connection begins again at `synced`); `ends` is what the keeper has spooled.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

CHUNK_BYTES = 256 * 1024
"""The most that is read from a pipe, or sent to the scheduler, in one piece."""

WINDOW_BYTES = 4 * 1024 * 1024
"""The most that is sent and not yet synced."""

SEGMENT_BYTES = 4 * 1024 * 1024
SEGMENT_BYTES_MIN = 4 * 1024
SEGMENTS_PER_BOUND = 8
"""A spool has at least eight segments: each stream's last one stays while it is written to."""

SPOOL_BYTES = 64 * 1024 * 1024
"""The default bound of one attempt's spool."""

SPOOL_BYTES_MIN = SEGMENTS_PER_BOUND * SEGMENT_BYTES_MIN


def segment_bytes_for(bound_bytes: int) -> int:
    """Answer how long a segment is in a spool of this bound."""
    return max(SEGMENT_BYTES_MIN, min(SEGMENT_BYTES, bound_bytes // SEGMENTS_PER_BOUND))


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of a stream: the bytes from `start` up to but without `end`."""

    start: int
    end: int


def segments_to_delete(segments: Sequence[Segment], synced: int) -> tuple[Segment, ...]:
    """Answer which of a stream's segments lie wholly below the synced offset.

    The newest one, last in the row, stays: when nobody is left to ask, its file alone tells where the stream ends.
    """
    return tuple(segment for segment in segments[:-1] if segment.end <= synced)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """What the agent has done with one stream of one attempt."""

    synced: int = 0
    sent: int = 0


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """Send the bytes from `start` up to but without `end` next."""

    start: int
    end: int


def next_piece(upload: Upload, end: int, *, window_bytes: int = WINDOW_BYTES) -> OutputPiece | None:
    """Answer what to send next of a stream spooled up to `end`; None: nothing, or the window is full."""
    stop = min(end, upload.sent + CHUNK_BYTES, upload.synced + window_bytes)
    return OutputPiece(upload.sent, stop) if stop > upload.sent else None


def piece_sent(upload: Upload, piece: OutputPiece) -> Upload:
    """Record that a piece left on the present connection; pieces leave in order."""
    assert piece.start == upload.sent, f"sent {piece} after {upload}"
    return replace(upload, sent=piece.end)


def piece_synced(upload: Upload, synced: int) -> Upload:
    """Record the scheduler's synced offset.

    An older one changes nothing. One beyond what this connection sent is taken: it tells of bytes that an
    earlier connection delivered.
    """
    synced = max(upload.synced, synced)
    return Upload(synced=synced, sent=max(upload.sent, synced))


def connection_lost(upload: Upload) -> Upload:
    """Send again from the synced offset: whatever was under way may not have arrived."""
    return replace(upload, sent=upload.synced)


def room_bytes(bound_bytes: int, held_bytes: int, segment_used_bytes: int, segment_bytes: int) -> int:
    """Answer how much a stream may take in now: room of the whole spool, of the open segment, of one chunk.

    `segment_used_bytes` is 0 when a new segment would be opened.
    """
    return max(0, min(bound_bytes - held_bytes, segment_bytes - segment_used_bytes, CHUNK_BYTES))
