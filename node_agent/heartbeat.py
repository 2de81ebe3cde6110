"""The heartbeat streams of one agent, one after another: reports and beats up, commands and acknowledgements down.

What is kept until it is stored, what is old and what is a repetition is decided in `core/delivery.py`; here it is
only sent and received.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gpufleet.v1 import node_agent_pb2

from .core.delivery import Inbox, Judgement, Outbox, Receipt
from .keeper.linux import boottime_us
from .streams import until_first, write_beside_reading

if TYPE_CHECKING:
    from gpufleet.v1.node_agent_pb2_grpc import NodeAgentAsyncStub

_log = logging.getLogger(__name__)

UNSENT_MAX = 256
"""Messages that wait for a stream that does not take them; beyond it, what is not kept anyway is left out."""

JOINED_MESSAGES_MAX = 100
JOINED_BYTES_MAX = 256 * 1024
"""What waits goes up as one message, up to so many and as long as they are so small; a long one goes alone."""

LINGER_SECONDS = 0.005
"""That an attempt runs waits so long for its end, so that of a short job both are one message and one commit."""

Body = dict[str, Any]
Report = Callable[[int], Body]
"""Makes the body of a report; given the time, because ages in it count from when it is sent."""


@dataclass(frozen=True, slots=True)
class _Sent:
    """A report that waits for its acknowledgement, and whom to tell of that."""

    report: Report
    stored: Callable[[], None] | None


class AgentPort(Protocol):
    """What the streams need of the agent."""

    def inventory(self, now_us: int) -> node_agent_pb2.Inventory:
        """Everything that the node knows; the first message of each stream."""
        ...

    def beat(self) -> node_agent_pb2.Beat:
        """A sign of life."""
        ...

    def heard(self, sent_us: int) -> None:
        """The scheduler had a message that was sent at this time."""
        ...

    def heard_term(self, term: int) -> None:
        """See that this term is stored before anything of it is carried out."""
        ...

    def heard_position(self, position: str) -> None:
        """The scheduler's store is so far now."""
        ...

    def carry_out(
        self, message: node_agent_pb2.HeartbeatResponse, heartbeat_sent_us: int | None, receipt: Receipt
    ) -> None:
        """Begin to carry a command out, and say `carried_out` when it is.

        `heartbeat_sent_us`: when what it rests on was sent, None when nobody knows.
        """
        ...


