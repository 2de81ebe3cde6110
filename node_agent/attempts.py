"""Carries out what the scheduler asks of attempts, one command at a time for each, and reports what becomes of them.

What is right to do is decided in `core/`; processes are the keeper's. A command that came twice, or that was done
before the agent last died, changes nothing and gets the same answer again.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import assert_never
from weakref import WeakValueDictionary

from gpufleet.v1 import node_agent_pb2

from . import wire
from .core.adoption import Obedience, Verdict, obey
from .core.commands import (
    AbortAttempt,
    AttemptCommand,
    JudgeAttempt,
    LaunchAttempt,
    NotLaunched,
    PrepareAttempt,
    SignalAttempt,
    StartAttempt,
    StopAttempt,
)
from .core.fence import CommandRefusal
from .core.inventory import (
    Checking,
    EndSeen,
    Entry,
    Inventory,
    Prepared,
    Refused,
    Seen,
    SpoolSeen,
    StartSeen,
    reports_of,
)
from .core.launch import Refusal, RefusalReason
from .core.outcome import AttemptKey, AttemptPhase, AttemptView, StopCause
from .environment import free_port
from .heartbeat import Report
from .keeping import Keeping
from .launch import Launcher, Master, Unfitness
from .machine import sample_to_proto
from .output import OutputSender

_log = logging.getLogger(__name__)

ANY_HOST = "0.0.0.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What a command rests on: when the newest message that the scheduler knew of us was sent.

    `refusal` is set when that is too long ago, or nobody knows, for a command that starts something.
    """

    sent_us: int = 0
    refusal: CommandRefusal | None = None

    @property
    def sentence(self) -> str:
        if self.refusal is CommandRefusal.TOO_OLD:
            return "the command rests on knowledge that is too old"
        return "the command names no message of this agent that it rests on"


