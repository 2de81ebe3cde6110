"""Which numbers hold for a model, what becomes of its workers' jobs, and when one that ended is started again.

Rules: docs/rules/sessions.md 3.2 and 3.9.
"""

from collections.abc import Iterable
from dataclasses import replace

from gpufleet.jobs.runs import StopCause

from ...state.ids import UserName
from ...state.jobs import Deferred, Held, Job, Queued, Stopping
from ...state.limits import Limits
from ...state.nodes import Node
from ...state.sessions.session import Access, Model, SessionLimits
from ...state.specs import JobSpec, Resources
from ...state.state import State
from ...state.units import MINUTE, SECOND, Instant, Span, after
from ..admission import minimum_memory
from ..fit import could_ever_hold
from ..owners import asked_by

DEATHS_MAX = 5
"""Workers of a model that may end by themselves within DEATHS_SPAN; then the model has failed."""

DEATHS_SPAN = Span(10 * MINUTE)

STEADY_SPAN = Span(10 * SECOND)
"""A worker that had been ready for so long before it ended shows that its model works: earlier ends count no more."""

BACKOFF_MIN = Span(1 * SECOND)
"""The pause before the second worker that is started again; the first is at once, and each later one doubles it."""


def numbers_of(limits: Limits, model: Model) -> SessionLimits:
    """What was named when the model was served, else what the settings say of it, else the defaults.

    A program is for people with a token unless somebody says that it is for everybody.
    """
    known = limits.sessions.get(model.name, SessionLimits(access=Access.OPEN if model.http is None else Access.LOGIN))
    found = replace(known, **{name: getattr(model.limits, name) for name in model.chosen})
    # Each may come from another place, so that together they may make no sense: a warning is always before the end.
    return found if found.idle_warning < found.idle else replace(found, idle_warning=Span(found.idle // 2))


def deaths_since(deaths: Iterable[Instant], at: Instant) -> int:
    """How many of these ends count at an instant."""
    return sum(1 for died in deaths if died >= after(at, -DEATHS_SPAN))


def is_steady(ready_since: Instant | None, ended_at: Instant) -> bool:
    """Whether a worker that ends had been ready for STEADY_SPAN; None: it was not ready, or nobody knows."""
    return ready_since is not None and ended_at >= after(ready_since, STEADY_SPAN)


def may_start_at(deaths: tuple[Instant, ...], at: Instant) -> Instant | None:
    """From when a worker may be started after the newest of these ends; None: at once."""
    count = deaths_since(deaths, at)
    if count < 2:
        return None
    pause = Span(BACKOFF_MIN * 2 ** (min(count, DEATHS_MAX) - 2))
    begins_at = after(deaths[-1], pause)
    return begins_at if begins_at > at else None


def is_leaving(job: Job) -> bool:
    """Whether a worker's job is to go: it drains, or is being stopped."""
    is_stopped = isinstance(job.state, Stopping) and job.state.cause is StopCause.CANCELLED
    return job.drained_at is not None or is_stopped


def waits(job: Job) -> bool:
    """Whether nothing of a worker's job runs or starts."""
    return isinstance(job.state, Queued | Deferred | Held)


def spec_of_worker(state: State, owner: UserName, spec: JobSpec) -> JobSpec:
    """What a worker that is started now asks for. Whose CPUs were not named has one, and on virtual GPUs none.

    A virtual GPU is a place on a machine's CPUs: there are more of them than CPUs, and each is to hold a worker.
    """
    if spec.resources.cpus:
        return spec
    minimum = minimum_memory(state, spec.resources)
    asked = asked_by(state.durable, owner, spec.asked).resources
    is_virtual = _has_virtual_gpus_alone(state.durable.nodes.values(), asked, minimum)
    return spec if is_virtual else replace(spec, resources=replace(spec.resources, cpus=1))


def _has_virtual_gpus_alone(nodes: Iterable[Node], resources: Resources, minimum_bytes: int) -> bool:
    """Whether such a worker gets virtual GPUs wherever it is placed."""
    able = [node for node in nodes if could_ever_hold(node, resources, minimum_bytes) is None]
    return bool(resources.gpus and able) and all(device.is_virtual for node in able for device in node.info.devices)
