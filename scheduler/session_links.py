"""The way to gateways and workers: one stream each. What a stream that is gone should have got is dropped on purpose.

A gateway that comes back joins its people again, and a worker lists its turns: each is then told anew.
"""

import asyncio
import itertools
import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gpufleet.v1 import sessions_pb2

from gpufleet.security.tickets import connect_key, sign_ticket, ticket_for
from gpufleet.telemetry.logs import fields

from .state.ids import JobId
from .state.sessions import commands
from .state.sessions.events import Connection
from .state.sessions.session import WorkerId
from .state.units import SECOND, Instant
from .wire.convert_sessions import end_command, expect_command, notice_of, place_info, session_name, worker_name
from .worker_secrets import WorkerSecrets

log = logging.getLogger(__name__)

MESSAGES_WAITING = 50_000
"""Messages that may wait for a slow gateway or worker; beyond them its stream is closed, and it comes back."""

M = TypeVar("M")
Response = sessions_pb2.OpenSessionResponse


class Outbox(Generic[M]):
    """What waits to be sent on one stream, in order."""

    def __init__(self) -> None:
        self._waiting: deque[M] = deque()
        self._wakeup = asyncio.Event()
        self.is_closed = False

    def put(self, message: M) -> None:
        """Queue a message; too many close the stream."""
        if len(self._waiting) >= MESSAGES_WAITING:
            self.close()
            return
        self._waiting.append(message)
        self._wakeup.set()

    def close(self) -> None:
        """End the stream."""
        self.is_closed = True
        self._wakeup.set()

    async def next(self) -> list[M]:
        """All that waits, once something does; empty when closed."""
        while not self.is_closed:
            if self._waiting:
                messages = list(self._waiting)
                self._waiting.clear()
                return messages
            self._wakeup.clear()
            await self._wakeup.wait()
        return []


SPEAKERS_KEPT = 10_000
"""Starts of workers of which it is known who speaks for them, connected or not; those that came last."""


@dataclass(slots=True, eq=False)
class GatewayLink:
    """One OpenSession stream. `keys` are the place keys of its people, as far as they are known here.

    `name` and `version` are what its hello says; both are empty for a gateway of 0.1.0, which says none.
    """

    number: int
    outbox: Outbox[Response] = field(default_factory=Outbox[Response])
    keys: dict[int, str] = field(default_factory=dict)
    address: str = ""
    since: Instant = Instant(0)
    name: str = ""
    version: str = ""


@dataclass(slots=True, eq=False)
class WorkerLink:
    """One ConnectWorker stream. `secret` signs the tickets of this start of the worker, `name` is what people see."""

    worker: WorkerId
    number: int
    endpoint: str
    secret: bytes
    certificate: str = ""
    local_key: bytes = b""
    name: str = ""
    outbox: Outbox[sessions_pb2.ConnectWorkerResponse] = field(
        default_factory=Outbox[sessions_pb2.ConnectWorkerResponse]
    )


