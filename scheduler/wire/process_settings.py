"""How a job's processes run, in a spec and in a launch: from the wire to the state, checked, and back."""

from gpufleet.v1 import job_pb2

from gpufleet.errors import GpufleetError, invalid
from gpufleet.jobs.runs import RLIMITS, UNLIMITED

from ..state.specs import ProcessSettings, ResourceLimit

RLIMIT_MAX = 2**62
NICE_MAX = 19


def process_settings_of(spec: job_pb2.JobSpec, path: str) -> ProcessSettings | None:
    """The checked settings; None where nothing is asked for. Errors: INVALID_ARGUMENT with the path."""
    settings = ProcessSettings(
        rlimits=_rlimits(spec.process, f"{path}.process.rlimits"), nice=_nice(spec.process, f"{path}.process.nice")
    )
    return None if settings == ProcessSettings() else settings


def process_settings_proto(settings: ProcessSettings | None) -> job_pb2.ProcessSettings | None:
    """The settings on the wire, in a spec and in a launch."""
    if settings is None:
        return None
    return job_pb2.ProcessSettings(
        rlimits=[job_pb2.ResourceLimit(name=each.name, soft=each.soft, hard=each.hard) for each in settings.rlimits],
        nice=settings.nice,
    )


def _nice(asked: job_pb2.ProcessSettings, path: str) -> int:
    if not 0 <= asked.nice <= NICE_MAX:
        why = f"is {asked.nice}; the niceness of its processes is 0 to {NICE_MAX}"
        raise invalid(path, why, next_step="its place in the queue is that of its band: --band low")
    return asked.nice


def _rlimits(asked: job_pb2.ProcessSettings, path: str) -> tuple[ResourceLimit, ...]:
    found: dict[str, ResourceLimit] = {}
    for number, each in enumerate(asked.rlimits):
        field = f"{path}[{number}]"
        if each.name not in RLIMITS:
            raise invalid(f"{field}.name", f"is {each.name!r}", next_step=f"choose one of {', '.join(RLIMITS)}")
        if each.name in found:
            raise invalid(f"{field}.name", f"sets {each.name} a second time", next_step="say it once")
        hard = each.hard if each.HasField("hard") else each.soft
        for name, value in (("soft", each.soft), ("hard", hard)):
            if not UNLIMITED <= value <= RLIMIT_MAX:
                why = f"is {value:,}; it must be 0 to {RLIMIT_MAX:,}, or {UNLIMITED} for none"
                raise _wrong(f"{field}.{name}", why)
        if hard != UNLIMITED and (each.soft > hard or each.soft == UNLIMITED):
            soft = "unlimited" if each.soft == UNLIMITED else f"{each.soft:,}"
            raise _wrong(f"{field}.soft", f"is {soft}, and the hard limit of {each.name} is {hard:,}")
        found[each.name] = ResourceLimit(name=each.name, soft=each.soft, hard=hard)
    return tuple(found[name] for name in sorted(found))


def _wrong(path: str, why: str) -> GpufleetError:
    return invalid(path, why, next_step="write it as NOFILE=4096, or with a higher hard limit as NOFILE=4096:8192")
