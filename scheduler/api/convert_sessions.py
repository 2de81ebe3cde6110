"""Sessions, turns and workers on the wire, and back."""

from google.protobuf.duration_pb2 import Duration
from gpufleet.v1 import inference_pb2, job_pb2, sessions_pb2

from ..state.durable import Durable
from ..state.ids import JobId
from ..state.jobs import Deferred, Held, Job, Queued, Stopping
from ..state.session_commands import EndTurn, ExpectTurn, TellEnd, TellPerson, TellPlace
from ..state.session_events import SeenTurn, WorkerState
from ..state.sessions import EndReason, Granted, Model, ModelFailure, Session, SessionId, SessionLimits, WorkerId
from ..state.turns import Stage, TurnLive, Turns, WorkerLive
from ..state.units import Instant, Span, after
from .convert import duration, timestamp
from .convert_jobs import spec_proto

WORKER_STATES = {
    WorkerState.LOADING: inference_pb2.WORKER_STATE_LOADING,
    WorkerState.READY: inference_pb2.WORKER_STATE_READY,
    WorkerState.DRAINING: inference_pb2.WORKER_STATE_DRAINING,
    WorkerState.FAILED: inference_pb2.WORKER_STATE_FAILED,
}
WORKER_START_CHARS_SHOWN = 8
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


def seen_turn(turn: sessions_pb2.LiveTurn) -> SeenTurn | None:
    """A turn as a worker lists it; None for one that is no session of ours."""
    session = session_id(turn.session)
    if session is None:
        return None
    since_input = Span(turn.since_input.ToMicroseconds()) if turn.is_attached else None
    return SeenTurn(session=session, epoch=turn.epoch, age=Span(turn.age.ToMicroseconds()), since_input=since_input)


def end_reason(name: str) -> EndReason:
    """Why a worker says that a turn ended; what is not known here is the model's fault."""
    return EndReason.__members__.get(name, EndReason.MODEL_FAILED)


def limits_proto(limits: SessionLimits) -> sessions_pb2.SessionLimits:
    """A model's numbers."""
    return sessions_pb2.SessionLimits(
        idle=duration(limits.idle),
        idle_warning=duration(limits.idle_warning),
        turn=duration(limits.turn),
        turn_warning=duration(limits.turn_warning),
        grace=duration(limits.grace),
        line_length=limits.line_length,
    )


def model_proto(model: Model, durable: Durable, turns: Turns) -> sessions_pb2.Model:
    """A model with its line and its workers."""
    workers = sorted(turns.workers_of(model.name), key=lambda worker: worker.id)
    called = {worker.job for worker in workers}
    jobs = (durable.jobs[job_id] for job_id in sorted(durable.services.get(model.name, ())) if job_id not in called)
    return sessions_pb2.Model(
        name=model.name,
        owner=model.owner,
        entry_point=model.entry_point,
        arguments=dict(model.arguments),
        worker=_worker_spec(model),
        min_workers=model.min_workers,
        max_workers=model.max_workers,
        failure=_failure(model.failure),
        limits=limits_proto(model.limits),
        waiting_count=durable.sessions.line_length(model.name),
        turn_count=durable.sessions.seated_count(model.name),
        workers=[*(worker_proto(worker, durable) for worker in workers), *map(_job_of_worker, jobs)],
    )


def _worker_spec(model: Model) -> job_pb2.JobSpec | None:
    if model.worker is None:
        return None
    spec = spec_proto(model.worker, omit_env=True)
    spec.band = job_pb2.Band.ValueType(model.band)
    return spec


def _failure(failure: ModelFailure | None) -> sessions_pb2.ModelFailure | None:
    """Why a model has failed, but for its output, which is read by who shows it."""
    if failure is None:
        return None
    return sessions_pb2.ModelFailure(time=timestamp(failure.at), message=failure.message, job_id=failure.job)


def _job_of_worker(job: Job) -> sessions_pb2.WorkerInfo:
    """A worker of which there is only its job as yet, or still."""
    match job.state:
        case Queued():
            state, message = inference_pb2.WORKER_STATE_QUEUED, "waits in the queue"
        case Deferred():
            state, message = inference_pb2.WORKER_STATE_QUEUED, "ended, and is started again in a moment"
        case Held():
            state, message = inference_pb2.WORKER_STATE_QUEUED, "is held"
        case Stopping():
            state, message = inference_pb2.WORKER_STATE_DRAINING, "is being stopped"
        case _:
            state, message = inference_pb2.WORKER_STATE_STARTING, "starts"
    return sessions_pb2.WorkerInfo(state=state, message=message, job_id=job.id)


def worker_proto(worker: WorkerLive, durable: Durable, *, certificate: str = "") -> sessions_pb2.WorkerInfo:
    """A worker as it was heard; its certificate is for those who open turns there."""
    return sessions_pb2.WorkerInfo(
        worker_start=worker.id,
        endpoint=worker.endpoint,
        state=WORKER_STATES[worker.state],
        progress=worker.progress,
        message=worker.message,
        seats=worker.seats,
        taken_seats=len(durable.sessions.seated.get(worker.id, ())),
        load=worker.load,
        job_id=worker.job or 0,
        last_contact_time=timestamp(worker.heard_at),
        certificate=certificate,
        name=worker_name(worker.id, worker.job),
    )


def session_proto(session: Session, durable: Durable, turns: Turns) -> sessions_pb2.Session:
    """A session as it is now."""
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
    )


def _state_of(turn: TurnLive | None) -> sessions_pb2.SessionState.ValueType:
    if turn is None:
        return sessions_pb2.SESSION_STATE_WAITING
    if turn.started_at is None:
        return sessions_pb2.SESSION_STATE_OFFERED
    if turn.stage is Stage.GRACE:
        return sessions_pb2.SESSION_STATE_GRACE
    return sessions_pb2.SESSION_STATE_ACTIVE if turn.ends_at is None else sessions_pb2.SESSION_STATE_LIMITED
