"""Levels that cannot meet in one row: refused by the scheduler, or without a meaning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from tests.pairs.features import Row

Levels = Mapping[str, str]
NO_PYTHON = "an account of a job's own may have no way to the Python of the account that runs the tests"
NO_ENGINE = "the engine of the tests has a mount namespace in which nodes may be unable to isolate jobs"
TYPED_TO = ("run -i", "shell")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Levels that are refused when they are typed, by an error that names the option."""

    levels: Levels
    option: str

    @property
    def code(self) -> int:
        """What gpuctl exits with: 2 for wrong usage, and 125 of a command that else exits with its job's code."""
        return 2 if self.levels.get("typed", "submit") == "submit" else 125


@dataclass(frozen=True, slots=True, kw_only=True)
class Senseless:
    """Levels of which one takes the other's meaning away, and why."""

    levels: Levels
    why: str


def _typed_to(option: str, **levels: str) -> tuple[Refused, ...]:
    """What cannot be run again, as its input is gone."""
    return tuple(Refused(levels={"typed": typed, **levels}, option=option) for typed in TYPED_TO)


REFUSED: tuple[Refused, ...] = (
    *(Refused(levels={"typed": typed, "array": "yes"}, option="--array") for typed in ("run", *TYPED_TO)),
    *_typed_to("--retries", retries="yes"),
    *_typed_to("--requeue-on-timeout", on_timeout="requeued"),
    *_typed_to("--preemptible", preemptible="yes"),
    Refused(levels={"gpus": "none", "gpu_mode": "preferred"}, option="--gpu-mode"),
    Refused(levels={"image": "yes", "environment": "requirements"}, option="--requirements"),
    Refused(levels={"image": "yes", "environment": "setup"}, option="--setup"),
    Refused(levels={"image": "yes", "output_file": "yes"}, option="--output-file"),
    Refused(levels={"image": "yes", "process": "nice"}, option="--nice"),
    Refused(levels={"image": "yes", "process": "rlimit"}, option="--rlimit"),
    Refused(levels={"environment": "requirements", "upload": "no", "file": "no"}, option="--requirements"),
    Refused(levels={"environment": "setup", "upload": "no", "file": "no"}, option="--setup"),
)

SENSELESS: tuple[Senseless, ...] = (
    Senseless(levels={"event": "preemption", "gpus": "none"}, why="there is no GPU that another job could take"),
    Senseless(levels={"event": "preemption", "gpus": "share"}, why="another row may have the other part of the GPU"),
    Senseless(levels={"event": "preemption", "gpu_mode": "never"}, why="there is no GPU that another job could take"),
    Senseless(levels={"event": "time limit", "update": "limit"}, why="an owner makes no time limit longer"),
    Senseless(levels={"isolation": "own account", "environment": "requirements"}, why=NO_PYTHON),
    Senseless(levels={"isolation": "own account", "environment": "setup"}, why=NO_PYTHON),
    Senseless(levels={"isolation": "own account", "image": "yes"}, why=NO_ENGINE),
)

_ALL: tuple[Refused | Senseless, ...] = (*REFUSED, *SENSELESS)

FORBIDDEN: tuple[Levels, ...] = tuple(each.levels for each in _ALL)
"""Levels that no row has together."""


def is_allowed(row: Row) -> bool:
    """Whether no forbidden levels meet in a row."""
    chosen = asdict(row)
    return not any(levels.items() <= chosen.items() for levels in FORBIDDEN)
