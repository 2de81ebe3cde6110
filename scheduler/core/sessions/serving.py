"""A model is served, changed, or rolled back, and a worker of it is drained by a person.

How many workers there are then: workers.py. Rules: docs/rules/sessions.md 3.
"""

from dataclasses import replace
from typing import Any

from ...policy.admission import refusal
from ...policy.sessions.revisions import former_again, revised
from ...policy.sessions.serving import is_leaving, numbers_of
from ...state.ids import ModelName
from ...state.sessions.commands import DrainWorker
from ...state.sessions.events import ServeRequested, WorkerDrainRequested
from ...state.sessions.records import ModelServed
from ...state.sessions.session import Access, Model
from ...state.state import State
from ...state.units import Instant
from ..decision import NOTHING, Decision, refused, together
from .exclusive import refusal_of_group
from .workers import Workers, end_job


def on_serve(state: State, event: ServeRequested) -> Decision:
    """Serve a model, or change it. The same again changes nothing, unless it has failed: then it is tried anew.

    Numbers and how many workers there are to be hold at once. What a worker is started with makes another revision,
    whose workers take the places of those that there are.
    """
    wanted, known = event.model, state.durable.models.get(event.model.name)
    if event.rolls_back:
        before = None if known is None else former_again(known)
        if before is None:
            return _never_another(event)
        wanted = before
    elif known is not None and event.keeps_workers:
        is_access = (
            set(wanted.chosen) <= {"access", "pass_phrase_hash"} and wanted.limits.access is not Access.PASS_PHRASE
        )
        if known.http is not None and not is_access:
            said = "a program has no line, no turns and no pass phrase"
            return refused(
                "INVALID_ARGUMENT", said, field="model.limits", next_step="say who may use it: --access open, or login"
            )
        kept = replace(known, limits=replace(known.limits, **_named(wanted)))
        wanted = replace(kept, chosen=tuple(dict.fromkeys((*known.chosen, *wanted.chosen))))
    if wanted.worker is not None and not event.keeps_workers:
        why = refusal(state, wanted.owner, wanted.worker.asked, "model.worker")
        if why is not None:
            return Decision(reply=why)
    if known is not None and known.worker is not None and (known.http is None) != (wanted.http is None):
        kind = "class" if known.http is None else "program"
        step = f"stop it first, or serve this one by another name: gpuctl serve {known.name} --stop"
        return refused("INVALID_ARGUMENT", f"{known.name} is served as a {kind}", field="model.http", next_step=step)
    if known is not None and event.keeps_workers:
        if event.is_in_place and known.update is None:
            step = f"see it with: gpuctl models --model {known.name}"
            return refused("INVALID_ARGUMENT", f"{known.name} is not updated now", field="in_place", next_step=step)
        if event.is_in_place and known.update is not None:
            wanted = replace(wanted, update=replace(known.update, is_in_place=True))
    else:
        wanted = revised(known, wanted, event.at, is_in_place=event.is_in_place)
    why_not = refusal_of_group(state, wanted)
    if why_not is not None:
        return why_not
    wanted = replace(wanted, limits=numbers_of(state.limits, wanted))
    if "access" in wanted.chosen and wanted.limits.access is Access.PASS_PHRASE and not wanted.limits.pass_phrase_hash:
        return refused(
            "INVALID_ARGUMENT",
            "is empty, and nobody could join without one",
            field="model.limits.pass_phrase_hash",
            next_step="give the pass phrase in a file: --pass-phrase-file FILE",
        )
    return NOTHING if wanted == known else Decision(records=(ModelServed(at=event.at, model=wanted),))


def _never_another(event: ServeRequested) -> Decision:
    name = event.model.name
    step = f"see what is served with: gpuctl models --model {name} -o wide"
    return refused("INVALID_ARGUMENT", f"{name} was never served otherwise", field="rollback", next_step=step)


def _named(model: Model) -> dict[str, Any]:
    return {name: getattr(model.limits, name) for name in model.chosen}


def renumbered(state: State, at: Instant) -> Decision:
    """Models whose numbers are others by the settings of now."""
    changed = (
        replace(model, limits=numbers)
        for model in state.durable.models.values()
        if (numbers := numbers_of(state.limits, model)) != model.limits
    )
    return Decision(records=tuple(ModelServed(at=at, model=model) for model in changed))


def end_of_workers(state: State, at: Instant, model: ModelName, message: str) -> Decision:
    """Every worker of a model is ended."""
    jobs = [state.durable.jobs[job_id] for job_id in state.durable.services.get(model, ())]
    return together(*(end_job(job, at, message) for job in jobs))


def on_drain_worker(state: State, event: WorkerDrainRequested) -> Decision:
    """Let a worker end after its last turn. One that is going already goes on; one without turns is stopped."""
    model = state.durable.models.get(event.model)
    if model is None:
        return refused("MODEL_NOT_FOUND", f"no model is called {event.model!r}", field="model")
    of_model = {worker.id: worker for worker in state.live.turns.workers_of(event.model)}
    live = next((each for each in of_model.values() if event.job is not None and each.job == event.job), None)
    if event.worker is not None:
        live = of_model.get(event.worker)
        if live is None or (event.job is not None and live.job != event.job):
            return _no_such_worker(event, "worker_start")
    job_id = event.job if live is None else live.job
    if job_id is None:
        assert live is not None  # without a job it was named by its start
        return Decision(session_commands=(DrainWorker(worker=live.id),))
    if job_id not in state.durable.services.get(event.model, ()):
        return _no_such_worker(event, "job_id")
    job = state.durable.jobs[job_id]
    if is_leaving(job):
        return NOTHING
    why = f"{event.by} drained it" + (f": {event.reason}" if event.reason else "")
    return Workers(state, model, event.at, state.durable.counters.next_job).worker_ended(job, why)


def _no_such_worker(event: WorkerDrainRequested, field: str) -> Decision:
    return refused(
        "WORKER_NOT_FOUND",
        f"model {event.model} has no such worker now",
        field=field,
        next_step=f"see its workers with: gpuctl models --model {event.model} -o wide",
    )
