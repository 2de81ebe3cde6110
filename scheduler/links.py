"""The way down to the nodes: one connection per node, the newest wins.

A command for a node without a connection is dropped on purpose: the node's next inventory brings the two together.
"""

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpufleet.v1 import node_agent_pb2

from gpufleet.errors import GpufleetError
from gpufleet.jobs.variables import IMAGE_CREDENTIALS
from gpufleet.telemetry.logs import fields
from gpufleet.telemetry.spans import Telemetry

from .listeners import Listeners
from .state.commands import Command, ForgetAttempt, LaunchAttempt, PrepareAttempt
from .state.ids import NodeName, UserName
from .wire.convert_commands import command_proto

log = logging.getLogger(__name__)

COMMANDS_WAITING = 10_000
"""Commands that may wait for a slow node; beyond them its connection is closed, and its inventory settles it."""

JOINED_MESSAGES_MAX = 100
JOINED_BYTES_MAX = 256 * 1024
"""What waits goes down as one message, up to so many and as long as they are so small; a long one goes alone."""

LINGER_SECONDS = 0.05
"""What nobody waits for, a Forget or an acknowledgement of reports, waits so long for a command to go with.

The acknowledgement of a beat, which is timed, does not.
"""

POSITION_TOLD_EVERY_SECONDS = 2.0
"""How often, at most, a node is told how far the store is: as often as the data folder notes it."""

Message = node_agent_pb2.HeartbeatResponse


@dataclass(frozen=True, slots=True)
class OpenCheck:
    """What the node was asked to check and has not answered yet; until then it may fetch this file of this user."""

    user: UserName
    digest: str
    answer: asyncio.Future[node_agent_pb2.FilesChecked]


class AgentStream:
    """One heartbeat stream. `term` and `sequence` number what goes down; `acked` and `newest` answer what came up.

    `position` is how far the store is (store_position.py); what was told with Register is told again at first.
    """

    def __init__(self, node: NodeName, incarnation: int, term: int, position: Callable[[], str] = lambda: "") -> None:
        self.node = node
        self.incarnation = incarnation
        self.stream = 0
        self._term = term
        self._sequence = 0
        self.acked = 0
        self.newest = 0
        self._undone: dict[int, None] = {}
        self._told = (0, 0)
        self._position = position
        self._position_told = ""
        self._position_told_s = 0.0
        self._is_due = False
        self._due_soon: asyncio.TimerHandle | None = None
        self._waiting: deque[Message] = deque()
        self._wakeup = asyncio.Event()
        self.is_closed = False
        self.logs: dict[int, asyncio.Queue[node_agent_pb2.ProgramLogChunk]] = {}
        self.checks: dict[int, OpenCheck] = {}

    def answered(self, answer: node_agent_pb2.FilesChecked) -> None:
        """The node has checked its files; an answer that nobody waits for any more is left out."""
        check = self.checks.get(answer.request)
        if check is not None and not check.answer.done():
            check.answer.set_result(answer)

    def put(self, message: Message, *, may_linger: bool = False) -> None:
        """Queue a message; too many close the connection. One that may linger goes with the next, or soon."""
        if len(self._waiting) >= COMMANDS_WAITING:
            log.warning("a node takes its commands too slowly", extra=fields(node=self.node))
            self.close()
            return
        self._waiting.append(message)
        if may_linger:
            self._send_soon()
        else:
            self._send_now()

    def heard(self, sequence: int, *, is_beat: bool = False) -> None:
        """This message of the node has arrived, and is not done yet."""
        self._undone[sequence] = None
        if sequence > self.newest:
            self.newest = sequence
            if is_beat:
                self._send_now()
            else:
                self._send_soon()

    def done(self, sequence: int) -> None:
        """What this message says is durable, or needs not be. Only what has none undone before it is acknowledged.

        Messages arrive in the order of their numbers, but for repetitions, which come before the next new one: the
        first that is undone bounds what may be acknowledged.
        """
        self._undone.pop(sequence, None)
        acked = next(iter(self._undone), self.newest + 1) - 1
        if acked > self.acked:
            self.acked = acked
            self._send_soon()

    def _send_soon(self) -> None:
        if self._due_soon is None:
            self._due_soon = asyncio.get_running_loop().call_later(LINGER_SECONDS, self._send_now)

    def _send_now(self) -> None:
        self._is_due = True
        self._wakeup.set()

    def close(self) -> None:
        """End the stream."""
        self.is_closed = True
        self._wakeup.set()

    async def next_messages(self) -> list[Message]:
        """What to send now: the waiting commands, or a bare acknowledgement; empty when closed."""
        while not self.is_closed:
            if self._is_due and (self._waiting or (self.acked, self.newest) != self._told):
                messages = list(self._waiting) or [Message()]
                self._waiting.clear()
                messages[0].store_position = self._new_position()
                self._told = (self.acked, self.newest)
                self._is_due = False
                if self._due_soon is not None:
                    self._due_soon.cancel()
                    self._due_soon = None
                return joined([self._stamped(message) for message in messages])
            self._wakeup.clear()
            await self._wakeup.wait()
        return []

    def _new_position(self) -> str:
        """How far the store is, where it is time to tell that; else nothing."""
        now_s = time.monotonic()
        if now_s - self._position_told_s < POSITION_TOLD_EVERY_SECONDS or self._position_told == (
            text := self._position()
        ):
            return ""
        self._position_told, self._position_told_s = text, now_s
        return text

    def _stamped(self, message: Message) -> Message:
        self._sequence += 1
        message.term = self._term
        message.sequence = self._sequence
        message.acked_sequence = self.acked
        message.newest_heartbeat = self.newest
        return message


