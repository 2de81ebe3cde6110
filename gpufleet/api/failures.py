"""What ends badly and is no refusal: a job, or a call that ran as one."""

from __future__ import annotations


class JobFailed(Exception):
    """A job did not succeed: `exit_code` as `gpuctl wait` gives it, `sentence` how it ended, `next_step` what to do."""

    def __init__(self, job_id: int, exit_code: int, sentence: str, next_step: str) -> None:
        super().__init__(f"{sentence}\n{next_step}")
        self.job_id = job_id
        self.exit_code = exit_code
        self.sentence = sentence
        self.next_step = next_step

    def __reduce__(self) -> tuple[type[JobFailed], tuple[int, int, str, str]]:
        return type(self), (self.job_id, self.exit_code, self.sentence, self.next_step)


class TaskFailed(JobFailed):
    """A call came back with nothing: its job ended before it could say how it went, or said what cannot be read."""


class RemoteTraceback(Exception):
    """The cause of an exception that a call raised on its node: the traceback there, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"