class Heartbeats:
    """Messages of one incarnation of one node."""

    def __init__(self, node: str, incarnation: int, highest_term: int, duties: AgentPort) -> None:
        self._node = node
        self._incarnation = incarnation
        self._duties = duties
        self._outbox: Outbox[_Sent] = Outbox()
        self._inbox = Inbox(highest_term)
        self._unsent: asyncio.Queue[node_agent_pb2.HeartbeatRequest] | None = None
        self._lingering: list[node_agent_pb2.HeartbeatRequest] = []
        self._beat_sent: tuple[int, int] = (0, 0)
        self._round_trip_us: int | None = None

    @property
    def highest_term(self) -> int:
        """The highest term ever seen."""
        return self._inbox.highest_term

    def another_store(self) -> None:
        """The scheduler has another store than before: its terms count anew."""
        self._inbox.another_store()

    def report(self, report: Report, stored: Callable[[], None] | None = None) -> None:
        """Send a report, and again on each new stream until the scheduler has stored it; `stored` is called then."""
        now_us = boottime_us()
        sequence = self._outbox.keep(_Sent(report, stored), now_us)
        body = report(now_us)
        self._put(sequence, body, may_linger="attempt_started" in body)

    def say(self, **body: Any) -> bool:
        """Send what needs no keeping; False when there is no stream to take it."""
        if self._unsent is None or self._unsent.qsize() >= UNSENT_MAX:
            return False
        self._put(self._outbox.number(boottime_us()), body)
        return True

    def beat(self) -> None:
        """Send a sign of life now."""
        if self._unsent is None or self._unsent.qsize() >= UNSENT_MAX:
            return
        now_us = boottime_us()
        beat = self._duties.beat()
        if self._round_trip_us is not None:
            beat.round_trip.FromMicroseconds(self._round_trip_us)
        sequence = self._outbox.number(now_us)
        self._beat_sent = (sequence, now_us)
        self._put(sequence, {"beat": beat})

    async def hold(self, stub: NodeAgentAsyncStub, interval_s: float) -> None:
        """Keep one stream until it ends; raises what ended it."""
        self._inbox.stream_opened()
        self._unsent = asyncio.Queue()
        self._lingering.clear()
        now_us = boottime_us()
        self._put(self._outbox.number(now_us), {"inventory": self._duties.inventory(now_us)})
        for sequence, sent in self._outbox.repetitions():
            self._put(sequence, sent.report(now_us))
        call = stub.Heartbeat()
        try:
            await until_first(self._write(call, self._unsent), self._beat_always(interval_s), self._read(call))
        finally:
            self._unsent = None
            call.cancel()

    def carried_out(self, receipt: Receipt) -> None:
        """A command is done; the next message up says so."""
        self._inbox.carried_out(receipt)

    def _put(self, sequence: int, body: Body, *, may_linger: bool = False) -> None:
        """Let a message go up in its turn. One that may linger goes with the next, or soon."""
        if self._unsent is None:
            return
        self._lingering.append(
            node_agent_pb2.HeartbeatRequest(
                node=self._node,
                incarnation=self._incarnation,
                sequence=sequence,
                acked_sequence=self._inbox.acked_sequence,
                **body,
            )
        )
        if not may_linger:
            self._send_lingering()
        elif len(self._lingering) == 1:
            asyncio.get_running_loop().call_later(LINGER_SECONDS, self._send_lingering)

    def _send_lingering(self) -> None:
        if self._unsent is not None:
            for message in self._lingering:
                self._unsent.put_nowait(message)
            self._lingering.clear()

    async def _write(self, call: Any, unsent: asyncio.Queue[node_agent_pb2.HeartbeatRequest]) -> None:
        message = await unsent.get()
        while True:
            following = join(message, unsent)
            await write_beside_reading(call, message)
            message = following or await unsent.get()

    async def _beat_always(self, interval_s: float) -> None:
        while True:
            self.beat()
            await asyncio.sleep(interval_s)

    async def _read(self, call: Any) -> None:
        async for message in call:
            self._take(message)
            for following in message.more:
                self._take(following)
        raise ConnectionResetError("the scheduler closed the heartbeat stream")

    def _take(self, message: node_agent_pb2.HeartbeatResponse) -> None:
        before = self._inbox.highest_term
        judgement = self._inbox.judge(message.term, message.sequence)
        if judgement is Judgement.STALE_TERM:
            raise StaleTerm(message.term, before)
        if judgement is Judgement.DUPLICATE:
            return
        self._duties.heard_term(message.term)
        if message.store_position:
            self._duties.heard_position(message.store_position)
        for sent in self._outbox.acknowledge(message.acked_sequence):
            if sent.stored is not None:
                sent.stored()
        heartbeat_sent_us = self._heard(message.newest_heartbeat)
        if message.WhichOneof("command") is None:
            self._inbox.carried_out(self._inbox.receipt(message.sequence))
            return
        receipt = self._inbox.receipt(message.sequence)
        try:
            self._duties.carry_out(message, heartbeat_sent_us, receipt)
        except Exception:
            # One command that fails must not end the stream for all others.
            _log.exception("the command %s failed", message.WhichOneof("command"))
            self._inbox.carried_out(receipt)

    def _heard(self, sequence: int) -> int | None:
        """The scheduler had this message of ours; answers when it was sent, None when nobody knows."""
        sent_us = self._outbox.when(sequence)
        if sent_us is None:
            return None
        beat, beat_sent_us = self._beat_sent
        if beat and sequence >= beat:
            self._round_trip_us = boottime_us() - beat_sent_us
            self._beat_sent = (0, 0)
        self._duties.heard(sent_us)
        return sent_us


def join(
    message: node_agent_pb2.HeartbeatRequest, unsent: asyncio.Queue[node_agent_pb2.HeartbeatRequest]
) -> node_agent_pb2.HeartbeatRequest | None:
    """Let a message take along what waits behind it. Answers the first that finds no room, None when all has gone."""
    room_bytes = JOINED_BYTES_MAX - message.ByteSize()
    while not unsent.empty():
        following = unsent.get_nowait()
        room_bytes -= following.ByteSize()
        if room_bytes < 0 or len(message.more) == JOINED_MESSAGES_MAX - 1:
            return following
        message.more.append(following)
    return None


class StaleTerm(Exception):
    """A message of an older scheduler than one that this node has heard."""

    def __init__(self, term: int, highest_term: int) -> None:
        super().__init__(f"the scheduler is of term {term}, and this node has heard one of term {highest_term}")
