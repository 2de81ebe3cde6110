"""The NodeAgent service: agents dial in, report, and are told what to do."""

import asyncio
import logging
import zlib
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from google.protobuf.duration_pb2 import Duration
from gpufleet.v1 import node_agent_pb2, node_agent_pb2_grpc

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.jobs.run_protos import key_to_proto, runs_from_proto
from gpufleet.telemetry.logs import fields

from ...blobs.store import BlobStore
from ...engine import Engine
from ...links import AgentStream, Links
from ...node_tokens import NodeTokens, new_number
from ...origins import Origins
from ...output_hub import OutputHub
from ...outputs.errors import OutputHole
from ...policy.gap import gap_hold
from ...series.recorder import DeviceReading
from ...state import events
from ...state.access import Role
from ...state.attempts import OutputStream
from ...state.gap import Origin
from ...state.ids import NodeName, RankKey
from ...state.nodes import Node
from ...state.replies import NodeChanged, Reply
from ...state.units import MB, Span
from ...store_position import StorePositions
from ...wire.container import IMAGE_CHARS_MAX
from ...wire.convert import duration, rank_key
from ...wire.usages import memory_peaks, reported_use
from ...wire.validate import node_name, span_of
from ...wire.validate_reports import (
    device_readings,
    device_sample,
    host_sample,
    node_info,
    port_of,
    rank_exit,
    reported_state,
    started_ago,
    stream_of,
)
from ..answers import Calls, reply_of
from ..inside.tunnels import Tunnels
from ..jobs.input_sources import InputSources
from ..long_streams import first_of, let_end, write_all
from ..output.attaching import serve_channel
from ..output.channels import Channels
from ..own_node import check_certificate, check_own_node
from ..roles import caller
from .fetching import pieces_of
from .notices import NoticeFailures
from .results import store_results

log = logging.getLogger(__name__)

SETUP_CHARS_MAX = 4_096
"""What a node says of an environment is kept up to here."""

PROTOCOL_VERSION = 1
COMMAND_VALID_SECONDS = 30
INVENTORY_WAIT_SECONDS = 30.0
ID_CHARS_MAX = 128
CHUNKS_PER_MESSAGE_MAX = 1_000


