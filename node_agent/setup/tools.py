"""What this node makes environments with: an interpreter for them, uv, and one of conda's kind."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ..core.environment import PATH_DEFAULT

SECONDS_MAX = 20.0
CONDAS = ("micromamba", "mamba", "conda")
"""In the order in which they are taken, the fastest first."""

LOOK = """
import ensurepip, platform, sys, sysconfig, venv
print(sys.version, sysconfig.get_platform(), platform.libc_ver())
"""


@dataclass(frozen=True, slots=True)
class Tool:
    """A program by its path, and what it says of itself, as a part of the key of all that it makes."""

    path: str
    version: str


def interpreter() -> Tool | None:
    """The Python that environments are made of: the machine's own, which every account can run; else the agent's."""
    own = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
    for path in (shutil.which("python3", path=PATH_DEFAULT), own):
        if path and (version := _said(path, "-I", "-c", LOOK)):
            return Tool(path, version)
    return None


def uv() -> Tool | None:
    """The node's uv."""
    return _tool("uv")


def conda() -> Tool | None:
    """The node's micromamba, mamba or conda."""
    return next(filter(None, map(_tool, CONDAS)), None)


def here() -> tuple[str, ...]:
    """What the scheduler is told of: pip, which is everywhere, and what can be found, without starting it."""
    return ("pip", *(["uv"] if _path("uv") else ()), *(["conda"] if any(map(_path, CONDAS)) else ()))


def _path(name: str) -> str | None:
    return shutil.which(name, path=PATH_DEFAULT) or shutil.which(name)


def _tool(name: str) -> Tool | None:
    path = _path(name)
    version = _said(path, "--version") if path else ""
    return Tool(path, f"{name} {version}") if path and version else None


def _said(path: str, *arguments: str) -> str:
    """What a program prints; empty where it cannot be run. It is asked again once it is another file."""
    try:
        about = Path(path).stat()
    except OSError:
        return ""
    return _said_by(path, about.st_mtime_ns, about.st_ino, arguments)


@functools.lru_cache(maxsize=32)
def _said_by(path: str, changed_ns: int, inode: int, arguments: tuple[str, ...]) -> str:
    try:
        asked = subprocess.run(
            [path, *arguments], stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return asked.stdout.decode(errors="replace").strip() if asked.returncode == 0 else ""
