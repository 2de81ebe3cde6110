"""Programs that are asked by a command of theirs: each job is a process that asks for it."""

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from .peer import NotHere


def find(program: str, package: str) -> str:
    """Where a program is. Errors: NotHere, with the package that has it."""
    found = shutil.which(program, path=os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin")))
    if found is None:
        raise NotHere(f"{program} is not installed (Debian, Ubuntu: apt-get install {package})")
    return found


def called(command: Sequence[str], environment: dict[str, str]) -> str:
    """Run a command to its end; what it printed. Errors: subprocess.CalledProcessError."""
    done = subprocess.run(command, env={**os.environ, **environment}, check=True, capture_output=True, text=True)
    return done.stdout


def starts_ms(command: Sequence[str], environment: dict[str, str], count: int, pause_s: float) -> list[float]:
    """From the start of a command to the first instruction of the job that it runs, whose output it prints."""
    times: list[float] = []
    for _ in range(count):
        begin = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        times.append((int(called(command, environment)) - begin) / 1e6)
        time.sleep(pause_s)
    return times


def lines_of(file: Path) -> int:
    """How many there are by now."""
    return file.read_bytes().count(b"\n") if file.exists() else 0
