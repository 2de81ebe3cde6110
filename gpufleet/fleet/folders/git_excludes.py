"""What git leaves out of a repository besides its .gitignore files: .git/info/exclude, and the global excludes.

Only git knows where the global ones are: core.excludesFile may stand in any of its settings files, or in one that these
include. So git is asked; without git on this machine the usual place counts.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from gpufleet.errors import GpufleetError, Reason

GIT_SECONDS_MAX = 10.0
LINK_BYTES_MAX = 8_192
"""Of a `.git` that is a file, and of the `commondir` of a worktree; each holds one path."""
UNSET = 1
"""The exit code of `git config --get` for a key that nobody set."""


def exclude_files(top: Path) -> tuple[Path, ...]:
    """The further files of a repository's patterns that there are, the first one counts first. `top` holds its `.git`.

    Errors: CONFIG_INVALID where git cannot read its settings.
    """
    files = (_shared_folder(top) / "info" / "exclude", _global_file(top))
    try:
        return tuple(each for each in files if each.is_file())
    except OSError as problem:
        raise _no_answer(f"{problem.filename} cannot be read: {problem.strerror}") from None


def _shared_folder(top: Path) -> Path:
    """The folder that a repository shares with its worktrees: `.git`, or what the file of that name leads to."""
    folder = top / ".git"
    if line := _line_of(folder):
        folder = top / line.removeprefix("gitdir:").strip()
    return folder / (_line_of(folder / "commondir").strip() or ".")


def _line_of(file: Path) -> str:
    try:
        with open(file, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as opened:
            return os.fsdecode(opened.read(LINK_BYTES_MAX).partition(b"\n")[0])
    except OSError:
        return ""


def _global_file(top: Path) -> Path:
    asked = ["git", "-C", str(top), "config", "--type=path", "--get", "core.excludesFile"]
    try:
        done = subprocess.run(asked, stdin=subprocess.DEVNULL, capture_output=True, timeout=GIT_SECONDS_MAX)
    except FileNotFoundError:
        return _usual_file()
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise _no_answer(str(problem)) from None
    if done.returncode == UNSET:
        return _usual_file()
    if done.returncode:
        raise _no_answer(done.stderr.decode(errors="backslashreplace").strip())
    return top / os.fsdecode(done.stdout.removesuffix(b"\n"))


def _usual_file() -> Path:
    given = os.environ.get("XDG_CONFIG_HOME", "")
    base = Path(given) if given else Path(os.environ.get("HOME") or str(Path.home())) / ".config"
    return base / "git" / "ignore"


def _no_answer(why: str) -> GpufleetError:
    return GpufleetError(
        Reason.CONFIG_INVALID,
        f"git cannot say which files it ignores: {why}",
        next_step="Correct what it names: it decides what is uploaded. Try: git config --get core.excludesFile.",
    )
