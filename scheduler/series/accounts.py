"""What attempts held, counted exactly: from placed_at to ended_at, each once, when it has ended. Pure.

What is still held is added when somebody asks (`open_spans`). So nothing is counted from samples, there is no moment of
accounting that a restart could miss or see twice, and the sum over rows is the sum of the attempts' spans.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ..state.attempts import Attempt, EndedAttempt, Rank
from ..state.groups.group import NO_GROUP, GroupId
from ..state.ids import NodeName, UserName
from ..state.jobs import Job
from ..state.shares import WHOLE_MILLI
from ..state.specs import Band, Outcome
from ..state.units import MINUTE, Instant, Span
from ..state.used import RankUse

BUCKET_SPAN = Span(5 * MINUTE)
"""What begins and ends within one such span is summed up with others of it; spans are told in whole ones."""
FAILURES = frozenset({Outcome.FAILED, Outcome.TIMED_OUT})
NO_NODE = NodeName("")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountedHold:
    """What one user held of one model of device on one node: `milli` thousandths of devices, from `begin` to `end`.

    `started_at` and `waited` are of an attempt that started, `finished_at` of so many `jobs` that ended, `failed` of
    them not well; they lie within the hold and are set in one of each. `load_percent` and `energy_mj` are as they were
    read, None where nothing was.
    """

    begin: Instant
    end: Instant
    milli: int
    user: UserName
    node: NodeName
    model: str
    band: Band
    group: GroupId = NO_GROUP
    started_at: Instant | None = None
    waited: Span = Span(0)
    finished_at: Instant | None = None
    jobs: int = 0
    failed: int = 0
    load_percent: float | None = None
    energy_mj: float | None = None


def holds_of(
    job: Job,
    attempt: Attempt | EndedAttempt,
    uses: Mapping[int, RankUse],
    *,
    until: Instant,
    is_last: bool = False,
    is_failed: bool = False,
) -> Iterator[AccountedHold]:
    """What an attempt held, up to its end or `until`. `uses` is what its ranks used, by rank. `is_last`: its job ended.

    A share counts as what it is, of the energy of its device, too. What has no device is one hold of nothing.
    """
    begin = attempt.held_since
    if begin is None:
        return
    end = max(begin, attempt.ended_at if isinstance(attempt, EndedAttempt) else until)
    started_at = attempt.ranks[0].started_at
    if started_at is not None:
        started_at = max(begin, min(started_at, end))
    first = AccountedHold(
        begin=begin,
        end=end,
        milli=0,
        user=job.user,
        node=NO_NODE,
        model="",
        band=job.band,
        group=job.group,
        started_at=started_at,
        waited=Span(0) if started_at is None else wait_of(job, attempt.number, started_at),
        finished_at=end if is_last else None,
        jobs=int(is_last),
        failed=int(is_last and is_failed),
    )
    others = replace(first, started_at=None, waited=Span(0), finished_at=None, jobs=0, failed=0)
    for number, rank in enumerate(attempt.ranks):
        held_before = False
        for part in _parts(others if number else first, rank, uses.get(number)):
            yield part if not held_before else replace(part, started_at=None, finished_at=None, jobs=0, failed=0)
            held_before = True


def _parts(like: AccountedHold, rank: Rank, use: RankUse | None) -> Iterator[AccountedHold]:
    """A rank's part, one hold for each model of device."""
    used = {} if use is None else {device.uuid: device for device in use.devices}
    models = dict.fromkeys(device.name for device in rank.placement.devices)
    for model in models or {"": None}:
        milli, load_milli, load, energy_mj, knows_energy = 0, 0, 0.0, 0.0, False
        for device in rank.placement.devices:
            if device.name != model:
                continue
            share = device.share_milli or WHOLE_MILLI
            milli += share
            read = used.get(device.uuid)
            if read is None:
                continue
            if read.utilization_percent is not None:
                load_milli, load = load_milli + share, load + share * read.utilization_percent.mean
            if read.energy_mj is not None:
                energy_mj, knows_energy = energy_mj + read.energy_mj * share / WHOLE_MILLI, True
        yield replace(
            like,
            node=rank.placement.node,
            model=model,
            milli=milli,
            load_percent=load / load_milli if load_milli else None,
            energy_mj=energy_mj if knows_energy else None,
        )


