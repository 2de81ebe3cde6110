"""`submit -- -`: a script that comes through standard input travels as an argument of its interpreter."""

from __future__ import annotations

import codecs
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.jobs.names import SHELLS

from .finding import SCRIPT_BYTES_READ_MAX, Script, script_of

NAME = "standard input"
WORD = "-"
"""What stands for it in place of a command."""

SCRIPT_BYTES_MAX = 131_071
"""Linux passes no longer argument."""

TAKES_A_PROGRAM = {
    **dict.fromkeys((*SHELLS, "python"), "-c"),
    **dict.fromkeys(("perl", "ruby", "node", "lua", "Rscript", "julia"), "-e"),
}
"""Interpreters, and the option whose value is the program itself. What follows is what the program is given."""

DEFAULT = ["/bin/sh"]


def script_and_command(command: Sequence[str], cwd: str | None) -> tuple[Script | None, list[str]]:
    """The script that the command runs in this folder (None: the one we are in), and the command to submit."""
    if command[0] != "-":
        return script_of(command, Path(cwd or ".")), list(command)
    content = read_script()
    return script_of_input(content), command_of_input(content, command[1:])


def read_script() -> bytes:
    """The whole of standard input. Raises INVALID_ARGUMENT for nothing, ARGV_TOO_LONG for more than an argument."""
    if sys.stdin.isatty():
        print("gpuctl: reads the script from here; Ctrl-D ends it", file=sys.stderr)
    content = sys.stdin.buffer.read(SCRIPT_BYTES_MAX + 1)
    if len(content) > SCRIPT_BYTES_MAX:
        raise GpufleetError(
            Reason.ARGV_TOO_LONG,
            f"the script on standard input is longer than {SCRIPT_BYTES_MAX:,} bytes",
            next_step="Save it where the nodes see it, and submit its path.",
        )
    if not content.strip():
        raise invalid(WORD, "standard input holds no script", next_step="Write: gpuctl submit -- - <job.sh")
    if b"\0" in content:
        raise invalid(WORD, "standard input is no script: it holds NUL bytes", next_step="Submit the program's path.")
    return content.removeprefix(codecs.BOM_UTF8)  # no interpreter takes it for part of a program


def script_of_input(content: bytes) -> Script:
    """The script, to look for lines of options in."""
    return Script(NAME, content[:SCRIPT_BYTES_READ_MAX])


def command_of_input(content: bytes, arguments: Sequence[str]) -> list[str]:
    """The command that runs the script with these arguments: `bash -c SCRIPT bash A B`, by its `#!` line.

    The node needs no file. Raises INVALID_ARGUMENT for an interpreter that takes no program as an argument.
    """
    interpreter = _interpreter(content)
    program = PurePosixPath(_behind_env(interpreter)).name
    option = TAKES_A_PROGRAM.get(program.rstrip(".0123456789"))
    if option is None:
        raise invalid(
            WORD,
            f"{program} takes no script as an argument",
            next_step="Save the script where the nodes see it, and submit its path.",
        )
    text = content.decode(errors="surrogateescape")
    if option == "-e":  # not all of them take `#!` for a comment there; the count of lines stays
        text = "\n" + text.partition("\n")[2]
    # What stands behind a shell's line is its $0, and only then come $1, $2.
    name = [program] if arguments and program in SHELLS else []
    return [*interpreter, option, text, *name, *arguments]


def _interpreter(content: bytes) -> list[str]:
    first, _, _ = content.partition(b"\n")
    if not first.startswith(b"#!"):
        return DEFAULT
    words = shlex.split(first[2:].decode(errors="surrogateescape"))
    if words[:1] and PurePosixPath(words[0]).name == "env" and words[1:2] == ["-S"]:
        words = [words[0], *words[2:]]
    return words or DEFAULT


def _behind_env(words: Sequence[str]) -> str:
    if PurePosixPath(words[0]).name != "env":
        return words[0]
    return next((word for word in words[1:] if not word.startswith("-") and "=" not in word), "env")
