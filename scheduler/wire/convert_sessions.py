"""Sessions, turns and workers on the wire, and back."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from google.protobuf.duration_pb2 import Duration
from gpufleet.v1 import inference_pb2, job_pb2, sessions_pb2

from gpufleet.model import KEYS_MAX, PICTURE_BYTES_MAX, TEXTS, media_type_of
from gpufleet.sessions.inputs import KEY_CHARS_MAX

from ..policy.explain import WaitReason
from ..policy.sessions.exclusive import group_of, is_awake, waiting_job, what_it_waits_for, why_asleep
from ..state.durable import Durable
from ..state.ids import JobId, ModelName
from ..state.jobs import Deferred, Held, Job, Queued, Stopping
from ..state.limits import GpuRouting
from ..state.sessions.commands import EndTurn, ExpectTurn, TellEnd, TellPerson, TellPlace
from ..state.sessions.events import ReportedTurn, WorkerState
from ..state.sessions.serving import Requests
from ..state.sessions.session import (
    Access,
    Card,
    EndReason,
    Granted,
    HttpService,
    Model,
    ModelFailure,
    Session,
    SessionId,
    SessionLimits,
    Update,
    WorkerId,
)
from ..state.sessions.turns import Stage, TurnLive, Turns, WorkerLive
from ..state.units import Instant, Span, after
from .convert import duration, numbers_of, timestamp
from .convert_jobs import spec_proto
from .gpu_choice import MODES

ACCESS = numbers_of(Access, sessions_pb2.ModelAccess.Value, "MODEL_ACCESS")
WORKER_STATES = numbers_of(WorkerState, inference_pb2.WorkerState.Value, "WORKER_STATE")
WORKER_START_CHARS_SHOWN = 8
PERSON_CHARS_SHOWN = 8
FRAMES_PER_SECOND_MAX = 10_000
"""A worker that tells more has miscounted."""
REQUESTS_MAX = 1_000_000
"""The same of a gateway."""
REPLICAS_MAX = 1_000
"""Replicas of a program whose requests a gateway tells apart."""
WORKER_STATE_OF = {number: state for state, number in WORKER_STATES.items()}


def session_name(session: SessionId) -> str:
    """A session's id as gateways, workers and people know it."""
    return f"s{session}"


def session_id(name: str) -> SessionId | None:
    """The session of a name; None for what is none."""
    number = name.removeprefix("s")
    is_one = name.startswith("s") and number.isascii() and number.isdecimal() and len(number) < 19
    return SessionId(int(number)) if is_one else None


def worker_name(worker: WorkerId, job: JobId | None) -> str:
    """A worker as people without a token know it: by its job, or by how its start's id begins."""
    return f"worker {job or worker[:WORKER_START_CHARS_SHOWN]}"


def expect_command(command: ExpectTurn, now: Instant) -> sessions_pb2.ConnectWorkerResponse:
    """A turn that a worker is to expect."""
    expect = sessions_pb2.ExpectTurn(
        session=session_name(command.session),
        epoch=command.epoch,
        identity=command.identity,
        server_time=timestamp(now),
    )
    return sessions_pb2.ConnectWorkerResponse(expect=expect)


def end_command(command: EndTurn) -> sessions_pb2.ConnectWorkerResponse:
    """A turn that a worker is to end."""
    end = sessions_pb2.EndTurn(session=session_name(command.session), epoch=command.epoch, reason=command.reason.value)
    return sessions_pb2.ConnectWorkerResponse(end=end)


def place_info(command: TellPlace, key: str, now: Instant) -> sessions_pb2.PlaceInfo:
    """Where a person stands."""
    return sessions_pb2.PlaceInfo(
        place=command.place,
        line_length=command.line_length,
        estimated_wait=_until(command.estimate, now),
        longest_wait=_until(command.bound, now),
        place_key=key,
        bound_cause=command.bound_cause,
        session=session_name(command.session),
    )


def notice_of(command: TellPerson | TellEnd, now: Instant) -> sessions_pb2.SessionNotice:
    """News of a turn, or its end."""
    if isinstance(command, TellEnd):
        return sessions_pb2.SessionNotice(reason=command.reason.value, message=command.message, is_end=True)
    return sessions_pb2.SessionNotice(
        reason=command.reason,
        message=command.message,
        end_time=timestamp(command.ends_at),
        remaining=_until(command.ends_at, now),
    )


