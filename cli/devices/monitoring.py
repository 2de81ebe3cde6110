"""`monitor`: watches this machine's GPUs, or a node's through the scheduler, and tells what was used."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, NamedTuple

from gpufleet.v1 import capacity_pb2

from gpufleet.devices.device import DeviceSource
from gpufleet.devices.hub import INTERVAL_SECONDS_MAX, INTERVAL_SECONDS_MIN, Hub
from gpufleet.devices.opening import open_devices
from gpufleet.devices.playback import read_load
from gpufleet.devices.statistics import device_keys, statistics_object
from gpufleet.devices.virtual import VIRTUAL_GPUS_MAX
from gpufleet.errors import invalid
from gpufleet.fleet.exit_codes import SIGNALLED
from gpufleet.fleet.settings import Settings
from gpufleet.text.units import parse_duration

from .. import screen
from ..errors import FAILED
from ..render.stats import used_lines
from .monitor_options import MonitorOptions
from .monitor_view import DevicesView, until_left

INTERVAL_DEFAULT = timedelta(seconds=1)


def interval_seconds_of(wanted: MonitorOptions) -> float:
    """How often to read. Raises INVALID_ARGUMENT."""
    interval = INTERVAL_DEFAULT if wanted.interval is None else parse_duration(wanted.interval)
    if not INTERVAL_SECONDS_MIN <= interval.total_seconds() <= INTERVAL_SECONDS_MAX:
        raise invalid("--interval", f"{wanted.interval} is not 50ms to 1h", next_step="Write 1s, for instance.")
    return interval.total_seconds()


def run_monitor(settings: Settings, wanted: MonitorOptions, command: Sequence[str]) -> int:
    """Watch until told to leave, or until the command ends; answers the exit code."""
    interval_seconds = interval_seconds_of(wanted)
    if wanted.node is not None and (command or wanted.virtual_load):
        raise invalid("--node", "is another machine, and a command or a load is for this one")
    with _results(wanted.to, sys.stderr if command else sys.stdout) as results:
        if wanted.node is not None:
            from .node_monitor import watch_node

            code, message = asyncio.run(watch_node(settings, wanted.node, interval_seconds))
            if message is not None:
                _tell(settings, results, wanted.node, message)
            return code
        if command:
            return _run_command(settings, wanted, tuple(command), interval_seconds, results)
        return _watch_here(settings, wanted, interval_seconds, results)


def _watch_here(settings: Settings, wanted: MonitorOptions, interval_seconds: float, results: IO[str]) -> int:
    with contextlib.closing(Hub(_source(wanted.virtual_load))) as hub:
        first = hub.look(max_age_seconds=interval_seconds)
        if not first:
            print(f"gpuctl: no GPU to watch: {first.reason}", file=sys.stderr)
            print(f"  {first.next_step or 'See those of other machines with: gpuctl top'}", file=sys.stderr)
            return FAILED

        async def look() -> DevicesView:
            found = await asyncio.to_thread(hub.look, max_age_seconds=interval_seconds)
            return DevicesView(devices=found.devices, users=("",) * len(found))

        monitor = hub.start(interval_seconds=interval_seconds, devices=list(hub.devices), pid=None)
        code = asyncio.run(until_left(socket.gethostname(), look, settings.format, interval_seconds))
        monitor.stop()
        _tell(settings, results, socket.gethostname(), monitor.message())
        return code


def _run_command(
    settings: Settings, wanted: MonitorOptions, command: tuple[str, ...], interval_seconds: float, results: IO[str]
) -> int:
    run = CommandRun()  # before the threads that read
    try:
        with contextlib.closing(Hub(_source(wanted.virtual_load))) as hub:
            monitor = hub.start(interval_seconds=interval_seconds)
            try:
                hub.watch_process(monitor, run.start(command))
            except CommandFailed as problem:
                print(f"gpuctl: {problem}", file=sys.stderr)
                return problem.code
            ended = run.until_end()
            monitor.stop()
            used = monitor.tally.processes
            used.cpu_seconds = max(used.cpu_seconds, ended.cpu_seconds)
            if not hub.devices:
                print(f"gpuctl: no GPU was watched: {hub.look(max_age_seconds=60).reason}", file=sys.stderr)
            _tell(settings, results, command[0], monitor.message())
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


FORWARDED = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM}
)
RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores them; a command must not inherit that."""
FROM_KERNEL = 0x80
"""`si_code` of a signal that the terminal sent: the whole foreground group has it, the command too."""

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""What shells give for a command that could not be run."""


class CommandEnd(NamedTuple):
    """How a command ended: its exit code, 128 + n for a signal, and the processor time of all that it waited for."""

    code: int
    cpu_seconds: float


class CommandFailed(Exception):
    """The command could not be started; `code` is what a shell would give."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class CommandRun:
    """Made before any other thread is started: from then on signals wait for `until_end`, which passes them on."""

    def __init__(self) -> None:
        self._own_mask = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED | {signal.SIGCHLD})
        self._pid = 0

    def start(self, argv: tuple[str, ...]) -> int:
        """Start it, and answer its pid. Raises CommandFailed."""
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            self._pid = os.posix_spawnp(argv[0], argv, os.environ, setsigmask=self._own_mask, setsigdef=RESTORED)
        except FileNotFoundError:
            raise CommandFailed(NOT_FOUND, f"{argv[0]}: there is no such command") from None
        except OSError as problem:
            raise CommandFailed(NOT_EXECUTABLE, f"{argv[0]}: {problem.strerror}") from None
        return self._pid

    def until_end(self) -> CommandEnd:
        """Wait for its end; every signal that comes meanwhile is the command's."""
        while True:
            told = signal.sigwaitinfo(FORWARDED | {signal.SIGCHLD})
            if told.si_signo != signal.SIGCHLD:
                if told.si_code != FROM_KERNEL:
                    os.kill(self._pid, told.si_signo)
                continue
            pid, status, used = os.wait4(self._pid, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                return CommandEnd(SIGNALLED - code if code < 0 else code, used.ru_utime + used.ru_stime)

    def close(self) -> None:
        """Take signals as before."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self._own_mask)
