"""Sessions' records and commands as text: `sentence` for people, `tell` and `tell_command` for transcripts."""

from typing import assert_never

from ..state.session_commands import (
    EVERY_EPOCH,
    DrainWorker,
    EndTurn,
    ExpectTurn,
    OfferSeat,
    SessionCommand,
    TellEnd,
    TellPerson,
    TellPlace,
)
from ..state.session_records import (
    ClaimMissed,
    ModelFailed,
    ModelReady,
    ModelServed,
    ModelStopped,
    SessionEnded,
    SessionJoined,
    SessionRecord,
    SessionRequeued,
    TicketRenewed,
    TurnGranted,
    WorkerDied,
)


def session_sentence(record: SessionRecord) -> str:
    """A record as a sentence of the session's or the model's story."""
    match record:
        case ModelServed(model=model):
            return f"model {model.name} is served by {model.owner}"
        case ModelStopped(model=model_name, by=by):
            return f"model {model_name} was stopped by {by}"
        case ModelReady(model=model_name):
            return f"model {model_name} is ready"
        case WorkerDied(model=model_name, job=job, message=message):
            return f"a worker of model {model_name} ended, that of job {job}: {message}"
        case ModelFailed(model=model_name, failure=failure):
            return f"model {model_name} has failed: {failure.message}"
        case SessionJoined(session=session):
            return f"session {session.id} joined the line of {session.model}"
        case TurnGranted(session=session_id, worker=worker):
            return f"session {session_id} was offered a seat on worker {worker}"
        case TicketRenewed(session=session_id):
            return f"session {session_id} came back to its turn"
        case ClaimMissed(session=session_id):
            return f"session {session_id} did not claim its seat in time and keeps its place"
        case SessionRequeued(session=session_id):
            return f"session {session_id} lost its worker and waits in front"
        case SessionEnded(session=session_id, reason=reason, message=message):
            return f"session {session_id} ended: {message} ({reason.value})"
        case _:
            assert_never(record)


def tell_session(record: SessionRecord) -> str:
    """A record in one or a few words, for transcripts."""
    name = type(record).__name__
    match record:
        case ModelServed(model=model):
            return f"{name} {model.name}"
        case ModelStopped(model=model_name):
            return f"{name} {model_name}"
        case ModelReady(model=model_name):
            return f"{name} {model_name}"
        case WorkerDied(model=model_name, job=job):
            return f"{name} {model_name} {job}"
        case ModelFailed(model=model_name, failure=failure):
            return f"{name} {model_name}: {failure.message}"
        case SessionJoined(session=session):
            return f"{name} s{session.id}"
        case TurnGranted(session=session_id, worker=worker, epoch=epoch):
            return f"{name} s{session_id}.{epoch} on {worker}"
        case TicketRenewed(session=session_id, epoch=epoch):
            return f"{name} s{session_id}.{epoch}"
        case ClaimMissed(session=session_id) | SessionRequeued(session=session_id):
            return f"{name} s{session_id}"
        case SessionEnded(session=session_id, reason=reason):
            return f"{name} s{session_id} {reason.value}"
        case _:
            assert_never(record)


def tell_session_command(command: SessionCommand) -> str:
    """A command for transcripts, but for its times: who reads them knows the beginning."""
    match command:
        case TellPlace(session=session, place=place, line_length=length):
            return f"TellPlace s{session} {place} of {length}"
        case OfferSeat(session=session, epoch=epoch, worker=worker):
            return f"OfferSeat s{session}.{epoch} on {worker}"
        case TellPerson(session=session, reason=reason):
            return f"TellPerson s{session} {reason}"
        case TellEnd(session=session, reason=end):
            return f"TellEnd s{session} {end.value}"
        case ExpectTurn(worker=worker, session=session, epoch=epoch):
            return f"ExpectTurn s{session}.{epoch} at {worker}"
        case DrainWorker(worker=worker):
            return f"DrainWorker {worker}"
        case EndTurn(worker=worker, session=session, epoch=epoch, reason=end):
            return f"EndTurn s{session}.{'*' if epoch == EVERY_EPOCH else epoch} at {worker} {end.value}"
        case _:
            assert_never(command)
