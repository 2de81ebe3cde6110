"""Programs of an exclusive group: which one goes to sleep for another one, and when that is looked at again.

A program sleeps while it has no replica. One for which requests wait, and whose replica finds no room, gets that of the
least recently used ones of its group. The choice: policy/sessions/exclusive.py. Rule: docs/rules/sessions.md 3.15.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from ...policy.letting_go import would_be_placed, would_have_room
from ...policy.sessions.exclusive import (
    MEMBERS_MAX,
    Group,
    Holder,
    for_whom,
    group_of,
    holders_of,
    is_awake,
    members_of,
    sleepers,
    waiting_job,
)
from ...policy.sessions.serving import is_leaving, waits
from ...state.ids import JobId, ModelName
from ...state.jobs import Job
from ...state.records import AttemptStopping, JobFinished, WorkerDrained
from ...state.sessions.serving import PlaceGiven, SleepNoted, Slept
from ...state.sessions.session import Model
from ...state.state import State
from ...state.units import MINUTE, SECOND, Instant, Span, after
from ..decision import NOTHING, Decision, refused, together

FOUND_WITHIN = Span(1 * SECOND)
"""A replica that has waited for less may yet find a device at once."""

TURN_KEPT = Span(15 * SECOND)
"""The replica that nobody waits for any more stays in its place for so long: who gave up waiting is told to come again.

