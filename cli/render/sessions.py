"""Models with their workers, and sessions: a line for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType

from gpufleet.v1 import inference_pb2, sessions_pb2

from gpufleet.text.cleaning import clean
from gpufleet.text.units import counted

from . import words
from .table import ABSENT, Cell, Colour, Column, Look, draw, wrapped

WorkerOf = tuple[sessions_pb2.Model, sessions_pb2.WorkerInfo]

SHOWN_OF_START = 8
"""Characters of the id of a worker's start that people are shown."""

WORKER_STATES = {
    inference_pb2.WORKER_STATE_LOADING: ("loading", Colour.WARNING),
    inference_pb2.WORKER_STATE_READY: ("ready", Colour.GOOD),
    inference_pb2.WORKER_STATE_DRAINING: ("draining", Colour.WARNING),
    inference_pb2.WORKER_STATE_FAILED: ("failed", Colour.BAD),
    inference_pb2.WORKER_STATE_QUEUED: ("queued", Colour.WARNING),
    inference_pb2.WORKER_STATE_STARTING: ("starting", Colour.WARNING),
}
ACCESS = {
    sessions_pb2.MODEL_ACCESS_OPEN: "everybody",
    sessions_pb2.MODEL_ACCESS_PASS_PHRASE: "pass phrase",
    sessions_pb2.MODEL_ACCESS_LOGIN: "login",
}
SESSION_STATES = {
    sessions_pb2.SESSION_STATE_WAITING: ("waiting", None),
    sessions_pb2.SESSION_STATE_OFFERED: ("offered", Colour.WARNING),
    sessions_pb2.SESSION_STATE_ACTIVE: ("active", Colour.GOOD),
    sessions_pb2.SESSION_STATE_LIMITED: ("limited", Colour.WARNING),
    sessions_pb2.SESSION_STATE_GRACE: ("ending", Colour.BAD),
}


FALLBACK_SHARE_MAX = 0.05
"""Where more of a model's requests fall back, people are told."""


def models_screen(
    models: Sequence[sessions_pb2.Model],
    now: datetime,
    look: Look,
    fallback_shares: Mapping[str, float] = MappingProxyType({}),
) -> list[str]:
    """The whole screen of `gpuctl models`; `wide` has a line for each worker.

    `fallback_shares` say which share of a model's requests of the last hour went to its CPU model.
    """
    if not models:
        return ["No models. Serve one: gpuctl serve canvas --gpus 1"]
    columns = list(MODEL_COLUMNS)
    if any(model.exclusive_group for model in models):
        columns.insert(-1, Column("GROUP", lambda model: model.exclusive_group or ABSENT))
    if any(model.http.cpu_model for model in models):
        columns.insert(-1, Column("CPU MODEL", lambda model: model.http.cpu_model or ABSENT))
    if any(model.worker.container.image for model in models):
        columns.insert(-1, Column("IMAGE", lambda model: model.worker.container.image or ABSENT, least=12, rank=2))
    if fallback_shares:
        columns.insert(-1, Column("FELL BACK", lambda model: _fell_back(model, fallback_shares), is_right=True))
    lines = draw(columns, models, look)
    workers = [(model, worker) for model in models for worker in model.workers]
    if look.is_wide and workers:
        lines += ["", *draw(_worker_columns(now), workers, look)]
    for model in models:
        if (share := fallback_shares.get(model.name, 0.0)) > FALLBACK_SHARE_MAX:
            said = f"Of the requests of the last hour to {model.name} {share:.0%} fell back to {model.http.cpu_model}"
            told = f"{said} · Let it have more workers with GPUs: gpuctl serve {model.name} --update --max N"
            lines += ["", *(wrapped(clean(told), look.width) if look.width else [clean(told)])]
        why = ""
        if model.HasField("failure"):
            why = f"Model {model.name} has failed: {model.failure.message}"
        elif model.update.HasField("failure"):
            why = update_failed(model)
        elif model.HasField("update"):
            why = why_update_waits(model)
        if why:
            lines += ["", *(wrapped(clean(why), look.width) if look.width else [clean(why)]), *last_lines(model)]
    return lines


def _fell_back(model: sessions_pb2.Model, shares: Mapping[str, float]) -> Cell:
    share = shares.get(model.name)
    if share is None:
        return Cell(ABSENT)
    return Cell(f"{share:.0%}", Colour.WARNING if share > FALLBACK_SHARE_MAX else None)


