"""The values of `runs.py` on the wire, as scheduler and node read and write them: enums by their names."""

from __future__ import annotations

from collections.abc import Iterable

from gpufleet.v1 import job_pb2, node_agent_pb2

from .runs import (
    LINEAGE,
    ExitCode,
    ExitSignal,
    ExitStatus,
    FileRun,
    FileWay,
    InputMode,
    JobId,
    RankKey,
    StopCause,
)

STOP_CAUSES = {cause: node_agent_pb2.StopCause.Value(f"STOP_CAUSE_{cause.name}") for cause in StopCause}
STOP_CAUSE_OF = {number: cause for cause, number in STOP_CAUSES.items()}

INPUT_MODES: dict[InputMode | None, job_pb2.InputMode.ValueType] = {
    None: job_pb2.INPUT_MODE_UNSPECIFIED,
    **{mode: job_pb2.InputMode.Value(f"INPUT_MODE_{mode.name}") for mode in InputMode},
}
INPUT_MODE_OF = {number: mode for mode, number in INPUT_MODES.items()}

FILE_WAYS = {way: job_pb2.FileWay.Value(f"FILE_WAY_{way.name}") for way in FileWay}
FILE_WAY_OF = {number: way for way, number in FILE_WAYS.items()}


def key_to_proto(key: RankKey) -> node_agent_pb2.AttemptKey:
    """A rank's key on the wire."""
    return node_agent_pb2.AttemptKey(job_id=key.job, attempt=key.attempt, rank=key.rank, lineage=key.lineage)


def key_from_proto(key: node_agent_pb2.AttemptKey) -> RankKey:
    """A rank's key from the wire; ValueError when it can name none."""
    if key.job_id < 1 or key.attempt < 1 or key.rank < 0:
        raise ValueError(f"names no rank: job {key.job_id}, attempt {key.attempt}, rank {key.rank}")
    # It becomes part of the names of files.
    if LINEAGE.fullmatch(key.lineage) is None:
        raise ValueError(f"lineage {key.lineage[:80]!r} is not 16 hexadecimal digits")
    return RankKey(JobId(key.job_id), key.attempt, key.rank, key.lineage)


def exit_to_proto(status: ExitStatus | None) -> job_pb2.ExitStatus | None:
    """How a process ended on the wire; None, which nobody knows, stays absent."""
    match status:
        case ExitCode(code=code):
            return job_pb2.ExitStatus(code=code)
        case ExitSignal(signal=number):
            return job_pb2.ExitStatus(signal=number)
        case None:
            return None


def exit_from_proto(status: job_pb2.ExitStatus) -> ExitStatus | None:
    """How a process ended from the wire, or None when nobody knows."""
    match status.WhichOneof("status"):
        case "code":
            return ExitCode(code=status.code)
        case "signal":
            return ExitSignal(signal=status.signal)
        case _:
            return None


def runs_to_proto(runs: Iterable[FileRun]) -> list[job_pb2.FileRun]:
    """How files came, on the wire."""
    return [job_pb2.FileRun(way=FILE_WAYS[each.way], count=each.count) for each in runs]


def runs_from_proto(runs: Iterable[job_pb2.FileRun]) -> tuple[FileRun, ...]:
    """How files came, from the wire; what a newer node says of a way that is not known here is left out."""
    return tuple(
        FileRun(way=FILE_WAY_OF[each.way], count=each.count)
        for each in runs
        if each.way in FILE_WAY_OF and each.count > 0
    )