def joined(messages: list[Message]) -> list[Message]:
    """The same messages as fewer: most of what a message costs, it costs however short it is."""
    result: list[Message] = []
    room_bytes = 0
    for message in messages:
        size_bytes = message.ByteSize()
        if result and size_bytes <= room_bytes and len(result[-1].more) < JOINED_MESSAGES_MAX - 1:
            result[-1].more.append(message)
            room_bytes -= size_bytes
        else:
            result.append(message)
            room_bytes = JOINED_BYTES_MAX - size_bytes
    return result


class Links:
    """All connections; the engine's AgentLink.

    `environment` is what a launch tells beside what its job says. Where it raises, the launch does not leave, and
    `refuse` is told why, in the place of the node. `origin` is what it says of its job.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        environment: Callable[[LaunchAttempt], Mapping[str, str]] = lambda launch: {},
        refuse: Callable[[LaunchAttempt, GpufleetError], None] = lambda launch, problem: None,
        origin: Callable[[LaunchAttempt], str] = lambda launch: "",
    ) -> None:
        self._telemetry = telemetry
        self._environment = environment
        self._refuse = refuse
        self._origin = origin
        self._connections: dict[NodeName, AgentStream] = {}
        self._requests = itertools.count(1)
        self._streams = itertools.count(1)
        self.beat_listeners: Listeners[Callable[[NodeName], None]] = Listeners()

    def join(self, connection: AgentStream) -> None:
        """A node has a new connection, which gets its number; an older one ends."""
        connection.stream = next(self._streams)
        older = self._connections.get(connection.node)
        if older is not None:
            older.close()
        self._connections[connection.node] = connection

    def leave(self, connection: AgentStream) -> None:
        """A connection is gone."""
        if self._connections.get(connection.node) is connection:
            del self._connections[connection.node]

    def of(self, node: NodeName) -> AgentStream | None:
        """The connection of a node, if it has one."""
        return self._connections.get(node)

    def send(self, command: Command, stream: int) -> None:
        """Hand a command to its node, on the stream that it was decided for and on no later one."""
        connection = self._connections.get(command.node)
        if connection is None or connection.stream != stream:
            return
        message = command_proto(command)
        try:
            match command:
                case LaunchAttempt():
                    self._complete(command, message.launch)
                case PrepareAttempt(launch=launch):
                    self._complete(launch, message.prepare.launch)
                case _:
                    pass
        except GpufleetError as problem:
            assert isinstance(command, LaunchAttempt | PrepareAttempt)
            self._refuse(command.launch if isinstance(command, PrepareAttempt) else command, problem)
            return
        connection.put(message, may_linger=isinstance(command, ForgetAttempt))

    def _complete(self, launch: LaunchAttempt, told: node_agent_pb2.Launch) -> None:
        told.env.update(self._environment(launch))
        told.image_credentials = told.env.pop(IMAGE_CREDENTIALS, "")
        told.origin = self._origin(launch)
        with self._telemetry.span("launch", parent=launch.spec.trace_context, node=launch.node) as span:
            told.trace_context = span.traceparent

    def set_log_level(self, node: NodeName, level: str) -> bool:
        """Change an agent's log level; False when it is not connected."""
        return self._tell(node, Message(set_log_level=node_agent_pb2.SetLogLevel(level=level)))

    def refresh(self, node: NodeName) -> bool:
        """Ask an agent to read its devices anew and to beat; False when it is not connected."""
        return self._tell(node, Message(refresh_samples=node_agent_pb2.RefreshSamples()))

    def _tell(self, node: NodeName, message: Message) -> bool:
        connection = self._connections.get(node)
        if connection is not None:
            connection.put(message)
        return connection is not None

    def beaten(self, node: NodeName) -> None:
        """A beat of a node was taken in."""
        for listener in tuple(self.beat_listeners):
            listener(node)

    def next_request(self) -> int:
        """A number for a request that is answered later on the same stream."""
        return next(self._requests)

    def close(self) -> None:
        """End every stream."""
        for connection in self._connections.values():
            connection.close()
