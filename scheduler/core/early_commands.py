"""Commands that leave before their commit: the one exception to "persist, then act", while the store takes no commits.

A process that is to end must not run on for want of room on a disk. To tell its node is safe, because a Stop names one
rank of one attempt, whose number is never used again; told twice it is one Stop; and the node says with the end that it
was told to cancel, so that a scheduler which has forgotten still ends the job as cancelled and never runs it again.
A signal changes nothing that is stored: it is sent once, and that it was sent is all that waits for the store.
Nothing else may leave early: what starts, places or ends a job in the records waits for its commit.
"""

from dataclasses import dataclass, replace

from gpufleet.jobs.runs import StopCause

from ..state.commands import Command
from ..state.events import CancelRequested, SignalRequested
from ..state.ids import JobId
from ..state.jobs import Job, is_being_prepared
from ..state.replies import JobChange, JobsChanged, Reply
from ..state.state import State
from .jobs import on_signal_requested, stop_commands


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyCommands:
    """What leaves at once, the jobs that it is for, and what the asker is answered."""

    commands: tuple[Command, ...]
    jobs: tuple[JobId, ...]
    reply: Reply


def early_stops(committed: State, event: CancelRequested, why: str) -> EarlyCommands | None:
    """What of a cancellation can be told to nodes before it is stored, by the last committed state; None: nothing.

    A job that waits, or whose record is to be ended without its node, needs the commit and is left as it is. An array
    of which items are told is cancelled as a whole once there is room, before any other of its items can start.
    """
    commands: list[Command] = []
    told: list[JobId] = []
    changes: list[JobChange] = []
    for job_id in dict.fromkeys(event.jobs):
        job = committed.durable.jobs.get(job_id)
        stops: tuple[Command, ...] = ()
        message = f"job {job_id} is told to stop"
        if job is None or event.is_abandoned:
            pass
        elif job.items is not None:
            stops, message = _stops_of_array(committed, job)
        else:
            stops = _stops_of(committed, job)
        if stops:
            told.append(job_id)
            commands.extend(stops)
            changes.append(JobChange(job=job_id, changed=True, message=f"{message}; not yet stored: {why}"))
        else:
            message = f"job {job_id} is left as it is: the store takes no commits ({why})"
            changes.append(JobChange(job=job_id, changed=False, message=message))
    if not told:
        return None
    return EarlyCommands(commands=tuple(commands), jobs=tuple(told), reply=JobsChanged(changes=tuple(changes)))


def early_signals(committed: State, event: SignalRequested, why: str, *, is_decided: bool) -> EarlyCommands | None:
    """The signals of a request before it is stored, by the last committed state; None: nothing may leave.

    `is_decided`: it waits in a commit that fails. What that commit may make run is not known here, so unless every job
    of it runs already, all of it waits.
    """
    decision = on_signal_requested(committed, event)
    if not isinstance(decision.reply, JobsChanged):
        return None if is_decided else EarlyCommands(commands=(), jobs=(), reply=decision.reply)
    changes = decision.reply.changes
    if not decision.commands or (is_decided and not all(change.changed for change in changes)):
        return None
    told = tuple(change.job for change in changes if change.changed)
    answered = tuple(
        replace(change, message=f"{change.message}; not yet stored: {why}") if change.changed else change
        for change in changes
    )
    return EarlyCommands(commands=decision.commands, jobs=told, reply=JobsChanged(changes=answered))


def _stops_of_array(committed: State, array: Job) -> tuple[tuple[Command, ...], str]:
    """The Stops of its items, and the words for how many are told."""
    count = 0
    stops: list[Command] = []
    for item in sorted(committed.durable.arrays[array.id].apart):
        of_item = _stops_of(committed, committed.durable.jobs[item])
        stops.extend(of_item)
        count += bool(of_item)
    items = "1 item is" if count == 1 else f"{count:,} items are"
    return tuple(stops), f"array {array.id}: {items} told to stop, the others are cancelled when there is room"


def _stops_of(committed: State, job: Job) -> tuple[Command, ...]:
    """A Stop for each rank that may run on a node that hears; of a gang that is being prepared none runs."""
    if job.attempt is None or is_being_prepared(job):
        return ()
    nodes = committed.live.nodes
    stops = stop_commands(job, job.attempt, StopCause.CANCELLED)
    return tuple(stop for stop in stops if stop.node in nodes and nodes[stop.node].is_connected)
