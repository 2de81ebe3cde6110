"""What nodes tell of history that the store lacks: attempts of its jobs are theirs again, jobs that it lacks are kept.

Of a job that the store has as waiting, the newest attempt that a node tells of becomes the job's: one that runs goes
on, one that has ended ends it as its keeper says. So it is of a job that the store has as running, where nobody has
told that it does: the lost history placed a newer attempt only once the older one was dead. What is not taken up is
told in the job's story, as it may have done its work already. A job that the store lacks cannot go on, for nobody knows
what it asked for: what runs of it is ended, and what is known of it stays in the history. All of it rests on the origin
in the launch, which only a scheduler can have written, for this attempt on this node (docs/design/lineages.md).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from gpufleet.jobs.runs import ExitCode, StopCause

from ..policy.gap import gap_hold
from ..state.attempts import Attempt, EndedAttempt, PlacedDevice, Placement, Rank, RankExit
from ..state.commands import Command, KeepAttempt
from ..state.events import InventoryReported, ReportedExited, ReportedRunning, ReportedStarting, ReportedState
from ..state.gap import FOUND_MAX, Origin
from ..state.ids import DeviceUuid, JobId, NodeName, RankKey
from ..state.indexes.slots import slot_of
from ..state.jobs import Deferred, Finished, Held, Job, Queued, Running, Starting
from ..state.records import AttemptEnded, AttemptFound, AttemptGivenUp, JobFound, Record
from ..state.shares import WHOLE_MILLI
from ..state.specs import Band, JobSpec, Outcome, Resources
from ..state.state import State
from ..state.units import Instant
from .decision import NOTHING, Decision
from .updating import limit_again

STORE_GAP = "STORE_GAP"
"""The reason for which a job that the store lacks was ended."""

GANG, WORKER = "a job on several nodes is not taken up", "a worker of a model is not taken up"
NO_ROOM = "what it had is not free any more, or its machine was started again"
NOT_NEWER = "the store has given its number to another attempt since"

TOLD = (ReportedRunning, ReportedExited)
"""What counts of an attempt: it ran."""

STOPPED_TO_RUN_AGAIN = frozenset({StopCause.REQUEUED, StopCause.PREEMPTED})
"""Who was stopped so had not come to an end: the job waits again."""


@dataclass(frozen=True, slots=True)
class Found:
    """What follows from what a node has told, and what runs there as it shall."""

    decision: Decision = NOTHING
    kept: Collection[RankKey] = ()


def found_by(
    state: State,
    event: InventoryReported,
    seen: Mapping[RankKey, ReportedState],
    forgotten: Mapping[RankKey, ReportedExited],
) -> Found:
    """What an inventory tells of that the store lacks. `seen` and `forgotten` are what is not decided to be there."""
    gap, origins = gap_hold(state, event.at), dict(event.origins)
    if gap is None or not origins:
        return Found()
    told: dict[RankKey, ReportedState] = {**forgotten, **seen}
    of_jobs: dict[JobId, RankKey] = {}
    for key in sorted(told):
        if key in origins and isinstance(told[key], ReportedRunning | ReportedExited) and not _was_refused(told[key]):
            of_jobs[key.job] = key  # the newest attempt of a job is the last
    records: list[Record] = []
    commands: list[Command] = []
    kept: list[RankKey] = []
    over = {job_id for job_id, key in of_jobs.items() if _supersedes(state, event, key, origins[key])}
    devices = _Devices(state, event, over)
    for job_id, key in of_jobs.items():
        job, what, origin = state.durable.jobs.get(job_id), told[key], origins[key]
        placement, slot = origin.placement, _slot_there(state, event.node, origin)
        is_here = (placement.agent_id, placement.boot_id) == (event.agent_id, event.boot_id)
        if job is not None and job_id < gap.gap.jobs_below and _is_the_same(job, origin):
            why = _why_not(job, key, origin, is_over=job_id in over)
            if not why and isinstance(what, ReportedExited):
                records.extend((*_superseded(event, job), _ended(event, job, key, origin, what)))
                if key in seen:
                    kept.append(key)  # its node still has its output
            elif not why and isinstance(what, ReportedRunning) and is_here and devices.has_room(placement, slot or key):
                records.extend((*_superseded(event, job), _running(event.at, job, key, origin, what, slot)))
                kept.append(key)
                devices.take(placement, slot or key)
                limit = limit_again(job, event.node, key, what.time_limit)
                commands.extend((KeepAttempt(node=event.node, key=key), *limit))
            elif gap.gap.may_give_up(job_id, event.node):
                records.append(_given_up(event, key, what, why or NO_ROOM))
        elif job is None and gap.gap.lacks(job_id) and key.rank == 0 and len(gap.gap.found) + len(records) < FOUND_MAX:
            job = _as_found(event, key, origin, what)
            if isinstance(what, ReportedExited) and key in seen:
                # What it printed is there yet, and is taken in before its end counts.
                job = replace(job, state=Queued(), attempt_count=0, past=())
                once = replace(what, exit=replace(what.exit, stop_cause=_never_again(what.exit.stop_cause)))
                records.extend((JobFound(at=event.at, job=job), _ended(event, job, key, origin, once)))
                kept.append(key)
            else:
                records.append(JobFound(at=event.at, job=job))
    return Found(Decision(records=tuple(records), commands=tuple(commands)), frozenset(kept))


def superseded_by(state: State, event: InventoryReported) -> Collection[JobId]:
    """Jobs whose attempt, as the store has it, is over by what this node tells: a newer one was placed."""
    if gap_hold(state, event.at) is None:
        return ()
    told = {**dict(event.forgotten), **dict(event.entries)}
    return {key.job for key, origin in event.origins if key in told and _supersedes(state, event, key, origin)}


def _supersedes(state: State, event: InventoryReported, key: RankKey, origin: Origin) -> bool:
    """Whether an attempt was placed after the one that the store has of its job, which nobody has told to run."""
    gap, job = state.durable.gap, state.durable.jobs.get(key.job)
    told = {**dict(event.forgotten), **dict(event.entries)}
    if job is None or gap is None or job.id >= gap.jobs_below or not isinstance(told.get(key), TOLD):
        return False
    if not isinstance(job.state, Starting | Running) or not _is_the_same(job, origin) or not _is_plain(job, origin):
        return False
    attempt = job.state.attempt
    is_newer = key.attempt > attempt.number and origin.placed_at > attempt.placed_at
    if attempt.is_gang or not is_newer or key in attempt.keys(job.id):
        return False
    node = attempt.ranks[0].placement.node
    if node == event.node:
        return not isinstance(told.get(attempt.keys(job.id)[0]), ReportedRunning | ReportedStarting)
    live = state.live.nodes.get(node)
    return live is None or not live.has_inventory


def _superseded(event: InventoryReported, job: Job) -> tuple[Record, ...]:
    """The end of the attempt that the store has of a job, which the lost history has followed by another one."""
    if not isinstance(job.state, Starting | Running):
        return ()
    attempt = job.state.attempt
    message = f"node {event.node} has told of a newer attempt, which the store lacked when it was put back"
    lost = RankExit(exit=None, reason=STORE_GAP, message=message, output_is_complete=False)
    ended = EndedAttempt(
        number=attempt.number,
        placed_at=attempt.placed_at,
        ended_at=event.at,
        ranks=tuple(rank if rank.exit is not None else replace(rank, exit=lost) for rank in attempt.ranks),
        reason=STORE_GAP,
        message=message,
        output_is_complete=False,
        forecast=attempt.forecast,
        lineage=attempt.lineage,
        slot=attempt.slot,
    )
    return (AttemptEnded(at=event.at, job=job.id, ended=ended),)


def _is_the_same(job: Job, origin: Origin) -> bool:
    return (job.user, job.submitted_at) == (origin.user, origin.submitted_at) and origin.is_of(job.spec.argv)


def _is_plain(job: Job, origin: Origin) -> bool:
    return origin.node_count == 1 and not (origin.serves or job.spec.serves)


def _why_not(job: Job, key: RankKey, origin: Origin, *, is_over: bool) -> str:
    """Why an attempt of a job is not taken up, a clause for people; empty where it is newer than all that is known."""
    if origin.node_count > 1:
        return GANG
    if not _is_plain(job, origin):
        return WORKER
    if (isinstance(job.state, Queued | Deferred | Held) and key.attempt > job.attempt_count) or is_over:
        return ""
    attempt = job.attempt
    return NOT_NEWER if attempt is None else f"attempt {job.id}/{attempt.number} of the job is there"


def _given_up(event: InventoryReported, key: RankKey, what: ReportedState, why: str) -> AttemptGivenUp:
    return AttemptGivenUp(
        at=event.at,
        key=key,
        node=event.node,
        is_running=isinstance(what, ReportedRunning),
        reason=why,
    )


def _slot_there(state: State, node: NodeName, origin: Origin) -> RankKey | None:
    """The slot of an attempt, where the store has others of it that hold what it has; else it holds that by itself."""
    slot = origin.slot
    keys = () if slot is None else state.durable.hold(node).slots.get(slot, ())
    attempts = [state.durable.jobs[key.job].attempt for key in keys]
    holds = any(each is not None and each.ranks[0].placement == origin.placement for each in attempts)
    return slot if holds else None


def _was_refused(what: ReportedState) -> bool:
    """Whether a scheduler ended it as one that counts for nothing; nor was its output wanted then."""
    return isinstance(what, ReportedExited) and what.exit.stop_cause is StopCause.STALE


class _Devices:
    """What of the node's devices is had by attempts of which it tells and that are decided to be there."""

    def __init__(self, state: State, event: InventoryReported, over: Collection[JobId]) -> None:
        self._there = {device.uuid for device in event.info.devices}
        self._held: dict[DeviceUuid, int] = {}
        self._slots: set[RankKey] = set()
        told = {key for key, _ in (*event.entries, *event.forgotten)}
        for key in state.durable.hold(event.node).ranks:
            attempt = state.durable.jobs[key.job].attempt
            if key in told and attempt is not None and key.job not in over:
                self.take(attempt.ranks[key.rank].placement, slot_of(key, attempt))

    def has_room(self, placement: Placement, slot: RankKey) -> bool:
        """Whether all that an attempt has is there, and nobody else's but those of its slot."""
        return slot in self._slots or all(
            each.uuid in self._there and self._held.get(each.uuid, 0) + _milli(each) <= WHOLE_MILLI
            for each in placement.devices
        )

    def take(self, placement: Placement, slot: RankKey) -> None:
        """Count an attempt in, once for all of its slot."""
        if slot in self._slots:
            return
        self._slots.add(slot)
        for each in placement.devices:
            self._held[each.uuid] = self._held.get(each.uuid, 0) + _milli(each)


