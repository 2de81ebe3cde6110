"""Models with their workers, and sessions: a line for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from gpufleet.v1 import inference_pb2, sessions_pb2

from . import words
from .table import Cell, Colour, Column, Look, Row, clean, draw, wrapped

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
    Column("JOB", is_right=True),
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
    inference_pb2.WORKER_STATE_QUEUED: ("queued", Colour.WARNING),
    inference_pb2.WORKER_STATE_STARTING: ("starting", Colour.WARNING),
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
        return ["No models. Serve one: gpuctl serve canvas --gpus 1"]
    lines = draw(MODEL_COLUMNS, [_model_row(model) for model in models], look)
    rows = [_worker_row(model, worker, now) for model in models for worker in model.workers]
    if look.is_wide and rows:
        lines += ["", *draw(WORKER_COLUMNS, rows, look)]
    for model in models:
        if model.HasField("failure"):
            why = f"Model {model.name} has failed: {clean(model.failure.message)}"
            lines += ["", *(wrapped(why, look.width) if look.width else [why]), *last_lines(model)]
    return lines


def last_lines(model: sessions_pb2.Model) -> list[str]:
    """The last lines of the worker by which a model failed; none where it has not, or wrote nothing."""
    lines = [f"    {clean(line)}" for line in model.failure.last_lines]
    return [f"The last lines of its worker, from gpuctl logs {model.failure.job_id}:", *lines] if lines else []


def sessions_screen(sessions: Sequence[sessions_pb2.Session], now: datetime, look: Look) -> list[str]:
    """The whole screen of `gpuctl sessions`."""
    if not sessions:
        return ["No sessions. See what is served: gpuctl models"]
    return draw(SESSION_COLUMNS, [_session_row(session, now) for session in sessions], look)


def _model_row(model: sessions_pb2.Model) -> Row:
    text, colour = state_of(model)
    return (
        Cell(model.name),
        Cell(f"{model.waiting_count:,}"),
        Cell(f"{model.turn_count:,}"),
        Cell(f"{sum(worker.seats for worker in model.workers):,}"),
        Cell(_workers_of(model)),
        Cell(text, colour),
    )


def _workers_of(model: sessions_pb2.Model) -> str:
    """How many workers are ready, of how many there are."""
    ready = sum(1 for worker in model.workers if worker.state == inference_pb2.WORKER_STATE_READY)
    return f"{ready} of {len(model.workers)}" if ready < len(model.workers) else f"{ready}"


def state_of(model: sessions_pb2.Model) -> tuple[str, Colour | None]:
    """What a model does, by the best of its workers."""
    if model.HasField("failure"):
        return f"failed: {model.failure.message}", Colour.BAD
    of_state: dict[int, sessions_pb2.WorkerInfo] = {
        worker.state: worker for worker in sorted(model.workers, key=lambda worker: worker.progress)
    }
    if inference_pb2.WORKER_STATE_READY in of_state:
        return "ready", Colour.GOOD
    for state, in_words in STATES_OF_MODEL.items():
        worker = of_state.get(state)
        if worker is not None:
            return in_words(worker), Colour.BAD if state == inference_pb2.WORKER_STATE_FAILED else Colour.WARNING
    if model.entry_point and not model.min_workers:
        return "no worker: nobody waits", None
    return "no worker", Colour.WARNING


STATES_OF_MODEL: Mapping[int, Callable[[sessions_pb2.WorkerInfo], str]] = {
    inference_pb2.WORKER_STATE_LOADING: lambda worker: f"loading, {worker.progress:.0%} {worker.message}".rstrip(),
    inference_pb2.WORKER_STATE_STARTING: lambda worker: f"starting, job {worker.job_id}",
    inference_pb2.WORKER_STATE_FAILED: lambda worker: f"failed: {worker.message}",
    inference_pb2.WORKER_STATE_QUEUED: lambda worker: f"job {worker.job_id} {worker.message}",
    inference_pb2.WORKER_STATE_DRAINING: lambda worker: "draining",
}
"""What a model without a ready worker does: by the worker that is nearest to it."""


def _worker_row(model: sessions_pb2.Model, worker: sessions_pb2.WorkerInfo, now: datetime) -> Row:
    text, colour = WORKER_STATES.get(worker.state, ("?", None))
    return (
        Cell(model.name),
        Cell(worker.worker_start[:8] or "–"),
        Cell(f"{worker.job_id}" if worker.job_id else "–"),
        Cell(text, colour),
        Cell(f"{worker.taken_seats} of {worker.seats}"),
        Cell(f"{worker.load:.0%}"),
        Cell(words.since(worker.last_contact_time, now) if worker.HasField("last_contact_time") else "–"),
        Cell(worker.endpoint or worker.message),
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
