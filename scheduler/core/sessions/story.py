"""Sessions' records and commands as text: `sentence` for people, `tell` and `tell_command` for transcripts."""

from typing import assert_never

from ...state.sessions import commands, records
from ...state.sessions.commands import SessionCommand
from ...state.sessions.records import SessionRecord


def session_sentence(record: SessionRecord) -> str:
    """A record as a sentence of the session's or the model's story."""
    match record:
        case records.ModelServed(model=model):
            of = f", revision {model.revision}" if model.revision > 1 else ""
            return f"model {model.name} is served by {model.owner}{of}"
        case records.ModelStopped(model=model_name, by=by):
            return f"model {model_name} was stopped by {by}"
        case records.ModelReady(model=model_name):
            return f"model {model_name} is ready"
        case records.WorkerDied(model=model_name, job=job, message=message):
            return f"a worker of model {model_name} ended, that of job {job}: {message}"
        case records.ModelFailed(model=model_name, failure=failure):
            return f"model {model_name} has failed: {failure.message}"
        case records.UpdateFailed(model=model_name, failure=failure):
            return f"the update of model {model_name} has failed, and what it was before stays: {failure.message}"
        case records.ModelUpdated(model=model_name):
            return f"the update of model {model_name} is done"
        case records.SessionJoined(session=session):
            return f"session {session.id} joined the line of {session.model}"
        case records.TurnGranted(session=session_id, worker=worker):
            return f"session {session_id} was offered a seat on worker {worker}"
        case records.TicketRenewed(session=session_id):
            return f"session {session_id} came back to its turn"
        case records.ClaimMissed(session=session_id):
            return f"session {session_id} did not claim its seat in time and keeps its place"
        case records.SessionRequeued(session=session_id):
            return f"session {session_id} lost its worker and waits in front"
        case records.SessionSuspected(session=session_id):
            return f"session {session_id} was in the middle of a step as its worker went down"
        case records.SessionEnded(session=session_id, reason=reason, message=message):
            return f"session {session_id} ended: {message} ({reason.value})"
        case _:
            assert_never(record)


def tell_session(record: SessionRecord) -> str:
    """A record in one or a few words, for transcripts."""
    name = type(record).__name__
    match record:
        case records.ModelServed(model=model):
            return f"{name} {model.name}"
        case records.ModelStopped(model=model_name) | records.ModelReady(model=model_name):
            return f"{name} {model_name}"
        case records.ModelUpdated(model=model_name):
            return f"{name} {model_name}"
        case records.WorkerDied(model=model_name, job=job):
            return f"{name} {model_name} {job}"
        case records.ModelFailed(model=model_name, failure=failure):
            return f"{name} {model_name}: {failure.message}"
        case records.UpdateFailed(model=model_name, failure=failure):
            return f"{name} {model_name}: {failure.message}"
        case records.SessionJoined(session=session):
            return f"{name} s{session.id}"
        case records.TurnGranted(session=session_id, worker=worker, epoch=epoch):
            return f"{name} s{session_id}.{epoch} on {worker}"
        case records.TicketRenewed(session=session_id, epoch=epoch):
            return f"{name} s{session_id}.{epoch}"
        case records.SessionSuspected(session=session_id, worker_deaths=deaths):
            return f"{name} s{session_id} of {deaths}"
        case records.ClaimMissed(session=session_id) | records.SessionRequeued(session=session_id):
            return f"{name} s{session_id}"
        case records.SessionEnded(session=session_id, reason=reason):
            return f"{name} s{session_id} {reason.value}"
        case _:
            assert_never(record)


def tell_session_command(command: SessionCommand) -> str:
    """A command for transcripts, but for its times: who reads them knows the beginning."""
    match command:
        case commands.TellPlace(session=session, place=place, line_length=length):
            return f"TellPlace s{session} {place} of {length}"
        case commands.OfferSeat(session=session, epoch=epoch, worker=worker):
            return f"OfferSeat s{session}.{epoch} on {worker}"
        case commands.TellPerson(session=session, reason=reason):
            return f"TellPerson s{session} {reason}"
        case commands.TellEnd(session=session, reason=end):
            return f"TellEnd s{session} {end.value}"
        case commands.ExpectTurn(worker=worker, session=session, epoch=epoch):
            return f"ExpectTurn s{session}.{epoch} at {worker}"
        case commands.DrainWorker(worker=worker):
            return f"DrainWorker {worker}"
        case commands.EndTurn(worker=worker, session=session, epoch=epoch, reason=end):
            return f"EndTurn s{session}.{'*' if epoch == commands.EVERY_EPOCH else epoch} at {worker} {end.value}"
        case _:
            assert_never(command)