@dataclass(eq=False)
class AgentService(Calls, node_agent_pb2_grpc.NodeAgentServicer):
    """Implemented by the scheduler, called by the agents of the nodes."""

    _engine: Engine
    _links: Links
    _outputs: OutputHub
    _version: str
    _channels: Channels
    _tunnels: Tunnels
    _tokens: NodeTokens
    _keep_series: Callable[[RankKey, bytes], None] = lambda key, payload: None
    _blobs: BlobStore | None = None
    _record_beat: Callable[[NodeName, Iterable[DeviceReading]], None] = lambda node, readings: None
    _origins: Origins | None = None
    _positions: StorePositions | None = None
    _output_is_shared: Callable[[], bool] = lambda: False
    _reports: set[asyncio.Future[Reply]] = field(default_factory=set, init=False)
    _told: dict[NodeName, asyncio.Event] = field(default_factory=dict, init=False)
    _failures: NoticeFailures = field(init=False)
    _inputs: InputSources = field(init=False)

    def __post_init__(self) -> None:
        self._failures = NoticeFailures(self._engine)
        if self._blobs is not None:
            self._inputs = InputSources(self._engine, self._blobs, self._output_is_shared)

    async def Register(self, request: node_agent_pb2.RegisterRequest, context: Any) -> node_agent_pb2.RegisterResponse:
        """Take a node in and tell its agent the rules."""
        if request.protocol_version != PROTOCOL_VERSION:
            raise invalid(
                "protocol_version",
                f"the agent speaks version {request.protocol_version} of the contract "
                f"({request.info.agent_version or 'unknown release'}), "
                f"this scheduler version {PROTOCOL_VERSION} ({self._version})",
                reason=Reason.AGENT_VERSION_UNSUPPORTED,
            )
        for path, value in (("agent_id", request.agent_id), ("boot_id", request.boot_id)):
            if not value or len(value) > ID_CHARS_MAX:
                raise invalid(path, f"must be 1 to {ID_CHARS_MAX} characters")
        name = node_name(request.node)
        check_certificate(caller(), f"node:{name}", "node")
        if caller().node is not None:
            check_own_node(self._engine.view, caller(), name)
        if self._positions is not None:
            self._check_store(self._positions, name, request)
        address = _peer(context)
        event = events.NodeAnnounced(
            at=self._engine.now(),
            name=name,
            agent_id=request.agent_id,
            incarnation=request.incarnation,
            boot_id=request.boot_id,
            info=node_info(request.info),
            address=address,
            proof=_proof(request),
            knows_lineages=request.knows_lineages,
            keeps_backlog=request.keeps_backlog,
        )
        reply = await reply_of(self._engine.request(event))
        assert isinstance(reply, NodeChanged)
        credential = self._credential(reply.node)
        if not credential:  # else it registers again at once, by its credential
            _log_registered(event)
        limits, accounts = self._engine.view.limits, reply.node.info.job_accounts
        return node_agent_pb2.RegisterResponse(
            term=self._engine.store.term,
            heartbeat_interval=duration(limits.heartbeat_interval),
            node_lease=duration(limits.node_lease),
            command_valid_for=Duration(seconds=COMMAND_VALID_SECONDS),
            seen_address=address,
            scheduler_version=self._version,
            credential=credential,
            owner=accounts.owner if accounts.is_alone else "",
            asks_for_all=self._origins is not None and _has_gap(self._engine),
            store_position=self._position(),
            store_id=self._positions.store_id if self._positions is not None else "",
        )

    def _check_store(self, known: StorePositions, node: NodeName, request: node_agent_pb2.RegisterRequest) -> None:
        """Refuse a node that has heard of more than the store has. Errors: STORE_RESTORED."""
        known.judge(node, request.store_position)
        try:
            known.check_term(node, request.store_id, request.highest_term)
        except GpufleetError as error:
            at, said = self._engine.now(), "; ".join(each.why for each in error.violations) or error.message
            self._engine.report(events.NodeRefused(at=at, node=node, reason=error.reason.name, message=said))
            raise

    def _position(self) -> str:
        return self._positions.text() if self._positions is not None else ""

    async def Heartbeat(  # type: ignore[override]  # grpc.aio also takes a coroutine that writes to its context
        self, request_iterator: AsyncIterator[node_agent_pb2.HeartbeatRequest], context: Any
    ) -> None:
        """Reports up, commands down, until either side leaves."""
        first = await first_of(request_iterator, INVENTORY_WAIT_SECONDS)
        if first is None or first.WhichOneof("body") != "inventory":
            raise invalid("inventory", "must be the first message of a stream")
        self._check_stream(first)
        term = self._engine.store.term
        connection = AgentStream(node_name(first.node), first.incarnation, term, self._position)
        self._links.join(connection)
        writer = asyncio.create_task(write_all(connection.next_messages, context), name=f"heartbeat-{connection.node}")
        reader = asyncio.create_task(self._read(first, connection, request_iterator), name=f"reports-{connection.node}")
        try:
            done, _ = await asyncio.wait({writer, reader}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            reader.cancel()
            connection.close()
            self._links.leave(connection)
            self._report(
                connection,
                0,
                events.NodeDisconnected(at=self._engine.now(), node=connection.node, stream=connection.stream),
            )
            await let_end(writer, reader)

    def _check_stream(self, first: node_agent_pb2.HeartbeatRequest) -> None:
        """Refuse a stream that is not of the start which registered the node, before it takes the place of another."""
        name = node_name(first.node)
        check_own_node(self._engine.view, caller(), name)
        node = self._engine.view.durable.nodes.get(name)
        if node is None:
            raise GpufleetError(Reason.NODE_NOT_FOUND, f"node {name!r} has not registered")
        if first.incarnation != node.incarnation:
            said = f"another start of this agent has registered node {name!r}"
            raise invalid("incarnation", said, reason=Reason.CONFLICT, next_step="Register again.")

    def _credential(self, node: Node) -> str:
        """What the agent is to prove itself by from now on, where that is not what it has done it by."""
        newest = node.credentials[-1] if node.credentials else 0
        return self._tokens.token(node.name, newest) if newest != caller().credential else ""

    async def _read(
        self,
        first: node_agent_pb2.HeartbeatRequest,
        connection: AgentStream,
        requests: AsyncIterator[node_agent_pb2.HeartbeatRequest],
    ) -> None:
        await self._take_inventory(first, connection)
        for following in first.more:
            self._take(following, connection)
        async for request in requests:
            self._take(request, connection)
            for following in request.more:
                self._take(following, connection)

    async def _take_inventory(self, request: node_agent_pb2.HeartbeatRequest, connection: AgentStream) -> None:
        inventory = request.inventory
        entries: list[tuple[RankKey, events.ReportedState]] = []
        forgotten: list[tuple[RankKey, events.ReportedExited]] = []
        origins: list[tuple[RankKey, Origin]] = []
        asks = self._origins if _has_gap(self._engine) else None
        for entry in inventory.entries:
            key, what = rank_key(entry.key), reported_state(entry)
            if not entry.is_forgotten:
                entries.append((key, what))
            elif isinstance(what, events.ReportedExited) and asks is not None:
                forgotten.append((key, what))
            origin = asks.read(entry.origin, key, connection.node) if asks is not None else None
            if origin is not None:
                origins.append((key, origin))
        node = self._engine.view.durable.nodes.get(connection.node)
        if node is None:
            raise GpufleetError(Reason.NODE_NOT_FOUND, f"node {connection.node!r} has not registered")
        connection.heard(request.sequence)
        if forgotten:
            told = tuple(forgotten)
            forgotten = await self._outputs.on_thread(lambda: [(key, self._as_stored(key, what)) for key, what in told])
        event = events.InventoryReported(
            at=self._engine.now(),
            node=connection.node,
            agent_id=node.agent_id,
            incarnation=request.incarnation,
            sequence=request.sequence,
            stream=connection.stream,
            boot_id=inventory.boot_id,
            info=node_info(inventory.info),
            entries=tuple(entries),
            forgotten=tuple(forgotten),
            origins=tuple(origins),
        )
        for entry in inventory.entries:
            if entry.HasField("exited"):
                self._keep_course(connection.node, rank_key(entry.key), entry.exited)
        await reply_of(self._engine.report(event))
        connection.done(request.sequence)
        self._has_told(connection.node).set()
        for key, what in (*entries, *forgotten):
            if isinstance(what, events.ReportedExited) and self._is_on(connection.node, key):
                self._outputs.await_end(key, what.exit.output_ends)

    def _as_stored(self, key: RankKey, what: events.ReportedExited) -> events.ReportedExited:
        """An end of which nothing more can come than what is stored: its node has nothing of it any more."""
        exit_ = replace(what.exit, is_forgotten=True)
        stored = (min(end.end_offset, self._outputs.store.synced(key, end.stream)) for end in exit_.output_ends)
        ends = tuple(replace(end, end_offset=offset) for end, offset in zip(exit_.output_ends, stored, strict=True))
        if ends != exit_.output_ends:
            exit_ = replace(exit_, output_ends=ends, output_is_complete=False)
        return replace(what, exit=exit_)

    def _has_told(self, node: NodeName) -> asyncio.Event:
        """Set once an inventory of a node was taken in, and all that follows from it is durable."""
        return self._told.setdefault(node, asyncio.Event())

    def _take(self, request: node_agent_pb2.HeartbeatRequest, connection: AgentStream) -> None:
        if connection.is_closed:
            return  # a newer stream has told all of it again, and more
        now = self._engine.now()
        node = connection.node
        body = request.WhichOneof("body")
        connection.heard(request.sequence, is_beat=body == "beat")
        report = partial(self._report, connection, request.sequence)
        match body:
            case "beat":
                samples = tuple(device_sample(sample, now) for sample in request.beat.samples)
                self._record_beat(node, device_readings(request.beat.samples, now))
                beat = events.NodeBeat(
                    at=now,
                    node=node,
                    stream=connection.stream,
                    samples=samples,
                    host=host_sample(request.beat),
                    usages=tuple((rank_key(each.key), reported_use(each)) for each in request.beat.usages),
                    peaks=memory_peaks(request.beat.usages, self._engine.view.limits.warnings.memory_span),
                )
                taken = report(beat)
                if self._links.beat_listeners:
                    taken.add_done_callback(lambda _: self._links.beaten(node))
            case "attempt_started":
                started = request.attempt_started
                run_span = Span(max(0, span_of(started.age)))
                runs = runs_from_proto(started.file_runs)
                report(
                    events.RankStarted(at=now, node=node, key=rank_key(started.key), run_span=run_span, file_runs=runs)
                )
            case "attempt_exited":
                key = rank_key(request.attempt_exited.key)
                exit_ = rank_exit(request.attempt_exited)
                self._keep_course(node, key, request.attempt_exited)
                ago = started_ago(request.attempt_exited)
                report(events.RankExited(at=now, node=node, key=key, exit=exit_, started_ago=ago))
                if self._is_on(node, key):
                    self._outputs.await_end(key, exit_.output_ends)
            case "launch_refused":
                refused = request.launch_refused
                key, reason = rank_key(refused.key), refused.reason
                log.info("a launch was refused", extra=fields(node=node, attempt=str(key), reason=reason))
                seen = tuple(device_sample(sample, now) for sample in refused.samples)
                why = reason or "REFUSED"
                report(
                    events.RankRefused(at=now, node=node, key=key, reason=why, message=refused.message, samples=seen)
                )
            case "spool_state":
                spool = request.spool_state
                key = rank_key(spool.key)
                report(events.SpoolFilled(at=now, node=node, key=key, is_full=spool.is_full, message=spool.message))
            case "setup_state":
                told = request.setup_state
                is_ready = told.phase == node_agent_pb2.SETUP_PHASE_READY
                text, image = told.message[:SETUP_CHARS_MAX], told.image[:IMAGE_CHARS_MAX]
                key = rank_key(told.key)
                report(events.SetupReported(at=now, node=node, key=key, is_ready=is_ready, message=text, image=image))
            case "notice_failed":
                self._failures.keep(connection, request.sequence, request.notice_failed)
            case "program_log":
                waiting = connection.logs.get(request.program_log.request)
                if waiting is not None and not waiting.full():
                    waiting.put_nowait(request.program_log)
                connection.done(request.sequence)
            case "files_checked":
                connection.answered(request.files_checked)
                connection.done(request.sequence)
            case "rank_ready":
                ready = request.rank_ready
                port = port_of(ready.master_port)
                report(events.RankReady(at=now, node=node, key=rank_key(ready.key), master_port=port))
            case "inventory" | None:
                connection.done(request.sequence)

    def _is_on(self, node: NodeName, key: RankKey) -> bool:
        return key in self._engine.view.durable.hold(node).ranks

    def _keep_course(self, node: NodeName, key: RankKey, exited: node_agent_pb2.AttemptExited) -> None:
        """Keep what a rank's devices did, if it is this node's; nothing waits for that."""
        if any(device.series.offset_ms for device in exited.usage.devices) and (self._is_on(node, key)):
            self._keep_series(key, exited.usage.SerializeToString())

    def _report(self, connection: AgentStream, sequence: int, event: Any) -> asyncio.Future[Reply]:
        """Post a report; it is acknowledged when everything that follows from it is durable."""
        reply = self._engine.report(event)
        self._reports.add(reply)

        def done(reply: asyncio.Future[Reply]) -> None:
            self._reports.discard(reply)
            if not reply.cancelled() and reply.exception() is None:
                connection.done(sequence)

        reply.add_done_callback(done)
        return reply

    async def ReportOutput(  # type: ignore[override]  # as above
        self, request_iterator: AsyncIterator[node_agent_pb2.ReportOutputRequest], context: Any
    ) -> None:
        """Output up in order; synced offsets down."""
        stream = _OutputStream(self._engine, self._outputs, self._has_told)
        self._outputs.synced_listeners.add(stream.on_synced)
        writer = asyncio.create_task(stream.write(context), name="synced")
        try:
            async for request in request_iterator:
                await stream.take(request)
        finally:
            self._outputs.synced_listeners.discard(stream.on_synced)
            stream.close()
            await let_end(writer)

    async def OpenChannel(  # type: ignore[override]  # as above
        self, request_iterator: AsyncIterator[node_agent_pb2.OpenChannelRequest], context: Any
    ) -> None:
        """What people type down; how far it has come up."""
        await serve_channel(self._channels, request_iterator, context)

    async def StoreResults(
        self, request_iterator: AsyncIterator[node_agent_pb2.StoreResultsRequest], context: Any
    ) -> AsyncIterator[node_agent_pb2.StoreResultsResponse]:
        """What a rank of the node left, behind its end."""
        assert self._blobs is not None
        first = await anext(request_iterator, None)
        if first is None:
            raise invalid("node", "is not set: the stream is empty", next_step="send the manifest first")
        check_own_node(self._engine.view, caller(), node_name(first.node))
        async with aclosing(store_results(self._engine, self._blobs, first, request_iterator)) as answers:
            async for answer in answers:
                yield answer

    async def CarryPort(  # type: ignore[override]  # as above
        self, request_iterator: AsyncIterator[node_agent_pb2.CarryPortRequest], context: Any
    ) -> None:
        """One connection to a port of a job."""
        await self._tunnels.serve(request_iterator, context)

    async def CarryExec(  # type: ignore[override]  # as above
        self, request_iterator: AsyncIterator[node_agent_pb2.CarryExecRequest], context: Any
    ) -> None:
        """One command in the world of a job."""
        await self._tunnels.serve(request_iterator, context)

    async def CarryFiles(  # type: ignore[override]  # as above
        self, request_iterator: AsyncIterator[node_agent_pb2.CarryFilesRequest], context: Any
    ) -> None:
        """The folder of a rank, for who reaches into it."""
        await self._tunnels.serve(request_iterator, context)

    async def FetchBlob(
        self, request: node_agent_pb2.FetchBlobRequest, context: Any
    ) -> AsyncIterator[node_agent_pb2.FetchBlobResponse]:
        """A file of an attempt that is placed on the node, from an offset on."""
        assert self._blobs is not None
        check_own_node(self._engine.view, caller(), node_name(request.node))
        durable, inputs = self._engine.view.durable, self._inputs
        async with aclosing(pieces_of(durable, self._links, self._blobs, inputs, request)) as pieces:
            async for piece in pieces:
                yield piece


class _OutputStream:
    """One ReportOutput stream: what arrives, and what it is told."""

    def __init__(self, engine: Engine, outputs: OutputHub, has_told: Callable[[NodeName], asyncio.Event]) -> None:
        self._engine = engine
        self._outputs = outputs
        self._has_told = has_told
        self._caller = caller()
        self._node = NodeName("")
        self._known: set[tuple[RankKey, OutputStream]] = set()
        self._waiting: dict[tuple[RankKey, OutputStream], node_agent_pb2.OutputPosition] = {}
        self._wakeup = asyncio.Event()
        self._is_closed = False

    def close(self) -> None:
        """Nothing comes any more: let the writer tell what waits, and end."""
        self._is_closed = True
        self._wakeup.set()

    async def take(self, request: node_agent_pb2.ReportOutputRequest) -> None:
        """Store what came, and answer what was asked."""
        if request.node != self._node:
            name = node_name(request.node)
            check_own_node(self._engine.view, self._caller, name)
            self._node = name
        if _has_gap(self._engine):
            # What is of an attempt that its inventory will tell of must not be called unwanted before.
            await self._has_told(self._node).wait()
        for ask in request.asks:
            await self._answer(ask)
        if len(request.chunks) > CHUNKS_PER_MESSAGE_MAX:
            raise invalid("chunks", f"holds {len(request.chunks):,} chunks; at most {CHUNKS_PER_MESSAGE_MAX:,}")
        chunks: list[tuple[RankKey, OutputStream, int, bytes, bool]] = []
        for chunk in request.chunks:
            key, stream = rank_key(chunk.key), stream_of(chunk.stream)
            if chunk.HasField("checksum") and zlib.crc32(chunk.data) != chunk.checksum:
                log.warning("output came changed", extra=fields(attempt=str(key), offset=chunk.offset, node=self._node))
                step = "ask for positions, and send it again"
                raise invalid("chunks.checksum", f"is not that of the {len(chunk.data):,} bytes", next_step=step)
            if self._is_wanted(key):
                if chunk.is_damaged and chunk.data:
                    await self._note_damage(key, stream, chunk.offset, chunk.offset + len(chunk.data))
                self._known.add((key, stream))
                chunks.append((key, stream, chunk.offset, chunk.data, chunk.is_end))
            else:
                self._tell(key, stream, chunk.offset, is_unwanted=True)
        if not chunks:
            return
        try:
            await self._outputs.append(chunks)
        except OutputHole as hole:
            raise GpufleetError(
                Reason.OFFSET_OUT_OF_RANGE, f"output was offered behind a hole: {hole}", next_step="ask for positions"
            ) from hole

    async def _note_damage(self, key: RankKey, stream: OutputStream, start: int, end: int) -> None:
        """Durable before the bytes are: a node does not send again what is synced."""
        damage = events.OutputDamaged(
            at=self._engine.now(), node=self._node, key=key, stream=stream, start=start, end=end
        )
        await self._engine.report(damage)

    def _is_wanted(self, key: RankKey) -> bool:
        """Only the live attempt's output, from its own node, is taken."""
        job = self._engine.view.durable.jobs.get(key.job)
        if job is None or job.attempt is None or not job.attempt.has(key):
            return False
        return job.attempt.ranks[key.rank].placement.node == self._node

    async def _answer(self, ask: node_agent_pb2.OutputPosition) -> None:
        key, stream = rank_key(ask.key), stream_of(ask.stream)
        self._known.add((key, stream))
        offset = await self._outputs.on_thread(lambda: self._outputs.store.synced(key, stream))
        self._tell(key, stream, offset, is_unwanted=not self._is_wanted(key))

    def on_synced(self, risen: list[tuple[RankKey, OutputStream, int]]) -> None:
        """The hub synced something."""
        for key, stream, offset in risen:
            if (key, stream) in self._known:
                self._tell(key, stream, offset)

    def _tell(self, key: RankKey, stream: OutputStream, offset: int, *, is_unwanted: bool = False) -> None:
        self._waiting[key, stream] = node_agent_pb2.OutputPosition(
            key=key_to_proto(key),
            stream=stream.value,  # type: ignore[arg-type]
            offset=offset,
            is_unwanted=is_unwanted,
        )
        self._wakeup.set()

    async def write(self, context: Any) -> None:
        """Tell what is synced, coalesced by stream, until the stream is closed."""
        while self._waiting or not self._is_closed:
            if not self._waiting:
                self._wakeup.clear()
                await self._wakeup.wait()
                continue
            synced, self._waiting = list(self._waiting.values()), {}
            await context.write(node_agent_pb2.ReportOutputResponse(synced=synced))


def _has_gap(engine: Engine) -> bool:
    """Whether jobs wait for what nodes tell, since the store was put back."""
    return gap_hold(engine.view, engine.now()) is not None


def _log_registered(event: events.NodeAnnounced) -> None:
    devices = event.info.devices
    gpus = ", ".join(f"{each.index}: {each.name} ({each.memory_bytes // MB:,} MB)" for each in devices) or "none"
    agent = event.info.agent_version
    log.info("node registered", extra=fields(node=event.name, address=event.address, gpus=gpus, agent=agent))


def _proof(request: node_agent_pb2.RegisterRequest) -> events.NodeProof:
    """How the caller proves itself, and what it may be given."""
    who = caller()
    return events.NodeProof(
        credential=who.credential,
        join_token=who.token if who.role is Role.NODE else None,
        fresh=new_number() if request.takes_credential else 0,
    )


def _peer(context: Any) -> str:
    """The address that an agent called from, without the port."""
    peer: str = context.peer()
    for scheme in ("ipv4:", "ipv6:"):
        if peer.startswith(scheme):
            return peer.removeprefix(scheme).rsplit(":", 1)[0].replace("%5B", "[").replace("%5D", "]")
    return peer
