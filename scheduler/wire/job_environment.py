"""The environment that a job begins in: from the wire to the state, checked, and back."""

from gpufleet.v1 import job_pb2

from gpufleet.errors import invalid
from gpufleet.jobs.files import trouble_with_path

from ..state.specs import EnvironmentTool, JobEnvironment

LINE_BYTES_MAX = 4_096
"""A line of `setup` is at most so long."""

FILE_TOOLS = (EnvironmentTool.REQUIREMENTS, EnvironmentTool.CONDA)


def job_environment_of(spec: job_pb2.JobSpec, path: str) -> JobEnvironment | None:
    """The checked environment. Errors: INVALID_ARGUMENT with the path of the field."""
    if not spec.HasField("environment"):
        return None
    asked, path = spec.environment, f"{path}.environment"
    tools = [tool for tool in EnvironmentTool if getattr(asked, tool.value)]
    if not tools:
        raise invalid(path, "names nothing that makes one", next_step="set setup, requirements, uv or conda")
    tool, *others = tools
    if others:
        why = f"there is {path.rpartition('.')[2]}.{tool.value}, too; a job begins in one environment"
        raise invalid(f"{path}.{others[0].value}", why, next_step="leave one of them out")
    what = "" if tool is EnvironmentTool.UV else str(getattr(asked, tool.value))
    field = f"{path}.{tool.value}"
    if tool is EnvironmentTool.SETUP:
        _check_line(what, field)
    if tool in FILE_TOOLS and (why := trouble_with_path(what)):
        raise invalid(field, why, next_step="give its path in the folder of the job's files, such as requirements.txt")
    if not (spec.files or spec.HasField("folder")):
        raise invalid(
            field,
            "no files go with the job that it could be made of",
            next_step="send the folder along, with --upload .",
        )
    return JobEnvironment(tool=tool, what=what)


def _check_line(line: str, field: str) -> None:
    if not line.strip():
        raise invalid(field, "is blank", next_step="give a line for the shell, or leave it out")
    if "\0" in line:
        raise invalid(field, "holds a NUL", next_step="give a line for the shell")
    if len(line.encode()) > LINE_BYTES_MAX:
        step = "put it into a script of the folder, and name that"
        raise invalid(field, f"is longer than {LINE_BYTES_MAX:,} bytes", next_step=step)


def job_environment_proto(environment: JobEnvironment | None) -> job_pb2.JobEnvironment | None:
    """The environment on the wire."""
    if environment is None:
        return None
    message = job_pb2.JobEnvironment()
    setattr(message, environment.tool.value, environment.tool is EnvironmentTool.UV or environment.what)
    return message