Where more programs are busy than have GPUs, one that lost its place each time might never have its turn.
"""

GIVEN_SPAN_MAX = Span(5 * MINUTE)
"""What one leaves to another is kept for that one so long: for as long as it may drain, and some more."""

LOOK_SPAN = Span(5 * SECOND)
"""What a program waits for is looked at again so often: other jobs end, and memory comes free."""


def refusal_of_group(state: State, wanted: Model) -> Decision | None:
    """Why a program cannot be served in its group, or None."""
    group = group_of(wanted)
    if group is None:
        return None
    if wanted.http is None:
        said = "a class has turns and people, and does not go to sleep for another one"
        return refused("INVALID_ARGUMENT", said, field="model.exclusive_group", next_step="leave out --exclusive-group")
    if wanted.min_workers:
        said = f"is {wanted.min_workers}, and a program of an exclusive group has no replica while it sleeps"
        step = "say --min 0, or leave out --exclusive-group"
        return refused("INVALID_ARGUMENT", said, field="model.min_workers", next_step=step)
    others = [each for each in members_of(state.durable, group) if each.name != wanted.name]
    if len(others) >= MEMBERS_MAX:
        said = f"group {wanted.exclusive_group} has {MEMBERS_MAX} programs already"
        return refused("INVALID_ARGUMENT", said, field="model.exclusive_group", next_step="choose another name")
    # One of a higher band would get back at once what it has given.
    other = next((each for each in others if each.band is not wanted.band), None)
    if other is not None:
        said = f"the programs of a group have one band, and {other.name} has {other.band.name.lower()}"
        step = f"say --band {other.band.name.lower()}, or choose another group"
        return refused("INVALID_ARGUMENT", said, field="model.worker.band", next_step=step)
    return None


def with_those_that_wait(state: State, names: Iterable[ModelName]) -> tuple[ModelName, ...]:
    """These models, and the programs that wait for what those of them have that are in their groups."""
    found = dict.fromkeys(names)
    for group in _groups(state, tuple(found)):
        members = members_of(state.durable, group)
        found.update((each.name, None) for each in members if waiting_job(state.durable, state.live.turns, each))
    return tuple(found)


def looks_again(state: State, model: Model, at: Instant) -> Iterator[Instant]:
    """When it is looked again at a program of a group that waits."""
    group, job = group_of(model), waiting_job(state.durable, state.live.turns, model)
    if group is None or job is None:
        return
    yield after(_since(job), FOUND_WITHIN)
    yield after(at, LOOK_SPAN)
    for holder in holders_of(state, members_of(state.durable, group), at):
        yield holder.sleeps_from


def noted_awake(state: State, model: Model) -> Decision:
    """One that is awake again does not sleep for another one."""
    if model.name not in state.live.turns.slept or not is_awake(state.durable, model):
        return NOTHING
    return Decision(notes=(SleepNoted(model=model.name, slept=None),))


def put_to_sleep(
    state: State,
    names: Sequence[ModelName],
    at: Instant,
    decided: Decision,
    ended: Callable[[Model, Job, str], Decision],
) -> Decision:
    """Let those of the groups of these models go for which others wait. `decided` is what happens to them anyway.

    `ended` ends a replica, for a reason: no new requests, and those under way are answered.
    """
    decisions: list[Decision] = []
    changed = {each.job for each in decided.records if isinstance(each, WorkerDrained | AttemptStopping | JobFinished)}
    for group in _groups(state, names):
        decisions.extend(_in_group(state, group, at, changed, ended))
    return together(*decisions) if decisions else NOTHING


def _in_group(
    state: State, group: Group, at: Instant, changed: set[JobId], ended: Callable[[Model, Job, str], Decision]
) -> Iterator[Decision]:
    members = members_of(state.durable, group)
    queued = ((waiting_job(state.durable, state.live.turns, each), each) for each in members)
    waiting = [(job, model) for job, model in queued if job is not None and job.id not in changed]
    waiting = sorted((each for each in waiting if after(_since(each[0]), FOUND_WITHIN) <= at), key=_order)
    if not waiting:
        return
    jobs = [state.durable.jobs[job] for each in members for job in state.durable.services.get(each.name, ())]
    leaving = [job for job in jobs if not waits(job) and (is_leaving(job) or job.id in changed)]
    holders = [each for each in holders_of(state, members, at) if each.job not in changed]
    of_name = {each.name: each for each in members}
    for job, model in waiting:
        given = state.live.turns.given.get(job.id)
        if given is not None and at < given.until:
            continue
        free = [each for each in leaving if not any(each.id in other.by for other in state.live.turns.given.values())]

        def fits_without(going: Sequence[Holder], job: Job = job, free: list[Job] = free) -> bool:
            if not going:
                return would_be_placed(state, job, free, at)
            return would_have_room(state, job, [state.durable.jobs[each.job] for each in going], at)

        found = sleepers(holders, fits_without, at)
        count = state.live.turns.requests_of(model.name).waiting
        for holder in found:
            yield _gives(state, of_name[holder.model], holder, Slept(at=at, gave_to=model.name, waiting=count), ended)
            holders.remove(holder)
        if found:
            going = tuple(each.job for each in found)
            attempts = (state.durable.jobs[each].attempt for each in going)
            nodes = frozenset(rank.placement.node for each in attempts if each is not None for rank in each.ranks)
            until = after(at, GIVEN_SPAN_MAX)
            yield Decision(notes=(PlaceGiven(to=job.id, by=going, nodes=nodes, until=until),))


def _gives(
    state: State, giver: Model, holder: Holder, slept: Slept, ended: Callable[[Model, Job, str], Decision]
) -> Decision:
    job = state.durable.jobs[holder.job]
    why = f"{'asleep' if holder.is_last else 'one replica fewer'}: {for_whom(giver, slept)}"
    notes = (SleepNoted(model=giver.name, slept=slept),) if holder.is_last else ()
    return together(ended(giver, job, why), Decision(notes=notes))


def _groups(state: State, names: Iterable[ModelName]) -> tuple[Group, ...]:
    models = (state.durable.models.get(name) for name in names)
    groups = (None if each is None else group_of(each) for each in models)
    return tuple(dict.fromkeys(each for each in groups if each is not None))


def _since(job: Job) -> Instant:
    return job.waits_since or job.age_since


def _order(waiting: tuple[Job, Model]) -> tuple[Instant, JobId]:
    return _since(waiting[0]), waiting[0].id