def last_lines(model: sessions_pb2.Model) -> list[str]:
    """The last lines of the worker by which a model, or its update, failed; none where none did, or wrote nothing."""
    failure = model.failure if model.HasField("failure") else model.update.failure
    lines = [f"    {clean(line)}" for line in failure.last_lines]
    return [f"The last lines of its worker, from gpuctl logs {failure.job_id}:", *lines] if lines else []


def update_failed(model: sessions_pb2.Model) -> str:
    """Why the update of a model has failed, what serves meanwhile, and what to type for leaving it at that."""
    said = f"The update of model {model.name} to revision {model.revision} has failed: {model.update.failure.message}"
    return f"{said} · Revision {model.former_revision} stays; for good with: gpuctl serve {model.name} --rollback"


def update_progress(model: sessions_pb2.Model) -> str:
    """How far an update is: `updating to revision 3: 1 of 2 workers`."""
    going = (inference_pb2.WORKER_STATE_DRAINING, inference_pb2.WORKER_STATE_FAILED)
    there = [worker for worker in model.workers if worker.job_id and worker.state not in going]
    new = [worker for worker in there if worker.revision == model.revision]
    ready = sum(1 for worker in new if worker.state == inference_pb2.WORKER_STATE_READY)
    old = len(there) - len(new)
    if not there:
        return f"updating to revision {model.revision} with the next worker"
    return f"updating to revision {model.revision}: {ready} of {counted(max(ready + old, len(new)), 'worker')}"


def why_update_waits(model: sessions_pb2.Model) -> str:
    """Why the successor of a worker is not started, and what to type for having it so; empty where it is."""
    queued = (
        worker
        for worker in model.workers
        if worker.replaces_job_id and worker.state == inference_pb2.WORKER_STATE_QUEUED and worker.wait_reason
    )
    worker = next(queued, None)
    if worker is None:
        return ""
    said = f"Job {worker.job_id}, which is to take the place of job {worker.replaces_job_id}, {worker.message}"
    return (
        said if model.update.in_place else f"{said} · End that one first: gpuctl serve {model.name} --update --in-place"
    )


def sessions_screen(sessions: Sequence[sessions_pb2.Session], now: datetime, look: Look) -> list[str]:
    """The whole screen of `gpuctl sessions`."""
    if not sessions:
        return ["No sessions. See what is served: gpuctl models"]
    columns: list[Column[sessions_pb2.Session]] = [
        Column("SESSION", lambda session: session.id),
        Column("MODEL", lambda session: session.model),
        Column("STATE", _session_state),
        Column("PLACE", lambda session: f"{session.place:,}" if session.place else ABSENT, is_right=True),
        Column("JOINED", lambda session: words.since(session.join_time, now), is_right=True),
        Column("ENDS", lambda session: _ends(session, now), is_right=True),
        Column("WORKER", lambda session: session.worker_start[:SHOWN_OF_START] or ABSENT, least=8),
    ]
    return draw(columns, sessions, look)


def _session_state(session: sessions_pb2.Session) -> Cell:
    text, colour = SESSION_STATES.get(session.state, ("?", None))
    return Cell(text if session.is_present else f"{text}, away", colour)


def _ends(session: sessions_pb2.Session, now: datetime) -> str:
    return words.full_clock(session.end_time, now).split()[1] if session.HasField("end_time") else ABSENT


def _workers_of(model: sessions_pb2.Model) -> str:
    """How many workers are ready, of how many there are."""
    ready = sum(1 for worker in model.workers if worker.state == inference_pb2.WORKER_STATE_READY)
    return f"{ready} of {len(model.workers)}" if ready < len(model.workers) else f"{ready}"


def state_of(model: sessions_pb2.Model) -> tuple[str, Colour | None]:
    """What a model does, by the best of its workers, and how far its update is."""
    if model.HasField("failure"):
        return f"failed: {model.failure.message}", Colour.BAD
    text, colour = _state_in_group(model) or _state_of_workers(model)
    if model.update.HasField("failure"):
        return f"{text}, its update has failed", Colour.BAD
    if model.HasField("update"):
        return f"{text}, {update_progress(model)}", Colour.WARNING
    return text, colour


