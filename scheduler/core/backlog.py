"""Attempts that wait in nodes' backlogs are asked back: others go first, or their node is to take nothing more.

    AttemptPlaced in a slot ─▶ Launch ─▶ it waits there ─▶ started: it goes on as any other
                                   └─ AttemptAskedBack ─▶ TakeBack ─▶ refused (TAKEN_BACK): AttemptVoided, it is in line

That it is asked back is stored first, so that it is asked again after a start of the scheduler or of the agent. A node
that has started it says so instead, and it goes on: nothing that runs is ever stopped by it.
"""

from collections.abc import Iterable

from ..policy.backlog import overtaken
from ..state.attempts import Attempt
from ..state.commands import Command, TakeBack
from ..state.ids import DeviceUuid, JobId, NodeName
from ..state.indexes.slots import is_in_backlog
from ..state.jobs import Job
from ..state.records import AttemptAskedBack, Record
from ..state.state import State
from ..state.units import Instant
from .decision import NOTHING, Decision


def asked_back_for(state: State, first: Job, at: Instant) -> Decision:
    """Ask back what waits in backlogs before the first job that has to wait, and goes behind it now."""
    jobs = overtaken(state, first, at)
    return _asked_back(state, at, jobs, f"job {first.id} goes first") if jobs else NOTHING


def asked_back_of(state: State, node: NodeName, at: Instant, reason: str, device: DeviceUuid | None = None) -> Decision:
    """Ask back what waits in a node's backlog, all of it or for this device."""
    jobs = [state.durable.jobs[key.job] for key in sorted(state.durable.hold(node).ranks)]
    waiting = [job for job in jobs if is_in_backlog(job) and (device is None or device in _devices_of(job))]
    return _asked_back(state, at, [job.id for job in waiting], reason)


def ask_back_command(job: JobId, attempt: Attempt) -> TakeBack:
    """What asks an attempt back."""
    return TakeBack(node=attempt.ranks[0].placement.node, key=attempt.keys(job)[0])


def _devices_of(job: Job) -> set[DeviceUuid]:
    return set() if job.attempt is None else {device.uuid for device in job.attempt.ranks[0].placement.devices}


def _asked_back(state: State, at: Instant, jobs: Iterable[JobId], reason: str) -> Decision:
    records: list[Record] = []
    commands: list[Command] = []
    for job_id in jobs:
        attempt = state.durable.jobs[job_id].attempt
        assert attempt is not None
        records.append(AttemptAskedBack(at=at, job=job_id, reason=reason))
        commands.append(ask_back_command(job_id, attempt))
    return Decision(records=tuple(records), commands=tuple(commands))
