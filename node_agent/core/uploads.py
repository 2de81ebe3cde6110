"""Which bytes of which stream go up next, over all attempts of a node: fair, in order, twice only after a break.

Each connection begins by asking the scheduler what it has; until it answers, nothing of that stream is sent. What is
sent and not synced is bounded by a window per stream, and nothing is deleted here that is not synced.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from gpufleet.jobs.runs import RankKey

from .offsets import OutputPiece, Upload, connection_lost, next_piece, piece_sent, piece_synced
from .outcome import AttemptView, LossReason, Stream

UPLOAD_WINDOW_BYTES = 8 * 1024 * 1024
"""The most of one stream that is sent and not yet synced."""

QUESTIONS_MAX = 1_000
"""Streams that one message asks for."""

StreamKey = tuple[RankKey, Stream]


@dataclass(slots=True)
class StreamUpload:
    """One stream of one attempt. `end` is up to where it is sent; `is_final` says that it will not grow.

    That is where the spool ends now, `spooled_end`; or, of a stream whose middle is lost, before the hole, `lost_from`.
    """

    key: StreamKey
    directory: str
    upload: Upload = field(default_factory=Upload)
    end: int = 0
    spooled_end: int = 0
    lost_from: int | None = None
    is_final: bool = False
    is_answered: bool = False
    end_was_sent: bool = False
    end_is_stored: bool = False
    is_unwanted: bool = False


@dataclass(frozen=True, slots=True)
class ToSend:
    """Send this piece; `is_end` says that the stream ends behind it. An empty piece only says that."""

    stream: StreamUpload
    piece: OutputPiece
    is_end: bool


@dataclass(slots=True)
class Uploads:
    """Every stream that is not known to be stored whole, and the order in which they take turns."""

    _streams: dict[StreamKey, StreamUpload] = field(default_factory=dict)
    _turns: deque[StreamKey] = field(default_factory=deque)
    _waiting: set[StreamKey] = field(default_factory=set)
    _unasked: dict[StreamKey, None] = field(default_factory=dict)

    def see(self, view: AttemptView, *, is_new: bool) -> tuple[StreamUpload, ...]:
        """Take in how far an attempt's output goes; `is_new` when no byte of it can have been sent before.

        Answers those of its streams of which nothing more is kept: nobody wants them, or they have a hole.
        """
        if view.end is not None and view.end.loss is LossReason.NODE_REBOOTED:
            return ()  # what a crash of the machine left in the files may never have been written
        unwanted: list[StreamUpload] = []
        ends = view.end.output_ends if view.end is not None else view.output_ends
        for stream in Stream:
            key = (view.key, stream)
            state = self._streams.get(key)
            if state is None:
                start = view.output_starts.of(stream)
                state = StreamUpload(key, view.directory, Upload(synced=start, sent=start))
                state.is_answered = is_new
                if not is_new:
                    self._unasked[key] = None
                self._streams[key] = state
            state.spooled_end = max(state.spooled_end, ends.of(stream))
            state.end = state.spooled_end if state.lost_from is None else state.lost_from
            state.is_final = view.end is not None
            if state.is_unwanted or state.lost_from is not None:
                unwanted.append(state)
            self._give_turn(state)
        return tuple(unwanted)

    def connected(self) -> None:
        """Begin a connection: what was under way may not have arrived, and every offset is asked for anew."""
        self._turns.clear()
        self._waiting.clear()
        for state in self._streams.values():
            state.upload = connection_lost(state.upload)
            state.is_answered = state.end_was_sent = False
        self._unasked = dict.fromkeys(self._streams)

    def questions(self) -> tuple[StreamKey, ...]:
        """The streams whose synced offset is to be asked for now, each once per connection."""
        found = tuple(islice(self._unasked, QUESTIONS_MAX))
        for key in found:
            del self._unasked[key]
        return found

    def synced(self, key: StreamKey, offset: int, *, is_end: bool, is_unwanted: bool) -> StreamUpload | None:
        """The scheduler has stored everything below the offset. Answers the stream, None when it is gone."""
        state = self._streams.get(key)
        if state is None:
            return None
        # What is answered to a question is said of the whole stream: a store that was put back may want it after all.
        state.is_unwanted = is_unwanted or (state.is_unwanted and state.is_answered)
        if not state.is_answered and not state.is_unwanted and offset < state.upload.synced:
            # The store has less than it had acknowledged: go back, for the spool may still have it.
            state.upload = Upload(synced=offset, sent=offset)
        else:
            state.upload = piece_synced(state.upload, offset)
        state.is_answered = True
        state.end_is_stored = state.end_is_stored or is_end
        self._give_turn(state)
        return state

    def next(self) -> ToSend | None:
        """What to send now, None when nothing may be sent. The caller says `sent` before it asks again."""
        while self._turns:
            key = self._turns.popleft()
            self._waiting.discard(key)
            state = self._streams.get(key)
            if state is not None and (found := _next_of(state)) is not None:
                return found
        return None

    def sent(self, what: ToSend, length_bytes: int) -> None:
        """So many bytes of the piece were sent; a shorter piece goes on in the stream's next turn."""
        state = what.stream
        state.upload = piece_sent(state.upload, OutputPiece(what.piece.start, what.piece.start + length_bytes))
        state.end_was_sent = what.is_end and state.upload.sent == what.piece.end
        self._give_turn(state)

    def lose_from(self, stream: StreamUpload, offset: int) -> None:
        """The bytes from this offset on cannot be read any more. Nothing is taken behind a hole: it ends here."""
        stream.lost_from = stream.end = offset
        self._give_turn(stream)

    def pause(self, stream: StreamUpload) -> None:
        """Send nothing of this stream until it is resumed."""
        stream.is_answered = False

    def resume(self, stream: StreamUpload) -> None:
        """Go on with a stream, beginning with the question how far it came."""
        if self._streams.get(stream.key) is stream:
            stream.upload = connection_lost(stream.upload)
            self._unasked[stream.key] = None

    def forget(self, key: RankKey) -> None:
        """Nothing of this attempt is to be sent any more."""
        for stream in Stream:
            self._streams.pop((key, stream), None)
            self._unasked.pop((key, stream), None)

    def __iter__(self) -> Iterator[StreamUpload]:
        return iter(tuple(self._streams.values()))

    def _give_turn(self, state: StreamUpload) -> None:
        if state.key not in self._waiting and _next_of(state) is not None:
            self._waiting.add(state.key)
            self._turns.append(state.key)


def _next_of(state: StreamUpload) -> ToSend | None:
    if not state.is_answered or state.is_unwanted or state.end_is_stored:
        return None
    piece = next_piece(state.upload, state.end, window_bytes=UPLOAD_WINDOW_BYTES)
    if piece is not None:
        return ToSend(state, piece, is_end=state.is_final and piece.end >= state.end)
    # Of a stream that never held a byte there is nothing to store, and the report of the exit says where it ended.
    if state.is_final and not state.end_was_sent and state.upload.sent >= state.end and state.spooled_end:
        return ToSend(state, OutputPiece(state.end, state.end), is_end=True)
    return None
