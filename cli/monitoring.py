"""`monitor`: watches this machine's GPUs, or a node's through the scheduler, and tells what was used."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

from gpufleet.v1 import capacity_pb2

from gpufleet.devices import DeviceSource
from gpufleet.devices.hub import INTERVAL_SECONDS_MAX, INTERVAL_SECONDS_MIN, Hub
from gpufleet.devices.opening import open_devices
from gpufleet.devices.playback import read_load
from gpufleet.devices.virtual import VIRTUAL_GPUS_MAX
from gpufleet.errors import invalid
from gpufleet.statistics import device_keys, statistics_object
from gpufleet.units import parse_duration

from . import screen
from .errors import FAILED
from .live_devices import Look, until_left
from .render.stats import used_lines
from .settings import Settings

INTERVAL_DEFAULT = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What was typed."""

    node: str | None = None
    interval: str | None = None
    command: tuple[str, ...] = ()
    to: Path | None = None
    virtual_load: Path | None = None

    @property
    def interval_seconds(self) -> float:
        """How often to read. Raises INVALID_ARGUMENT."""
        wanted = (INTERVAL_DEFAULT if self.interval is None else parse_duration(self.interval)).total_seconds()
        if not INTERVAL_SECONDS_MIN <= wanted <= INTERVAL_SECONDS_MAX:
            raise invalid("--interval", f"{self.interval} is not 50ms to 1h", next_step="Write 1s, for instance.")
        return wanted


def run_monitor(settings: Settings, wanted: Wanted) -> int:
    """Watch until told to leave, or until the command ends; answers the exit code."""
    interval_seconds = wanted.interval_seconds
    if wanted.node is not None and (wanted.command or wanted.virtual_load):
        raise invalid("--node", "is another machine, and a command or a load is for this one")
    with _results(wanted.to, sys.stderr if wanted.command else sys.stdout) as results:
        if wanted.node is not None:
            from .node_monitor import watch_node

            code, message = asyncio.run(watch_node(settings, wanted.node, interval_seconds))
            if message is not None:
                _tell(settings, results, wanted.node, message)
            return code
        if wanted.command:
            return _run_command(settings, wanted, interval_seconds, results)
        return _watch_here(settings, wanted, interval_seconds, results)


def _watch_here(settings: Settings, wanted: Wanted, interval_seconds: float, results: IO[str]) -> int:
    with contextlib.closing(Hub(_source(wanted.virtual_load))) as hub:
        first = hub.look(max_age_seconds=interval_seconds)
        if not first:
            print(f"gpuctl: no GPU to watch: {first.reason}", file=sys.stderr)
            print(f"  {first.next_step or 'See those of other machines with: gpuctl top'}", file=sys.stderr)
            return FAILED

        async def look() -> Look:
            found = await asyncio.to_thread(hub.look, max_age_seconds=interval_seconds)
            return Look(devices=found.devices, users=("",) * len(found))

        monitor = hub.start(interval_seconds=interval_seconds, devices=list(hub.devices), pid=None)
        code = asyncio.run(until_left(socket.gethostname(), look, settings.format, interval_seconds))
        monitor.stop()
        _tell(settings, results, socket.gethostname(), monitor.message())
        return code


def _run_command(settings: Settings, wanted: Wanted, interval_seconds: float, results: IO[str]) -> int:
    from .watched_command import CommandFailed, CommandRun

    run = CommandRun()  # before the threads that read
    try:
        with contextlib.closing(Hub(_source(wanted.virtual_load))) as hub:
            monitor = hub.start(interval_seconds=interval_seconds)
            try:
                hub.watch_process(monitor, run.start(wanted.command))
            except CommandFailed as problem:
                print(f"gpuctl: {problem}", file=sys.stderr)
                return problem.code
            ended = run.until_end()
            monitor.stop()
            used = monitor.tally.processes
            used.cpu_seconds = max(used.cpu_seconds, ended.cpu_seconds)
            if not hub.devices:
                print(f"gpuctl: no GPU was watched: {hub.look(max_age_seconds=60).reason}", file=sys.stderr)
            _tell(settings, results, wanted.command[0], monitor.message())
            return ended.code
    finally:
        run.close()


def _source(virtual_load: Path | None) -> DeviceSource:
    if virtual_load is None:
        return open_devices(node=socket.gethostname())
    try:
        load = read_load(virtual_load)
    except (OSError, ValueError) as problem:
        raise invalid("--virtual-load", str(problem)) from None
    if load.gpu_count > VIRTUAL_GPUS_MAX:
        raise invalid("--virtual-load", f"{virtual_load} names GPU {load.gpu_count - 1:,}; {VIRTUAL_GPUS_MAX} at most")
    return open_devices(node=socket.gethostname(), virtual_gpus=load.gpu_count, virtual_load=load)


@contextlib.contextmanager
def _results(to: Path | None, else_to: IO[str]) -> Iterator[IO[str]]:
    """Where the statistics go; a file is opened first, so that a long watch is not lost for want of a place."""
    if to is None:
        yield else_to
        return
    try:
        file = to.open("w", encoding="utf-8", errors="replace")
    except OSError as problem:
        raise invalid("--to", f"{to}: {problem.strerror}") from None
    with file:
        yield file


def _tell(settings: Settings, results: IO[str], name: str, message: capacity_pb2.GetJobStatsResponse) -> None:
    """Print what was used."""
    match settings.format:
        case "json" | "jsonl":
            told: dict[str, Any] = statistics_object(message)
            lines = [json.dumps(told, indent=2 if settings.format == "json" else None, ensure_ascii=False)]
        case "name":
            lines = device_keys(message)
        case form:
            lines = used_lines(f"{name}:", message, screen.look(form))
    if results is sys.stdout:
        screen.print_lines(lines)
    else:
        print(*lines, sep="\n", file=results, flush=True)
