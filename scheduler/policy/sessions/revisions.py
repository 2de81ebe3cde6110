"""What a model's workers are started with, revision by revision, and how a newer one takes over from an older one.

Rule: docs/rules/sessions.md 3.14.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ...state.ids import JobId
from ...state.jobs import Job
from ...state.sessions.session import Model, Revision, Update
from ...state.units import SECOND, Instant, Span, after

AT_A_TIME = 1
"""Workers of the newest revision that are started before one of them is ready: so many more there are than wanted."""

IN_PLACE_AFTER = Span(30 * SECOND)
"""An additional worker that has waited so long for a device gets its predecessor's, where another one is ready."""

IN_PLACE_ASKED_AFTER = Span(1 * SECOND)
"""The same where that was asked for, whether or not another one is ready."""


def revision_of(model: Model) -> Revision:
    """What new workers of a model are started with, as it is served now."""
    return Revision(
        number=model.revision,
        entry_point=model.entry_point,
        arguments=model.arguments,
        worker=model.worker,
        band=model.band,
        http=model.http,
        has_been_ready=model.has_been_ready,
        has_failed=model.failure is not None or (model.update is not None and model.update.failure is not None),
        deaths=model.deaths,
    )


def started_revision(model: Model) -> Revision:
    """What a worker that is started now is started with: the newest revision, or, where that has failed, the former."""
    has_failed = model.update is not None and model.update.failure is not None
    return model.former if has_failed and model.former is not None else revision_of(model)


def fallback_of(model: Model, job: Job) -> Revision | None:
    """The revision that stays where this worker's is given up; None where there is none, or it has failed itself."""
    is_tried = model.update is not None and model.update.failure is None and job.revision == model.revision
    former = model.former if is_tried else None
    return None if former is None or former.has_failed else former


def former_again(model: Model) -> Model | None:
    """A model as it was served before, but for its numbers, which stay; None for one that was never another."""
    former = model.former
    if former is None:
        return None
    http = former.http
    if http is not None and model.http is not None:
        now = model.http
        target = min(now.target_concurrency, http.concurrency)
        kept = replace(http, target_concurrency=target, target_wait=now.target_wait, idle=now.idle)
        http = replace(kept, cpu_model=now.cpu_model, gpu_mode=now.gpu_mode)
    return replace(
        model,
        entry_point=former.entry_point,
        arguments=former.arguments,
        worker=former.worker,
        band=former.band,
        http=http,
    )


def revised(known: Model | None, wanted: Model, at: Instant, *, is_in_place: bool) -> Model:
    """The model with its revision, where it is to be as `wanted`: the same one, one that it was before, or the next.

    What was served before an update that is not done stays the former revision. What has failed is tried anew.
    """
    if known is None or known.worker is None:
        number = (0 if known is None else known.revisions) + 1
        return replace(wanted, revision=number, revisions=number) if wanted.worker is not None else wanted
    same = replace(
        wanted,
        revision=known.revision,
        revisions=known.revisions,
        former=known.former,
        update=None if known.update is None else replace(known.update, failure=None),
        has_been_ready=known.has_been_ready,
        deaths=() if _has_failed(known) else known.deaths,
        failure=None,
    )
    if known.worker == wanted.worker:
        return _in_place(same) if is_in_place else same
    left, former = revision_of(known), known.former
    base = left if known.update is None or former is None else former
    update = Update(began_at=at, is_in_place=is_in_place)
    changed = replace(same, former=base, update=update, has_been_ready=False, deaths=())
    if former is not None and former.worker == wanted.worker:
        return replace(changed, revision=former.number, former=left, has_been_ready=former.has_been_ready)
    number = known.revisions + 1
    return replace(changed, revision=number, revisions=number)


def _has_failed(model: Model) -> bool:
    return model.failure is not None or (model.update is not None and model.update.failure is not None)


