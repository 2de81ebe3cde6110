"""The request to submit a job from here, and what is said of it where it is refused or nobody answers.

Its id is made once and kept over every retry, so that a job is never made twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from gpufleet.errors import FieldViolation, GpufleetError, Reason
from gpufleet.v1 import scheduler_pb2

from ..client import OUTCOME_OPEN
from .job_options import JobOptions, option_of_field
from .job_spec import spec_of

OPTION_OF_FIELD = {
    **option_of_field(),
    "argv": "the command",
    "devices": "--gpus",
    "devices[0].share.memory_bytes": "--min-memory",
    "request_id": "--request-id",
}
"""The server names fields of the spec; people typed options."""


def request_of(
    options: JobOptions, command: Sequence[str], *, request_id: str | None, dry_run: bool
) -> scheduler_pb2.SubmitRequest:
    """The request to submit one job from here."""
    spec = spec_of(options, command, os.environ, working_folder())
    return scheduler_pb2.SubmitRequest(specs=[spec], request_id=request_id or new_request_id(), dry_run=dry_run)


def new_request_id() -> str:
    """An id that no other request has: 32 hexadecimal digits."""
    return os.urandom(16).hex()


def working_folder() -> str:
    """Where the submitter is, by the name that was used to get there: links often are the same on every node."""
    shown = os.environ.get("PWD", "")
    try:
        if shown.startswith("/") and Path(shown).samefile("."):
            return shown
        return str(Path.cwd())
    except OSError:
        raise GpufleetError(
            Reason.FILE_NOT_FOUND,
            "the folder that you are in was removed",
            next_step="Go to another one with cd, or name the job's with --cwd.",
        ) from None


def outcome_unknown(problem: GpufleetError, request_id: str) -> GpufleetError:
    """Nobody answered: say whether the job may exist, and how to ask again without making it twice."""
    if problem.reason not in OUTCOME_OPEN:
        return problem
    return GpufleetError(
        problem.reason,
        f"{problem.message.rstrip('.')}; whether the job was stored is not known",
        next_step=f"Repeat the same command with --request-id {request_id}: it is never done twice.",
        metadata={**problem.metadata, "request_id": request_id},
    )


def in_options(problem: GpufleetError, option_of: Callable[[str], str] | None = None) -> GpufleetError:
    """The refusal with each field named as the option that was typed; by default those of submit."""
    option_of = option_of or _option
    violations = [FieldViolation(option_of(each.field), each.why) for each in problem.violations]
    message = problem.message
    for before, after in zip(problem.violations, violations, strict=True):
        message = message.replace(before.field, after.field, 1)
    return GpufleetError(
        problem.reason,
        message,
        violations=violations,
        next_step=problem.next_step,
        retry_after_s=problem.retry_after_s,
        metadata=problem.metadata,
    )


def _option(field: str) -> str:
    own = field.removeprefix("specs[0].").removeprefix("spec.")
    while own:
        if own in OPTION_OF_FIELD:
            return OPTION_OF_FIELD[own]
        cut = max(own.rfind("."), own.rfind("["))
        own = own[: max(cut, 0)]
    return field
