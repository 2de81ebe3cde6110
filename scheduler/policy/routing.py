"""Whether a job is one for a GPU, by the mode that it asks for and by what it works on; and when one falls back.

A job that prefers GPUs does without them at once where no node is up that could give them, though one is that could run
it without, and where the line for GPUs is long before it. What it waits for at most is a deadline of its own. Where
GPUs are free for it and something else is short, it keeps asking for them unless it could start without.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from ..state.durable import Durable
from ..state.gpu_choice import without_gpus
from ..state.groups.group import GroupId
from ..state.ids import JobId, UserName
from ..state.jobs import Divided, Job
from ..state.limits import GpuRouting
from ..state.nodes import Node
from ..state.replies import Refused
from ..state.specs import Asked, GpuChoice, GpuMode, JobSpec, Resources
from ..state.state import State
from ..state.units import Instant
from .admission import minimum_memory
from .gangs import could_ever, fit_together, ranks_of
from .order.band import GivenUp
from .order.queue import queue_order
from .owners import as_its_users, asked_by
from .placement_pass import PlacementPass
from .reservation import ends_if_placed

FALLBACKS_PER_PASS = 256
"""So many jobs fall back at once; the next pass goes on."""

CLASSES_KEPT = 1_000
"""Classes of request of which it is remembered whether nodes that are up could hold them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """Why a job falls back: a stable name, and a clause for people."""

    reason: str
    message: str


def gains_without_gpus(trial: PlacementPass, job: Job) -> bool:
    """Whether a job that prefers GPUs gains by doing without: GPUs are what it lacks, or it could start without them.

    Where GPUs are free for it and CPUs or memory are short, it would give up its GPUs for nothing.
    """
    job = as_its_users(trial.state.durable, job)
    resources = job.spec.resources
    on_gpus_alone = replace(resources, cpus=0, memory_bytes=0)
    return not _fits_now(trial, job, on_gpus_alone) or _fits_now(trial, job, without_gpus(resources))


def _fits_now(trial: PlacementPass, job: Job, resources: Resources) -> bool:
    job = replace(job, spec=replace(job.spec, resources=resources))
    minimum, ends_at = minimum_memory(trial.state, resources), ends_if_placed(job, trial.at)
    return fit_together(trial.views.values(), trial.ranks_of(job), minimum, job.id, ends_at)


NO_GPU_NODE = Why(reason="NO_GPU_NODE", message="no node is up that could give it the GPUs that it prefers")
GPU_WAIT_OVER = Why(reason="GPU_WAIT_OVER", message="it has waited for its GPUs for as long as it may")


def gpu_queue_long(limit: int) -> Why:
    """The reason of a job before which too many wait for GPUs."""
    jobs = f"more than {limit:,} jobs wait" if limit > 1 else "2 jobs or more wait" if limit else "a job waits"
    return Why(reason="GPU_QUEUE_LONG", message=f"{jobs} for GPUs before it")


def routed(spec: JobSpec, routing: GpuRouting, field: str) -> JobSpec | Refused:
    """A spec as it is to be kept: AUTO is decided, and what is never to have GPUs asks for none.

    What was decided for an earlier job, which this one is submitted like, is decided anew. `field` is its path.
    """
    choice = spec.gpu_choice
    if choice is None:
        return spec
    asked = spec.resources_asked
    mode, why = choice.asked, ""
    if mode is GpuMode.AUTO:
        if not choice.content_type:
            return Refused(
                reason="INVALID_ARGUMENT",
                message="AUTO decides by the content type, and none is given",
                field=f"{field}.gpu_mode",
                next_step="add --content-type audio/mpeg (what the job works on), or say --gpu-mode preferred",
            )
        pattern, mode = pattern_for(routing, choice.content_type)
        why = f"{choice.content_type} matches {pattern!r} of [routing] content_types"
        if mode is not GpuMode.NEVER and not asked.gpus:
            asked = replace(asked, gpus=max(1, asked.node_count))
    if mode is GpuMode.PREFERRED and not asked.gpus:
        return Refused(
            reason="INVALID_ARGUMENT",
            message="it prefers GPUs and asks for none",
            field=f"{field}.gpu_mode",
            next_step="add --gpus 1, or leave out --gpu-mode",
        )
    decided = GpuChoice(
        asked=choice.asked,
        mode=mode,
        content_type=choice.content_type,
        why=why,
        wanted=asked if asked.gpus else None,
        wait=routing.gpu_wait if mode is GpuMode.PREFERRED else None,
        cpu_argv=choice.cpu_argv,
    )
    return replace(spec, resources=without_gpus(asked) if mode is GpuMode.NEVER else asked, gpu_choice=decided)


def pattern_for(routing: GpuRouting, content_type: str) -> tuple[str, GpuMode]:
    """The longest pattern that matches a content type, and its mode."""
    longest = longest_pattern(routing.modes, content_type)
    return ("*", GpuMode.NEVER) if longest is None else (longest, routing.modes[longest])


def longest_pattern(patterns: Iterable[str], content_type: str) -> str | None:
    """The longest pattern that matches a content type, whose parameters say nothing; None where none does."""
    plain = content_type.partition(";")[0].strip().lower()
    matching = [each for each in patterns if each == plain or (each[-1:] == "*" and plain.startswith(each[:-1]))]
    # The star counts for nothing: of two that are as long one names the type itself.
    return max(matching, key=lambda each: (len(each.removesuffix("*")), each == plain), default=None)


