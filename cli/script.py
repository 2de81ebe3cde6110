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
    own = arguments[: arguments.index("--")] if "--" in arguments else []
    replaced = {word.partition("=")[0] for word in own} & LISTS
    return [*(word for _, words in script_lines(arguments) for word in _without(words, replaced)), *arguments]


LISTS = frozenset({"--nodelist", "--exclude", "--gpu-model", "--after"})
"""Options that take several values, of which those of the command line stand in place of the script's."""


def _without(words: list[str], options: frozenset[str] | set[str]) -> list[str]:
    kept: list[str] = []
    is_value = False
    for word in words:
        name, equals, _ = word.partition("=")
        if name in options:
            is_value = not equals
        elif is_value:
            is_value = False
        else:
            kept.append(word)
    return kept


def script_lines(arguments: list[str]) -> list[tuple[str, list[str]]]:
    """The options of each `#gpuctl` line of the script, with where it stands: `train.sh:2`."""
    command = arguments[arguments.index("--") + 1 :] if "--" in arguments else []
    return _lines_of(Path(command[0])) if command else []


def _lines_of(script: Path) -> list[tuple[str, list[str]]]:
    try:
        with script.open("rb") as file:
            head = file.read(SCRIPT_BYTES_READ_MAX)
    except OSError:
        return []
    if not head.startswith(b"#!"):
        return []
    lines: list[tuple[str, list[str]]] = []
    for number, line in enumerate(head.splitlines(), start=1):
        if line.startswith(MARK) and line[len(MARK) :][:1].isspace():
            words = _words(script, number, line[len(MARK) :].decode(errors="surrogateescape"))
            lines.append((f"{script}:{number}", words))
    return lines


def _words(script: Path, number: int, text: str) -> list[str]:
    try:
        words = shlex.split(text, comments=True)
    except ValueError as problem:
        raise invalid(f"{script}:{number}", f"the #gpuctl line cannot be read: {problem}") from None
    if "--" in words:
        raise invalid(f"{script}:{number}", "a #gpuctl line holds options only, and no --")
    return words
