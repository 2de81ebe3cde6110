"""A scheduler as the agent sees one: the NodeAgent service in this process, with knobs for every fault.

It keeps to the contract strictly and fails the test where the agent does not: numbers up rise within a stream but
for repetitions, the inventory comes first, output is contiguous and never changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from gpufleet.v1 import job_pb2, node_agent_pb2_grpc
from gpufleet.v1 import node_agent_pb2 as pb

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net import channel
from gpufleet.net.status import to_status
from gpufleet.security.tokens import make_token

WAIT_SECONDS_MAX = 60.0
BROKEN = (grpc.RpcError, grpc.aio.BaseError)
Key = tuple[int, int, int]


@dataclass
class StoredOutput:
    """One stream of one rank, as the output store would hold it."""

    data: bytearray = field(default_factory=bytearray)
    synced: int = 0
    end: int | None = None


class Stream:
    """One open heartbeat stream: numbers down, and what is to be sent."""

    def __init__(self, term: int) -> None:
        self.term = term
        self.numbers = itertools.count(1)
        self.outgoing: asyncio.Queue[pb.HeartbeatResponse | None] = asyncio.Queue()
        self.received: list[pb.HeartbeatRequest] = []


class FakeScheduler(node_agent_pb2_grpc.NodeAgentServicer):
    """Start with `async with FakeScheduler() as scheduler`; the address stays the same over `restart`."""

    def __init__(self) -> None:
        self.token = make_token()
        self.term = 1
        self.port = 0
        self.heartbeat_interval_s = 0.2
        self.command_valid_for_s = 30.0
        # Knobs.
        self.refuse_register: GpufleetError | None = None
        self.acks: asyncio.Event = _set_event()
        self.reads: asyncio.Event = _set_event()
        self.syncs: asyncio.Event = _set_event()
        self.duplicates = False
        self.answers_inventory = True
        self.forgets = True
        self.unwanted: set[Key] = set()
        # What was seen.
        self.registrations: list[pb.RegisterRequest] = []
        self.messages: list[pb.HeartbeatRequest] = []
        self.streams: list[Stream] = []
        self.output_streams = 0
        self.started: dict[Key, pb.AttemptStarted] = {}
        self.exited: dict[Key, pb.AttemptExited] = {}
        self.refused: dict[Key, pb.LaunchRefused] = {}
        self.ready: dict[Key, pb.RankReady] = {}
        self.spool_states: list[pb.SpoolState] = []
        self.log_chunks: list[pb.ProgramLogChunk] = []
        self.inventories: list[pb.Inventory] = []
        self.known: set[Key] = set()
        self.launches: dict[Key, pb.Launch] = {}
        self.finished: set[Key] = set()
        self.outputs: dict[tuple[int, int, int, int], StoredOutput] = {}
        self.complaints: list[str] = []
        self._durable = 0
        self._incarnation = 0
        self._changed = asyncio.Event()
        self._server: grpc.aio.Server | None = None
        self._output_calls: set[asyncio.Queue[pb.ReportOutputResponse | None]] = set()

    async def __aenter__(self) -> FakeScheduler:
        await self._serve()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
        assert not self.complaints, self.complaints

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def _serve(self) -> None:
        self._server = grpc.aio.server(options=channel.server_options())
        node_agent_pb2_grpc.add_NodeAgentServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def stop(self) -> None:
        """Go away, without a word to anybody."""
        self.drop_streams()
        if self._server is not None:
            await self._server.stop(grace=0)
            self._server = None

    async def start(self) -> None:
        """Come back at the same address."""
        await self._serve()

    async def restart(self) -> None:
        """Stop, and come back with a higher term. What was stored is still there."""
        await self.stop()
        self.term += 1
        await self._serve()

    def drop_streams(self) -> None:
        """Break every stream as a network would."""
        for stream in self.streams:
            stream.outgoing.put_nowait(None)
        for call in self._output_calls:
            call.put_nowait(None)

    def command(self, **command: Any) -> int:
        """Send one command down the newest stream; answers its number."""
        return self.send_raw(self.term, self._durable, **command)

    def send_raw(self, term: int, newest_heartbeat: int, **command: Any) -> int:
        """Send a command under any term and as old as wanted."""
        stream = self.streams[-1]
        message = pb.HeartbeatResponse(
            term=term,
            sequence=next(stream.numbers),
            acked_sequence=self._durable if self.acks.is_set() else 0,
            newest_heartbeat=newest_heartbeat,
            **command,
        )
        stream.outgoing.put_nowait(message)
        if self.duplicates and message.WhichOneof("command"):
            stream.outgoing.put_nowait(message)
        return message.sequence

    def launch(self, job_id: int, argv: list[str], *, cwd: str | Path = "/", **fields: Any) -> Key:
        """Place and launch a rank; answers its key."""
        key = (job_id, fields.pop("attempt", 1), fields.pop("rank", 0))
        self.known.add(key)
        fields.setdefault("node_count", 1)
        self.launches[key] = pb.Launch(key=proto_key(key), argv=argv, cwd=str(cwd), **fields)
        if self.streams:
            self.command(launch=self.launches[key])
        return key

    async def wait_for(self, holds: Callable[[], object], what: str = "") -> None:
        """Wait until the condition holds, looking again after each message."""
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not holds():
            assert not self.complaints, self.complaints
            if (left := deadline - time.monotonic()) <= 0:
                raise AssertionError(f"waited in vain for {what or holds}; complaints: {self.complaints}")
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), min(left, 0.2))

    async def wait_for_output(self, key: Key, bytes_min: int) -> None:
        """Wait until so many bytes of standard output are here."""
        await self.wait_for(lambda: len(self.stdout(key)) >= bytes_min, f"{bytes_min} bytes of {key}")

    async def wait_connected(self) -> None:
        """Wait until an agent has a stream open and its inventory was taken."""
        count = len(self.inventories)
        await self.wait_for(
            lambda: (self.streams and self.streams[-1].received) or len(self.inventories) > count, "a stream"
        )

    def stdout(self, key: Key) -> bytes:
        stored = self.outputs.get((*key, job_pb2.STREAM_STDOUT))
        return bytes(stored.data) if stored else b""

    def stderr(self, key: Key) -> bytes:
        stored = self.outputs.get((*key, job_pb2.STREAM_STDERR))
        return bytes(stored.data) if stored else b""

    def is_finished(self, key: Key) -> bool:
        """Whether the end is known and all output up to it is synced: what makes a job finished."""
        exited = self.exited.get(key)
        if exited is None:
            return False
        ends = {end.stream: end.end_offset for end in exited.output_ends}
        return all(self._output((*key, stream)).synced >= end for stream, end in ends.items())

    async def Register(self, request: pb.RegisterRequest, context: Any) -> pb.RegisterResponse:
        if channel.token_of(context.invocation_metadata()) != self.token:
            await context.abort_with_status(to_status(GpufleetError(Reason.TOKEN_INVALID)))
        self.registrations.append(request)
        self._changed.set()
        if self.refuse_register is not None:
            await context.abort_with_status(to_status(self.refuse_register))
        answer = pb.RegisterResponse(term=self.term, seen_address="127.0.0.1", scheduler_version="fake")
        answer.heartbeat_interval.FromMicroseconds(int(self.heartbeat_interval_s * 1e6))
        answer.node_lease.FromSeconds(60)
        answer.command_valid_for.FromMicroseconds(int(self.command_valid_for_s * 1e6))
        return answer

    async def Heartbeat(
        self, request_iterator: AsyncIterator[pb.HeartbeatRequest], context: Any
    ) -> AsyncIterator[pb.HeartbeatResponse]:
        stream = Stream(self.term)
        self.streams.append(stream)
        reader = asyncio.create_task(self._read_heartbeats(stream, request_iterator))
        try:
            while (message := await stream.outgoing.get()) is not None:
                yield message
            await context.abort(grpc.StatusCode.UNAVAILABLE, "dropped by the test")
        finally:
            reader.cancel()

    async def _read_heartbeats(self, stream: Stream, requests: AsyncIterator[pb.HeartbeatRequest]) -> None:
        try:
            async for message in requests:
                await self.reads.wait()
                for each in (message, *message.more):
                    self._take(stream, each)
                self._changed.set()
        except BROKEN:
            pass  # the test's own doing
        except Exception as problem:  # must not hide in a task that nobody asks
            self.complaints.append(repr(problem))
        finally:
            stream.outgoing.put_nowait(None)

    def _take(self, stream: Stream, message: pb.HeartbeatRequest) -> None:
        if not stream.received and message.WhichOneof("body") != "inventory":
            self.complaints.append("the first message of a stream is not the inventory")
        if message.incarnation < self._incarnation:
            self.complaints.append(f"incarnation {message.incarnation} after {self._incarnation}")
        if message.incarnation > self._incarnation:
            self._incarnation, self._durable = message.incarnation, 0
        stream.received.append(message)
        self.messages.append(message)
        self._durable = max(self._durable, message.sequence)
        self._observe(message)
        if self.acks.is_set():
            self.command()

    def _observe(self, message: pb.HeartbeatRequest) -> None:
        match message.WhichOneof("body"):
            case "inventory":
                self.inventories.append(message.inventory)
                for entry in message.inventory.entries:
                    self._observe_entry(entry)
                self._launch_again({_key(entry.key) for entry in message.inventory.entries})
            case "attempt_started":
                self.started[_key(message.attempt_started.key)] = message.attempt_started
            case "attempt_exited":
                self._observe_exit(message.attempt_exited)
            case "launch_refused":
                self.refused[_key(message.launch_refused.key)] = message.launch_refused
                if self.forgets:
                    self.command(forget=pb.Forget(key=message.launch_refused.key))
            case "rank_ready":
                self.ready[_key(message.rank_ready.key)] = message.rank_ready
            case "spool_state":
                self.spool_states.append(message.spool_state)
            case "program_log":
                self.log_chunks.append(message.program_log)

    def _observe_entry(self, entry: pb.InventoryEntry) -> None:
        key = _key(entry.key)
        if entry.phase == pb.ATTEMPT_PHASE_EXITED:
            self._observe_exit(entry.exited)
        if not self.answers_inventory:
            return
        if key not in self.known:
            self.command(kill=pb.Kill(key=entry.key))
        elif key in self.finished:
            self.command(forget=pb.Forget(key=entry.key))
        else:
            self.command(keep=pb.Keep(key=entry.key))

    def _launch_again(self, there: set[Key]) -> None:
        """What was placed and never came is launched again; what ran must not be unknown to its node."""
        for key, launch in self.launches.items():
            if key in there or key in self.finished or key in self.refused or key not in self.known:
                continue
            if key in self.started or key in self.exited:
                self.complaints.append(f"the node has forgotten {key}, which ran there")
            else:
                self.command(launch=launch)

    def _observe_exit(self, exited: pb.AttemptExited) -> None:
        key = _key(exited.key)
        before = self.exited.setdefault(key, exited)
        if before.exit != exited.exit or list(before.output_ends) != list(exited.output_ends):
            self.complaints.append(f"{key} ended twice: {before} and {exited}")
        self._finish(key)

    def _finish(self, key: Key) -> None:
        if self.is_finished(key) and key not in self.finished:
            self.finished.add(key)
            if self.forgets and self.streams:
                self.command(forget=pb.Forget(key=proto_key(key)))

    async def ReportOutput(
        self, request_iterator: AsyncIterator[pb.ReportOutputRequest], context: Any
    ) -> AsyncIterator[pb.ReportOutputResponse]:
        self.output_streams += 1
        outgoing: asyncio.Queue[pb.ReportOutputResponse | None] = asyncio.Queue()
        self._output_calls.add(outgoing)
        reader = asyncio.create_task(self._read_output(outgoing, request_iterator))
        try:
            while (message := await outgoing.get()) is not None:
                yield message
            await context.abort(grpc.StatusCode.UNAVAILABLE, "dropped by the test")
        finally:
            self._output_calls.discard(outgoing)
            reader.cancel()

    async def _read_output(
        self,
        outgoing: asyncio.Queue[pb.ReportOutputResponse | None],
        requests: AsyncIterator[pb.ReportOutputRequest],
    ) -> None:
        try:
            async for request in requests:
                await self.reads.wait()
                if len(request.chunks) > 1_000:
                    self.complaints.append(f"a message of {len(request.chunks)} chunks")
                touched = {_stream_key(ask): None for ask in request.asks}
                touched |= {self._append(chunk): None for chunk in request.chunks}
                await self.syncs.wait()
                outgoing.put_nowait(pb.ReportOutputResponse(synced=[self._sync(each) for each in touched]))
                for touch in touched:
                    self._finish(touch[:3])
                self._changed.set()
        except BROKEN:
            pass
        except Exception as problem:
            self.complaints.append(repr(problem))
        finally:
            outgoing.put_nowait(None)

    def _append(self, chunk: pb.OutputChunk) -> tuple[int, int, int, int]:
        key = _stream_key(chunk)
        stored = self._output(key)
        if len(chunk.data) > 256 * 1024:
            self.complaints.append(f"{key}: a chunk of {len(chunk.data)} bytes")
        if chunk.offset > len(stored.data):
            self.complaints.append(f"{key}: a hole from {len(stored.data)} to {chunk.offset}")
        overlap = bytes(stored.data[chunk.offset : chunk.offset + len(chunk.data)])
        if not chunk.data.startswith(overlap):
            self.complaints.append(f"{key}: other bytes than before at {chunk.offset}")
        stored.data[chunk.offset :] = chunk.data if len(overlap) < len(chunk.data) else stored.data[chunk.offset :]
        if chunk.is_end:
            stored.end = chunk.offset + len(chunk.data)
        return key

    def _sync(self, key: tuple[int, int, int, int]) -> pb.OutputPosition:
        stored = self._output(key)
        stored.synced = len(stored.data)
        return pb.OutputPosition(
            key=proto_key(key[:3]),
            stream=job_pb2.Stream.ValueType(key[3]),
            offset=stored.synced,
            is_end=stored.end is not None,
            is_unwanted=key[:3] in self.unwanted,
        )

    def _output(self, key: tuple[int, int, int, int]) -> StoredOutput:
        return self.outputs.setdefault(key, StoredOutput())

    async def OpenChannel(
        self, request_iterator: AsyncIterator[pb.OpenChannelRequest], context: Any
    ) -> AsyncIterator[pb.OpenChannelResponse]:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "not built")
        yield pb.OpenChannelResponse()

    async def StoreResults(
        self, request_iterator: AsyncIterator[pb.StoreResultsRequest], context: Any
    ) -> AsyncIterator[pb.StoreResultsResponse]:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "not built")
        yield pb.StoreResultsResponse()

    async def CarryFiles(
        self, request_iterator: AsyncIterator[pb.CarryFilesRequest], context: Any
    ) -> AsyncIterator[pb.CarryFilesResponse]:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "not built")
        yield pb.CarryFilesResponse()

    async def CarryPort(
        self, request_iterator: AsyncIterator[pb.CarryPortRequest], context: Any
    ) -> AsyncIterator[pb.CarryPortResponse]:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "not built")
        yield pb.CarryPortResponse()

    async def CarryExec(
        self, request_iterator: AsyncIterator[pb.CarryExecRequest], context: Any
    ) -> AsyncIterator[pb.CarryExecResponse]:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "not built")
        yield pb.CarryExecResponse()

    async def FetchBlob(self, request: pb.FetchBlobRequest, context: Any) -> AsyncIterator[pb.FetchBlobResponse]:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "not built")
        yield pb.FetchBlobResponse()


def proto_key(key: Key) -> pb.AttemptKey:
    return pb.AttemptKey(job_id=key[0], attempt=key[1], rank=key[2])


def bodies(messages: list[pb.HeartbeatRequest]) -> Iterator[str | None]:
    """What the messages say, by the name of their bodies."""
    return (message.WhichOneof("body") for message in messages)


def _key(key: pb.AttemptKey) -> Key:
    return key.job_id, key.attempt, key.rank


def _stream_key(named: pb.OutputChunk | pb.OutputPosition) -> tuple[int, int, int, int]:
    return *_key(named.key), int(named.stream)


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event
