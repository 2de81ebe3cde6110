"""Which warnings an attempt is given: pure functions of what is known of it, of its devices and of the time.

Each is given once an attempt and device: what was told stands with the job, so that a scheduler that starts again
tells it no second time.
"""

from collections.abc import Iterable, Iterator, Sequence

from ..state.attempts import EndedAttempt, PlacedDevice, Placement
from ..state.commands import TellWarning
from ..state.events import NodeBeat, OutputDamaged
from ..state.ids import JobId, NodeName
from ..state.jobs import Job, Running, rank_keys
from ..state.limits import WarningLimits
from ..state.nodes import UnhealthyDevice
from ..state.records import JobWarned
from ..state.state import State
from ..state.units import GB, HOUR, MB, MINUTE, SECOND, Instant, Span, after
from ..state.warnings import (
    DAMAGES_KEPT,
    IDLE_PERCENT,
    MEMORY_SPAN_LEAST,
    SLOWED_BY,
    JobWarning,
    MemoryPeak,
    WarningKind,
    has_room,
    is_told,
    mark_of,
    time_limit_marks,
)
from .live_ranks import jobs_on, live_attempt


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


def of_time_limits(state: State, at: Instant) -> Iterator[JobWarned]:
    """Attempts that near their time limits. What could not be told in time is told as one."""
    for job_id in state.live.time_limits.due:
        job, began_at = state.durable.jobs.get(job_id), state.live.time_limits.began_at.get(job_id)
        if job is None or began_at is None or not isinstance(job.state, Running) or job.spec.time_limit is None:
            continue
        limit = job.spec.time_limit
        over = [percent for due_at, percent in time_limit_marks(job.warnings, began_at, limit) if due_at <= at]
        kind, about = mark_of(max(over, default=0))
        if over and has_room(job.warnings, kind):  # a limit that was raised often is told of until it is full
            yield from _warned(at, job, kind, (about,), _time_limit_sentence(max(over), limit, began_at, at))


def _time_limit_sentence(percent: int, limit: Span, began_at: Instant, at: Instant) -> str:
    left = after(began_at, limit) - at
    if left <= 0:  # nobody was there to say so in time
        return f"Its time limit of {rough_span(limit)} is over."
    return f"{percent} % of its time limit of {rough_span(limit)} is over: it is stopped in {rough_span(left)}."


def of_beat(state: State, event: NodeBeat) -> Iterator[JobWarned]:
    """Warnings by what a node's devices did, as its newest beat tells; mostly none, and then nothing is looked through.

    Only the jobs of that node are looked at, and only if one of their devices did anything to be told.
    """
    live, limits = state.live.nodes[event.node], state.limits.warnings
    idle = {uuid for uuid, course in live.courses.items() if 0 < limits.idle_span <= course.idle}
    slowed = {uuid for uuid, course in live.courses.items() if 0 < limits.throttled_span <= course.slowed}
    if idle or slowed:
        for key in state.durable.hold(event.node).ranks:
            job = state.durable.jobs[key.job]
            assert job.attempt is not None
            devices = job.attempt.ranks[key.rank].placement.devices
            if not job.spec.serves:  # a worker that nobody uses has nothing to do
                yield from _idle(event.at, job, event.node, [each for each in devices if each.uuid in idle], limits)
            for device in devices:
                if device.uuid in slowed:
                    yield from _slowed(event.at, job, event.node, device, live.courses[device.uuid].slowed_by)
    for key, peak in event.peaks:
        found = live_attempt(state, event.node, key)
        if found is not None:
            job, attempt = found
            yield from _unused_memory(state, event.at, job, attempt.ranks[key.rank].placement, peak)


