"""What a runner writes down of its container, for its keeper, which may read it at any moment: a file of JSON."""

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerState:
    """`pid` is the container's first process on this machine, 0 where it is not seen here, and `start_ticks` tell it
    from a later one of that number. Behind its end: `exit_code`, and whether the kernel ended it for want of memory.

    `failure` and `detail`: why it never ran, in the words of LaunchFailure, or how it is that nobody knows its end.
    """

    pid: int = 0
    start_ticks: int = 0
    exit_code: int | None = None
    is_out_of_memory: bool = False
    failure: str = ""
    detail: str = ""
    is_removed: bool = False


def write_state(file: str, state: ContainerState) -> None:
    """Put it in place of what was there. OSError when that is not possible."""
    temporary = f"{file}.new"
    Path(temporary).write_text(json.dumps(asdict(state)))
    os.replace(temporary, file)  # noqa: PTH105 - text, as all names here


def read_state(file: str) -> ContainerState:
    """What is known; all defaults where nothing is."""
    try:
        told = json.loads(Path(file).read_bytes())
        return ContainerState(
            **{field.name: told[field.name] for field in fields(ContainerState) if field.name in told}
        )
    except (OSError, ValueError, TypeError):
        return ContainerState()
