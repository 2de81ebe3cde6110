"""What is said of a job to who stays with it: what it waits for, where it runs, how it ended, how to come back."""

from __future__ import annotations

import sys
from collections.abc import Callable

from gpufleet.v1 import job_pb2

from gpufleet.errors import GpufleetError
from gpufleet.fleet.exit_codes import OWN_FAILURE
from gpufleet.fleet.outcome import end_in_words, exit_code_of, has_ended
from gpufleet.fleet.settings import Settings


class Progress:
    """A line for each step of a job, by `say`. `hint` says how to leave it, to who can type to it."""

    def __init__(self, say: Callable[[str], None], hint: Callable[[], str] | None = None) -> None:
        self._say = say
        self._hint = hint
        self._words = ""
        self._attempt = 0
        """Of this one it was said where it runs."""

    def tell(self, job: job_pb2.Job) -> None:
        """The job is so now."""
        words, before = state_in_words(job), self._words
        self._words = words
        # One that is held would wait in silence for somebody who does not know that: this goes to a pipe as well.
        if not (sys.stderr.isatty() or job.state == job_pb2.JOB_STATE_HELD):
            return
        if words and words != before:
            self._say(words)
        is_running = job.state == job_pb2.JOB_STATE_RUNNING
        if job.attempts and job.attempts[-1].number != self._attempt and (is_running or self._hint is None):
            self._attempt = job.attempts[-1].number
            self._say(place_in_words(job) + (self._hint() if self._hint is not None else ""))


def state_in_words(job: job_pb2.Job) -> str:
    """Progress before and between runs, for a terminal; empty where the output itself tells."""
    if job.state == job_pb2.JOB_STATE_HELD:
        return f"job {job.id} is held and waits for its release: gpuctl release {job.id}"
    if job.state == job_pb2.JOB_STATE_QUEUED:
        why = job.wait_reason.sentence
        return f"job {job.id} is queued" + (f": {why}" if why else "")
    return ""


def place_in_words(job: job_pb2.Job) -> str:
    """Where the newest attempt runs, or is about to."""
    from ..render.words import place

    places = ", ".join(place(rank) for rank in job.attempts[-1].ranks)
    attempt = f", attempt {job.attempt_count}" if job.attempt_count > 1 else ""
    verb = "starts" if job.state == job_pb2.JOB_STATE_STARTING else "runs"
    return f"job {job.id} {verb} on {places}{attempt}"


def code_of_end(job: job_pb2.Job, say: Callable[[str], None]) -> int:
    """The exit code of a job whose output is over; how it ended is said, where that is not well."""
    code = exit_code_of(job)
    if code != 0:
        say(end_in_words(job))
    if not job.output_is_complete and has_ended(job):
        say(f"the output of job {job.id} is not complete; see: gpuctl job {job.id}")
    return code


def how_to_follow(job_id: int, why: str, *, has_input: bool) -> str:
    """What to say where it is left and goes on."""
    again = "Come back with: gpuctl attach" if has_input else "Follow it with: gpuctl logs -f"
    return f"{why}; job {job_id} goes on. {again} {job_id}"


def bring_back(settings: Settings, job_id: int, code: int, say: Callable[[str], None]) -> int:
    """Bring here what the job left; our exit code, by the job's: a success without its files is a failure of ours."""
    from ..results.copying import copy_all

    try:
        copy_all(settings, job_id, ".")
    except GpufleetError as problem:
        say(f"what it left is not all here: {problem.message}. Try again with: gpuctl cp {job_id}: .")
        return code or OWN_FAILURE
    return code