def _until(at: Instant | None, now: Instant) -> Duration | None:
    return None if at is None else duration(Span(max(0, at - now)))


def reported_turn(turn: sessions_pb2.LiveTurn) -> ReportedTurn | None:
    """A turn as a worker lists it; None for one that is no session of ours."""
    session = session_id(turn.session)
    if session is None:
        return None
    since_input = Span(turn.since_input.ToMicroseconds()) if turn.is_attached else None
    rate = turn.frames_per_second
    return ReportedTurn(
        session=session,
        epoch=turn.epoch,
        age=Span(turn.age.ToMicroseconds()),
        since_input=since_input,
        frames_per_second=rate if 0 <= rate < FRAMES_PER_SECOND_MAX else 0.0,
        latency=Span(max(0, turn.latency.ToMicroseconds())) if turn.HasField("latency") else None,
    )


def served_requests(
    models: Iterable[sessions_pb2.ServedRequests], served: Mapping[ModelName, Model], now: Instant
) -> dict[ModelName, Requests]:
    """The requests of programs as a gateway counts them; those of what is served no more are nobody's."""
    found: dict[ModelName, Requests] = {}
    for each in models:
        model = served.get(ModelName(each.model))
        if model is None or model.http is None:
            continue
        waited = Span(max(0, each.longest_wait.ToMicroseconds()))
        found[model.name] = Requests(
            under_way=min(max(0, each.under_way), REQUESTS_MAX),
            waiting=min(max(0, each.waiting), REQUESTS_MAX),
            waits_since=after(now, Span(-waited)) if each.waiting > 0 else None,
            on_replicas=tuple(
                (WorkerId(replica.worker_start), min(max(0, replica.under_way), REQUESTS_MAX))
                for replica in each.replicas[:REPLICAS_MAX]
            ),
        )
    return found


def end_reason(name: str) -> EndReason:
    """Why a worker says that a turn ended; what is not known here is the model's fault."""
    return EndReason.__members__.get(name, EndReason.MODEL_FAILED)


def card_of(said: sessions_pb2.ModelCard) -> Card:
    """What a worker says of its model, cut to what the page has room for; a picture that is too large is none."""
    picture = said.picture if len(said.picture) <= PICTURE_BYTES_MAX and media_type_of(said.picture) else b""
    return Card(
        title=said.title[: TEXTS["title"]],
        about=said.about[: TEXTS["about"]],
        controls=said.controls[: TEXTS["controls"]],
        keys=tuple(key[:KEY_CHARS_MAX] for key in said.keys[:KEYS_MAX]),
        picture=picture,
        picture_tag=hashlib.sha256(picture).hexdigest()[:16] if picture else "",
    )


def card_proto(card: Card | None, *, with_picture: bool) -> sessions_pb2.ModelCard | None:
    """What people are shown of a model."""
    if card is None:
        return None
    return sessions_pb2.ModelCard(
        title=card.title,
        about=card.about,
        controls=card.controls,
        keys=card.keys,
        picture=card.picture if with_picture else b"",
        picture_tag=card.picture_tag,
    )


def limits_proto(limits: SessionLimits) -> sessions_pb2.SessionLimits:
    """A model's numbers, and who may join; the hash of its pass phrase is for nobody."""
    return sessions_pb2.SessionLimits(
        idle=duration(limits.idle),
        idle_warning=duration(limits.idle_warning),
        turn=duration(limits.turn),
        turn_warning=duration(limits.turn_warning),
        grace=duration(limits.grace),
        line_length=limits.line_length,
        places_per_address=limits.places_per_address,
        seats_per_address=limits.seats_per_address,
        access=ACCESS[limits.access],
    )


def http_proto(http: HttpService | None) -> sessions_pb2.HttpService | None:
    """The program that is served in place of a class."""
    if http is None:
        return None
    return sessions_pb2.HttpService(
        argv=http.argv,
        port_env=http.port_env,
        ready_path=http.ready_path,
        concurrency=http.concurrency,
        target_concurrency=http.target_concurrency,
        target_wait=duration(http.target_wait),
        idle=duration(http.idle),
        cpu_model=http.cpu_model,
        gpu_mode=MODES[http.gpu_mode],
        port=http.port,
    )


