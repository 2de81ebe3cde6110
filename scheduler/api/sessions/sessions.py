"""The Scheduler service, third part: lines and turns, for gateways, workers and people."""

import asyncio
import re
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Any

from gpufleet.v1 import sessions_pb2

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.net.local_stream import KEY_BYTES as LOCAL_KEY_BYTES
from gpufleet.net.passed_on import address_of_peer
from gpufleet.net.tls import OWN_CERTIFICATE_CHARS_MAX, is_certificate
from gpufleet.security.pass_phrases import CHARS_MAX
from gpufleet.security.tickets import SECRET_BYTES, hash_place_key, make_place_key

from ...core.sessions.worker_seats import WorkerChanges, why_no_bound
from ...engine import Engine, StoreAway, TooManyEvents
from ...policy.owners import asked_by
from ...policy.routing import lacks_gpu_nodes
from ...session_links import GatewayLink, Outbox, SessionLinks, WorkerLink
from ...state.access import Role
from ...state.ids import JobId
from ...state.jobs import Job
from ...state.replies import Refused, Reply
from ...state.sessions import events
from ...state.sessions.session import Identity, Model, ModelName, WorkerId
from ...state.units import Instant
from ...trackers import workers_of_model
from ...watching import ChangeHub
from ...wire import convert_sessions as convert
from ...wire.convert import timestamp
from ...wire.validate_models import model_name
from ...worker_secrets import WorkerSecrets
from ..answers import as_gpufleet_error, reply_of
from ..long_streams import first_of, let_end, write_all
from ..paging import page_size
from ..roles import caller
from ..sight import Sight
from .joining import Joining
from .models import ModelCalls

IDENTITY_BYTES_MAX = 128
SERVED_MAX = 1_000
"""Programs of which a gateway may tell requests at a time."""
PLACE_KEY_BYTES_MAX = 128
ENDPOINT_BYTES_MAX = 300
GATEWAY_NAME_CHARS_MAX = 100
VERSION_CHARS_MAX = 64
"""Of what a worker or a gateway says of its version."""
HELLO_WAIT_SECONDS = 10.0
"""How long a worker's stream may be silent before its hello."""
LAST_WRITE_SECONDS = 1.0
"""The same as of other streams, shorter: until then nobody knows that a worker or a gateway is lost."""
LOOK_S = 5.0
"""How often it is seen anew whether any node could hold a program that requests may do without."""
REASON_CHARS_MAX = 200
MESSAGE_CHARS_MAX = 1_000
"""Of what a worker says of itself or of an end; the rest is cut."""
SECRET_BYTES_MAX = 2 * SECRET_BYTES
DIGEST = re.compile("([0-9a-f]{16})?")