def of_end(state: State, at: Instant, job: Job, ended: EndedAttempt) -> Iterator[JobWarned]:
    """Warnings of an attempt that did what it was to do: memory that none of it ever used."""
    for rank in ended.ranks:
        use = rank.exit.use if rank.exit is not None else None
        if use is not None and use.span >= MEMORY_SPAN_LEAST and state.limits.warnings.memory_span:
            peaks = {
                each.uuid: round(each.memory_used_bytes.high)
                for each in use.devices
                if each.memory_used_bytes is not None
            }
            peak = MemoryPeak(span=use.span, used_bytes=peaks)
            yield from _unused_memory(state, at, job, rank.placement, peak)


def of_damage(event: OutputDamaged, job: Job) -> Iterator[JobWarned]:
    """Output that its node's disk has changed: where. The last one that is kept says that there may be more."""
    stream = event.stream.name.lower()
    whose = f"{stream} of rank {event.key.rank}" if job.attempt is not None and job.attempt.is_gang else stream
    sentence = (
        f"Bytes {event.start:,} to {event.end - 1:,} of {whose} are not as they were written: "
        f"the disk of node {event.node} changed them before they were stored."
    )
    if sum(each.kind is WarningKind.OUTPUT_DAMAGED for each in job.warnings) == DAMAGES_KEPT - 1:
        sentence += " There may be more, of which nothing is told."
    about = f"{event.key.rank}:{stream}:{event.start}-{event.end}"
    yield from _warned(event.at, job, WarningKind.OUTPUT_DAMAGED, (about,), sentence)


def _idle(
    at: Instant, job: Job, node: NodeName, devices: Sequence[PlacedDevice], limits: WarningLimits
) -> Iterator[JobWarned]:
    fresh = _not_told(job, node, WarningKind.DEVICES_IDLE, devices)
    if fresh:
        have = "has" if len(fresh) == 1 else "have"
        sentence = (
            f"{gpus_words(fresh)} of node {node} {have} been idle for {rough_span(limits.idle_span)}, "
            f"below {IDLE_PERCENT} % all the time: the job holds {'it' if len(fresh) == 1 else 'them'} unused."
        )
        yield from _warned(at, job, WarningKind.DEVICES_IDLE, _names(node, fresh), sentence)


def _slowed(at: Instant, job: Job, node: NodeName, device: PlacedDevice, by: Sequence[str]) -> Iterator[JobWarned]:
    causes = " and ".join(dict.fromkeys(SLOWED_BY[each] for each in by))
    sentence = f"GPU {device.index} of node {node} is slowed down by {causes} ({', '.join(by)})."
    yield from _warned(at, job, WarningKind.THROTTLED, _names(node, [device]), sentence)


def _unused_memory(state: State, at: Instant, job: Job, placement: Placement, peak: MemoryPeak) -> Iterator[JobWarned]:
    """One warning for the devices of a rank of which little was used; it names the one that was used most."""
    found = list(_little_used(state, job, placement, peak))
    fresh = _not_told(job, placement.node, WarningKind.MEMORY_UNUSED, [device for _, _, device in found])
    if not fresh:
        return
    used, reserved, _ = max((each for each in found if each[2] in fresh), key=lambda each: each[0])
    each_of = " each" if len(fresh) > 1 else ""
    asked = job.spec.resources.min_memory_bytes is not None
    less = "a smaller share" if placement.devices[0].share_milli else "a smaller GPU, or a share of one,"
    would_do = f"--min-memory {_size_that_would_do(used)}" if asked else less
    of_what = f"the {reserved // MB:,} MB {'asked for' if asked else 'given'}{each_of}"
    sentence = (
        f"{gpus_words(fresh)} of node {placement.node}: at most {used // MB:,} MB of {of_what} were used, "
        f"{used * 100 // reserved} %: {would_do} would do."
    )
    yield from _warned(at, job, WarningKind.MEMORY_UNUSED, _names(placement.node, fresh), sentence)


