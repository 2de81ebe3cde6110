"""Models with their workers, and sessions: a line for each."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from gpufleet.v1 import inference_pb2, sessions_pb2

from . import words
from .table import Cell, Colour, Column, Look, Row, draw

MODEL_COLUMNS = (
    Column("MODEL"),
    Column("WAITING", is_right=True),
    Column("TURNS", is_right=True),
    Column("SEATS", is_right=True),
    Column("WORKERS", is_right=True),
    Column("STATE", least=12),
)
WORKER_COLUMNS = (
    Column("MODEL"),
    Column("WORKER"),
    Column("STATE"),
    Column("TAKEN", is_right=True),
    Column("LOAD", is_right=True),
    Column("HEARD", is_right=True),
    Column("AT", least=12),
)
SESSION_COLUMNS = (
    Column("SESSION"),
    Column("MODEL"),
    Column("STATE"),
    Column("PLACE", is_right=True),
    Column("JOINED", is_right=True),
    Column("ENDS", is_right=True),
    Column("WORKER", least=8),
)
WORKER_STATES = {
    inference_pb2.WORKER_STATE_LOADING: ("loading", Colour.WARNING),
    inference_pb2.WORKER_STATE_READY: ("ready", Colour.GOOD),
    inference_pb2.WORKER_STATE_DRAINING: ("draining", Colour.WARNING),
    inference_pb2.WORKER_STATE_FAILED: ("failed", Colour.BAD),
}
SESSION_STATES = {
    sessions_pb2.SESSION_STATE_WAITING: ("waiting", None),
    sessions_pb2.SESSION_STATE_OFFERED: ("offered", Colour.WARNING),
    sessions_pb2.SESSION_STATE_ACTIVE: ("active", Colour.GOOD),
    sessions_pb2.SESSION_STATE_LIMITED: ("limited", Colour.WARNING),
    sessions_pb2.SESSION_STATE_GRACE: ("ending", Colour.BAD),
}


def models_screen(models: Sequence[sessions_pb2.Model], now: datetime, look: Look) -> list[str]:
    """The whole screen of `gpuctl models`; `wide` has a line for each worker."""
    if not models:
        return ["No models. Start a worker of one: gpuctl worker canvas --scheduler HOST:PORT"]
    lines = draw(MODEL_COLUMNS, [_model_row(model) for model in models], look)
    rows = [_worker_row(model, worker, now) for model in models for worker in model.workers]
    return [*lines, "", *draw(WORKER_COLUMNS, rows, look)] if look.is_wide and rows else lines


def sessions_screen(sessions: Sequence[sessions_pb2.Session], now: datetime, look: Look) -> list[str]:
    """The whole screen of `gpuctl sessions`."""
    if not sessions:
        return ["No sessions. See what is served: gpuctl models"]
    return draw(SESSION_COLUMNS, [_session_row(session, now) for session in sessions], look)


def _model_row(model: sessions_pb2.Model) -> Row:
    text, colour = _state_of(model)
    return (
        Cell(model.name),
        Cell(f"{model.waiting_count:,}"),
        Cell(f"{model.turn_count:,}"),
        Cell(f"{sum(worker.seats for worker in model.workers):,}"),
        Cell(f"{len(model.workers):,}"),
        Cell(text, colour),
    )


def _state_of(model: sessions_pb2.Model) -> tuple[str, Colour | None]:
    """What a model does, by the best of its workers."""
    workers = list(model.workers)
    if any(worker.state == inference_pb2.WORKER_STATE_READY for worker in workers):
        return "ready", Colour.GOOD
    loading = [worker for worker in workers if worker.state == inference_pb2.WORKER_STATE_LOADING]
    if loading:
        furthest = max(loading, key=lambda worker: worker.progress)
        return f"loading, {furthest.progress:.0%} {furthest.message}".rstrip(), Colour.WARNING
    failed = [worker for worker in workers if worker.state == inference_pb2.WORKER_STATE_FAILED]
    if failed:
        return f"failed: {failed[0].message}", Colour.BAD
    return ("draining", Colour.WARNING) if workers else ("no worker", Colour.WARNING)


def _worker_row(model: sessions_pb2.Model, worker: sessions_pb2.WorkerInfo, now: datetime) -> Row:
    text, colour = WORKER_STATES.get(worker.state, ("?", None))
    return (
        Cell(model.name),
        Cell(worker.worker_start[:8]),
        Cell(text, colour),
        Cell(f"{worker.taken_seats} of {worker.seats}"),
        Cell(f"{worker.load:.0%}"),
        Cell(words.since(worker.last_contact_time, now)),
        Cell(worker.endpoint),
    )


def _session_row(session: sessions_pb2.Session, now: datetime) -> Row:
    text, colour = SESSION_STATES.get(session.state, ("?", None))
    ends = words.full_clock(session.end_time, now).split()[1] if session.HasField("end_time") else "–"
    return (
        Cell(session.id),
        Cell(session.model),
        Cell(text if session.is_present else f"{text}, away", colour),
        Cell(f"{session.place:,}" if session.place else "–"),
        Cell(words.since(session.join_time, now)),
        Cell(ends),
        Cell(session.worker_start[:8] or "–"),
    )
