"""Carries out what `core/duties.py` decides about attempts, and tells it what came of it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, assert_never

from gpufleet.v1 import node_agent_pb2

from gpufleet.devices.device import DeviceSample
from gpufleet.jobs.runs import FileRun, RankKey
from gpufleet.telemetry.spans import Telemetry

from . import wire
from .containers.containers import Containers
from .containers.engine import ContainerTrouble
from .core.actions import (
    Action,
    BeginNext,
    CarriedOut,
    Change,
    CheckNode,
    Follow,
    ForgetAttempt,
    GiveUpFiles,
    Hold,
    LetGo,
    LimitProcess,
    Order,
    SignalProcess,
    SpawnAttempt,
    StopProcess,
    Tell,
)
from .core.commands import LaunchAttempt, NotLaunched
from .core.delivery import Receipt
from .core.duties import BACKLOG_US_MAX, PREPARED_US_MAX, Duties
from .core.expectations import Misfit
from .core.fence import CommandRefusal
from .core.inventory import AttemptReport, EndReport, InBacklog, Prepared, Refused, SpoolReport, StartReport
from .core.launch import Launch, Objection, Refusal, RefusalReason
from .core.outcome import AttemptPhase, AttemptView, Stream
from .files.job_files import JobFiles
from .files.results import Results
from .heartbeat import Report
from .isolation.accounts import AccountUnusable
from .keeper.client import Launched
from .keeper.linux import boottime_us
from .keeping import Keeping
from .launch import Launcher
from .machine import sample_to_proto
from .notices import Notices
from .output import OutputSender
from .ports import MasterPorts
from .report_log import ReportLog
from .setup.environments import Environments
from .setup.preparing import Preparations, bytes_of
from .traces import AttemptTraces
from .usage import Usages

_log = logging.getLogger(__name__)


class Attempts:
    """The attempts of this node. `report` takes what the scheduler has to know, `carried_out` what is done.

    `judge` says whether a launch may begin now that rests on what was sent then.
    """

    def __init__(
        self,
        duties: Duties,
        keeping: Keeping,
        launcher: Launcher,
        output: OutputSender,
        notices: Notices,
        usages: Usages,
        files: JobFiles,
        results: Results,
        environments: Environments,
        containers: Containers,
        preparations: Preparations,
        *,
        report: Callable[[Report], None],
        carried_out: Callable[[Receipt], None],
        judge: Callable[[LaunchAttempt, int], CommandRefusal | None],
        traces: Telemetry,
    ) -> None:
        self._duties = duties
        self._keeping = keeping
        self._launcher = launcher
        self._output = output
        self._notices = notices
        self._usages = usages
        self._files = files
        self._results = results
        self._environments = environments
        self._containers = containers
        self._preparations = preparations
        self._fetching: dict[RankKey, asyncio.Task[Refusal | None]] = {}
        self._report = report
        self._carried_out = carried_out
        self._judge = judge
        self._traces = AttemptTraces(traces)
        self._said = ReportLog()
        self._samples: dict[RankKey, tuple[DeviceSample, ...]] = {}
        self._ports = MasterPorts()
        self._holds: dict[RankKey, asyncio.TimerHandle] = {}
        self._working: set[asyncio.Task[None]] = set()
        keeping.listen(self)
        output.listen(self.output_lost)
        notices.listen(self._drop_files)

    def adopt(self, views: Iterable[AttemptView]) -> None:
        """Take over what the keepers hold."""
        held = tuple(views)
        self._notices.adopt(held)
        self._usages.adopt(held)
        for view in held:
            self._traces.ended(view)
        self._perform(self._duties.adopt(held))

    def bring_left(self, keys: Iterable[RankKey]) -> None:
        """Bring what ranks left of which nothing else is known here any more, and remove their folders then."""
        for key in keys:
            self._begin(self._bring_left(key))

    async def _bring_left(self, key: RankKey) -> None:
        await self._results.bring(key)
        await self._files.remove(key)

    def order(self, order: Order) -> None:
        """Carry a command out, after those that came before it for the same attempt."""
        self._perform(self._duties.order(order))

    def changed(self, key: RankKey, change: Change) -> None:
        """A keeper says what became of an attempt."""
        self._perform(self._duties.changed(key, change))

    def saw(self, view: AttemptView) -> None:
        """A keeper says all of an attempt."""
        self._perform(self._duties.saw(view))

    def output_lost(self, key: RankKey, stream: Stream, offset: int) -> None:
        """Nobody has what a stream had behind this offset."""
        self._perform(self._duties.output_lost(key, stream, offset))

    async def close(self) -> None:
        """Leave undone what is under way: every order is safe to be sent again."""
        for work in self._working:
            work.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)
        for key in tuple(self._holds):
            self._stop_holding(key)
        await self._environments.close()
        self._ports.close()
        self._said.close()

    def _perform(self, actions: Iterable[Action]) -> None:
        """Do at once what needs no waiting, and begin the rest: a launch on free devices waits for the keeper only."""
        to_do = deque(actions)
        ended: list[RankKey] = []
        while to_do:
            action = to_do.popleft()
            match action:
                case Tell():
                    self._tell(action.report)
                    if isinstance(action.report, Refused):
                        ended.append(action.report.key)
                case CarriedOut():
                    self._carried_out(action.receipt)
                case Hold(held=held):
                    self._hold(held)
                case BeginNext(launch=launch, sent_us=sent_us):
                    to_do.extend(self._duties.next_begun(launch.key, self._judge(launch, sent_us)))
                case LetGo(key=key):
                    self._stop_holding(key)
                    self._ports.release(key)
                    ended.append(key)
                case GiveUpFiles(key=key):
                    if (fetch := self._fetching.get(key)) is not None:
                        fetch.cancel()
                case Follow():
                    self._notices.see(action.view)
                    self._usages.see(action.view)
                    self._output.see(action.view, is_new=action.is_new)
                    self._keeping.follow(action.view)
                case CheckNode():
                    waits = action.is_prepare or action.command.is_prepared_for
                    if not waits and self._launcher.is_surely_fit(action.command.expectations):
                        to_do.extend(self._duties.checked(action.command.key, None))
                    else:
                        self._begin(self._check(action))
                case SpawnAttempt():
                    self._begin(self._spawn(action))
                case StopProcess() | SignalProcess() | LimitProcess() | ForgetAttempt():
                    if isinstance(action, StopProcess):
                        self._notices.stopping(action.key, action.cause)
                    self._begin(self._ask(action))
                case _:
                    assert_never(action)
        for key in dict.fromkeys(ended):
            self._drop_files(key)
            if self._containers.has(key):
                self._begin(self._containers.remove(key))

    def _drop_files(self, key: RankKey) -> None:
        """Remove the files of a rank that is not here, if it had any; those that a notice needs, when that is over."""
        is_over = isinstance(self._duties.inventory[key], Refused | None) and not self._notices.needs_folder(key)
        if is_over and key not in self._fetching and self._files.folder_of(key).exists():
            self._results.settle(key)
            self._begin(self._files.remove(key))
            self._begin(self._environments.release(key))

    async def _laid_out(self, command: LaunchAttempt) -> Refusal | None:
        """Have its image come, fetch and place its files, and have its environment made of them.

        It is cancelled by GiveUpFiles.
        """
        fetch = asyncio.create_task(self._lay_out(command))
        self._fetching[command.key] = fetch
        try:
            await asyncio.wait({fetch})
        finally:
            fetch.cancel()
            del self._fetching[command.key]
        return fetch.result()

    async def _lay_out(self, command: LaunchAttempt) -> Refusal | None:
        preparations = self._preparations
        if command.container is not None:
            preparations.does(command.key, "its image is made ready", has_limit=True)
            if (refusal := await self._containers.prepare(command)) is not None:
                return refusal
        if not command.has_files:
            return None
        preparations.fetches(command.key, bytes_of(command.files, command.folder))
        refusal = await self._files.lay_out(
            command.key,
            command.files,
            command.folder,
            inputs=command.inputs,
            kept=command.kept,
            user=command.user,
        )
        await asyncio.to_thread(self._results.expect, command.key, command.results, command.keep)
        if refusal is not None:
            return refusal
        preparations.does(command.key, "its environment is made ready", has_limit=True)
        refusal = await self._environments.make(command, self._files.folder_of(command.key))
        preparations.does(command.key, "its devices are checked")
        return refusal

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._working.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            _log.error("an order was not carried out", exc_info=problem)

    async def _check(self, action: CheckNode) -> None:
        key, command = action.command.key, action.command
        found: Misfit | Objection | None = None
        port = 0
        self._preparations.begin(key)
        try:
            if command.is_prepared_for:
                try:
                    found = await self._laid_out(command)
                except asyncio.CancelledError:
                    if (task := asyncio.current_task()) is None or task.cancelling():
                        raise
                    self._perform(self._duties.given_up(key))
                    return
            if found is None and action.is_prepare and command.container is None:
                found = await self._keeping.check(self._launcher.rehearsed(command))
            if found is None:
                found, self._samples[key] = await self._launcher.misfit(command.expectations)
            if found is None and action.is_prepare and key.rank == 0:
                port = self._ports.reserve(key)
        except Exception as problem:
            found = _not_begun(key, problem)
        finally:
            self._preparations.end(key)
        self._perform(self._duties.checked(key, found, port))
        self._samples.pop(key, None)

    def _hold(self, held: Prepared | InBacklog) -> None:
        self._stop_holding(held.key)
        span_us = BACKLOG_US_MAX if isinstance(held, InBacklog) else PREPARED_US_MAX
        self._holds[held.key] = asyncio.get_running_loop().call_later(
            span_us / 1e6, lambda: self._perform(self._duties.held_too_long(held, boottime_us()))
        )

    def _stop_holding(self, key: RankKey) -> None:
        hold = self._holds.pop(key, None)
        if hold is not None:
            hold.cancel()

    async def _spawn(self, action: SpawnAttempt) -> None:
        key = action.command.key
        with self._traces.telemetry.span(
            "launch", parent=action.command.trace_context, job=key.job, attempt=key.attempt, rank=key.rank
        ) as span:
            answer: Launched | Refusal
            try:
                launch = self._launcher.complete(
                    action.command,
                    action.master,
                    heartbeat_sent_us=action.heartbeat_sent_us,
                    traceparent=span.traceparent,
                    is_traced=self._traces.telemetry.is_on,
                )
                beside = self._launcher.beside(action.command, launch)
                launch = await self._in_container(action.command, launch)
            except Exception as problem:
                answer = _not_begun(key, problem)
            else:
                self._notices.expect(action.command, beside)
                self._usages.expect(key, action.command.expectations.device_uuids, action.command.sampling_us)
                with self._traces.telemetry.span("spawn", parent=span.traceparent):
                    answer = await self._keeping.launch(launch)
        if isinstance(answer, Refusal) or answer.attempt.phase is AttemptPhase.FORGOTTEN:
            self._notices.drop(key)
            self._usages.forget(key)
        if isinstance(answer, Refusal):
            self._perform(self._duties.spawned(key, answer, was_known=False))
        else:
            self._perform(self._duties.spawned(key, answer.attempt, was_known=answer.was_known))
            self._drop_files(key)  # of one that had been forgotten they were placed for nothing
            if action.command.folder is not None:
                self._begin(self._files.make_spare(key, action.command.folder))
        if action.command.container is not None:
            self._containers.launched(key)

    async def _in_container(self, command: LaunchAttempt, launch: Launch) -> Launch:
        """The launch of what runs the rank's container, which is made now; of any other rank the launch as it is."""
        if command.container is None:
            return launch
        files = str(self._files.folder_of(command.key)) if command.has_files else ""
        way = self._launcher.way(command)
        return await self._containers.made(command, launch, self._launcher.held(command), files, way)

    async def _ask(self, action: StopProcess | SignalProcess | LimitProcess | ForgetAttempt) -> None:
        is_done = True
        try:
            match action:
                case StopProcess():
                    await self._keeping.stop(action.key, action.cause, action.grace_us)
                case SignalProcess():
                    await self._keeping.signal(action.key, action.signal)
                case LimitProcess():
                    is_done = await self._keeping.set_time_limit(action.key, action.time_limit_us)
                    if is_done:
                        self._notices.limited(action.key, action.time_limit_us)
                case ForgetAttempt():
                    self._notices.settle(action.key)
                    self._traces.forgotten(action.key)
                    self._output.forget(action.key)
                    self._usages.forget(action.key)
                    await self._results.bring(action.key)
                    await self._keeping.forget(action.key)
        except Exception:
            # The orders behind it wait for this one; what it should have done, the next inventory brings up again.
            _log.exception("an order for attempt %s was not carried out", action.key)
            is_done = False
        self._perform(self._duties.done(action.key, is_done=is_done))
        if isinstance(action, ForgetAttempt) and is_done:
            self._drop_files(action.key)

    def _tell(self, report: AttemptReport | Refused | Prepared) -> None:
        if isinstance(report, Refused):
            level = logging.INFO if report.reason == NotLaunched.TAKEN_BACK else logging.WARNING
            _log.log(level, "attempt %s was not started: %s: %s", report.key, report.reason, report.sentence)
            samples = [sample_to_proto(each) for each in self._samples.get(report.key, ())]
            self._report(lambda now_us: {"launch_refused": wire.refused_to_proto(report, samples)})
        else:
            self._said.add(report)
            if isinstance(report, StartReport | EndReport):
                self._notices.see(report.view)
                self._usages.see(report.view)
            if isinstance(report, EndReport):
                self._traces.ended(report.view)
            if isinstance(report, EndReport) and report.view.end is not None and report.view.end.processes_left:
                left = report.view.end.processes_left
                _log.error("attempt %s has ended and %d of its processes outlive SIGKILL", report.view.key, left)
            if isinstance(report, EndReport) and self._containers.has(report.view.key):
                self._begin(self._containers.remove(report.view.key))
            usage = self._usages.of(report.view.key) if isinstance(report, EndReport) else None
            self._report(report_of(report, usage, self._files.runs_of))


