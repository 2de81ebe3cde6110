"""What a job is given of what other jobs left, in a spec: from the wire to the state, checked, and back."""

from collections.abc import Iterable

from gpufleet.v1 import job_pb2

from gpufleet.errors import invalid
from gpufleet.jobs.files import trouble_with_path
from gpufleet.jobs.results import LINE_BYTES_MAX, trouble_with_line

from ..state.ids import JobId
from ..state.specs import JobInput

INPUTS_MAX = 100
HOW = "write it as 41:out/**, or as 41:out/**=data for a folder of that name"


def job_inputs_of(spec: job_pb2.JobSpec, path: str) -> tuple[JobInput, ...]:
    """The checked inputs, each of a job by its id. Errors: INVALID_ARGUMENT with the path of the field."""
    if len(spec.inputs) > INPUTS_MAX:
        raise invalid(f"{path}.inputs", f"holds {len(spec.inputs):,}; {INPUTS_MAX} are the most")
    found: list[JobInput] = []
    for number, each in enumerate(spec.inputs):
        field = f"{path}.inputs[{number}]"
        if each.job_id < 1:
            raise invalid(f"{field}.job_id", f"is {each.job_id}", next_step="give a job's id, such as 41")
        if len(each.pattern.encode()) > LINE_BYTES_MAX:
            raise invalid(f"{field}.pattern", f"is longer than {LINE_BYTES_MAX:,} bytes", next_step=HOW)
        why = "takes files out, and chooses none" if each.pattern.startswith("!") else trouble_with_line(each.pattern)
        if why:
            raise invalid(f"{field}.pattern", why, next_step=HOW)
        if each.name and (why := trouble_with_path(each.name) or _trouble_beside(spec, each.name)):
            raise invalid(f"{field}.name", why, next_step=HOW)
        found.append(JobInput(job=JobId(each.job_id), pattern=each.pattern, name=each.name))
    return tuple(found)


def _trouble_beside(spec: job_pb2.JobSpec, name: str) -> str:
    """Why a folder of this name cannot lie beside the files of a spec; empty where it can."""
    clash = next((file.path for file in spec.files if f"{name}/".startswith(f"{file.path}/")), None)
    return f"lies where the file {clash!r} does" if clash is not None else ""


def job_inputs_proto(inputs: Iterable[JobInput]) -> list[job_pb2.JobInput] | None:
    """The inputs on the wire; None for none."""
    return [job_pb2.JobInput(job_id=each.job, pattern=each.pattern, name=each.name) for each in inputs] or None
