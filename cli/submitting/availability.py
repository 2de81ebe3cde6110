"""What `check` asks and shows: the scheduler tells each change, so that nothing is asked again."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

import grpc
from gpufleet.v1 import capacity_pb2

from gpufleet.errors import Reason, UnavailableError, invalid
from gpufleet.fleet.async_client import LOST, AsyncClient, connected_async, is_told_to_end, lost
from gpufleet.fleet.reading import read
from gpufleet.fleet.settings import Settings
from gpufleet.fleet.submitting.job_options import JobOptions
from gpufleet.fleet.submitting.job_spec import spec_of
from gpufleet.fleet.submitting.requests import in_options, working_folder
from gpufleet.text.units import parse_duration

from ..errors import FAILED
from ..printing import print_message
from ..quitting import Left, until_told_to_leave
from .estimating import filled

WAIT_MAX = timedelta(days=1)
EVERY = timedelta(seconds=30)
EVERY_MIN = timedelta(seconds=1)
AGAIN_SECONDS = 1.0
"""Between two tries of a scheduler that is away while somebody waits."""

COMMAND = ("true",)
"""A check needs no command; what is checked is checked like a submit."""


def check_capacity(settings: Settings, options: JobOptions, wait: str | None, every: str | None) -> int:
    """Ask, print the last answer, and give the exit code: 0 when there is room, 1 when not."""
    wait_s = _span("--wait", wait, timedelta(0), WAIT_MAX).total_seconds() if wait is not None else 0.0
    if every is not None and wait is None:
        raise invalid("--every", "it repeats what is missing while somebody waits", next_step="Add --wait.")
    every_s = (EVERY if every is None else _span("--every", every, EVERY_MIN, WAIT_MAX)).total_seconds()
    spec = spec_of(filled(settings, replace(options, upload=None)), COMMAND, os.environ, working_folder())
    spec.ClearField("env")
    shows_progress = bool(wait_s) and (every is not None or sys.stderr.isatty())
    checking = _Checking(settings, capacity_pb2.CheckCapacityRequest(spec=spec), wait_s)
    try:
        asyncio.run(until_told_to_leave(checking.run(every_s if shows_progress else None)))
    except Left as left:
        return left.code
    answer = checking.newest
    if settings.format == "json":
        print_message(answer, "json")
    elif settings.format == "name":
        print("available" if answer.is_available else "not available")
    elif settings.format != "jsonl":
        print(f"{'available' if answer.is_available else 'not available'}: {answer.message}")
    return 0 if answer.is_available else FAILED


class _Checking:
    """One check until there is room, or the wait is over; `newest` is what was told last."""

    def __init__(self, settings: Settings, request: capacity_pb2.CheckCapacityRequest, wait_s: float) -> None:
        self.newest = capacity_pb2.CheckCapacityResponse()
        self._settings = settings
        self._request = request
        self._deadline = time.monotonic() + wait_s

    async def run(self, progress_every_s: float | None) -> None:
        """Ask, again only where the connection breaks; repeat the newest answer on stderr so often."""
        ticker = asyncio.create_task(self._repeat(progress_every_s)) if progress_every_s is not None else None
        try:
            async with connected_async(self._settings) as client:
                while True:
                    if await self._ask(client):
                        return
                    await asyncio.sleep(AGAIN_SECONDS)
        finally:
            if ticker is not None:
                ticker.cancel()
                with suppress(asyncio.CancelledError):
                    await ticker

    async def _ask(self, client: AsyncClient) -> bool:
        """Take answers to the last one; False when the connection broke while there is time left."""
        left_s = max(0.0, self._deadline - time.monotonic())
        self._request.wait.FromTimedelta(timedelta(seconds=left_s))
        timeout_s = left_s + self._settings.connection_timeout_s
        try:
            async for answer in client.scheduler.CheckCapacity(self._request, timeout=timeout_s):
                self.newest = answer
                if self._settings.format == "jsonl":
                    print_message(answer, "jsonl")
            return True
        except grpc.RpcError as problem:
            error = client.translated(problem)
        except LOST as problem:
            if is_told_to_end():
                raise
            error = lost(problem)
        if isinstance(error, UnavailableError) and time.monotonic() + AGAIN_SECONDS < self._deadline:
            return False
        raise in_options(error) if error.reason is not Reason.SCHEDULER_UNREACHABLE else error

    async def _repeat(self, every_s: float) -> None:
        while True:
            await asyncio.sleep(every_s)
            left_s = max(0.0, self._deadline - time.monotonic())
            print(f"gpuctl: {left_s:.0f}s left; {self.newest.message or 'no answer yet'}", file=sys.stderr)


def _span(option: str, text: str, low: timedelta, high: timedelta) -> timedelta:
    span = read(option, parse_duration, text)
    if not low <= span <= high:
        raise invalid(option, f"{text} is not {low.total_seconds():g}s to {high.days}d", next_step="Write it as 5m.")
    return span
