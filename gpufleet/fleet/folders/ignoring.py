"""What of a folder stays here: .gpufleetignore, then .gitignore, then what never is of use elsewhere.

Of each kind of file the one that lies deepest counts first, and of the lines of a file the last that fits, as git has
it. Behind the .gitignore files of a repository come its .git/info/exclude and git's global excludes.
What .gpufleetignore says goes before whatever git's files say, so that `!data/` takes along what is not in git.
"""

from __future__ import annotations

import codecs
import os
from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.jobs.patterns import spec_of

from ..submitting.project_file import FILE as PROJECT_FILE
from ..submitting.project_file import ignored_lines
from .git_excludes import exclude_files

OWN_FILE = ".gpufleetignore"
GIT_FILE = ".gitignore"
GIT_FOLDER = ".git"
IGNORE_BYTES_MAX = 1_000_000
NEVER = frozenset({".git", ".hg", ".svn", ".jj"})
"""Histories: not even .gpufleetignore takes them along."""
BY_DEFAULT = NEVER | {
    ".venv",
    "venv",
    "virtualenv",
    "node_modules",
    "__pycache__",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".tox",
    ".nox",
    ".ipynb_checkpoints",
    ".DS_Store",
}
"""Environments, and what tools make by themselves. `!name` in .gpufleetignore takes one along."""
MARKS_OF_ENVIRONMENTS = frozenset({"pyvenv.cfg", "conda-meta"})
"""A folder that has one of these in it is an environment, whatever it is called."""


@dataclass(frozen=True, slots=True)
class _Level:
    """The lines of one file; its folder's path from the top ends with a slash, or is empty."""

    base: str
    spec: GitIgnoreSpec

    def verdict(self, path: str) -> bool | None:
        """True where it is left out, False where a line with ! takes it along, None where nothing is said."""
        return self.spec.check_file(path[len(self.base) :]).include


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """What counts in a folder. `prefix` leads from the top of its repository, if it is in one, to what is uploaded."""

    prefix: str = ""
    own: tuple[_Level, ...] = ()
    gits: tuple[_Level, ...] = ()

    def inside(self, folder: Path, path: str, names: frozenset[str]) -> IgnoreRules:
        """The rules in this folder, whose path is `path`; `names` are what is in it."""
        base = self.prefix + (f"{path}/" if path else "")
        own = _level(folder / OWN_FILE, base) if OWN_FILE in names else None
        if not path and PROJECT_FILE in names:
            project = _Level(base, _spec_of(folder / PROJECT_FILE, ignored_lines(folder / PROJECT_FILE)))
            return IgnoreRules(self.prefix, (project, *self.own)).inside(folder, path, names - {PROJECT_FILE})
        gits = _git_levels(folder, base, names)
        if own is None and not gits:
            return self
        return IgnoreRules(self.prefix, (own, *self.own) if own else self.own, (*gits, *self.gits))

    def leaves_out(self, path: str, name: str, *, is_folder: bool) -> bool:
        """Whether it stays here."""
        if name in NEVER:
            return True
        asked = f"{self.prefix}{path}/" if is_folder else f"{self.prefix}{path}"
        for level in self.own:
            if (verdict := level.verdict(asked)) is not None:
                return verdict
        if name in BY_DEFAULT:
            return True
        for level in self.gits:
            if (verdict := level.verdict(asked)) is not None:
                return verdict
        return False

    def takes_along(self, path: str) -> bool:
        """Whether .gpufleetignore says that this folder goes along, though it looks like an environment."""
        verdicts = (level.verdict(f"{self.prefix}{path}/") for level in self.own)
        return next((each for each in verdicts if each is not None), None) is False


def rules_above(folder: Path) -> IgnoreRules:
    """What git's files say of the repository that the folder is in, from above it."""
    resolved = folder.resolve()
    top = next((each for each in (resolved, *resolved.parents) if (each / GIT_FOLDER).exists()), resolved)
    inner = resolved.relative_to(top).parts
    gits: tuple[_Level, ...] = ()
    for depth in range(len(inner)):
        above = top.joinpath(*inner[:depth])
        names = frozenset(each for each in (GIT_FILE, GIT_FOLDER) if (above / each).exists())
        gits = (*_git_levels(above, "".join(f"{part}/" for part in inner[:depth]), names), *gits)
    prefix = "".join(f"{part}/" for part in inner)
    if any(level.verdict(prefix) for level in gits):
        gits = ()  # somebody named a folder that is not in git: then it is meant
    return IgnoreRules(prefix, (), gits)


def _git_levels(folder: Path, base: str, names: frozenset[str]) -> tuple[_Level, ...]:
    """What git's files in a folder say; of the top of a repository also its own excludes and the global ones."""
    files: tuple[Path, ...] = (folder / GIT_FILE,) if GIT_FILE in names else ()
    if GIT_FOLDER in names:
        files += exclude_files(folder)
    return tuple(_level(each, base) for each in files)


def _spec_of(file: Path, lines: list[str]) -> GitIgnoreSpec:
    try:
        return spec_of(lines)
    except ValueError as problem:
        step = "Write its lines as in a .gitignore."
        raise invalid(str(file), f"ignore holds a line that is no pattern: {problem}", next_step=step) from None


def _level(file: Path, base: str) -> _Level:
    try:
        return _Level(base, spec_of(_lines_of(file)))
    except OSError as problem:
        why = f"cannot be read: {problem.strerror}"
    except ValueError as problem:
        why = f"holds a line that is no pattern: {problem}"
    raise _refused(file, why)


def _lines_of(file: Path) -> list[str]:
    """The lines, as git reads them: bytes of any encoding, as names are, without a byte order mark in front."""
    # A pipe would be waited for.
    with open(file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as opened:
        data = opened.read(IGNORE_BYTES_MAX + 1)
    if len(data) > IGNORE_BYTES_MAX:
        what = f"{file} has more than {IGNORE_BYTES_MAX:,} bytes"
        raise GpufleetError(
            Reason.FILE_TOO_LARGE, what, next_step="Shorten it: patterns such as data/** say much in a line."
        )
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):  # git finds no line in it, and would upload all
        raise _refused(file, "is UTF-16")
    lines = os.fsdecode(data.removeprefix(codecs.BOM_UTF8)).split("\n")
    return [each.removesuffix("\r") for each in lines]


def _refused(file: Path, why: str) -> GpufleetError:
    return GpufleetError(
        Reason.CONFIG_INVALID,
        f"{str(file)!a} {why}",
        next_step="Correct it: what it says decides what goes along. Its lines are as in .gitignore, in UTF-8.",
    )
