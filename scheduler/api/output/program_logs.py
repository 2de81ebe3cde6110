"""StreamOutput of a program: the scheduler's own log from its file, an agent's through its heartbeat stream.

And what else agents answer in such pieces.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Container
from contextlib import aclosing
from datetime import UTC
from pathlib import Path

from gpufleet.v1 import node_agent_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.jobs.run_protos import key_to_proto
from gpufleet.telemetry.log_follow import TAIL_LINES_MAX, LogReader, follow

from ...clock import wall_time
from ...links import AgentStream, Links
from ...state.ids import NodeName, RankKey
from ...wire.validate import check_no_node, no_such_node, node_name
from ..roles import caller
from .beginnings import since_of

Response = scheduler_pb2.StreamOutputResponse

TAIL_LINES_DEFAULT = 100
CHUNKS_WAITING = 256
"""Pieces of an agent's log that may wait for a slow reader; what is beyond them is left out."""
AGENT_ANSWER_SECONDS = 30.0


class ProgramLogs:
    """Reads the logs of the programs; for admins only, as logs name everybody's work."""

    def __init__(self, log_file: Path, links: Links, nodes: Container[NodeName]) -> None:
        self._log_file = log_file
        self._links = links
        self._nodes = nodes

    async def stream(self, request: scheduler_pb2.StreamOutputRequest) -> AsyncIterator[Response]:
        """The newest lines, and, when following, every further one."""
        if not caller().is_admin:
            raise GpufleetError(Reason.PERMISSION_DENIED, "the logs of programs are for admins")
        since = since_of(request, wall_time())
        default = TAIL_LINES_DEFAULT if since is None else TAIL_LINES_MAX
        lines = request.tail_lines if request.HasField("tail_lines") else default
        if lines < 0:
            raise invalid("tail_lines", f"is {lines}; it must be 0 or more")
        match request.program.program:
            case "scheduler":
                check_no_node(request.program)
                source = self._own(request, lines)
            case "agent":
                source = self._agent(request, lines)
            case other:
                raise invalid("program.program", f"is {other!r}; it must be scheduler or agent")
        offset = 0
        async for data in source:
            yield Response(offset=offset, data=data)
            offset += len(data)
        yield Response(offset=offset, is_end=True)

    async def _own(self, request: scheduler_pb2.StreamOutputRequest, lines: int) -> AsyncIterator[bytes]:
        since = request.since_time.ToDatetime(UTC) if request.HasField("since_time") else None
        if request.follow:
            async for data in follow(self._log_file, tail_lines=lines, since=since):
                yield data
            return
        with LogReader(self._log_file, tail_lines=lines, since=since) as reader:
            while data := reader.read():
                yield data

    async def _agent(self, request: scheduler_pb2.StreamOutputRequest, lines: int) -> AsyncIterator[bytes]:
        name = node_name(request.program.node, "program.node")
        if name not in self._nodes:
            raise no_such_node("program.node", name)
        connection = self._links.of(name)
        if connection is None:
            raise GpufleetError(Reason.NODE_UNREACHABLE, f"the agent of node {name} is not connected")
        number = self._links.next_request()
        ask = node_agent_pb2.ReadProgramLog(request=number, tail_lines=lines, follow=request.follow)
        if request.HasField("since_time"):
            ask.since_time.CopyFrom(request.since_time)
        asked = node_agent_pb2.HeartbeatResponse(read_program_log=ask)
        async with aclosing(_answered(connection, number, asked, is_endless=request.follow)) as pieces:
            async for piece in pieces:
                yield piece.data

    async def of_setup(self, node: NodeName, key: RankKey, offset: int = 0) -> tuple[bytes, int]:
        """What its node has of the making of a rank's environment, from a byte on, and how much it has in all.

        Errors: NODE_UNREACHABLE.
        """
        connection = self._links.of(node)
        if connection is None:
            raise GpufleetError(Reason.NODE_UNREACHABLE, f"the agent of node {node} is not connected")
        number = self._links.next_request()
        ask = node_agent_pb2.ReadSetupOutput(request=number, key=key_to_proto(key), offset=offset)
        asked = node_agent_pb2.HeartbeatResponse(read_setup_output=ask)
        async with aclosing(_answered(connection, number, asked, is_endless=False)) as pieces:
            found = [piece async for piece in pieces]
        return b"".join(piece.data for piece in found), sum(piece.total_bytes for piece in found)


async def _answered(
    connection: AgentStream, number: int, asked: node_agent_pb2.HeartbeatResponse, *, is_endless: bool
) -> AsyncGenerator[node_agent_pb2.ProgramLogChunk, None]:
    chunks: asyncio.Queue[node_agent_pb2.ProgramLogChunk] = asyncio.Queue(CHUNKS_WAITING)
    connection.logs[number] = chunks
    connection.put(asked)
    try:
        while True:
            try:
                async with asyncio.timeout(None if is_endless else AGENT_ANSWER_SECONDS):
                    chunk = await chunks.get()
            except TimeoutError:
                raise GpufleetError(
                    Reason.NODE_UNREACHABLE, f"the agent of node {connection.node} did not answer"
                ) from None
            if chunk.data or chunk.total_bytes:
                yield chunk
            if chunk.is_last:
                return
    finally:
        connection.logs.pop(number, None)
        cancel = node_agent_pb2.ReadProgramLog(request=number, cancel=True)
        connection.put(node_agent_pb2.HeartbeatResponse(read_program_log=cancel))