def routing_proto(routing: GpuRouting) -> sessions_pb2.GpuRouting:
    """What decides whether a request does without a GPU."""
    return sessions_pb2.GpuRouting(
        content_types={pattern: MODES[mode] for pattern, mode in routing.modes.items()},
        gpu_wait=duration(routing.gpu_wait),
        gpu_queue_limit=routing.gpu_queue_limit,
    )


def unplaced_workers(model: Model, durable: Durable, turns: Turns) -> list[Job]:
    """The jobs of a model's workers that have not called the scheduler."""
    called = {worker.job for worker in turns.workers_of(model.name)}
    return [durable.jobs[job_id] for job_id in sorted(durable.services.get(model.name, ())) if job_id not in called]


def model_proto(
    model: Model, durable: Durable, turns: Turns, waits: Callable[[Sequence[Job]], Mapping[JobId, WaitReason]]
) -> sessions_pb2.Model:
    """A model with its line and its workers. `waits` says why jobs wait: a reason and a clause for each that does."""
    workers = sorted(turns.workers_of(model.name), key=lambda worker: worker.id)
    jobs = unplaced_workers(model, durable, turns)
    why = waits(jobs) if jobs else {}
    requests, on_replicas = turns.requests_of(model.name), turns.requests_on(model.name)
    return sessions_pb2.Model(
        name=model.name,
        owner=model.owner,
        entry_point=model.entry_point,
        arguments=dict(model.arguments),
        worker=_worker_spec(model),
        min_workers=model.min_workers,
        max_workers=model.max_workers,
        failure=failure_proto(model.failure),
        revision=model.revision,
        former_revision=0 if model.former is None else model.former.number,
        update=_update(model.update),
        card=card_proto(turns.cards.get(model.name), with_picture=False),
        limits=limits_proto(model.limits),
        waiting_count=durable.sessions.line_length(model.name),
        turn_count=durable.sessions.seated_count(model.name),
        http=http_proto(model.http),
        request_count=requests.under_way + requests.waiting,
        exclusive_group=model.exclusive_group,
        in_group=_in_group(model, durable, turns),
        workers=[
            *(worker_proto(worker, durable, under_way=on_replicas.get(worker.id)) for worker in workers),
            *(_job_of_worker(job, why.get(job.id), turns.last_words.get(job.id, ""), durable) for job in jobs),
        ],
    )


def _in_group(model: Model, durable: Durable, turns: Turns) -> sessions_pb2.ModelInGroup | None:
    """How a program stands in its exclusive group."""
    if group_of(model) is None:
        return None
    if is_awake(durable, model):
        return sessions_pb2.ModelInGroup(state=sessions_pb2.GROUP_STATE_AWAKE)
    if waiting_job(durable, turns, model) is not None:
        message = what_it_waits_for(durable, model)
        return sessions_pb2.ModelInGroup(state=sessions_pb2.GROUP_STATE_WAITING, message=message)
    slept = turns.slept.get(model.name)
    return sessions_pb2.ModelInGroup(
        state=sessions_pb2.GROUP_STATE_ASLEEP,
        message=why_asleep(turns, model),
        slept_time=None if slept is None else timestamp(slept.at),
    )


def _worker_spec(model: Model) -> job_pb2.JobSpec | None:
    if model.worker is None:
        return None
    spec = spec_proto(model.worker, omit_env=True)
    spec.band = job_pb2.Band.ValueType(model.band)
    return spec


def failure_proto(failure: ModelFailure | None) -> sessions_pb2.ModelFailure | None:
    """Why a model has failed, but for its output, which is read by who shows it."""
    if failure is None:
        return None
    return sessions_pb2.ModelFailure(time=timestamp(failure.at), message=failure.message, job_id=failure.job)


def _update(update: Update | None) -> sessions_pb2.ModelUpdate | None:
    if update is None:
        return None
    failure = failure_proto(update.failure)
    return sessions_pb2.ModelUpdate(time=timestamp(update.began_at), in_place=update.is_in_place, failure=failure)


