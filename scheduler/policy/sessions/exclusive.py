"""Programs that share GPUs by demand: which one of an exclusive group goes to sleep for another one that is asked for.

A group is one owner's: nobody's program sleeps for somebody else's. Whether what is freed is enough, and who gets it,
says the pass (letting_go.py). Rule: docs/rules/sessions.md 3.15.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...state.durable import Durable
from ...state.ids import JobId, ModelName, UserName
from ...state.jobs import Job, Queued, Running
from ...state.sessions.serving import Requests, Serving, Slept
from ...state.sessions.session import Model
from ...state.sessions.turns import Turns
from ...state.state import State
from ...state.units import MINUTE, Instant, Span, after
from ..letting_go import measured_memory
from .serving import is_leaving, waits

MEMBERS_MAX = 64
"""Programs of one group."""

LOADING_SPAN_MAX = Span(10 * MINUTE)
"""A program that has not become ready is left to load for so long: who is stopped meanwhile has answered nobody."""

SPARED_MAX = 8
"""Of so many that were chosen it is seen whether they can stay after all: each costs a look at the whole queue."""

Group = tuple[UserName, str]
"""Whose group it is, and its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A replica of a program of a group, and what it holds may be another one's.

    From `sleeps_from` on it may go. `used_at` is when its program had a request last, None while it has some;
    `awake_since` since when the program is ready. `is_last`: without it the program sleeps. `memory_bytes` of GPUs its
    program was measured to use.
    """

    model: ModelName
    job: JobId
    sleeps_from: Instant
    used_at: Instant | None
    awake_since: Instant
    is_last: bool = True
    memory_bytes: int = 0


def sleepers(
    holders: Iterable[Holder], fits_without: Callable[[Sequence[Holder]], bool], at: Instant
) -> tuple[Holder, ...]:
    """Those that go so that one that waits is placed, as few as will do; nobody where that is so anyway, or never.

    The least recently used first. Then those with requests: first what is not the last replica, then who has been
    awake for the longest. Among equals the one of which the least memory must be loaded again.
    """
    if fits_without(()):
        return ()
    able = sorted((each for each in holders if each.sleeps_from <= at), key=_order)
    # The more go the more fits, so that the least number of the first ones is found by halving.
    count = bisect_left(range(1, len(able) + 1), True, key=lambda number: fits_without(able[:number])) + 1
    chosen = able[:count]
    if count > len(able) or not fits_without(chosen):
        return ()
    for each in list(reversed(chosen[:-1]))[:SPARED_MAX]:
        others = [other for other in chosen if other is not each]
        # The last replica of a program does not go where another one of it stays.
        is_bound = any(other.model == each.model and other.is_last for other in others)
        if not is_bound and fits_without(others):
            chosen = others
    return tuple(chosen)


def _order(holder: Holder) -> tuple[bool, bool, Instant, int, str, bool, int]:
    is_busy = holder.used_at is None
    since = holder.awake_since if holder.used_at is None else holder.used_at
    return is_busy, is_busy and holder.is_last, since, holder.memory_bytes, holder.model, holder.is_last, -holder.job


# --- who is in a group, and what they do


def group_of(model: Model) -> Group | None:
    """The group that a program belongs to."""
    return (model.owner, model.exclusive_group) if model.exclusive_group else None


def members_of(durable: Durable, group: Group) -> list[Model]:
    """The programs of a group, by name."""
    return sorted((each for each in durable.models.values() if group_of(each) == group), key=lambda each: each.name)


def waiting_job(durable: Durable, turns: Turns, model: Model) -> Job | None:
    """The replica that a program without any other waits for, as somebody waits for the program; else None."""
    staying = [job for job in _jobs(durable, model) if not is_leaving(job)]
    if model.failure is not None or not turns.requests_of(model.name).waiting or not all(map(waits, staying)):
        return None
    return next((job for job in staying if isinstance(job.state, Queued)), None)


def holders_of(state: State, members: Iterable[Model], at: Instant) -> Iterator[Holder]:
    """The replicas of a group that hold something and are to stay."""
    for model in members:
        active = [job for job in _jobs(state.durable, model) if not is_leaving(job) and not waits(job)]
        serving = state.live.turns.serving.get(model.name, Serving())
        is_busy = state.live.turns.requests_of(model.name) != Requests()
        memory_bytes = sum(measured_memory(state, job) for job in active)
        for job in active:
            yield Holder(
                model=model.name,
                job=job.id,
                sleeps_from=_sleeps_from(job, serving, state.limits.least_awake, at),
                used_at=None if is_busy else serving.quiet_since or at,
                awake_since=serving.awake_since or at,
                # The youngest goes first.
                is_last=job is active[0],
                memory_bytes=memory_bytes,
            )


def _sleeps_from(job: Job, serving: Serving, least_awake: Span, at: Instant) -> Instant:
    """From when a replica may go. What is known only while the scheduler runs counts anew after each start of it."""
    if serving.awake_since is None:
        return after(serving.held_since or at, LOADING_SPAN_MAX)
    started_at = job.state.started_at if isinstance(job.state, Running) else at
    return after(max(serving.awake_since, started_at), least_awake)


def _jobs(durable: Durable, model: Model) -> list[Job]:
    return [durable.jobs[job_id] for job_id in sorted(durable.services.get(model.name, ()))]


# --- what people are told


HOLDING_SHOWN = 4
"""Programs that are named to who waits for what they have."""


def is_awake(durable: Durable, model: Model) -> bool:
    """Whether a program has a replica that runs or starts, and is to stay."""
    return any(not is_leaving(job) and not waits(job) for job in _jobs(durable, model))


def why_asleep(turns: Turns, model: Model) -> str:
    """For whom a program that is not awake sleeps, in a clause; empty where nobody asked for it."""
    slept = turns.slept.get(model.name)
    return "" if slept is None else for_whom(model, slept)


def for_whom(model: Model, slept: Slept) -> str:
    """To whom a program gave what it had, in a clause."""
    waited = "1 request" if slept.waiting == 1 else f"{slept.waiting:,} requests"
    return f"gave its {_held_by(model)} to {slept.gave_to}, which {waited} waited for"


def what_it_waits_for(durable: Durable, model: Model) -> str:
    """Which programs of its group have what a program waits for, in a clause; empty where none is awake."""
    group = group_of(model)
    others = [] if group is None else [each for each in members_of(durable, group) if each.name != model.name]
    holding = [each.name for each in others if any(not waits(job) for job in _jobs(durable, each))]
    if not holding:
        return ""
    if len(holding) == 1:
        return f"waits for the {_held_by(model)} of {holding[0]}"
    shown = holding[:HOLDING_SHOWN]
    more = f", or of {len(holding) - len(shown)} more" if len(holding) > len(shown) else ""
    return f"waits for a {_held_by(model)} of {', '.join(shown[:-1])} or {shown[-1]}{more}"


def _held_by(model: Model) -> str:
    return "GPU" if model.worker is not None and model.worker.resources.gpus else "place"
