"""Commands that only look leave when they are told to, and say how to come back."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from gpufleet.fleet.exit_codes import SIGNALLED

from .errors import INTERRUPTED

R = TypeVar("R")


class Left(Exception):
    """A signal asked the command to leave; `code` is the exit code for it."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


async def until_told_to_leave(work: Coroutine[Any, Any, R]) -> R:
    """The result of the work, or Left when Ctrl-C, SIGTERM or SIGHUP comes first."""
    loop = asyncio.get_running_loop()
    told: asyncio.Future[int] = loop.create_future()

    def on_signal(number: signal.Signals) -> None:
        if not told.done():
            told.set_result(INTERRUPTED if number is signal.SIGINT else SIGNALLED + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, on_signal, number)
    task = asyncio.create_task(work)
    either: list[asyncio.Future[Any]] = [task, told]
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if told.done():
            raise Left(told.result())
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def stay(work: Coroutine[Any, Any, None], close: Callable[[], None], come_back: str) -> int:
    """Do the work of a program that fills the terminal until it ends or is told to leave; answers the exit code.

    `close` puts the terminal back, and may be called twice.
    """
    try:
        await until_told_to_leave(work)
    except Left as left:
        close()
        with contextlib.suppress(OSError):  # its window may be gone
            print(f"gpuctl: left. Come back with: {come_back}", file=sys.stderr)
        return left.code
    finally:
        close()
    return 0