class Attempts:
    """The attempts of this node, as the agent deals with them."""

    def __init__(
        self,
        inventory: Inventory,
        keeper: Keeping,
        launcher: Launcher,
        output: OutputSender,
        report: Callable[[Report], None],
    ) -> None:
        self.inventory = inventory
        self._keeper = keeper
        self._launcher = launcher
        self._output = output
        self._report = report
        # A lock lives as long as a command holds it or waits for it.
        self._locks: WeakValueDictionary[AttemptKey, asyncio.Lock] = WeakValueDictionary()
        self._to_forget: set[AttemptKey] = set()
        self.fence_base_us = 0

    def live(self) -> Iterable[AttemptView]:
        """The attempts whose processes may run."""
        return (entry for entry in self.inventory if isinstance(entry, AttemptView) and entry.phase.is_live)

    def adopt(self, views: Iterable[AttemptView]) -> None:
        """Take over what a keeper holds; the next inventory reports all of it."""
        known = tuple(views)
        self.inventory.adopt(known)
        for view in known:
            self._output.see(view)
            self._keeper.follow(view)

    def see(self, view: AttemptView, *, is_new: bool = False) -> None:
        """Take in what the keeper says of an attempt, and report what the scheduler has to know."""
        self._output.see(view, is_new=is_new)
        for seen in self.inventory.see(view):
            self._report(report_of(seen))
        if view.end is not None and view.key in self._to_forget:
            self._to_forget.discard(view.key)
            asyncio.get_running_loop().create_task(self._forget(view.key))

    async def carry_out(self, command: AttemptCommand, rests_on: Basis) -> None:
        """Carry out one command, after those that came before it for the same attempt."""
        lock = self._locks.get(command.key)
        if lock is None:
            lock = self._locks[command.key] = asyncio.Lock()
        async with lock:
            entry = self.inventory[command.key]
            match command:
                case LaunchAttempt():
                    await self._launch(command, entry, rests_on)
                case PrepareAttempt():
                    await self._prepare(command.launch, entry, rests_on)
                case StartAttempt():
                    await self._start(command, entry, rests_on)
                case AbortAttempt():
                    await self._abort(command.key, entry)
                case StopAttempt():
                    await self._stop(command, entry)
                case SignalAttempt():
                    if isinstance(entry, AttemptView) and rests_on.refusal is None:
                        await self._keeper.signal(command.key, command.signal)
                case JudgeAttempt():
                    await self._judge(command.key, command.verdict, entry)
                case _:
                    assert_never(command)

    async def _launch(self, command: LaunchAttempt, entry: Entry | None, rests_on: Basis) -> None:
        if entry is not None:
            self._answer_again(entry)
        elif rests_on.refusal is not None:
            self._refuse(command.key, NotLaunched.COMMAND_TOO_OLD, rests_on.sentence)
        elif await self._is_fit(command):
            await self._spawn(command, None, rests_on)

    async def _is_fit(self, command: LaunchAttempt) -> bool:
        """Check what the launch expects; while that waits for a device, the inventory says that it is checked."""
        self.inventory.take(Checking(command.key))
        unfitness = await self._launcher.unfitness(command.expectations)
        if unfitness is not None:
            self._refuse_unfit(command.key, unfitness)
        return unfitness is None

    async def _spawn(self, command: LaunchAttempt, master: Master | None, rests_on: Basis) -> None:
        base_us = max(self.fence_base_us, rests_on.sent_us)
        answer = await self._keeper.launch(self._launcher.complete(command, master, base_us))
        if isinstance(answer, Refusal):
            self._refuse(command.key, answer.reason.value, answer.detail)
            return
        self.inventory.drop(command.key)
        view = answer.attempt
        if view.phase is AttemptPhase.FORGOTTEN:
            # The scheduler had stored its end and forgot that: it is told once more, and there is nothing to keep.
            self._answer_again(view)
            return
        self.see(view, is_new=not answer.was_known)
        self._keeper.follow(view)

    async def _prepare(self, command: LaunchAttempt, entry: Entry | None, rests_on: Basis) -> None:
        if entry is not None:
            self._answer_again(entry)
        elif rests_on.refusal is not None:
            self._refuse(command.key, NotLaunched.COMMAND_TOO_OLD, rests_on.sentence)
        elif not await asyncio.to_thread(os.path.isdir, command.cwd):
            self._refuse(command.key, RefusalReason.CWD_MISSING, f"there is no directory {command.cwd}")
        elif await self._is_fit(command):
            prepared = Prepared(command, free_port(ANY_HOST) if command.key.rank == 0 else 0)
            self.inventory.take(prepared)
            self._report(ready_report(prepared))

    async def _start(self, command: StartAttempt, entry: Entry | None, rests_on: Basis) -> None:
        if not isinstance(entry, Prepared):
            if entry is not None:
                self._answer_again(entry)
            else:
                self._refuse(command.key, NotLaunched.NOT_PREPARED, "the rank was never prepared on this node")
        elif rests_on.refusal is not None:
            self._refuse(command.key, NotLaunched.COMMAND_TOO_OLD, rests_on.sentence)
        else:
            self.inventory.take(Checking(command.key))
            master = Master(command.master_address, command.master_port)
            await self._spawn(entry.launch, master, rests_on)

    async def _abort(self, key: AttemptKey, entry: Entry | None) -> None:
        if isinstance(entry, AttemptView):
            await self._keeper.stop(key, StopCause.GANG, None)
        else:
            # Remembered, so that a start that comes late finds it void.
            self.inventory.take(Refused(key, NotLaunched.ABORTED, "the gang was aborted before it started"))

    async def _stop(self, command: StopAttempt, entry: Entry | None) -> None:
        match entry:
            case AttemptView() if entry.phase.is_live:
                await self._keeper.stop(command.key, command.cause, command.grace_us)
            case AttemptView() | Refused():
                self._answer_again(entry)
            case _:
                self._refuse(command.key, NotLaunched.STOPPED_BEFORE_START, "it was stopped before it was started")

    async def _judge(self, key: AttemptKey, verdict: Verdict, entry: Entry | None) -> None:
        if isinstance(entry, Refused | Prepared):
            if verdict is not Verdict.KEEP:
                self.inventory.drop(key)
            return
        if not isinstance(entry, AttemptView):
            return
        match obey(verdict, entry.phase):
            case Obedience.NOTHING:
                pass
            case Obedience.REPORT_END:
                self._answer_again(entry)
            case Obedience.KILL:
                await self._keeper.stop(key, StopCause.STALE, 0)
            case Obedience.KILL_THEN_FORGET:
                self._to_forget.add(key)
                await self._keeper.stop(key, StopCause.STALE, 0)
            case Obedience.FORGET:
                await self._forget(key)

    async def _forget(self, key: AttemptKey) -> None:
        await self._keeper.forget(key)
        self._output.forget(key)
        self.inventory.drop(key)

    def _refuse(self, key: AttemptKey, reason: str, sentence: str) -> None:
        refused = Refused(key, reason, sentence)
        self.inventory.take(refused)
        self._report(lambda now_us: {"launch_refused": wire.refused_to_proto(refused)})
        _log.warning("attempt %s was not started: %s: %s", key, reason, sentence)

    def _refuse_unfit(self, key: AttemptKey, unfitness: Unfitness) -> None:
        refused = Refused(key, unfitness.misfit.reason, unfitness.misfit.sentence)
        samples = [sample_to_proto(each) for each in unfitness.samples if each.uuid in unfitness.misfit.uuids]
        self.inventory.take(refused)
        self._report(lambda now_us: {"launch_refused": wire.refused_to_proto(refused, samples)})
        _log.warning("attempt %s was not started: %s: %s", key, refused.reason, refused.sentence)

    def _answer_again(self, entry: Entry) -> None:
        """Say once more where a rank is, for a scheduler that asks as if it had not heard."""
        match entry:
            case AttemptView():
                for seen in reports_of(None, entry):
                    self._report(report_of(seen))
            case Refused():
                self._report(lambda now_us: {"launch_refused": wire.refused_to_proto(entry)})
            case Prepared():
                self._report(ready_report(entry))
            case Checking():
                pass
            case _:
                assert_never(entry)


def report_of(seen: Seen) -> Report:
    """The message of a report; its ages count from when it is sent."""
    view = seen.view
    match seen:
        case StartSeen():
            return lambda now_us: {"attempt_started": wire.started_to_proto(view, now_us)}
        case EndSeen():
            return lambda now_us: {"attempt_exited": wire.exited_to_proto(view, now_us)}
        case SpoolSeen():
            return lambda now_us: {"spool_state": wire.spool_to_proto(view)}
        case _:
            assert_never(seen)


def ready_report(prepared: Prepared) -> Report:
    """The message that a rank is prepared."""
    ready = node_agent_pb2.RankReady(key=wire.key_to_proto(prepared.key), master_port=prepared.master_port)
    return lambda now_us: {"rank_ready": ready}
