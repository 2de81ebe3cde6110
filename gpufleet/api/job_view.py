"""What is known of a job, and of a file that it left."""

from __future__ import annotations

from dataclasses import dataclass

from gpufleet.fleet.exit_codes import OWN_FAILURE
from gpufleet.fleet.outcome import end_in_words, exit_code_of, has_ended
from gpufleet.v1 import job_pb2

from .failures import JobFailed


@dataclass(frozen=True, slots=True)
class JobFile:
    """A file that a job left: where it lies in the job's folder, and its size; of an array the index of its item."""

    path: str
    size_bytes: int
    is_executable: bool
    rank: int
    attempt: int
    item: int | None = None


class JobView:
    """What is known of a job, as it was last heard of."""

    def __init__(self, record: job_pb2.Job) -> None:
        self.record = record
        """All of it, as the contract has it (gpufleet.v1.job_pb2.Job)."""

    @property
    def id(self) -> int:
        """Its id, from 1."""
        return self.record.id

    @property
    def name(self) -> str:
        """Its name."""
        return self.record.spec.name

    @property
    def state(self) -> str:
        """`queued`, `held`, `starting`, `running`, `stopping`, `succeeded`, `failed`, `cancelled` or `timed_out`."""
        return job_pb2.JobState.Name(self.record.state).removeprefix("JOB_STATE_").lower()

    @property
    def has_ended(self) -> bool:
        """Whether its state is final."""
        return has_ended(self.record)

    @property
    def exit_code(self) -> int | None:
        """None before its end; then its own, 128 + n for a signal, 124 for a time limit, 125 without a code."""
        return exit_code_of(self.record) if self.has_ended else None

    @property
    def nodes(self) -> list[str]:
        """The nodes of its newest attempt, by rank; empty before the first."""
        attempts = self.record.attempts
        return [rank.node for rank in attempts[-1].ranks] if attempts else []

    @property
    def why_it_waits(self) -> str:
        """A sentence; empty once it runs."""
        return self.record.wait_reason.sentence

    @property
    def end(self) -> str:
        """How it ended, as a sentence: `job 12 failed with exit code 3 (EXITED)`; of one that goes on that it does."""
        return end_in_words(self.record)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.name!r} {self.state}>"

    def failed(self) -> JobFailed:
        """The error that says how it ended."""
        return JobFailed(
            self.id, self.exit_code or OWN_FAILURE, self.end, f"See its output with: gpuctl logs {self.id}"
        )
