"""What people type, on its way to the nodes: who types to which job, and the channels that agents dialled for it.

    person ═AttachJob═▶ Attachment ── Channel ◀═OpenChannel═ agent

Nothing here is stored, and nothing is kept for long: the node counts what it has taken, and each side sends the rest
again. A scheduler that starts anew therefore begins with nothing, and nothing that was typed gets lost by it.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from gpufleet.v1 import node_agent_pb2

from gpufleet.errors import GpufleetError, Reason
from gpufleet.jobs.run_protos import key_to_proto

from ...links import Links
from ...state.ids import JobId, NodeName, RankKey

PIECES_WAITING = 8
"""Pieces on their way to a node that does not take them; the person's stream is not read from meanwhile."""

OPEN_SECONDS_MAX = 10.0
"""How long an agent may take to dial a channel."""

State = node_agent_pb2.InputState
Chunk = node_agent_pb2.InputChunk


class ChannelClosed(Exception):
    """There is no channel, or it has ended; the message says why."""


@dataclass(slots=True, eq=False)
class Channel:
    """One way to one rank. What goes down waits in `pieces`; of what comes up, `state` is the newest.

    `begun` is the first state; `on_change` is called when there is another one, and when the channel closes.
    """

    on_change: Callable[[], None]
    begun: State | None = None
    state: State | None = None
    pieces: asyncio.Queue[Chunk] = field(default_factory=lambda: asyncio.Queue(PIECES_WAITING))
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    problem: str = ""

    def take(self, state: State) -> None:
        """The agent says how far it is; a problem is its last word."""
        if state.problem:
            self.close(state.problem)
            return
        self.begun = self.begun or state
        self.state = state
        self.opened.set()
        self.on_change()

    def close(self, problem: str = "") -> None:
        """Nothing goes either way any more."""
        self.problem = self.problem or problem
        self.closed.set()
        self.on_change()

    async def put(self, chunk: Chunk) -> None:
        """Send a piece down; waits for room, and loses the piece when the channel closes: it will be sent again."""
        if self.closed.is_set():
            return
        putting = asyncio.ensure_future(self.pieces.put(chunk))
        await self._unless_closed(putting)

    async def next_piece(self) -> Chunk | None:
        """What to send down next; None when the channel is closed."""
        getting = asyncio.ensure_future(self.pieces.get())
        return getting.result() if await self._unless_closed(getting) else None

    async def wait_until_opened(self) -> None:
        """Wait for the agent. Raises ChannelClosed."""
        waiting = asyncio.ensure_future(self.opened.wait())
        try:
            async with asyncio.timeout(OPEN_SECONDS_MAX):
                if await self._unless_closed(waiting):
                    return
        except TimeoutError:
            self.close("the node's agent was asked for a channel and opened none")
        raise ChannelClosed(self.problem)

    async def _unless_closed(self, wanted: asyncio.Future[Any]) -> bool:
        """Wait for one of the two; answers whether what was wanted came."""
        closing = asyncio.ensure_future(self.closed.wait())
        either: set[asyncio.Future[Any]] = {wanted, closing}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            return wanted.done()
        finally:
            wanted.cancel()
            closing.cancel()


class Channels:
    """The channels that were asked for, until whoever asked lets go of them."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._channels: dict[str, Channel] = {}

    @asynccontextmanager
    async def open(
        self, node: NodeName, key: RankKey, writer: str, on_change: Callable[[], None]
    ) -> AsyncIterator[Channel]:
        """A channel to a rank, once its agent has opened it. Raises ChannelClosed."""
        connection = self._links.of(node)
        if connection is None:
            raise ChannelClosed(f"the agent of node {node} is not connected")
        channel_id = secrets.token_urlsafe(24)
        channel = self._channels[channel_id] = Channel(on_change)
        try:
            command = node_agent_pb2.OpenChannelCommand(channel_id=channel_id, key=key_to_proto(key), writer=writer)
            connection.put(node_agent_pb2.HeartbeatResponse(open_channel=command))
            await channel.wait_until_opened()
            yield channel
        finally:
            del self._channels[channel_id]
            channel.close()

    def asked_for(self, channel_id: str) -> Channel | None:
        """The channel of this id, if somebody waits for it."""
        return self._channels.get(channel_id)


@dataclass(slots=True, eq=False)
class Keyboard:
    """One session's right to type to a job. `taken`: another one has it now; `by`: its id."""

    session: str
    taken: asyncio.Event = field(default_factory=asyncio.Event)
    by: str = ""


class Keyboards:
    """Who types to which job: one session each, which keeps the right over its own lost connections."""

    def __init__(self) -> None:
        self._of_jobs: dict[JobId, Keyboard] = {}

    def take(self, job: JobId, session: str, *, take_over: bool) -> Keyboard:
        """Type from now on; the session that did before is told. Errors: INPUT_TAKEN."""
        present = self._of_jobs.get(job)
        if present is not None:
            if present.session != session and not take_over:
                raise GpufleetError(
                    Reason.INPUT_TAKEN,
                    f"another session types to job {job}",
                    next_step=f"Look on: gpuctl logs -f {job} · take the keyboard: gpuctl attach --take-over {job}",
                )
            present.by = session
            present.taken.set()
        keyboard = self._of_jobs[job] = Keyboard(session)
        return keyboard

    def leave(self, job: JobId, keyboard: Keyboard) -> None:
        """The session types no more."""
        if self._of_jobs.get(job) is keyboard:
            del self._of_jobs[job]