def _milli(device: PlacedDevice) -> int:
    return device.share_milli or WHOLE_MILLI


def _running(
    at: Instant, job: Job, key: RankKey, origin: Origin, what: ReportedRunning, slot: RankKey | None
) -> AttemptFound:
    started_at = Instant(at - what.run_span)
    rank = Rank(placement=origin.placement, started_at=started_at)
    attempt = Attempt(number=key.attempt, placed_at=started_at, ranks=(rank,), lineage=key.lineage, slot=slot)
    return AttemptFound(at=at, job=job.id, attempt=attempt)


def _ended(event: InventoryReported, job: Job, key: RankKey, origin: Origin, what: ReportedExited) -> AttemptFound:
    """It holds nothing any more while its output is looked for: what it had may be another's since."""
    placement = replace(
        origin.placement, agent_id=event.agent_id, boot_id=event.boot_id, devices=(), cpus=0, memory_bytes=0
    )
    started_at, exit_ = _begun(event.at, what), what.exit
    rank = Rank(placement=placement, started_at=started_at)
    attempt = Attempt(number=key.attempt, placed_at=started_at, ranks=(rank,), lineage=key.lineage)
    cause = StopCause.REQUEUED if exit_.stop_cause in STOPPED_TO_RUN_AGAIN else None
    return AttemptFound(at=event.at, job=job.id, attempt=attempt, cause=cause, exit=exit_)


