"""What a job leaves, and what it keeps for its next attempt: which lines of its spec may say so."""

from collections.abc import Sequence

from gpufleet.v1 import job_pb2

from gpufleet.errors import invalid
from gpufleet.jobs.results import LINE_BYTES_MAX, LINES_MAX, trouble_with_line

HOW = "write it as in a .gitignore, such as out/** or *.pt"


def results_of(spec: job_pb2.JobSpec, path: str) -> tuple[str, ...]:
    """The checked lines. Errors: INVALID_ARGUMENT with the path of the field."""
    return _lines(spec.results, f"{path}.results")


def keep_of(spec: job_pb2.JobSpec, path: str) -> tuple[str, ...]:
    """The checked lines of what the next attempt finds. Errors: INVALID_ARGUMENT with the path of the field."""
    field = f"{path}.keep"
    lines = _lines(spec.keep, field)
    if not lines:
        return ()
    if spec.cwd.startswith("/") and not spec.HasField("container"):
        raise invalid(
            field,
            f"is of the folder that each attempt has for itself, and the job works in {spec.cwd}, which every attempt "
            "finds as the one before left it",
            next_step="leave out --keep, or give --upload . in place of --cwd",
        )
    if spec.no_requeue and not spec.retries:
        raise invalid(
            field,
            "does not go with no_requeue: without --retries there is no next attempt that could find it",
            next_step="leave out --keep, or --no-requeue (run -i, shell and notebook always say that); to bring files "
            "back use --download",
        )
    return lines


def _lines(lines: Sequence[str], field: str) -> tuple[str, ...]:
    if len(lines) > LINES_MAX:
        raise invalid(field, f"holds {len(lines):,} lines; {LINES_MAX} are the most")
    for number, line in enumerate(lines):
        if len(line.encode()) > LINE_BYTES_MAX:
            raise invalid(f"{field}[{number}]", f"is longer than {LINE_BYTES_MAX:,} bytes", next_step=HOW)
        if why := trouble_with_line(line):
            raise invalid(f"{field}[{number}]", why, next_step=HOW)
    if lines and all(line.startswith("!") for line in lines):
        raise invalid(field, "choose nothing: each of them takes files out", next_step=HOW)
    return tuple(lines)
