"""Options written in a script: lines that begin with `#gpuctl` stand before the options of the command line."""

from __future__ import annotations

import shlex
from pathlib import Path

from gpufleet.errors import invalid

MARK = b"#gpuctl"
SCRIPT_BYTES_READ_MAX = 65_536
"""How far into the file such lines are looked for."""


def with_script_options(arguments: list[str]) -> list[str]:
    """The arguments of `submit` or `run` with the options of the script that they name, if they name one.

    The script is the first word of the command: a file of this machine that begins with `#!`. Its options come
    first, so that the command line's own win. Raises INVALID_ARGUMENT for a line that is no list of options.
    """
    if "--" not in arguments:
        return arguments
    command = arguments[arguments.index("--") + 1 :]
    return [*_options_of(Path(command[0])), *arguments] if command else arguments


def _options_of(script: Path) -> list[str]:
    try:
        with script.open("rb") as file:
            head = file.read(SCRIPT_BYTES_READ_MAX)
    except OSError:
        return []
    if not head.startswith(b"#!"):
        return []
    options: list[str] = []
    for number, line in enumerate(head.splitlines(), start=1):
        if line.startswith(MARK) and line[len(MARK) :][:1].isspace():
            options += _words(script, number, line[len(MARK) :].decode(errors="surrogateescape"))
    return options


def _words(script: Path, number: int, text: str) -> list[str]:
    try:
        words = shlex.split(text, comments=True)
    except ValueError as problem:
        raise invalid(f"{script}:{number}", f"the #gpuctl line cannot be read: {problem}") from None
    if "--" in words:
        raise invalid(f"{script}:{number}", "a #gpuctl line holds options only, and no --")
    return words