def _never_again(cause: StopCause | None) -> StopCause | None:
    """Of a job that the store lacks nobody knows how it would run again."""
    return None if cause in STOPPED_TO_RUN_AGAIN else cause


def _begun(at: Instant, what: ReportedExited) -> Instant:
    """When an attempt began that has ended: as its node says, else as long before now as it was read."""
    if what.started_ago is not None:
        return Instant(at - what.started_ago)
    return Instant(at - what.exit.use.span) if what.exit.use is not None else at


def _as_found(event: InventoryReported, key: RankKey, origin: Origin, what: ReportedState) -> Job:
    """A job that the store lacks, by what its launch said and how it ended, or is ended now."""
    at, where = event.at, f"found on node {event.node} after the store was put back"
    if isinstance(what, ReportedExited):
        started_at, exit_ = _begun(at, what), what.exit
        finished = _end_as_told(at, exit_, where)
    else:
        assert isinstance(what, ReportedRunning)
        started_at = Instant(at - what.run_span)
        message = f"{where}, which lacks it: it ran, and was ended"
        exit_ = RankExit(exit=None, reason=STORE_GAP, message=message, output_is_complete=False)
        finished = Finished(outcome=Outcome.CANCELLED, at=at, reason=STORE_GAP, message=message)
    ended = EndedAttempt(
        number=key.attempt,
        placed_at=started_at,
        ended_at=at,
        ranks=(Rank(placement=origin.placement, started_at=started_at, exit=exit_),),
        reason=exit_.reason,
        message=exit_.message,
        output_is_complete=exit_.output_is_complete,
        lineage=key.lineage,
    )
    placement = origin.placement
    resources = Resources(gpus=len(placement.devices), cpus=placement.cpus, memory_bytes=placement.memory_bytes)
    return Job(
        id=key.job,
        user=origin.user,
        spec=JobSpec(argv=origin.argv, name=origin.name, cwd="", resources=resources, is_requeueable=False),
        band=Band.NORMAL,
        submitted_at=origin.submitted_at,
        state=finished,
        attempt_count=key.attempt,
        past=(ended,),
    )


def _end_as_told(at: Instant, exit_: RankExit, where: str) -> Finished:
    message = f"{where}: {exit_.message}" if exit_.message else where
    match exit_:
        case RankExit(stop_cause=StopCause.CANCELLED):
            outcome = Outcome.CANCELLED
        case RankExit(stop_cause=StopCause.TIME_LIMIT):
            outcome = Outcome.TIMED_OUT
        case RankExit(exit=ExitCode(code=0), stop_cause=None):
            outcome = Outcome.SUCCEEDED
        case _:
            outcome = Outcome.FAILED
    return Finished(outcome=outcome, at=at, reason=exit_.reason, message=message, exit=exit_.exit)