def _in_place(model: Model) -> Model:
    return model if model.update is None else replace(model, update=replace(model.update, is_in_place=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """A worker that is to stay, as an update sees it.

    `is_new`: of the revision that is started now. `waits`: nothing of it runs; `queued_since` is set where it waits for
    a device. `replaces` is the worker that goes when this one is ready, `people` how many have a turn on it.
    """

    job: JobId
    is_new: bool
    is_ready: bool
    waits: bool
    gpu_milli: int
    queued_since: Instant | None = None
    replaces: JobId | None = None
    people: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """What an update does now: which workers go and why, and which of those that stay are additional.

    An additional worker is beside one that stays until it is ready. `look_at` is when time alone changes something.
    """

    ends: dict[JobId, str] = field(default_factory=dict)
    additional: frozenset[JobId] = frozenset()
    look_at: Instant | None = None


def hand_over(replicas: Sequence[Replica], at: Instant, *, is_in_place: bool, is_leaving: bool) -> Handover:
    """How the revision that is started now takes over from the others.

    A worker from before goes when its successor is ready, so that never fewer are ready. Where no device is free for
    both, it goes before that if another one is ready, or `is_in_place`; `is_leaving`: one drains, whose device is free
    soon.
    """
    if all(each.is_new for each in replicas):
        return Handover()
    ends = dict(_ended(replicas))
    left = [each for each in replicas if each.job not in ends]
    look_at: Instant | None = None
    for each in _additional(left):
        predecessor = next(other for other in left if other.job == each.replaces)
        due = _in_place_at(each, predecessor, left, is_in_place=is_in_place)
        if due is None or (is_leaving and not is_in_place):
            continue
        if due <= at:
            ends[predecessor.job] = "its successor waits for its device"
        else:
            look_at = due if look_at is None else min(due, look_at)
    left = [each for each in left if each.job not in ends]
    return Handover(ends=ends, additional=frozenset(each.job for each in _additional(left)), look_at=look_at)


def next_replaced(replicas: Sequence[Replica], wanted: int) -> JobId | None:
    """The worker from before that gets a successor now: one after another, the least missed first.

    `wanted` new ones are enough: what is there beyond goes as any worker that nobody needs.
    """
    new = [each for each in replicas if each.is_new]
    is_one_coming = sum(1 for each in new if not each.is_ready) >= AT_A_TIME
    old = [] if is_one_coming or len(new) >= wanted else [each for each in replicas if not each.is_new]
    first = min(old, key=lambda each: (each.is_ready, each.people, each.job), default=None)
    return None if first is None else first.job


def _additional(replicas: Sequence[Replica]) -> list[Replica]:
    old = {each.job for each in replicas if not each.is_new}
    return [each for each in replicas if each.is_new and each.replaces in old]


def _ended(replicas: Sequence[Replica]) -> Iterable[tuple[JobId, str]]:
    """Those from before that wait, that were to replace one that stays, or whose successor is ready."""
    there = {each.job: each for each in replicas}
    for each in replicas:
        predecessor = None if each.replaces is None else there.get(each.replaces)
        if not each.is_new and each.waits:
            yield each.job, "another revision is started in its place"
        elif predecessor is None:
            continue
        elif each.is_new and each.is_ready and not predecessor.is_new:
            yield predecessor.job, "its successor is ready"
        elif not each.is_new and (not each.is_ready or (predecessor.is_new and predecessor.is_ready)):
            yield each.job, "the worker that it was to replace stays"


def _in_place_at(
    successor: Replica, predecessor: Replica, replicas: Sequence[Replica], *, is_in_place: bool
) -> Instant | None:
    """When a worker goes for its successor, which waits for a device; None: never."""
    if successor.queued_since is None:
        return None
    if is_in_place:
        return after(successor.queued_since, IN_PLACE_ASKED_AFTER)
    is_enough = successor.gpu_milli <= predecessor.gpu_milli
    others = any(each.is_ready for each in replicas if each.job != predecessor.job)
    is_served = others or not predecessor.is_ready
    return after(successor.queued_since, IN_PLACE_AFTER) if is_enough and is_served else None