def _job_of_worker(job: Job, why: WaitReason | None, said: str, durable: Durable) -> sessions_pb2.WorkerInfo:
    """A worker of which there is only its job as yet, or still; `why` it waits, and what it `said` of its last end."""
    reason, clause = ("", "") if why is None else why[:2]
    match job.state:
        case Queued():
            state, message = inference_pb2.WORKER_STATE_QUEUED, f"waits: {clause}" if clause else "waits in the queue"
        case Deferred():
            ended = f"ended ({said})" if said else "ended"
            state, message = inference_pb2.WORKER_STATE_QUEUED, f"{ended}, and is started again in a moment"
        case Held():
            state, message = inference_pb2.WORKER_STATE_QUEUED, "is held"
        case Stopping():
            state, message = inference_pb2.WORKER_STATE_DRAINING, "is being stopped"
        case _ if job.drained_at is not None:
            state, message = inference_pb2.WORKER_STATE_DRAINING, "ends"
        case _:
            state, message = inference_pb2.WORKER_STATE_STARTING, "starts"
    return sessions_pb2.WorkerInfo(
        state=state,
        message=message,
        job_id=job.id,
        wait_reason=reason,
        revision=job.revision,
        replaces_job_id=_replaced(job, durable),
    )


def _replaced(job: Job | None, durable: Durable) -> JobId:
    """The worker whose place one takes when it is ready, as long as that one is there; 0: none."""
    predecessor = None if job is None or job.replaces is None else durable.jobs.get(job.replaces)
    return JobId(0) if predecessor is None else predecessor.id


def worker_proto(
    worker: WorkerLive,
    durable: Durable,
    *,
    certificate: str = "",
    connect_key: bytes = b"",
    under_way: int | None = None,
) -> sessions_pb2.WorkerInfo:
    """A worker as it was heard; its certificate is for those who open turns there, its key for gateways.

    `under_way` are the requests that a replica of a program works on; None for none, and for a worker with turns.
    """
    job = None if worker.job is None else durable.jobs.get(worker.job)
    return sessions_pb2.WorkerInfo(
        worker_start=worker.id,
        endpoint=worker.endpoint,
        state=WORKER_STATES[worker.state],
        progress=worker.progress,
        message=worker.message,
        seats=worker.seats,
        taken_seats=len(durable.sessions.seated.get(worker.id, ())) if under_way is None else under_way,
        load=worker.load if under_way is None else min(1.0, under_way / max(1, worker.seats)),
        job_id=worker.job or 0,
        last_contact_time=timestamp(worker.heard_at),
        certificate=certificate,
        name=worker_name(worker.id, worker.job),
        connect_key=connect_key,
        revision=0 if job is None else job.revision,
        replaces_job_id=_replaced(job, durable),
        worker_version=worker.version,
    )


def session_proto(session: Session, durable: Durable, turns: Turns, now: Instant) -> sessions_pb2.Session:
    """A session as it is now. Who the person is, is told as a hash of its own: nobody else knows it by that."""
    turn = turns.turns.get(session.id)
    ends_at = None if turn is None or turn.ends_at is None else turn.ends_at
    grace = durable.models[session.model].limits.grace
    return sessions_pb2.Session(
        id=session_name(session.id),
        model=session.model,
        state=_state_of(turn),
        join_time=timestamp(session.joined_at),
        worker_start=session.state.worker if isinstance(session.state, Granted) else "",
        place=durable.sessions.place(session) or 0,
        end_time=None if ends_at is None else timestamp(after(ends_at, grace)),
        is_present=turns.connection_of(session.id) is not None,
        turn_start_time=None if turn is None or turn.started_at is None else timestamp(turn.started_at),
        since_input=None if turn is None or turn.input_at is None else duration(Span(max(0, now - turn.input_at))),
        worker=_worker_name_of(turn, turns),
        person=hashlib.sha256(session.identity.encode()).hexdigest()[:PERSON_CHARS_SHOWN],
        frames_per_second=0.0 if turn is None else turn.frames_per_second,
        latency=None if turn is None or turn.latency is None else duration(turn.latency),
    )


def _worker_name_of(turn: TurnLive | None, turns: Turns) -> str:
    if turn is None:
        return ""
    worker = turns.workers.get(turn.worker)
    return worker_name(turn.worker, None if worker is None else worker.job)


def _state_of(turn: TurnLive | None) -> sessions_pb2.SessionState.ValueType:
    if turn is None:
        return sessions_pb2.SESSION_STATE_WAITING
    if turn.started_at is None:
        return sessions_pb2.SESSION_STATE_OFFERED
    if turn.stage is Stage.GRACE:
        return sessions_pb2.SESSION_STATE_GRACE
    return sessions_pb2.SESSION_STATE_ACTIVE if turn.ends_at is None else sessions_pb2.SESSION_STATE_LIMITED
