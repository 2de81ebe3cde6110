"""What a job's command runs: the program, or the script that it gives an interpreter."""

import re
from collections.abc import Iterator, Sequence

INTERPRETERS = frozenset(
    ("bash", "dash", "julia", "ksh", "lua", "node", "perl", "php", "pypy", "python", "rscript", "ruby", "sh", "zsh")
)
"""Programs that say nothing of how long they run: what they are given does. Versions in their names are left out."""

PROGRAM_LENGTH_MAX = 256
"""Characters of it that tell programs apart."""

_VERSION = re.compile(r"[\d.]+$")
_ASSIGNMENT = re.compile(r"\w+=")


def program_of(argv: Sequence[str]) -> str:
    """The program of a command with its script or module: `train.py` of `python3 -u train.py --epochs 3`.

    A leading `env` with its assignments is passed by, and options of the interpreter are; `-m` and `-c` name what runs.
    """
    words = iter(argv)
    program = next(words, "")
    if program.rpartition("/")[2] == "env":
        program = next((word for word in words if not word.startswith("-") and not _ASSIGNMENT.match(word)), "")
    name = program.rpartition("/")[2]
    if _VERSION.sub("", name.lower()) in INTERPRETERS:
        name = f"{name} {_script(words)}".strip()
    return name[:PROGRAM_LENGTH_MAX]


def _script(words: Iterator[str]) -> str:
    for word in words:
        if word in ("-m", "-c", "-e"):
            return f"{word} {next(words, '')}"
        if not word.startswith("-"):
            return word
    return ""
