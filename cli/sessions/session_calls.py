"""What `models` and `sessions` ask, change and show."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from gpufleet.v1 import inference_pb2, sessions_pb2

from gpufleet.errors import GpufleetError, Reason
from gpufleet.fleet.client import Client, all_pages, connected
from gpufleet.fleet.reading import wrong
from gpufleet.fleet.settings import Settings
from gpufleet.text.spelling import did_you_mean
from gpufleet.text.units import counted

from .. import screen
from ..printing import print_answer, print_list
from ..render.sessions import models_screen, sessions_screen, worker_in_words
from .listing import PAGE_SIZE, all_models

FALLBACK_SPAN = timedelta(hours=1)
"""Requests of so long ago are looked at."""


NAMED_MAX = 5
"""Workers that an error names."""

Named = tuple[sessions_pb2.Model, sessions_pb2.WorkerInfo]


def show_models(settings: Settings, model: str) -> None:
    """Print the models, or the one of this name. Errors: MODEL_NOT_FOUND."""
    with connected(settings) as client:
        models = _models(client, model)
        shares = _fallback_shares(client, models, model) if settings.format == "wide" else {}
    print_list(
        settings.format,
        models,
        whole=sessions_pb2.ListModelsResponse(models=models),
        name=lambda model: model.name,
        lines=lambda look: models_screen(models, screen.local_now(), look, shares),
    )


def _fallback_shares(client: Client, models: Sequence[sessions_pb2.Model], model: str) -> dict[str, float]:
    """Which share of the requests of the last hour to each model went to its CPU model, of those that have one."""
    twins = {each.name for each in models if each.http.cpu_model}
    if not twins:
        return {}
    asked = sessions_pb2.ListRequestUsageRequest(model=model)
    asked.start_time.FromDatetime(datetime.now(UTC) - FALLBACK_SPAN)
    counted: dict[str, list[int]] = {}
    for row in client.call(client.scheduler.ListRequestUsage, asked).rows:
        if row.model in twins:
            sums = counted.setdefault(row.model, [0, 0])
            sums[0] += row.fallback_count
            sums[1] += row.fallback_count + row.request_count
    return {name: fell_back / all_ for name, (fell_back, all_) in counted.items() if all_}


def show_sessions(settings: Settings, model: str) -> None:
    """Print the sessions: those with a seat first, then the lines."""
    with connected(settings) as client:
        request = sessions_pb2.ListSessionsRequest(model=model, page_size=PAGE_SIZE)
        pages = all_pages(client, client.scheduler.ListSessions, request)
        sessions = [session for page in pages for session in page.sessions]
    print_list(
        settings.format,
        sessions,
        whole=sessions_pb2.ListSessionsResponse(sessions=sessions),
        name=lambda session: session.id,
        lines=lambda look: sessions_screen(sessions, screen.local_now(), look),
    )


def drain_worker(settings: Settings, word: str, model: str, reason: str) -> None:
    """Drain the worker that the word names, and say what comes of it.

    The word is the id of its job, or the beginning of the id of its start. Errors: MODEL_NOT_FOUND, WORKER_NOT_FOUND,
    INVALID_ARGUMENT for one that several have, and those of the call.
    """
    with connected(settings) as client:
        of, worker = _named(word, _models(client, model))
        request = sessions_pb2.DrainWorkerRequest(
            model=of.name, worker_start=worker.worker_start, job_id=worker.job_id, reason=reason
        )
        answer = client.call_again(client.scheduler.DrainWorker, request)
    print_answer(settings.format, answer, worker.job_id or worker.worker_start, lambda _: [_drained(of, worker)])


def _models(client: Client, only: str) -> list[sessions_pb2.Model]:
    """All models, or the one of this name."""
    models = all_models(client)
    if not only:
        return models
    named = [model for model in models if model.name == only]
    if not named:
        nearest = did_you_mean(only, [model.name for model in models])
        raise GpufleetError(Reason.MODEL_NOT_FOUND, f'there is no model "{only}"{nearest}')
    return named


def _named(word: str, models: Sequence[sessions_pb2.Model]) -> Named:
    """The one worker that the word means."""
    workers = [(model, worker) for model in models for worker in model.workers]
    found = [each for each in workers if each[1].job_id and str(each[1].job_id) == word]
    found = found or [each for each in workers if word and each[1].worker_start.startswith(word)]
    if not found:
        raise GpufleetError(Reason.WORKER_NOT_FOUND, f'there is no worker "{word}" now')
    if len(found) > 1:
        several = ", ".join(worker_in_words(*each) for each in found[:NAMED_MAX])
        several += f" and {len(found) - NAMED_MAX:,} more" if len(found) > NAMED_MAX else ""
        raise wrong(
            f'WORKER: "{word}" is the beginning of {counted(len(found), "worker")}: {several}',
            "Write more of its id, or the id of its job: gpuctl models -o wide",
        )
    return found[0]


def _drained(model: sessions_pb2.Model, worker: sessions_pb2.WorkerInfo) -> str:
    name = worker_in_words(model, worker)
    match worker.state:
        case inference_pb2.WORKER_STATE_DRAINING:
            return f"{name} was draining already"
        case inference_pb2.WORKER_STATE_READY:
            turns = worker.taken_seats
            last = f"{counted(turns, 'turn')} on it {'goes' if turns == 1 else 'go'} on" if turns else "nobody is on it"
            return f"{name} drains; {last}"
        case _:
            return f"{name} is stopped: its model is not loaded"


def close_session(settings: Settings, session: str, reason: str) -> None:
    """End a session, and say so."""
    with connected(settings) as client:
        request = sessions_pb2.CloseSessionRequest(id=session, reason=reason)
        answer = client.call(client.scheduler.CloseSession, request)
    print_answer(settings.format, answer, session, lambda _: [f"session {session} is closed"])
