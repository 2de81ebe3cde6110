"""The Scheduler service, third part: lines and turns, for gateways, workers and people."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from gpufleet.v1 import sessions_pb2

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.tickets import SECRET_BYTES, hash_place_key, make_place_key
from gpufleet.tls import OWN_CERTIFICATE_CHARS_MAX, is_certificate

from ..changes import workers_seen
from ..engine import Engine, StoreAway, TooManyEvents
from ..session_links import GatewayLink, Outbox, SessionLinks, WorkerLink
from ..state.ids import JobId
from ..state.jobs import Job
from ..state.replies import Refused, Reply
from ..state.session_events import (
    CloseRequested,
    Connection,
    ConnectionLost,
    GatewayLost,
    JoinRequested,
    LeaveRequested,
    SessionEvent,
    TurnClosed,
    WorkerJoined,
    WorkerLost,
    WorkerReported,
    WorkerUnreachable,
)
from ..state.sessions import Identity, ModelName, WorkerId
from ..watching import ChangeHub
from .answers import answers, as_gpufleet_error, reply_of, streams
from .convert import timestamp
from .convert_sessions import (
    WORKER_STATE_OF,
    end_reason,
    seen_turn,
    session_id,
    session_proto,
    worker_proto,
)
from .long_streams import first_of, let_end, write_all
from .models import ModelCalls
from .paging import page_size
from .roles import caller
from .validate_models import model_name

IDENTITY_BYTES_MAX = 128
PLACE_KEY_BYTES_MAX = 128
ENDPOINT_BYTES_MAX = 300
HELLO_WAIT_SECONDS = 10.0
"""How long a worker's stream may be silent before its hello."""
LAST_WRITE_SECONDS = 1.0
"""The same as of other streams, shorter: until then nobody knows that a worker or a gateway is lost."""
REASON_CHARS_MAX = 200
MESSAGE_CHARS_MAX = 1_000
"""Of what a worker says of itself or of an end; the rest is cut."""
SECRET_BYTES_MAX = 2 * SECRET_BYTES