class SessionLinks:
    """All streams of gateways and workers; the engine tells sessions through it. `now` is the scheduler's clock."""

    def __init__(self, now: Callable[[], Instant], secrets: WorkerSecrets | None = None) -> None:
        self._now = now
        self.secrets = WorkerSecrets() if secrets is None else secrets
        self.is_closed = False
        self._numbers = itertools.count(1)
        self._gateways: dict[int, GatewayLink] = {}
        self._workers: dict[WorkerId, WorkerLink] = {}
        self._speakers: OrderedDict[WorkerId, str] = OrderedDict()

    def number(self) -> int:
        """A number that no other stream has."""
        return next(self._numbers)

    def join_gateway(self, address: str = "") -> GatewayLink:
        """A gateway's stream begins; `address` is where it calls from."""
        link = GatewayLink(next(self._numbers), address=address, since=self._now())
        self._gateways[link.number] = link
        return link

    def gateways(self) -> list[GatewayLink]:
        """Those that are connected, in the order in which they came."""
        return list(self._gateways.values())

    def leave_gateway(self, link: GatewayLink) -> None:
        """A gateway's stream is gone."""
        self._gateways.pop(link.number, None)

    def join_worker(
        self,
        worker: WorkerId,
        endpoint: str,
        secret: bytes,
        *,
        certificate: str = "",
        local_key: bytes = b"",
        job: JobId | None = None,
        speaker: str = "",
    ) -> WorkerLink:
        """A worker's stream begins; an older one of the same start ends. `speaker` is who may begin another."""
        self._speakers[worker] = speaker
        self._speakers.move_to_end(worker)
        if len(self._speakers) > SPEAKERS_KEPT:
            self._speakers.popitem(last=False)
        name = worker_name(worker, job)
        link = WorkerLink(worker, next(self._numbers), endpoint, secret, certificate, local_key, name)
        older = self._workers.get(worker)
        if older is not None:
            older.outbox.close()
        self._workers[worker] = link
        return link

    def speaker_of(self, worker: WorkerId) -> str | None:
        """Who speaks for this start of a worker; None where nobody does."""
        return self._speakers.get(worker)

    def leave_worker(self, link: WorkerLink) -> None:
        """A worker's stream is gone."""
        if self._workers.get(link.worker) is link:
            del self._workers[link.worker]

    def connect_key(self, worker: WorkerId) -> bytes:
        """What a gateway begins a connection to this replica with; empty where it has gone."""
        link = self._workers.get(worker)
        return b"" if link is None else connect_key(link.secret, worker)

    def close(self) -> None:
        """End every stream, because the scheduler stops: nobody is lost by that."""
        self.is_closed = True
        for gateway in self._gateways.values():
            gateway.outbox.close()
        for worker in self._workers.values():
            worker.outbox.close()

    def send(self, command: commands.SessionCommand) -> None:
        """Hand a command to its stream."""
        match command:
            case commands.ExpectTurn(worker=worker):
                self._to_worker(worker, expect_command(command, self._now()))
            case commands.EndTurn(worker=worker):
                self._to_worker(worker, end_command(command))
            case commands.DrainWorker(worker=worker):
                self._to_worker(worker, sessions_pb2.ConnectWorkerResponse(drain=sessions_pb2.DrainWorker()))
            case commands.OfferSeat():
                self._offer(command)
            case commands.TellPlace():
                gateway = self._gateways.get(command.connection.gateway)
                if gateway is not None:
                    key = gateway.keys.get(command.connection.number, "")
                    self._to_person(command.connection, Response(place=place_info(command, key, self._now())))
            case commands.TellPerson() | commands.TellEnd():
                self._to_person(command.connection, Response(notice=notice_of(command, self._now())))
                gateway = self._gateways.get(command.connection.gateway)
                if isinstance(command, commands.TellEnd) and gateway is not None:
                    gateway.keys.pop(command.connection.number, None)

    def _offer(self, command: commands.OfferSeat) -> None:
        """A ticket for the worker's start. A worker that has gone meanwhile is lost, and that is told next."""
        worker = self._workers.get(command.worker)
        gateway = self._gateways.get(command.connection.gateway)
        if worker is None or gateway is None:
            return
        session = session_name(command.session)
        now_s = self._now() / SECOND
        ticket = ticket_for(session, command.epoch, worker_start=worker.worker, identity=command.identity, now_s=now_s)
        grant = sessions_pb2.TurnGrant(
            session=session,
            endpoint=worker.endpoint,
            ticket=sign_ticket(ticket, worker.secret),
            epoch=command.epoch,
            place_key=gateway.keys.get(command.connection.number, ""),
            certificate=worker.certificate,
            worker=worker.name,
            local_key=worker.local_key,
        )
        self._to_person(command.connection, Response(grant=grant))

    def _to_person(self, connection: Connection, told: Response) -> None:
        gateway = self._gateways.get(connection.gateway)
        if gateway is not None:
            told.connection = connection.number
            gateway.outbox.put(told)
            if gateway.outbox.is_closed:
                log.warning("a gateway takes its messages too slowly", extra=fields(gateway=gateway.number))

    def _to_worker(self, worker: WorkerId, message: sessions_pb2.ConnectWorkerResponse) -> None:
        link = self._workers.get(worker)
        if link is not None:
            link.outbox.put(message)
