"""The core's values as JSON and back; a field this version does not know is ignored, so fields may come."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from gpufleet.jobs.runs import ExitCode, ExitSignal, ExitStatus, InputMode, RankKey, cause_of

from ..core.attempt import Limits
from ..core.launch import Container, ControlGroup, Isolation, Launch, NotRun, Process, Refusal, RefusalReason
from ..core.outcome import (
    AttemptEnd,
    AttemptPhase,
    AttemptView,
    FullReason,
    LaunchFailure,
    LossReason,
    Offsets,
    Shortage,
    Stream,
)
from ..core.typed import Typed

Json = dict[str, Any]

NO_INPUT = "none"
"""What a launch says of a process to which nobody can type."""


def to_json(value: Any) -> Any:
    """Turn a value of the core into what json.dumps takes."""
    if value is None or isinstance(value, str | int):
        return value  # most of what there is
    match value:
        case RankKey():
            return value.name
        case Mapping():
            return dict(value)
        case tuple() | list():
            return [to_json(each) for each in value]
        case _ if hasattr(value, "__dataclass_fields__"):
            return {name: to_json(getattr(value, name)) for name in value.__dataclass_fields__}
        case _:
            return value


def launch_to(launch: Launch) -> Json:
    """A launch as JSON: its process lies open in it, for a keeper of another version than its agent reads it so."""
    json = to_json(launch)
    del json["process"]
    return {**process_to(launch.process), **json}


def process_to(process: Process) -> Json:
    """A process as JSON."""
    json: Json = to_json(process)
    return {**json, "input": process.input or NO_INPUT}


def process_from(data: Json) -> Process:
    """Read a process; KeyError, TypeError or ValueError when it is none."""
    known = _known(Process, data)
    known["argv"] = tuple(data["argv"])
    known["limits"] = Limits(**_known(Limits, data.get("limits", {})))
    asked = data.get("input", NO_INPUT)
    known["input"] = None if asked == NO_INPUT else InputMode(asked)
    known["rlimits"] = {name: (int(soft), int(hard)) for name, (soft, hard) in data.get("rlimits", {}).items()}
    known["isolation"] = isolation_from(data.get("isolation"))
    group = data.get("group")
    known["group"] = None if group is None else ControlGroup(**_known(ControlGroup, group))
    known["container"] = container_from(data.get("container"))
    return Process(**known)


def container_from(data: Json | None) -> Container | None:
    """Read which container a process runs; None for none."""
    return None if data is None else Container(**_known(Container, data))


def isolation_from(data: Json | None) -> Isolation | None:
    """Read how a process is kept apart; None where it is not."""
    if data is None:
        return None
    lists = {name: tuple(data.get(name, ())) for name in ("groups", "devices", "hidden")}
    return Isolation(**{**_known(Isolation, data), **lists})


def launch_from(data: Json) -> Launch:
    """Read a launch; KeyError, TypeError or ValueError when it is none."""
    key = RankKey.parse(data["key"])
    return Launch(**{**_known(Launch, data), "key": key, "process": process_from(data)})


def offsets_from(data: Json) -> Offsets:
    """Read a position in each stream."""
    return Offsets(int(data["stdout"]), int(data["stderr"]))


def refusal_from(data: Json) -> Refusal:
    """Read a refusal."""
    return Refusal(RefusalReason(data["reason"]), data["detail"])


def not_run_from(data: Json) -> NotRun:
    """Read why a command cannot be run."""
    return NotRun(LaunchFailure(data["failure"]), data["detail"])


def end_from(data: Json) -> AttemptEnd:
    """Read how an attempt ended."""
    known = _known(AttemptEnd, data)
    known["status"] = _status_from(data["status"])
    known["output_ends"] = offsets_from(data["output_ends"])
    known["stop_cause"] = _optional(cause_of, data.get("stop_cause"))
    known["failure"] = _optional(LaunchFailure, data.get("failure"))
    known["loss"] = _optional(LossReason, data.get("loss"))
    shortage = data.get("shortage")
    known["shortage"] = None if shortage is None else Shortage(**_known(Shortage, shortage))
    for name in ("streams_cut", "streams_lost"):
        known[name] = tuple(Stream(each) for each in data.get(name, ()))
    return AttemptEnd(**known)


def view_from(data: Json) -> AttemptView:
    """Read what a keeper knows of an attempt."""
    known = _known(AttemptView, data)
    known["key"] = RankKey.parse(data["key"])
    known["phase"] = AttemptPhase(data["phase"])
    known["stop_cause"] = _optional(cause_of, data.get("stop_cause"))
    known["output_starts"] = offsets_from(data["output_starts"])
    known["output_ends"] = offsets_from(data["output_ends"])
    known["full"] = _optional(FullReason, data.get("full"))
    known["end"] = _optional(end_from, data.get("end"))
    return AttemptView(**known)


def typed_from(data: Json) -> Typed:
    """Read where an input stands."""
    return Typed(int(data["offset"]), bool(data["has_ended"]))


def _status_from(data: Json | None) -> ExitStatus | None:
    if data is None:
        return None
    return ExitCode(code=data["code"]) if "code" in data else ExitSignal(signal=data["signal"])


def _known(cls: Any, data: Json) -> Json:
    return {field.name: data[field.name] for field in fields(cls) if field.name in data}


def _optional(make: Any, data: Any) -> Any:
    return None if data is None else make(data)