class SessionCalls(ModelCalls):
    """What gateways, workers and people ask of sessions. Each method is one RPC."""

    changes: ChangeHub
    session_links: SessionLinks

    @answers
    async def ListSessions(
        self, request: sessions_pb2.ListSessionsRequest, context: Any
    ) -> sessions_pb2.ListSessionsResponse:
        """A page of sessions: those with a seat first, then the lines."""
        size = page_size(request.page_size)
        query = f"sessions {request.model}"
        cursor = self.pages.read(query, request.page_token)
        durable, turns = self.engine.view.durable, self.engine.view.live.turns
        chosen = [each for each in durable.sessions.by_id.values() if request.model in ("", each.model)]
        keyed = sorted(((durable.sessions.place(each) or 0, each.id), each) for each in chosen)
        rest = [(key, each) for key, each in keyed if not cursor or key > tuple(cursor)]
        more = self.pages.sign(query, list(rest[size - 1][0])) if len(rest) > size else ""
        return sessions_pb2.ListSessionsResponse(
            sessions=[session_proto(each, durable, turns) for _, each in rest[:size]], next_page_token=more
        )

    @answers
    async def CloseSession(
        self, request: sessions_pb2.CloseSessionRequest, context: Any
    ) -> sessions_pb2.CloseSessionResponse:
        """End somebody's session."""
        if len(request.reason) > REASON_CHARS_MAX:
            raise invalid("reason", f"is longer than {REASON_CHARS_MAX} characters")
        session = session_id(request.id)
        if session is None:
            raise invalid("id", f"{request.id!r} is no session's id", next_step="see them with: gpuctl sessions")
        known = self.engine.view.durable.sessions.by_id.get(session)
        if known is not None:
            self._owner_of(known.model)
        event = CloseRequested(at=self.engine.now(), session=session, by=caller().user, reason=request.reason)
        await reply_of(self.engine.request(event))
        return sessions_pb2.CloseSessionResponse()

    @streams
    async def WatchWorkers(
        self, request: sessions_pb2.WatchWorkersRequest, context: Any
    ) -> AsyncIterator[sessions_pb2.WatchWorkersResponse]:
        """The workers of a model, and again after each change of whether and where they take turns."""
        name = model_name(request.model, "model")
        told: object = None
        changed = asyncio.Event()
        self.changes.follow_workers(name, changed)
        try:
            while True:
                changed.clear()
                durable, turns = self.engine.view.durable, self.engine.view.live.turns
                if name not in durable.models:
                    raise GpufleetError(Reason.MODEL_NOT_FOUND, f"no model is called {name!r}")
                news = workers_seen(turns, name)
                if news != told:
                    told = news
                    workers = sorted(turns.workers_of(name), key=lambda worker: worker.id)
                    shown = [worker_proto(each, durable, certificate=each.certificate) for each in workers]
                    yield sessions_pb2.WatchWorkersResponse(workers=shown)
                await changed.wait()
        finally:
            self.changes.unfollow_workers(name, changed)

    # --- gateways

    @answers
    async def OpenSession(self, request_iterator: AsyncIterator[sessions_pb2.OpenSessionRequest], context: Any) -> None:
        """All the people of a gateway on one stream."""
        link = self.session_links.join_gateway()
        reader = asyncio.create_task(self._read_people(link, request_iterator), name=f"gateway-{link.number}")
        try:
            await _serve(reader, link.outbox, context)
        finally:
            self.session_links.leave_gateway(link)
            if not self.session_links.is_closed:
                self.engine.report(GatewayLost(at=self.engine.now(), gateway=link.number))

    async def _read_people(self, link: GatewayLink, requests: AsyncIterator[sessions_pb2.OpenSessionRequest]) -> None:
        async for request in requests:
            connection = Connection(link.number, request.connection)
            try:
                event = self._of_person(link, connection, request)
            except GpufleetError as error:
                _refuse(link, request.connection, error.reason.name, error.message)
                continue
            if isinstance(event, JoinRequested):
                self._join(link, event)
                continue
            self.engine.report(event)
            if not isinstance(event, WorkerUnreachable):
                link.keys.pop(request.connection, None)

    def _of_person(
        self, link: GatewayLink, connection: Connection, request: sessions_pb2.OpenSessionRequest
    ) -> SessionEvent:
        now = self.engine.now()
        match request.WhichOneof("body"):
            case "join":
                return self._join_event(link, connection, request.join)
            case "leave":
                return LeaveRequested(at=now, connection=connection, is_final=True)
            case "closed":
                return LeaveRequested(at=now, connection=connection, is_final=False)
            case "disconnected":
                return ConnectionLost(at=now, connection=connection)
            case "worker_unreachable":
                return WorkerUnreachable(at=now, connection=connection)
            case _:
                raise invalid("body", "is empty", next_step="send join, leave, closed or disconnected")

    def _join_event(self, link: GatewayLink, connection: Connection, join: sessions_pb2.JoinLine) -> JoinRequested:
        if not join.identity or len(join.identity.encode()) > IDENTITY_BYTES_MAX:
            raise invalid("join.identity", f"must be 1 to {IDENTITY_BYTES_MAX} bytes")
        if len(join.place_key.encode()) > PLACE_KEY_BYTES_MAX:
            raise invalid("join.place_key", "is no place key")
        identity = Identity(join.identity)
        shown = hash_place_key(join.place_key, identity) if join.place_key else ""
        sessions = self.engine.view.durable.sessions
        key = make_place_key()
        if identity in sessions.by_identity:
            # A place that is there keeps its key: only who showed it is told it again.
            link.keys[connection.number] = join.place_key if shown in sessions.by_key else ""
        else:
            link.keys[connection.number] = key
        return JoinRequested(
            at=self.engine.now(),
            connection=connection,
            model=model_name(join.model, "join.model"),
            identity=identity,
            key_digest=hash_place_key(key, identity),
        )

    def _join(self, link: GatewayLink, event: JoinRequested) -> None:
        """Post a join; only a refusal is answered here, all else comes by what was decided."""
        number = event.connection.number
        try:
            reply = self.engine.request(event)
        except (StoreAway, TooManyEvents) as problem:
            _refuse_for(link, number, problem)
            return

        def told(done: asyncio.Future[Reply]) -> None:
            if done.cancelled():
                return
            problem = done.exception()
            if isinstance(problem, Exception):
                _refuse_for(link, number, problem)
                return
            answer = done.result()
            if isinstance(answer, Refused):
                _refuse(link, number, answer.reason, answer.message)

        reply.add_done_callback(told)

    # --- workers

    @answers
    async def ConnectWorker(
        self, request_iterator: AsyncIterator[sessions_pb2.ConnectWorkerRequest], context: Any
    ) -> None:
        """A worker's reports up, its commands down."""
        first = await first_of(request_iterator, HELLO_WAIT_SECONDS)
        if first is None or first.WhichOneof("body") != "hello":
            raise invalid("hello", "must be the first message of a stream")
        hello = first.hello
        _check_hello(hello, caller().job)
        secret = hello.ticket_secret or self.session_links.secrets.ticket_secret(JobId(hello.job_id), hello.attempt)
        job_id = JobId(hello.job_id) if hello.job_id else None
        link = self.session_links.join_worker(
            WorkerId(hello.worker_start), hello.endpoint, secret, certificate=hello.certificate, job=job_id
        )
        link.outbox.put(
            sessions_pb2.ConnectWorkerResponse(
                welcome=sessions_pb2.WorkerWelcome(server_time=timestamp(self.engine.now()))
            )
        )
        joined = WorkerJoined(
            at=self.engine.now(),
            worker=link.worker,
            model=ModelName(hello.model),
            endpoint=hello.endpoint,
            stream=link.number,
            by=caller().user,
            job=job_id,
            certificate=hello.certificate,
        )
        self.engine.report(joined)
        heard = _WorkerReader(self.engine, link)
        reader = asyncio.create_task(heard.read(request_iterator), name=f"worker-{link.worker}")
        try:
            await _serve(reader, link.outbox, context)
        finally:
            self.session_links.leave_worker(link)
            # A scheduler that stops ends the streams itself: the workers, and the turns on them, go on meanwhile.
            if not self.session_links.is_closed:
                self.engine.report(WorkerLost(at=self.engine.now(), worker=link.worker, stream=link.number))


