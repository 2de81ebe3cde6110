"""gpuctl as a person gives it: a command line, all that it printed, and its exit code."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.drills.outsider.judge import OUT_OF_TIME

CALL_SECONDS_MAX = 60.0
"""Longer than gpuctl itself waits for an answer: what takes longer is given up, and given again."""


@dataclass(frozen=True, slots=True)
class Said:
    """What a command printed, and how it ended."""

    code: int
    out: bytes
    err: bytes
    begun_ns: int
    ended_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpuctl:
    """The command of one person."""

    argv: Sequence[str]
    scheduler: str
    token_file: str
    home: Path

    async def __call__(self, *words: str) -> Said:
        """Give it, and wait for its end."""
        begun = now_ns()
        process = await asyncio.create_subprocess_exec(
            *self.argv,
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._environment(),
            cwd=self.home,
        )
        try:
            async with asyncio.timeout(CALL_SECONDS_MAX):
                out, err = await process.communicate()
            code = process.returncode if process.returncode is not None else OUT_OF_TIME
        except TimeoutError:
            out, err, code = b"", b"", OUT_OF_TIME
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        return Said(code, out, err, begun, now_ns())

    def _environment(self) -> Mapping[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GPUCTL_")}
        return kept | {
            "GPUCTL_SCHEDULER": self.scheduler,
            "GPUCTL_TOKEN_FILE": self.token_file,
            "GPUCTL_INSECURE": "true",
            "XDG_CONFIG_HOME": str(self.home),
            "XDG_STATE_HOME": str(self.home),
        }


def now_ns() -> int:
    """The clock of the jobs' notes."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
