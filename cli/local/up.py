"""`up` and `down`: a whole gpufleet on this machine."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from gpufleet.v1 import node_pb2, scheduler_pb2

from gpufleet.config.contexts import read_contexts, save_context
from gpufleet.config.paths import contexts_file
from gpufleet.errors import GpufleetError, Reason
from gpufleet.fleet.client import Client
from gpufleet.fleet.exit_codes import SIGNALLED
from gpufleet.text.units import counted

from ..errors import FAILED, Declined
from ..render.nodes import devices_in_words
from ..screen import say, with_tilde
from .folders import Record, Started, folders_of, folders_of_context, read_record, write_record
from .starting import Programs, StopRequested, has_gateway, start_programs
from .stopping import running_jobs, stop_programs
from .up_options import UpOptions, missing_of, options_of_before

CONTEXT = "local"
STATUS_S = 1.0
SECOND_WITHIN_S = 3.0
DOWN_S_MAX = 180.0
"""How long a `down` from elsewhere may take."""


def _still_runs(record: Record) -> str:
    running = record.running()
    ended = "".join(f"; the {each.name} has ended" for each in record.programs if each not in running)
    return ", ".join(f"{each.name} {each.pid}" for each in running) + ended


def bring_up(options: UpOptions, *, is_detached: bool) -> int:
    """Start everything; stay until Ctrl-C unless detached. Answers the exit code."""
    folders = options.folders
    record = read_record(folders.record)
    if record is not None and not record.running():
        record = None
    if record is not None:
        options = _options_of_the_rest(options, record)
    # Who has not installed what a gateway needs wants none, as long as they do not ask for one.
    gateway_is_missing = options.gateway is not None and not has_gateway()
    if gateway_is_missing:
        options = replace(options, gateway=None)
    signals = Signals()
    with handled(signals.note):
        try:
            programs = start_programs(options, _progress, signals.is_told, record)
        except StopRequested:
            left = "nothing is left running" if record is None else f"what ran goes on: {_names(record.running())}"
            say(f"stopped before everything ran; {left}")
            return SIGNALLED + (signals.number or signal.SIGTERM)
        write_record(folders.record, programs.record())
        if record is not None:
            say(f"started again: {_names([each.started for each in programs.children])}; kept: {_names(programs.kept)}")
        before = _use_context(programs)
        _tell_what_runs(programs, before, is_detached=is_detached, gateway_is_missing=gateway_is_missing)
        if not is_detached:
            return _Supervisor(programs, signals.number).run()
        if signals.number is not None:
            if record is None:
                stop_programs(programs.record(), folders, ends_jobs=False, say=say, while_waiting=programs.reap)
            else:
                programs.stop()  # what ran before goes on
            return SIGNALLED + signals.number
        programs.let_go()
        return 0


def _options_of_the_rest(options: UpOptions, record: Record) -> UpOptions:
    """With what options what has died is started again. Raises ALREADY_RUNNING where nothing has, and CONFLICT."""
    if record.is_stopping:
        what, step = "is being stopped", "Wait for its end, or stop it with: gpuctl down"
    elif not missing_of(record, options.folders):
        what, step = "still runs", "Use it as it is, or stop it with: gpuctl down"
    elif record.by is not None and record.by.is_running():
        what, step = f"is looked after by process {record.by.pid}", "Wait for that, or stop it with: gpuctl down"
    else:
        return options_of_before(options, record)
    raise GpufleetError(
        Reason.ALREADY_RUNNING, f"what gpuctl up started {what} ({_still_runs(record)})", next_step=step
    )


def _names(programs: Iterable[Started]) -> str:
    return ", ".join(f"the {each.name}" for each in programs)


def bring_down(data: Path | None, *, is_sure: bool, keeps_jobs: bool) -> int:
    """Stop what `up` started: with this data folder, else what the context in use is of. Answers the exit code."""
    folders = folders_of(data)
    if data is None and (of_context := folders_of_context()) is not None:
        folders = of_context
        say(f"the context in use is of what was started with --data {with_tilde(str(folders.record))}")
    record = read_record(folders.record)
    if record is None:
        say("nothing runs that gpuctl up started")
        return 0
    jobs = running_jobs(record, folders)
    if jobs and not keeps_jobs and not is_sure:
        _ask(jobs)
    stop_programs(record, folders, ends_jobs=not keeps_jobs, say=say)
    if jobs and keeps_jobs:
        goes_on = "goes on; the next gpuctl up takes it" if len(jobs) == 1 else "go on; the next gpuctl up takes them"
        say(f"{counted(len(jobs), 'job')} {goes_on} back, if it comes before their requeue fence (10 min)")
    return 0


def _ask(jobs: list[int]) -> None:
    named = ", ".join(map(str, jobs[:10])) + (" …" if len(jobs) > 10 else "")
    what = f"{counted(len(jobs), 'job')} would be ended ({named})"
    if not sys.stdin.isatty():
        raise GpufleetError(
            Reason.INVALID_ARGUMENT, what, next_step="Say --yes to end them, or --keep-jobs to let them go on."
        )
    print(f"{what}. Stop anyway? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Declined("nothing was stopped; to stop and let the jobs go on: gpuctl down --keep-jobs")


class _Supervisor:
    """Stays with the programs until it is told to stop, or one of them ends."""

    def __init__(self, programs: Programs, told: int | None = None) -> None:
        self._programs = programs
        self._woken = threading.Event()
        self._asked_at: list[float] = []
        self._must_leave = False
        self._shown = ""
        if told is not None:  # while they started
            self._on_signal(told, None)

    def run(self) -> int:
        with handled(self._on_signal), self._programs.client() as client:
            return self._stay(client)

    def _stay(self, client: Client) -> int:
        while True:
            self._woken.wait(STATUS_S)
            self._woken.clear()
            if self._must_leave or self._asked_at:
                return self._leave()
            if (failure := self._programs.failure()) is not None:
                return self._one_has_ended(failure)
            self._show_status(client)

    def _on_signal(self, number: int, frame: object) -> None:
        if number == signal.SIGINT:
            self._asked_at.append(time.monotonic())
        else:
            self._must_leave = True
        self._woken.set()

    def _leave(self) -> int:
        """Ctrl-C: jobs that run go on, unless a second one comes at once."""
        self._end_status()
        record, folders = self._programs.record(), self._programs.folders
        jobs = running_jobs(record, folders)
        ends_jobs = not jobs
        if jobs and not self._must_leave:
            again = f"Ctrl-C again within {SECOND_WITHIN_S:g} s ends them"
            go_on = "runs and goes" if len(jobs) == 1 else "run and go"
            say(f"{counted(len(jobs), 'job')} {go_on} on for the next gpuctl up; {again}")
            deadline = time.monotonic() + SECOND_WITHIN_S
            while len(self._asked_at) < 2 and not self._must_leave and time.monotonic() < deadline:
                self._woken.wait(deadline - time.monotonic())
                self._woken.clear()
            ends_jobs = len(self._asked_at) >= 2
        stop_programs(record, folders, ends_jobs=ends_jobs, say=say, while_waiting=self._programs.reap)
        self._programs.reap()
        return 0

    def _one_has_ended(self, failure: GpufleetError) -> int:
        self._end_status()
        record, folders = self._programs.record(), self._programs.folders
        written = read_record(folders.record)
        if written is None or written.is_stopping:
            self._wait_for_the_others()
            say("stopped by gpuctl down")
            return 0
        print(f"gpuctl: {failure.message}\n{failure.next_step}", file=sys.stderr)
        stop_programs(record, folders, ends_jobs=False, say=say, while_waiting=self._programs.reap)
        return FAILED

    def _wait_for_the_others(self) -> None:
        deadline = time.monotonic() + DOWN_S_MAX
        while self._programs.record().running() and time.monotonic() < deadline:
            self._programs.reap()
            self._woken.wait(0.1)

    def _show_status(self, client: Client) -> None:
        if not sys.stderr.isatty():
            return
        try:
            line = _status(client)
        except GpufleetError as problem:
            line = f"the scheduler does not answer: {problem.message}"
        if line != self._shown:
            print(f"\r{line[:78]}\x1b[K", end="", file=sys.stderr, flush=True)
            self._shown = line

    def _end_status(self) -> None:
        if self._shown:
            print(file=sys.stderr)
            self._shown = ""


def _status(client: Client) -> str:
    request = scheduler_pb2.QueueRequest(page_size=1, omit_env=True)
    counts = client.call(client.scheduler.Queue, request).counts
    nodes = client.call(client.scheduler.ListNodes, scheduler_pb2.ListNodesRequest()).nodes
    ready = [node for node in nodes if node.state == node_pb2.NODE_STATE_READY]
    free = sum(device.is_free for node in ready for device in node.devices)
    running = counts.starting + counts.running + counts.stopping
    waiting = counts.queued + counts.held
    return (
        f"{running} running, {waiting} waiting · {counted(len(ready), 'node')} ready, "
        f"{counted(free, 'GPU')} free · Ctrl-C stops"
    )


def _use_context(programs: Programs) -> str:
    """Make this account's commands speak to the new scheduler; answers the context that was used before."""
    file = contexts_file()
    before = read_contexts(file, []).current
    values = {"scheduler": programs.address, "token_file": str(programs.folders.admin_token)}
    if programs.pages:
        values["gateway"] = programs.pages[0]
    save_context(file, CONTEXT, values, make_current=True)
    return before


