"""Runs a command as a person would: with pipes, or on a terminal."""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

END_OF_INPUT = b"\x04"
READS = b"descriptors:"
"""Of job.sh: behind this line it reads what is typed."""


class Done(NamedTuple):
    """What a command that was typed came to."""

    code: int
    out: str
    err: str


async def typed_in_pipes(command: Sequence[str], variables: Mapping[str, str], folder: Path, stdin: bytes) -> Done:
    """Run it to its end; a caller that is cancelled ends it."""
    process = await asyncio.create_subprocess_exec(
        *command, env=variables, cwd=folder, stdin=PIPE, stdout=PIPE, stderr=PIPE
    )
    try:
        out, err = await process.communicate(stdin)
    finally:
        await _ended(process)
    return Done(process.returncode or 0, out.decode(errors="replace"), err.decode(errors="replace"))


async def typed_on_terminal(
    command: Sequence[str], variables: Mapping[str, str], folder: Path, keys: bytes, ranks: int = 1
) -> Done:
    """Run it on a terminal of its own, and type these keys once all ranks of the job read."""
    master, slave = os.openpty()
    try:
        process = await asyncio.create_subprocess_exec(
            *command, env=variables, cwd=folder, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
    finally:
        os.close(slave)
    shown = bytearray()
    loop = asyncio.get_running_loop()

    def read() -> None:
        try:
            data = os.read(master, 65_536)
        except OSError:  # nobody has the terminal any more
            data = b""
        has_typed = shown.count(READS) >= ranks
        shown.extend(data)
        if not data:
            loop.remove_reader(master)
        elif shown.count(READS) >= ranks and not has_typed:
            os.write(master, keys + b"\n" + END_OF_INPUT)

    loop.add_reader(master, read)
    try:
        await process.wait()
    finally:
        await _ended(process)
        loop.remove_reader(master)
        os.close(master)
    return Done(process.returncode or 0, shown.decode(errors="replace"), "")


async def _ended(process: Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()
