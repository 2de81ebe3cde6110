"""Carries spooled output to the scheduler: small pieces at once, large ones in full batches, nothing while all is sent.

The keeper says how far each stream goes, `core/uploads.py` decides what is sent next, the spool is read at that moment,
and what the scheduler has synced is told to the keeper, which alone deletes.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from gpufleet.v1 import node_agent_pb2

from gpufleet.jobs.run_protos import key_from_proto, key_to_proto
from gpufleet.jobs.runs import RankKey

from . import wire
from .core.outcome import AttemptView, Stream
from .core.uploads import StreamKey, StreamUpload, ToSend, Uploads
from .spool import Read, SpoolGap, SpoolReader
from .streams import until_first, write_beside_reading

if TYPE_CHECKING:
    from gpufleet.v1.node_agent_pb2_grpc import NodeAgentAsyncStub

_log = logging.getLogger(__name__)

BATCH_BYTES_MAX = 1024 * 1024
"""The most output in one message; below it, a message carries whatever is there."""

BATCH_CHUNKS_MAX = 500
"""The most pieces in one message; a scheduler takes twice as many."""

UNREADABLE_RETRY_SECONDS = 2.0
"""The pause before output that could not be read is tried again; that of other attempts does not wait for it."""


Lost = Callable[[RankKey, Stream, int], None]
"""Is told of a stream of which nobody has what was behind this offset."""


class SpoolKeeper(Protocol):
    """What deletes spooled output."""

    def synced(self, key: RankKey, stream: Stream, offset: int) -> None:
        """Everything of the stream below the offset is stored and may be deleted."""
        ...


class OutputSender:
    """The output of all attempts of this node, over all connections."""

    def __init__(self, node: str, incarnation: int, keeper: SpoolKeeper) -> None:
        self._node = node
        self._incarnation = incarnation
        self._keeper = keeper
        self._uploads = Uploads()
        self._readers: dict[RankKey, SpoolReader] = {}
        self._wake = asyncio.Event()
        self._lost: Lost = lambda key, stream, offset: None

    def listen(self, lost: Lost) -> None:
        """Say who is told of output that is lost."""
        self._lost = lost

    def see(self, view: AttemptView, *, is_new: bool = False) -> None:
        """Take in how far an attempt's output goes now; `is_new`: nothing of it was ever sent."""
        for unwanted in self._uploads.see(view, is_new=is_new):
            self._drop(unwanted)
        self._wake.set()

    def forget(self, key: RankKey) -> None:
        """The scheduler has all of this attempt, or wants no more of it."""
        self._uploads.forget(key)
        self._readers.pop(key, None)

    async def hold(self, stub: NodeAgentAsyncStub) -> None:
        """Send over one stream until it ends; raises what ended it."""
        self._uploads.connected()
        call = stub.ReportOutput()
        try:
            await until_first(self._listen(call), self._send(call))
        finally:
            call.cancel()

    async def _send(self, call: Any) -> None:
        while True:
            await write_beside_reading(call, await self.wait_for_message())

    async def _listen(self, call: Any) -> None:
        async for answer in call:
            for position in answer.synced:
                self.take(position)
        raise ConnectionResetError("the scheduler closed the output stream")

    def take(self, position: node_agent_pb2.OutputPosition) -> None:
        """The scheduler says what it has of a stream."""
        self._wake.set()
        stream = wire.STREAMS_BY_NUMBER.get(position.stream)
        if stream is None:
            return
        key = key_from_proto(position.key)
        state = self._uploads.synced(
            (key, stream), position.offset, is_end=position.is_end, is_unwanted=position.is_unwanted
        )
        if state is not None and state.is_unwanted:
            self._drop(state)
        elif state is not None:
            self._keeper.synced(key, stream, state.upload.synced)

    def _drop(self, state: StreamUpload) -> None:
        """What nobody wants is as good as stored: it must not fill the spool and block the job."""
        self._keeper.synced(*state.key, state.spooled_end)

    async def wait_for_message(self) -> node_agent_pb2.ReportOutputRequest:
        """What to send next, as soon as there is something."""
        while True:
            self._wake.clear()
            if (message := self.next_message()) is not None:
                return message
            await self._wake.wait()

    def next_message(self) -> node_agent_pb2.ReportOutputRequest | None:
        """What to send now: questions, and pieces of whatever has more; None when there is nothing."""
        asks = self._uploads.questions()
        chunks: list[node_agent_pb2.OutputChunk] = []
        size_bytes = 0
        while size_bytes < BATCH_BYTES_MAX and len(chunks) < BATCH_CHUNKS_MAX:
            what = self._uploads.next()
            if what is None:
                break
            chunk = self._chunk(what)
            if chunk is not None:
                chunks.append(chunk)
                size_bytes += len(chunk.data)
        if not asks and not chunks:
            return None
        return node_agent_pb2.ReportOutputRequest(
            node=self._node, incarnation=self._incarnation, chunks=chunks, asks=_positions(asks)
        )

    def _chunk(self, what: ToSend) -> node_agent_pb2.OutputChunk | None:
        key, stream = what.stream.key
        length = what.piece.end - what.piece.start
        read = self._read(what.stream, what.piece.start, length) if length else Read(b"")
        data = read.data
        if length and not data:
            return None
        if read.is_damaged:
            end = what.piece.start + len(data)
            _log.error("%s of %s: bytes %d to %d are damaged on disk", stream.value, key, what.piece.start, end - 1)
        self._uploads.sent(what, len(data))
        return node_agent_pb2.OutputChunk(
            key=key_to_proto(key),
            stream=wire.STREAMS[stream],
            offset=what.piece.start,
            data=data,
            is_end=what.is_end and len(data) == length,
            checksum=zlib.crc32(data),
            is_damaged=read.is_damaged,
        )

    def _read(self, state: StreamUpload, offset: int, length: int) -> Read:
        key, stream = state.key
        reader = self._readers.get(key)
        if reader is None:
            reader = self._readers[key] = SpoolReader(state.directory)
        try:
            if (read := reader.read(stream, offset, length)).data:
                return read
            # The keeper tells of bytes once it has written them: somebody, or the disk, has cut the file off.
            why = f"its spool ends there, and {state.spooled_end} bytes of {stream.value} were written"
            self._lose(state, offset, why)
        except SpoolGap as gap:
            # The scheduler's store is older than what it had acknowledged, and what was deleted here cannot come back;
            # or a file of the spool is gone.
            self._lose(state, offset, str(gap))
        except OSError as problem:
            _log.error("output of %s cannot be read and is tried again: %s", key, problem)
            self._uploads.pause(state)
            asyncio.get_running_loop().call_later(UNREADABLE_RETRY_SECONDS, self._resume, state)
        return Read(b"")

    def _lose(self, state: StreamUpload, offset: int, why: str) -> None:
        """Nobody has what a stream had from this offset on: it ends here, which its attempt's end will say."""
        key, stream = state.key
        _log.error("output of %s is lost from byte %d on: %s", key, offset, why)
        self._uploads.lose_from(state, offset)
        self._drop(state)
        self._lost(key, stream, offset)

    def _resume(self, state: StreamUpload) -> None:
        self._uploads.resume(state)
        self._wake.set()


def _positions(keys: Iterable[StreamKey]) -> list[node_agent_pb2.OutputPosition]:
    return [node_agent_pb2.OutputPosition(key=key_to_proto(key), stream=wire.STREAMS[stream]) for key, stream in keys]