class _WorkerReader:
    """Takes up what a worker says."""

    def __init__(self, engine: Engine, link: WorkerLink) -> None:
        self._engine = engine
        self._link = link

    async def read(self, requests: AsyncIterator[sessions_pb2.ConnectWorkerRequest]) -> None:
        """Until the stream ends."""
        async for request in requests:
            match request.WhichOneof("body"):
                case "report":
                    self._report(request.report)
                case "ended":
                    await self._ended(request.ended)
                case other:
                    raise invalid("body", f"is {other or 'empty'}", next_step="send report or ended after the hello")

    def _report(self, report: sessions_pb2.WorkerReport) -> None:
        state = WORKER_STATE_OF.get(report.state)
        if state is None:
            raise invalid("report.state", f"is {report.state}", next_step="send LOADING, READY, DRAINING or FAILED")
        blamed = tuple(each for each in map(session_id, report.suspects) if each is not None)
        turns = tuple(seen for seen in map(seen_turn, report.turns) if seen is not None)
        self._engine.report(
            WorkerReported(
                at=self._engine.now(),
                worker=self._link.worker,
                stream=self._link.number,
                state=state,
                seats=max(0, report.seats),
                progress=min(1.0, max(0.0, report.progress)),
                turns=turns,
                message=report.message[:MESSAGE_CHARS_MAX],
                load=min(1.0, max(0.0, report.load)),
                blamed=blamed,
            )
        )

    async def _ended(self, ended: sessions_pb2.TurnEnded) -> None:
        session = session_id(ended.session)
        if session is not None:
            event = TurnClosed(
                at=self._engine.now(),
                worker=self._link.worker,
                stream=self._link.number,
                session=session,
                epoch=ended.epoch,
                reason=end_reason(ended.reason),
                message=ended.message[:MESSAGE_CHARS_MAX],
            )
            await self._engine.report(event)
        acknowledged = sessions_pb2.EndsAcknowledged(number=ended.number)
        self._link.outbox.put(sessions_pb2.ConnectWorkerResponse(ends_acknowledged=acknowledged))


async def _serve(reader: asyncio.Task[None], outbox: Outbox[Any], context: Any) -> None:
    """Write what waits until either side leaves. Raises what ended the reader."""
    writer = asyncio.create_task(write_all(outbox.next, context), name="session-writer")
    try:
        done, _ = await asyncio.wait({writer, reader}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        reader.cancel()
        outbox.close()
        await let_end(writer, reader, wait_seconds=LAST_WRITE_SECONDS)


def _refuse(link: GatewayLink, number: int, reason: str, message: str) -> None:
    link.keys.pop(number, None)
    notice = sessions_pb2.SessionNotice(reason=reason, message=message, is_end=True)
    link.outbox.put(sessions_pb2.OpenSessionResponse(connection=number, notice=notice))


def _refuse_for(link: GatewayLink, number: int, problem: Exception) -> None:
    error = as_gpufleet_error("OpenSession", problem)
    _refuse(link, number, error.reason.name, error.message)


def _check_hello(hello: sessions_pb2.WorkerHello, job: Job | None) -> None:
    """Refuse a hello that says what it must not. `job` is that of the caller's token, where it is a worker's own."""
    model_name(hello.model, "hello.model")
    if not hello.worker_start or len(hello.worker_start) > IDENTITY_BYTES_MAX:
        raise invalid("hello.worker_start", f"must be 1 to {IDENTITY_BYTES_MAX} characters")
    if not 1 <= len(hello.endpoint) <= ENDPOINT_BYTES_MAX:
        raise invalid("hello.endpoint", f"must be HOST:PORT of at most {ENDPOINT_BYTES_MAX} characters")
    if hello.certificate and not is_certificate(hello.certificate):
        raise invalid(
            "hello.certificate", f"must be one certificate in PEM, {OWN_CERTIFICATE_CHARS_MAX:,} characters long"
        )
    if job is not None:
        attempt = 0 if job.attempt is None else job.attempt.number
        if (hello.job_id, hello.attempt, hello.model) != (job.id, attempt, job.spec.serves):
            raise invalid("hello.job_id", f"is not that of the token, which is for attempt {job.id}/{attempt}")
        if hello.ticket_secret:
            raise invalid("hello.ticket_secret", "is known from the launch")
        return
    if hello.job_id:
        raise invalid("hello.job_id", "is said by workers that the fleet starts only, with the token of their launch")
    if not SECRET_BYTES <= len(hello.ticket_secret) <= SECRET_BYTES_MAX:
        raise invalid("hello.ticket_secret", f"must be {SECRET_BYTES} to {SECRET_BYTES_MAX} bytes")
