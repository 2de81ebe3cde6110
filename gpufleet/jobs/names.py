"""The name of a job that was given none: that of its program, or of the first program of its shell line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})
"""Base names of programs whose argument behind -c is a line of a shell."""

LINE_CHARS_MAX = 1_000
"""So much of a line is looked at for its first word."""

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=")
_PUNCTUATION = frozenset("();<>|&{}!")


_NAMES_OTHERS = re.compile(r"all|last|\d+(-\d+)?|\d+\.\d+(-\d+)?")


def names_others(name: str) -> bool:
    """Whether a command that takes jobs would read a name as something else: all, last, an id, a range or items."""
    return _NAMES_OTHERS.fullmatch(name) is not None


def name_of_command(argv: Sequence[str]) -> str:
    """The base name of the program; of `sh -c LINE` that of the line's first word, where it has one.

    Variables that are set before the word are passed over. It may be empty, of any length, and hold any character.
    """
    if not argv:
        return ""
    program = _base_name(argv[0])
    if len(argv) >= 3 and program in SHELLS and argv[1] == "-c":
        return _base_name(_first_word(argv[2])) or program
    return program


def _base_name(program: str) -> str:
    return program.rpartition("/")[2]


def _first_word(line: str) -> str:
    words = shlex.shlex(line[:LINE_CHARS_MAX], posix=True, punctuation_chars=True)
    words.whitespace_split = True
    try:
        return next((word for word in words if not (_PUNCTUATION.issuperset(word) or _ASSIGNMENT.match(word))), "")
    except ValueError:  # a quote that is not closed: the shell will say so
        return ""