def hold_of_none(job: Job, count: int, finished_at: Instant, *, is_failed: bool) -> AccountedHold:
    """So many jobs that ended without having held anything in the end."""
    return AccountedHold(
        begin=finished_at,
        end=finished_at,
        milli=0,
        user=job.user,
        node=NO_NODE,
        model="",
        band=job.band,
        group=job.group,
        finished_at=finished_at,
        jobs=count,
        failed=count if is_failed else 0,
    )


def wait_of(job: Job, attempt: int, started_at: Instant) -> Span:
    """How long a job had waited for an attempt: since it was eligible, or since the attempt before had ended."""
    before = [ended.ended_at for ended in job.past if ended.number < attempt]
    return Span(max(0, started_at - (before[-1] if before else job.age_since)))


def bucket_of(at: Instant) -> Instant:
    """The beginning of the five minutes that an instant is in."""
    return Instant(at - at % BUCKET_SPAN)


@dataclass(slots=True)
class Totals:
    """What holds come to between two instants. Device time in thousandths of a device × microseconds, exactly."""

    milli_us: int = 0
    jobs: int = 0
    failed: int = 0
    starts: int = 0
    wait_us: int = 0
    wait_us_min: int = 0
    wait_us_max: int = 0
    load_milli_us: float = 0.0
    load: float = 0.0
    energy_mj: float | None = None

    def add(self, hold: AccountedHold, begin: Instant, end: Instant) -> int:
        """Count what lies within; returns the device time."""
        overlap = max(0, min(hold.end, end) - max(hold.begin, begin))
        held = hold.milli * overlap
        self.milli_us += held
        if hold.load_percent is not None:
            self.load_milli_us += held
            self.load += hold.load_percent * held
        if hold.energy_mj is not None and overlap:
            self.energy_mj = (self.energy_mj or 0.0) + hold.energy_mj * overlap / (hold.end - hold.begin)
        if hold.finished_at is not None and begin <= hold.finished_at < end:
            self.jobs += hold.jobs
            self.failed += hold.failed
        if hold.started_at is not None and begin <= hold.started_at < end:
            self.add_waits(1, hold.waited, hold.waited, hold.waited)
        return held

    def add_waits(self, count: int, total_us: int, least_us: int, most_us: int) -> None:
        """Count starts, with how long they had waited."""
        if not count:
            return
        self.wait_us_min = least_us if not self.starts else min(self.wait_us_min, least_us)
        self.wait_us_max = max(self.wait_us_max, most_us)
        self.wait_us += total_us
        self.starts += count

    def add_all(self, other: "Totals") -> None:
        """Count what somebody else has counted."""
        self.milli_us += other.milli_us
        self.jobs += other.jobs
        self.failed += other.failed
        self.add_waits(other.starts, other.wait_us, other.wait_us_min, other.wait_us_max)
        self.load_milli_us += other.load_milli_us
        self.load += other.load
        if other.energy_mj is not None:
            self.energy_mj = (self.energy_mj or 0.0) + other.energy_mj


@dataclass(frozen=True, slots=True)
class UsageSpan:
    """A span in whole buckets, in `steps` steps of equal length, of which the last may be cut short.

    0 steps mean that no course is wanted; then `step` is all of the span.
    """

    begin: Instant
    end: Instant
    step: Span
    steps: int = 0


def spread(hold: AccountedHold, span: UsageSpan, course: list[int]) -> None:
    """Add a hold's device time to the steps that it lies in."""
    if not span.steps or not hold.milli:
        return
    first = max(0, (hold.begin - span.begin) // span.step)
    last = min(span.steps - 1, (hold.end - 1 - span.begin) // span.step)
    for number in range(first, last + 1):
        at = span.begin + number * span.step
        course[number] += hold.milli * max(0, min(hold.end, at + span.step, span.end) - max(hold.begin, at))


def name_in(hold: AccountedHold, group: str) -> str:
    """What a row is called that the hold counts for: `group` is user, node, model, band or group, which is its id."""
    return hold.band.name.lower() if group == "band" else str(getattr(hold, group))


def is_short(hold: AccountedHold) -> bool:
    """Whether a hold lies within one bucket, so that nothing is lost when it is summed up with others there."""
    return hold.end < bucket_of(hold.begin) + BUCKET_SPAN
