"""How a job ended: the exit code that `run` and `wait` give, and the sentence for people."""

from __future__ import annotations

import signal

from gpufleet.v1 import job_pb2 as pb

from .exit_codes import OWN_FAILURE, SIGNALLED, TIME_LIMIT

PLAIN_REASONS = frozenset({"EXITED", "SIGNALLED", "TIME_LIMIT"})
"""Reasons that say no more than the exit status itself."""

FINAL_STATES = frozenset({pb.JOB_STATE_SUCCEEDED, pb.JOB_STATE_FAILED, pb.JOB_STATE_CANCELLED, pb.JOB_STATE_TIMED_OUT})


def has_ended(job: pb.Job) -> bool:
    """Whether the job is in a final state."""
    return job.state in FINAL_STATES


def exit_code_of(job: pb.Job) -> int:
    """The job's own code, 128 + n for a signal, 124 for the time limit, 125 for an end without a code."""
    if job.state == pb.JOB_STATE_SUCCEEDED:
        return 0
    if job.state == pb.JOB_STATE_TIMED_OUT:
        return TIME_LIMIT
    if job.state == pb.JOB_STATE_FAILED:
        which = job.exit.WhichOneof("status")
        if which == "signal":
            return SIGNALLED + job.exit.signal
        if which == "code" and job.exit.code != 0:
            return job.exit.code
    return OWN_FAILURE


def end_in_words(job: pb.Job) -> str:
    """`job 12 failed with exit code 3 (EXITED)`; the server's sentence follows where it has one."""
    if job.HasField("array_counts") and job.exit_reason == "ITEMS_ENDED":
        return f"array {job.id} {_verb(job).partition(' ')[0]}: {job.exit_message}"
    words = f"job {job.id} {_verb(job)}"
    if job.state == pb.JOB_STATE_SUCCEEDED:
        return words
    if job.exit_reason == "CANCELLED":
        message = job.exit_message  # "cancelled by ada: wrong data", or one that begins otherwise
        why = (
            message.removeprefix("cancelled") if message.startswith("cancelled") else f": {message}" if message else ""
        )
        return f"{words}{why} ({job.exit_reason})"
    if job.exit_reason:
        words += f" ({job.exit_reason})"
    if job.exit_message and job.exit_reason not in PLAIN_REASONS:
        words += f": {job.exit_message}"
    return words


def exit_in_words(status: pb.ExitStatus) -> str:
    """`exit code 3`, `SIGKILL`, or nothing where nobody knows."""
    which = status.WhichOneof("status")
    if which == "code":
        return f"exit code {status.code}"
    return signal_name(status.signal) if which == "signal" else ""


def signal_name(number: int) -> str:
    """`SIGTERM` for 15; `signal 64` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _verb(job: pb.Job) -> str:
    match job.state:
        case pb.JOB_STATE_SUCCEEDED:
            return "succeeded"
        case pb.JOB_STATE_CANCELLED:
            return "was cancelled"
        case pb.JOB_STATE_TIMED_OUT:
            return "was stopped by its time limit"
        case pb.JOB_STATE_FAILED:
            ended_by = exit_in_words(job.exit)
            return f"failed with {ended_by}" if ended_by else "failed"
        case _:
            return "has not ended"