def _tell_what_runs(programs: Programs, before: str, *, is_detached: bool, gateway_is_missing: bool) -> None:
    logs = {"scheduler": programs.folders.log("scheduler")}
    lines = [f"scheduler  {programs.address}"]
    if programs.node is not None:
        logs["agent"] = programs.folders.log("agent")
        lines.append(f"agent      {programs.node.name}: {devices_in_words(programs.node)}")
    if programs.pages:
        logs["gateway"] = programs.folders.log("gateway")
        lines += [f"{'' if number else 'page':<9}  {page}" for number, page in enumerate(programs.pages)]
        token = with_tilde(str(programs.folders.admin_token))
        lines.append(f"dashboard  {programs.pages[0].rstrip('/')}/dashboard (log in with the token in {token})")
        lines.append(f"gRPC       {programs.grpc} (Open Inference Protocol)")
    elif gateway_is_missing:
        lines.append("page       none: pip install 'gpufleet[gateway]' and start it again")
    lines += [
        f"{'logs' if not number else '':<9}  {with_tilde(str(file))}" for number, file in enumerate(logs.values())
    ]
    back = f" (back with: gpuctl config context use {before})" if before not in ("", CONTEXT) else ""
    lines.append(f'context    "{CONTEXT}" is in use now{back}')
    lines.append("")
    lines.append("Try:  gpuctl run --gpus 1 -- python -m gpufleet.selftest")
    if programs.pages:
        lines.append("      gpuctl serve canvas --gpus 1     and draw with it on the page")
    lines.append("Look: gpuctl queue · gpuctl top · gpuctl doctor")
    lines.append("Stop: gpuctl down" if is_detached else "Stop: Ctrl-C, or from elsewhere gpuctl down")
    print("\n".join(lines), flush=True)


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        say(text)


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def handled(on_signal: Callable[[int, object], None]) -> Iterator[None]:
    """Give SIGINT, SIGTERM and SIGHUP to this handler meanwhile, in place of ending this process."""
    before = {number: signal.signal(number, on_signal) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Signals:
    """Notes the first signal while a fleet starts: none is lost, so that nothing is left running."""

    number: int | None = None

    def note(self, number: int, frame: object) -> None:
        """One came."""
        self.number = self.number or number

    def is_told(self) -> bool:
        """Whether one came."""
        return self.number is not None