def _little_used(
    state: State, job: Job, placement: Placement, peak: MemoryPeak
) -> Iterator[tuple[int, int, PlacedDevice]]:
    """Devices of which little memory was used: how much, how much was reserved, and which, in bytes."""
    node = state.durable.nodes.get(placement.node)  # it may have been forgotten since the rank ended
    sizes = {} if node is None else {device.uuid: device.memory_bytes for device in node.info.devices}
    virtual = set() if node is None else {device.uuid for device in node.info.devices if device.is_virtual}
    for device in placement.devices:
        if device.uuid in virtual:
            continue  # it has no memory that anything could use, and nothing measures it
        asked = device.share_memory_bytes or job.spec.resources.min_memory_bytes
        reserved, used = asked or sizes.get(device.uuid, 0), peak.used_bytes.get(device.uuid)
        if used is not None and used * 100 <= reserved * state.limits.warnings.memory_percent and reserved:
            yield used, reserved, device


def _size_that_would_do(used_bytes: int) -> str:
    """A quarter more than was used, in whole GB."""
    return f"{max(1, -(-used_bytes * 5 // (4 * GB)))}GB"


def gpus_words(devices: Sequence[PlacedDevice]) -> str:
    """GPU 0, or GPUs 0, 1 and 3."""
    indices = [str(device.index) for device in devices]
    return f"GPU {indices[0]}" if len(indices) == 1 else f"GPUs {', '.join(indices[:-1])} and {indices[-1]}"


def _names(node: NodeName, devices: Iterable[PlacedDevice]) -> tuple[str, ...]:
    return tuple(f"{node}:{device.index}" for device in devices)


def _not_told(job: Job, node: NodeName, kind: WarningKind, devices: Iterable[PlacedDevice]) -> list[PlacedDevice]:
    return [each for each in devices if not is_told(job.warnings, kind, f"{node}:{each.index}")]


def _warned(at: Instant, job: Job, kind: WarningKind, about: tuple[str, ...], sentence: str) -> Iterator[JobWarned]:
    """The warning, unless it was given before, or its person wants none."""
    attempt = job.attempt
    is_wanted = kind in (WarningKind.DEVICE_TROUBLE, WarningKind.OUTPUT_DAMAGED) or not job.spec.no_warnings
    if attempt is None or not is_wanted or all(is_told(job.warnings, kind, each) for each in about):
        return
    warning = JobWarning(kind=kind, at=at, attempt=attempt.number, sentence=sentence, about=about)
    yield JobWarned(at=at, job=job.id, warning=warning)


def bounded(state: State, warnings: Iterable[JobWarned]) -> Iterator[JobWarned]:
    """Those of what was found at once for which there is room."""
    found: dict[JobId, list[JobWarning]] = {}
    for each in warnings:
        known = (*state.durable.jobs[each.job].warnings, *found.get(each.job, ()))
        if has_room(known, each.warning.kind):
            found.setdefault(each.job, []).append(each.warning)
            yield each


def tell_commands(state: State, warnings: Iterable[JobWarned]) -> Iterator[TellWarning]:
    """Have the nodes tell of what is new whom the jobs name; what their time limits say they know by themselves."""
    counts: dict[JobId, int] = {}
    for each in warnings:
        job = state.durable.jobs[each.job]
        counts[job.id] = counts.get(job.id, len(job.warnings)) + 1
        yield from _tell(job, counts[job.id], each.warning)


def tell_again(job: Job) -> Iterator[TellWarning]:
    """The same of all that there are: the command may have been lost, and the node knows what it has told."""
    for number, warning in enumerate(job.warnings, 1):
        yield from _tell(job, number, warning)


def _tell(job: Job, number: int, warning: JobWarning) -> Iterator[TellWarning]:
    if job.spec.notify and job.attempt is not None and warning.kind is not WarningKind.TIME_LIMIT_NEAR:
        node, key = job.attempt.ranks[0].placement.node, rank_keys(job, job.attempt)[0]
        yield TellWarning(node=node, key=key, number=number, warning=warning)


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
