"""What a job leaves: which lines of its spec may say so."""

from gpufleet.v1 import job_pb2

from gpufleet.errors import invalid
from gpufleet.jobs.results import LINE_BYTES_MAX, LINES_MAX, trouble_with_line

HOW = "write it as in a .gitignore, such as out/** or *.pt"


def results_of(spec: job_pb2.JobSpec, path: str) -> tuple[str, ...]:
    """The checked lines. Errors: INVALID_ARGUMENT with the path of the field."""
    if len(spec.results) > LINES_MAX:
        raise invalid(f"{path}.results", f"holds {len(spec.results):,} lines; {LINES_MAX} are the most")
    for number, line in enumerate(spec.results):
        if len(line.encode()) > LINE_BYTES_MAX:
            raise invalid(f"{path}.results[{number}]", f"is longer than {LINE_BYTES_MAX:,} bytes", next_step=HOW)
        if why := trouble_with_line(line):
            raise invalid(f"{path}.results[{number}]", why, next_step=HOW)
    if spec.results and all(line.startswith("!") for line in spec.results):
        why = "choose nothing: each of them takes files out"
        raise invalid(f"{path}.results", why, next_step=HOW)
    return tuple(spec.results)
