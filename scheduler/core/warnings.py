"""Which warnings an attempt is given: pure functions of what is known of it, of its devices and of the time.

Each is given once an attempt and device: what was told stands with the job, so that a scheduler that starts again
tells it no second time.
"""

from collections.abc import Iterator

from ..state.ids import NodeName
from ..state.jobs import Job, Running
from ..state.nodes import UnhealthyDevice
from ..state.records import JobWarned
from ..state.state import State
from ..state.units import HOUR, MINUTE, SECOND, Instant, Span, after
from ..state.warnings import JobWarning, WarningKind, has_room, is_told, mark_of, time_limit_marks
from .live_ranks import jobs_on


def of_trouble(state: State, at: Instant, node: NodeName, trouble: UnhealthyDevice) -> Iterator[JobWarned]:
    """Each job that holds a device, whole or in part, is told of its trouble."""
    for job in jobs_on(state, node):
        ranks = job.attempt.ranks if job.attempt is not None else ()
        placed = (each for rank in ranks if rank.placement.node == node for each in rank.placement.devices)
        for device in placed:
            if device.uuid == trouble.uuid:
                because = f": {trouble.reason}" if trouble.reason else ""
                sentence = f"GPU {device.index} of node {node}, which it holds, is unhealthy{because}."
                yield from _warned(at, job, WarningKind.DEVICE_TROUBLE, (f"{node}:{device.index}",), sentence)


def of_time_limit(at: Instant, job: Job, running: Running) -> JobWarned:
    """A job whose `wakes_at` has come nears its time limit. What could not be told in time is told as one."""
    limit = job.spec.time_limit
    assert limit is not None, f"job {job.id} has no time limit"
    marks = time_limit_marks(job.warnings, running.started_at, limit)
    percent = max(percent for due_at, percent in marks if due_at <= at)
    left = Span(max(0, after(running.started_at, limit) - at))
    sentence = f"{percent} % of its time limit of {rough_span(limit)} is over: it is stopped in {rough_span(left)}."
    if not left:
        sentence = f"Its time limit of {rough_span(limit)} is over."  # nobody was there to say so in time
    kind, about = mark_of(percent)
    (warned,) = _warned(at, job, kind, (about,), sentence)
    return warned


def _warned(at: Instant, job: Job, kind: WarningKind, about: tuple[str, ...], sentence: str) -> Iterator[JobWarned]:
    """The warning, unless it was given before or there is no room for more."""
    attempt = job.attempt
    if attempt is None or not has_room(job.warnings, kind) or all(is_told(job.warnings, kind, each) for each in about):
        return
    warning = JobWarning(kind=kind, at=at, attempt=attempt.number, sentence=sentence, about=about)
    yield JobWarned(at=at, job=job.id, warning=warning)


def rough_span(span: int) -> str:
    """A span in two units at most: 2h 5m, 40s; 250ms below a second."""
    if span < SECOND:
        return f"{span // 1000}ms"
    parts: list[str] = []
    for unit, size in (("d", 24 * HOUR), ("h", HOUR), ("m", MINUTE), ("s", SECOND)):
        count, span = divmod(span, size)
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
    return " ".join(part for part in parts[:2] if part)