def _not_begun(key: RankKey, problem: Exception) -> Refusal:
    """A launch that failed before a keeper was asked: an order without an answer would hold its devices for ever."""
    if isinstance(problem, AccountUnusable | ContainerTrouble):
        return problem.refusal
    _log.error("attempt %s could not be begun", key, exc_info=problem)
    return Refusal(RefusalReason.SPAWN_FAILED, f"the node's agent could not begin it: {problem}")


def report_of(
    report: AttemptReport | Prepared,
    usage: node_agent_pb2.AttemptUsage | None = None,
    runs_of: Callable[[RankKey], tuple[FileRun, ...]] = lambda key: (),
) -> Report:
    """The message of a report; its ages count from when it is sent. `usage` goes with an end, how files came with a
    start."""
    match report:
        case StartReport(view=view):
            runs = runs_of(view.key)
            return lambda now_us: {"attempt_started": wire.started_to_proto(view, now_us, runs)}
        case EndReport(view=view):
            return lambda now_us: {"attempt_exited": wire.exited_to_proto(view, now_us, usage)}
        case SpoolReport(view=view):
            return lambda now_us: {"spool_state": wire.spool_to_proto(view)}
        case Prepared():
            return lambda now_us: {"rank_ready": wire.ready_to_proto(report)}
        case _:
            assert_never(report)
