"""The file on the node that gets a copy of what a job writes: its name is a pattern, as Slurm's --output has them."""

import posixpath
import re
from collections.abc import Callable

from gpufleet.errors import invalid

from ..state.commands import LaunchAttempt

PATTERN_BYTES_MAX = 4_095
"""The longest path that Linux takes (PATH_MAX)."""

_PART = re.compile(r"%(\d{0,2})(.?)", re.DOTALL)
_NUMBERS: dict[str, Callable[[LaunchAttempt], int]] = {
    "j": lambda launch: launch.key.job,
    "A": lambda launch: launch.array or launch.key.job,
    "a": lambda launch: launch.index or 0,
    "t": lambda launch: launch.key.rank,
    "r": lambda launch: launch.key.rank,
}
_WORDS: dict[str, Callable[[LaunchAttempt], str]] = {
    "x": lambda launch: launch.spec.name.replace("/", "_"),
    "N": lambda launch: launch.node,
    "u": lambda launch: launch.user,
    "%": lambda launch: "%",
}
KNOWN = "%j job, %A array, %a index, %x name, %N node, %t rank, %u user, %% a percent sign"


def output_file_of(pattern: str, path: str, *, is_array: bool) -> str:
    """The checked pattern; empty for none."""
    if not pattern:
        return ""
    if re.search(r"[\x00-\x1f\x7f]", pattern):
        raise invalid(path, "holds a control character")
    if len(pattern.encode()) > PATTERN_BYTES_MAX:
        raise invalid(path, f"is longer than {PATTERN_BYTES_MAX:,} bytes")
    if pattern.endswith("/"):
        raise invalid(path, f"{pattern!r} is a folder", next_step=f"add the file's name: {pattern}%x-%j.log")
    for width, letter in _PART.findall(pattern):
        if letter not in _NUMBERS and (letter not in _WORDS or width):
            raise invalid(path, f"'%{width}{letter}' is no pattern", next_step=f"known are {KNOWN}")
        if letter == "a" and not is_array:
            raise invalid(path, "'%a' is the index of an array's item, and there is no array", next_step="leave it out")
    return pattern


def output_path(launch: LaunchAttempt) -> str:
    """The absolute path for one rank; empty for none. What is relative lies in the job's own folder."""
    pattern = launch.spec.output_file
    return posixpath.join(launch.spec.cwd, _PART.sub(lambda found: _filled(found, launch), pattern)) if pattern else ""


def _filled(found: re.Match[str], launch: LaunchAttempt) -> str:
    width, letter = found.groups()
    number = _NUMBERS.get(letter)
    return str(number(launch)).zfill(int(width or 0)) if number is not None else _WORDS[letter](launch)