def why_at_once(state: State, job: Job, trial: PlacementPass, at: Instant) -> Why | None:
    """Why a job that is not submitted yet would fall back at once, by a pass up to its turn; None where it waits."""
    job = as_its_users(state.durable, job)
    if not job.spec.prefers_gpus:
        return None
    if lacks_gpu_nodes(state, job.spec.asked):
        return NO_GPU_NODE
    limit = state.limits.routing.gpu_queue_limit
    if not gains_without_gpus(trial, job):
        return None
    ahead = (each for each in queue_order(state, at, _NotInLine(trial), job) if each.id not in trial.placed)
    return gpu_queue_long(limit) if len(list(islice(ahead, limit + 1))) > limit else None


def falling_back(state: State, trial: PlacementPass, at: Instant) -> Iterator[tuple[Job, Why]]:
    """Who does without GPUs now, of those that wait behind a pass that has ended; a few at a time.

    Items of an array fall back each by itself.
    """
    if state.durable.preferring:
        yield from islice(_falling_back(state, trial, at), FALLBACKS_PER_PASS)


def _falling_back(state: State, trial: PlacementPass, at: Instant) -> Iterator[tuple[Job, Why]]:
    durable = state.durable
    preferring = _classes(durable)
    lacking = [asked for asked in preferring if lacks_gpu_nodes(state, asked)]
    for asked in lacking:
        yield from ((job, NO_GPU_NODE) for job in _waiting(durable, preferring[asked], trial.placed))
    if len(lacking) == len(preferring):
        return
    limit = state.limits.routing.gpu_queue_limit
    if durable.lines.count <= limit:
        return  # so that a limit which nobody reaches costs nothing, however long the queue is
    before: set[JobId] = set()
    for job in queue_order(state, at, _NotInLine(trial, lacking)):
        if job.id in trial.placed:
            continue
        if len(before) > limit:
            break
        before.add(job.id)
    else:
        return
    why = gpu_queue_long(limit)
    for asked, of_class in preferring.items():
        if asked not in lacking and gains_without_gpus(trial, durable.jobs[next(iter(of_class))]):
            yield from ((job, why) for job in _waiting(durable, of_class, trial.placed | before))


def _classes(durable: Durable) -> Mapping[Asked, Collection[JobId]]:
    """The jobs that prefer GPUs by their class of request; those of who owns nodes are of other classes."""
    if not durable.owners():
        return durable.preferring
    found: dict[Asked, list[JobId]] = {}
    for asked, of_class in durable.preferring.items():
        for job_id in of_class:
            found.setdefault(asked_by(durable, durable.jobs[job_id].user, asked), []).append(job_id)
    return found


def _waiting(durable: Durable, of_class: Collection[JobId], but: Collection[JobId]) -> Iterator[Job]:
    """Jobs of these that wait and prefer GPUs, each item of an array by itself, but for some."""
    for job_id in of_class:
        job = durable.jobs[job_id]
        if not isinstance(job.state, Divided):
            if job_id not in but:
                yield job
            continue
        alike = durable.items_alike(job_id)
        assert alike is not None
        yield from (durable.jobs[item] for item in alike.ids() if item not in but)


class _NotInLine(Collection[Asked | tuple[UserName, Asked] | tuple[GroupId, Asked] | JobId]):
    """What does not stand in the line for GPUs: jobs without any, and those that a cap keeps from having them."""

    def __init__(self, trial: PlacementPass, falling: Collection[Asked] = ()) -> None:
        self._given_up: GivenUp = trial.given_up
        self._falling = falling

    def __contains__(self, each: object) -> bool:
        if isinstance(each, Asked):
            return not each.resources.gpus or each in self._falling
        return each in self._given_up

    def __iter__(self) -> Iterator[Asked | tuple[UserName, Asked] | tuple[GroupId, Asked] | JobId]:
        return iter(self._given_up)

    def __len__(self) -> int:
        return 1  # never empty: what asks for no GPU is in it


def lacks_gpu_nodes(state: State, asked: Asked) -> bool:
    """Whether no node is up that could hold such a request, though one is that could without the GPUs."""
    known, key = state.durable.lacking_gpu_nodes, (asked, state.limits.default_min_memory_bytes)
    lacks = known.get(key)
    if lacks is None:
        if len(known) >= CLASSES_KEPT:
            known.clear()
        up = [_well(node) for node in state.durable.nodes.values() if not node.is_lost and not node.is_draining]
        bare = without_gpus(asked.resources)
        lacks = known[key] = not _could_hold(state, up, asked.resources) and _could_hold(state, up, bare)
    return lacks


def _could_hold(state: State, nodes: list[Node], resources: Resources) -> bool:
    minimum = minimum_memory(state, resources)
    return could_ever(nodes, ranks_of(nodes, resources, minimum), minimum)


def _well(node: Node) -> Node:
    """A node with those of its devices that are well."""
    if not node.unhealthy:
        return node
    sick = {device.uuid for device in node.unhealthy}
    devices = tuple(device for device in node.info.devices if device.uuid not in sick)
    return replace(node, info=replace(node.info, devices=devices))
