"""People who enter running jobs, by a port or with a command of their own: it is written down before they are in."""

from ..state.events import EntryRequested
from ..state.jobs import Running, Stopping
from ..state.records import JobEntered
from ..state.state import State
from .decision import Decision, refused


def on_entry_requested(state: State, event: EntryRequested) -> Decision:
    """Write down who enters, and how. The attempt must be the one that runs: another one is entered anew."""
    job = state.durable.jobs.get(event.job)
    if job is None or not isinstance(job.state, Running | Stopping) or job.state.attempt.number != event.attempt:
        return refused(
            "JOB_NOT_RUNNING",
            f"attempt {event.job}/{event.attempt} does not run",
            next_step=f"see how it stands with: gpuctl job {event.job}",
        )
    record = JobEntered(
        at=event.at,
        job=job.id,
        by=event.by,
        attempt=event.attempt,
        port=event.port,
        command=event.command,
        files=event.files,
    )
    return Decision(records=(record,))