class SessionCalls(ModelCalls):
    """What gateways, workers and people ask of sessions. Each method is one RPC."""

    changes: ChangeHub
    session_links: SessionLinks
    joining: Joining

    async def ListSessions(self, request: sessions_pb2.ListSessionsRequest) -> sessions_pb2.ListSessionsResponse:
        """A page of sessions: those with a seat first, then the lines."""
        size = page_size(request.page_size)
        query = f"sessions {request.model}"
        cursor = self.pages.read(query, request.page_token)
        durable, turns, now = self.engine.view.durable, self.engine.view.live.turns, self.engine.now()
        sight = Sight.of_caller(self.facts)
        chosen = [each for each in durable.sessions.by_id.values() if request.model in ("", each.model)]
        keyed = sorted(((durable.sessions.place(each) or 0, each.id), each) for each in chosen)
        rest = [(key, each) for key, each in keyed if not cursor or key > tuple(cursor)]
        more = self.pages.sign(query, list(rest[size - 1][0])) if len(rest) > size else ""
        return sessions_pb2.ListSessionsResponse(
            sessions=[
                sight.hide_of_session(
                    convert.session_proto(each, durable, turns, now), durable.models[each.model].owner
                )
                for _, each in rest[:size]
            ],
            next_page_token=more,
        )

    async def CloseSession(self, request: sessions_pb2.CloseSessionRequest) -> sessions_pb2.CloseSessionResponse:
        """End somebody's session."""
        if len(request.reason) > REASON_CHARS_MAX:
            raise invalid("reason", f"is longer than {REASON_CHARS_MAX} characters")
        session = convert.session_id(request.id)
        if session is None:
            raise invalid("id", f"{request.id!r} is no session's id", next_step="see them with: gpuctl sessions")
        known = self.engine.view.durable.sessions.by_id.get(session)
        if known is not None:
            self._owner_of(known.model)
        event = events.CloseRequested(at=self.engine.now(), session=session, by=caller().user, reason=request.reason)
        await reply_of(self.engine.request(event))
        return sessions_pb2.CloseSessionResponse()

    async def DrainWorker(self, request: sessions_pb2.DrainWorkerRequest) -> sessions_pb2.DrainWorkerResponse:
        """Let a worker end after its last turn."""
        name = model_name(request.model, "model")
        if len(request.reason) > REASON_CHARS_MAX:
            raise invalid("reason", f"is longer than {REASON_CHARS_MAX} characters")
        if not request.worker_start and not request.job_id:
            raise invalid(
                "worker_start",
                "is empty, and so is job_id",
                next_step=f"see them with: gpuctl models --model {name} -o wide",
            )
        self._owner_of(name)
        event = events.WorkerDrainRequested(
            at=self.engine.now(),
            model=name,
            by=caller().user,
            worker=WorkerId(request.worker_start) if request.worker_start else None,
            job=JobId(request.job_id) if request.job_id else None,
            reason=request.reason,
        )
        await reply_of(self.engine.request(event))
        return sessions_pb2.DrainWorkerResponse()

    async def WatchWorkers(
        self, request: sessions_pb2.WatchWorkersRequest
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
                news = self._workers_shown(durable.models[name])
                # Numbers that change with each report are nobody's news.
                choice = news.routing, news.lacks_gpu_nodes
                shown = (workers_of_model(turns, name), news.http, news.access, news.waits_for, news.failure, choice)
                if shown != told:
                    told = shown
                    yield news
                # Nodes come and go, and settings change, without a word of the model.
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S if news.http.cpu_model else None):
                        await changed.wait()
        finally:
            self.changes.unfollow_workers(name, changed)

    def _workers_shown(self, model: Model) -> sessions_pb2.WatchWorkersResponse:
        """A model's workers for who reaches them; the keys of replicas are for gateways."""
        view = self.engine.view
        workers = sorted(view.live.turns.workers_of(model.name), key=lambda worker: worker.id)
        has_keys = model.http is not None and caller().role is Role.GATEWAY
        is_ready = any(worker.state is events.WorkerState.READY for worker in workers)
        has_choice = model.http is not None and bool(model.http.cpu_model)
        return sessions_pb2.WatchWorkersResponse(
            workers=[
                convert.worker_proto(
                    each,
                    view.durable,
                    certificate=each.certificate,
                    connect_key=self.session_links.connect_key(each.id) if has_keys else b"",
                )
                for each in workers
            ],
            http=convert.http_proto(model.http),
            access=convert.ACCESS[model.limits.access],
            waits_for="" if is_ready else why_no_bound(view, model, self.engine.now(), WorkerChanges()),
            failure=convert.failure_proto(model.failure),
            routing=convert.routing_proto(view.limits.routing) if has_choice else None,
            lacks_gpu_nodes=has_choice
            and model.worker is not None
            and lacks_gpu_nodes(view, asked_by(view.durable, model.owner, model.worker.asked)),
        )

    # --- gateways

    async def ReportRequests(
        self, request_iterator: AsyncIterator[sessions_pb2.ReportRequestsRequest]
    ) -> sessions_pb2.ReportRequestsResponse:
        """How many requests of programs a gateway has, until its stream ends."""
        gateway = self.session_links.number()
        try:
            async for request in request_iterator:
                if len(request.models) > SERVED_MAX:
                    raise invalid("models", f"holds {len(request.models):,}; at most {SERVED_MAX:,} are taken")
                self._report_requests(gateway, request.models)
        finally:
            if not self.session_links.is_closed:
                self._report_requests(gateway, ())
        return sessions_pb2.ReportRequestsResponse()

    def _report_requests(self, gateway: int, models: Sequence[sessions_pb2.ServedRequests]) -> None:
        now = self.engine.now()
        requests = convert.served_requests(models, self.engine.view.durable.models, now)
        self.engine.report(events.RequestsReported(at=now, gateway=gateway, requests=requests))

    async def OpenSession(self, request_iterator: AsyncIterator[sessions_pb2.OpenSessionRequest], context: Any) -> None:
        """All the people of a gateway on one stream."""
        link = self.session_links.join_gateway(address_of_peer(context.peer()))
        reader = asyncio.create_task(self._read_people(link, request_iterator), name=f"gateway-{link.number}")
        try:
            await _serve(reader, link.outbox, context)
        finally:
            self.session_links.leave_gateway(link)
            if not self.session_links.is_closed:
                self.engine.report(events.GatewayLost(at=self.engine.now(), gateway=link.number))

    async def _read_people(self, link: GatewayLink, requests: AsyncIterator[sessions_pb2.OpenSessionRequest]) -> None:
        comparing: dict[int, asyncio.Task[None]] = {}
        try:
            async for request in requests:
                connection = events.Connection(link.number, request.connection)
                if (earlier := comparing.pop(request.connection, None)) is not None:
                    earlier.cancel()  # who has left meanwhile, or joins anew, is not joined by it
                try:
                    if request.WhichOneof("body") == "hello":
                        _note_gateway(link, request.hello)
                        continue
                    event = self._of_person(link, connection, request)
                    if isinstance(event, events.JoinRequested):
                        found = self.joining.checked(event, request.join.pass_phrase, request.join.login_token)
                        self._join_checked(link, found, comparing, request.connection)
                        continue
                except GpufleetError as error:
                    _refuse(link, request.connection, error.reason.name, error.message)
                    continue
                self.engine.report(event)
                if not isinstance(event, events.WorkerUnreachable | events.StepBroke):
                    link.keys.pop(request.connection, None)
        finally:
            tasks = list(comparing.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _join_checked(
        self,
        link: GatewayLink,
        found: events.JoinRequested | Coroutine[Any, Any, events.JoinRequested],
        comparing: dict[int, asyncio.Task[None]],
        number: int,
    ) -> None:
        """Post a join now, or once its pass phrase is compared: nobody else waits for that."""
        if isinstance(found, events.JoinRequested):
            self._join(link, found)
            return

        async def compare() -> None:
            try:
                self._join(link, await found)
            except GpufleetError as error:
                _refuse(link, number, error.reason.name, error.message)

        task = comparing[number] = asyncio.create_task(compare(), name=f"pass-phrase-{link.number}-{number}")
        # One that was cancelled before it began has left its coroutine untouched.
        task.add_done_callback(lambda _: found.close())
        task.add_done_callback(lambda done: comparing.pop(number) if comparing.get(number) is done else None)

    def _of_person(
        self, link: GatewayLink, connection: events.Connection, request: sessions_pb2.OpenSessionRequest
    ) -> events.SessionEvent:
        now = self.engine.now()
        match request.WhichOneof("body"):
            case "join":
                return self._join_event(link, connection, request.join)
            case "leave":
                return events.LeaveRequested(at=now, connection=connection, is_final=True)
            case "closed":
                return events.LeaveRequested(at=now, connection=connection, is_final=False)
            case "disconnected":
                return events.ConnectionLost(at=now, connection=connection)
            case "worker_unreachable":
                return events.WorkerUnreachable(at=now, connection=connection)
            case "step_broken":
                return _step_broke(now, connection, request.step_broken)
            case _:
                raise invalid("body", "is empty", next_step="send hello, join, leave, closed or disconnected")

    def _join_event(
        self, link: GatewayLink, connection: events.Connection, join: sessions_pb2.JoinLine
    ) -> events.JoinRequested:
        if not join.identity or len(join.identity.encode()) > IDENTITY_BYTES_MAX:
            raise invalid("join.identity", f"must be 1 to {IDENTITY_BYTES_MAX} bytes")
        if len(join.place_key.encode()) > PLACE_KEY_BYTES_MAX:
            raise invalid("join.place_key", "is no place key")
        if len(join.address.encode()) > IDENTITY_BYTES_MAX:
            raise invalid("join.address", f"must be at most {IDENTITY_BYTES_MAX} bytes")
        if len(join.pass_phrase) > CHARS_MAX:
            raise invalid("join.pass_phrase", f"must be at most {CHARS_MAX} characters")
        identity = Identity(join.identity)
        shown = hash_place_key(join.place_key, identity) if join.place_key else ""
        sessions = self.engine.view.durable.sessions
        key = make_place_key()
        if identity in sessions.by_identity:
            # A place that is there keeps its key: only who showed it is told it again.
            link.keys[connection.number] = join.place_key if shown in sessions.by_key else ""
        else:
            link.keys[connection.number] = key
        return events.JoinRequested(
            at=self.engine.now(),
            connection=connection,
            model=model_name(join.model, "join.model"),
            identity=identity,
            key_digest=hash_place_key(key, identity),
            keeps_other=join.keeps_other,
            address=join.address,
        )

    def _join(self, link: GatewayLink, event: events.JoinRequested) -> None:
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

    async def ConnectWorker(
        self, request_iterator: AsyncIterator[sessions_pb2.ConnectWorkerRequest], context: Any
    ) -> None:
        """A worker's reports up, its commands down."""
        first = await first_of(request_iterator, HELLO_WAIT_SECONDS)
        if first is None or first.WhichOneof("body") != "hello":
            raise invalid("hello", "must be the first message of a stream")
        hello = first.hello
        _check_hello(hello, caller().job)
        self._check_own_model(ModelName(hello.model))
        speaks_for = self._speaker_of(WorkerId(hello.worker_start))
        secret = hello.ticket_secret or _secret_of(self.session_links.secrets, caller().job)
        job_id = JobId(hello.job_id) if hello.job_id else None
        link = self.session_links.join_worker(
            WorkerId(hello.worker_start),
            hello.endpoint,
            secret,
            certificate=hello.certificate,
            local_key=hello.local_key,
            job=job_id,
            speaker=speaks_for,
        )
        joined = events.WorkerJoined(
            at=self.engine.now(),
            worker=link.worker,
            model=ModelName(hello.model),
            endpoint=hello.endpoint,
            stream=link.number,
            by=caller().user,
            job=job_id,
            certificate=hello.certificate,
            version=hello.worker_version,
        )
        taken = self.engine.report(joined)
        try:
            if job_id is None and joined.model not in self.engine.view.durable.models:
                await taken  # whose model it is was decided by the first of several who came at once
                self._check_own_model(joined.model)
            welcome = sessions_pb2.WorkerWelcome(server_time=timestamp(self.engine.now()))
            link.outbox.put(sessions_pb2.ConnectWorkerResponse(welcome=welcome))
            heard = _WorkerReader(self.engine, link)
            reader = asyncio.create_task(heard.read(request_iterator), name=f"worker-{link.worker}")
            await _serve(reader, link.outbox, context)
        finally:
            self.session_links.leave_worker(link)
            # A scheduler that stops ends the streams itself: the workers, and the turns on them, go on meanwhile.
            if not self.session_links.is_closed:
                self.engine.report(events.WorkerLost(at=self.engine.now(), worker=link.worker, stream=link.number))

    def _check_own_model(self, name: ModelName) -> None:
        """A worker by hand serves models of its token's user, and of these those that the token says.

        What people ask of a model is for nobody else's eyes. Errors: PERMISSION_DENIED.
        """
        who = caller()
        if who.job is not None:
            return  # its model is that of its launch
        token = self.engine.view.durable.tokens.get(who.token)
        pattern = "" if token is None else token.models
        if who.role is Role.WORKER and not fnmatchcase(name, pattern or "*"):
            raise invalid(
                "hello.model",
                f"token {who.token} is for workers of {pattern!r}, and not of {name!r}",
                reason=Reason.PERMISSION_DENIED,
                next_step="ask an admin for another one: gpuctl token create OWNER --role worker --model NAME",
            )
        if name in self.engine.view.durable.models:
            self._owner_of(name)

    def _speaker_of(self, worker: WorkerId) -> str:
        """Who the caller is among workers. Errors: PERMISSION_DENIED where another one has this start."""
        who = caller()
        speaker = str(who.token)
        known = self.session_links.speaker_of(worker)
        if known is not None and known != speaker:
            said = "is that of another worker"
            step = "each start of a worker has a random id of its own"
            raise invalid("hello.worker_start", said, reason=Reason.PERMISSION_DENIED, next_step=step)
        return speaker


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
        state = convert.WORKER_STATE_OF.get(report.state)
        if state is None:
            raise invalid("report.state", f"is {report.state}", next_step="send LOADING, READY, DRAINING or FAILED")
        blamed = tuple(each for each in map(convert.session_id, report.suspects) if each is not None)
        turns = tuple(seen for seen in map(convert.reported_turn, report.turns) if seen is not None)
        self._engine.report(
            events.WorkerReported(
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
                card=convert.card_of(report.card) if report.HasField("card") else None,
            )
        )

    async def _ended(self, ended: sessions_pb2.TurnEnded) -> None:
        session = convert.session_id(ended.session)
        if session is not None:
            event = events.TurnClosed(
                at=self._engine.now(),
                worker=self._link.worker,
                stream=self._link.number,
                session=session,
                epoch=ended.epoch,
                reason=convert.end_reason(ended.reason),
                message=ended.message[:MESSAGE_CHARS_MAX],
            )
            await self._engine.report(event)
        acknowledged = sessions_pb2.EndsAcknowledged(number=ended.number)
        self._link.outbox.put(sessions_pb2.ConnectWorkerResponse(ends_acknowledged=acknowledged))


def _note_gateway(link: GatewayLink, hello: sessions_pb2.GatewayHello) -> None:
    _check_printable("hello.gateway", hello.gateway, GATEWAY_NAME_CHARS_MAX)
    _check_printable("hello.gateway_version", hello.gateway_version, VERSION_CHARS_MAX)
    link.name, link.version = hello.gateway, hello.gateway_version


def _check_printable(path: str, said: str, chars_max: int) -> None:
    if len(said) > chars_max or not said.isprintable():
        raise invalid(path, f"must be at most {chars_max} characters that can be printed")


def _step_broke(now: Instant, connection: events.Connection, broken: sessions_pb2.StepBroken) -> events.StepBroke:
    if not DIGEST.fullmatch(broken.input_digest):
        raise invalid("step_broken.input_digest", "must be empty, or 16 hexadecimal digits")
    return events.StepBroke(
        at=now,
        connection=connection,
        epoch=broken.epoch,
        input=broken.input_digest,
        has_frame=broken.has_frame,
    )


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


def _secret_of(secrets: WorkerSecrets, job: Job | None) -> bytes:
    """What the tickets of a worker that the fleet started are signed with: its launch said so."""
    assert job is not None and job.attempt is not None, "another worker says its secret itself"
    return secrets.ticket_secret(job.attempt.keys(job.id)[0])


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
    if len(hello.local_key) not in (0, LOCAL_KEY_BYTES):
        raise invalid("hello.local_key", f"must be {LOCAL_KEY_BYTES} bytes, or none")
    _check_printable("hello.worker_version", hello.worker_version, VERSION_CHARS_MAX)
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
