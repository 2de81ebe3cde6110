"""What a job leaves: how its lines choose files, and how much there may be, as scheduler and agent hold to it."""

from __future__ import annotations

from collections.abc import Iterable

LINES_MAX = 100
LINE_BYTES_MAX = 1_024
RESULT_FILES_MAX = 10_000
"""Files that one rank leaves."""
RESULT_MANIFEST_BYTES_MAX = 2 * 2**20
PROBLEMS_MAX = 100
NOTHING_STORED = "nothing is stored: "
"""How a problem begins where no file could be stored, although some were chosen."""
PROBLEM_CHARS_MAX = 1_500
"""Lines of what is not among the files, and why; a path of Linux fits."""


def trouble_with_line(line: str) -> str:
    """Why a line chooses nothing, for people; empty where it may."""
    if not line.strip() or line.startswith("#"):
        return "chooses nothing"
    if any(ord(each) < 32 or ord(each) == 127 for each in line):
        return "holds a control character"
    # pathspec takes a megabyte of every program that knows these bounds, and few jobs leave files.
    from .patterns import means_nothing

    try:
        return f"chooses nothing: {line!a} is no pattern" if means_nothing(line) else ""
    except ValueError as problem:
        return f"is no pattern: {problem}"


class Chosen:
    """Which paths the lines choose: the last that fits says so, and one that begins with ! takes it out again."""

    def __init__(self, lines: Iterable[str]) -> None:
        from .patterns import spec_of

        self._spec = spec_of(lines)

    def has(self, path: str) -> bool:
        """Whether a file of this path is among them."""
        return self._spec.match_file(path)