def _state_in_group(model: sessions_pb2.Model) -> tuple[str, Colour | None] | None:
    """Of a program that shares GPUs and is not awake, how it stands in its group; of all others None."""
    message = model.in_group.message
    match model.in_group.state:
        case sessions_pb2.GROUP_STATE_ASLEEP:
            return (f"asleep: {message}" if message else "asleep: nobody asks"), None
        case sessions_pb2.GROUP_STATE_WAITING:
            return message or "waits for its group", Colour.WARNING
        case _:
            return None


def _state_of_workers(model: sessions_pb2.Model) -> tuple[str, Colour | None]:
    of_state: dict[int, sessions_pb2.WorkerInfo] = {
        worker.state: worker for worker in sorted(model.workers, key=lambda worker: worker.progress)
    }
    if inference_pb2.WORKER_STATE_READY in of_state:
        return "ready", Colour.GOOD
    for state, in_words in STATES_OF_MODEL.items():
        worker = of_state.get(state)
        if worker is not None:
            return in_words(worker), Colour.BAD if state == inference_pb2.WORKER_STATE_FAILED else Colour.WARNING
    if (model.entry_point or model.HasField("http")) and not model.min_workers:
        return "no worker: nobody waits", None
    return "no worker", Colour.WARNING


def steady_state_of(model: sessions_pb2.Model) -> str:
    """The same without how far the loading is: for a log, which needs no line for each percent."""
    words, _ = state_of(model)
    return "loading" if words.startswith("loading") else words


STATES_OF_MODEL: Mapping[int, Callable[[sessions_pb2.WorkerInfo], str]] = {
    inference_pb2.WORKER_STATE_LOADING: lambda worker: f"loading, {worker.progress:.0%} {worker.message}".rstrip(),
    inference_pb2.WORKER_STATE_STARTING: lambda worker: f"starting, job {worker.job_id}",
    inference_pb2.WORKER_STATE_FAILED: lambda worker: f"failed: {worker.message}",
    inference_pb2.WORKER_STATE_QUEUED: lambda worker: f"job {worker.job_id} {worker.message}",
    inference_pb2.WORKER_STATE_DRAINING: lambda worker: "draining",
}
"""What a model without a ready worker does: by the worker that is nearest to it."""


def worker_in_words(model: sessions_pb2.Model, worker: sessions_pb2.WorkerInfo) -> str:
    """`worker 4f2a9c01 of canvas (job 12)`; without what it does not have."""
    job = f"job {worker.job_id}" if worker.job_id else ""
    if not worker.worker_start:
        return f"the worker of {model.name} that is {job}"
    return f"worker {worker.worker_start[:SHOWN_OF_START]} of {model.name}" + (f" ({job})" if job else "")


def _worker_columns(now: datetime) -> list[Column[WorkerOf]]:
    return [
        Column("MODEL", lambda of: of[0].name),
        Column("WORKER", lambda of: of[1].worker_start[:SHOWN_OF_START] or ABSENT),
        Column("JOB", lambda of: f"{of[1].job_id}" if of[1].job_id else ABSENT, is_right=True),
        Column("REV", lambda of: f"{of[1].revision}" if of[1].revision else ABSENT, is_right=True),
        Column("STATE", lambda of: Cell(*WORKER_STATES.get(of[1].state, ("?", None)))),
        Column("TAKEN", lambda of: f"{of[1].taken_seats} of {of[1].seats}", is_right=True),
        Column("LOAD", lambda of: f"{of[1].load:.0%}", is_right=True),
        Column("HEARD", lambda of: _heard(of[1], now), is_right=True),
        Column("VERSION", lambda of: of[1].worker_version or ABSENT),
        Column("AT", lambda of: of[1].endpoint or of[1].message, least=12),
    ]


def _heard(worker: sessions_pb2.WorkerInfo, now: datetime) -> str:
    return words.since(worker.last_contact_time, now) if worker.HasField("last_contact_time") else ABSENT


MODEL_COLUMNS: Sequence[Column[sessions_pb2.Model]] = (
    Column("MODEL", lambda model: model.name),
    Column("WAITING", lambda model: f"{model.request_count or model.waiting_count:,}", is_right=True),
    Column("TURNS", lambda model: f"{model.turn_count:,}", is_right=True),
    Column("SEATS", lambda model: f"{sum(worker.seats for worker in model.workers):,}", is_right=True),
    Column("WORKERS", _workers_of, is_right=True),
    Column("ACCESS", lambda model: ACCESS.get(model.limits.access, "?"), rank=1),
    Column("STATE", lambda model: Cell(*state_of(model)), least=12),
)
