"""Tells users of the course of their attempts: what `core/notices.py` finds due is told, one after the other.

A notice harms nothing: whatever goes wrong with it is logged and told to the scheduler, and the attempt hears of
nothing. It is told at least once: one that an agent was killed in the middle of is told again by the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shlex
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime

from gpufleet.jobs.notify import is_url
from gpufleet.jobs.runs import RankKey, StopCause

from . import wire
from .core.commands import LaunchAttempt, TellWarning
from .core.launch import Process
from .core.notices import (
    Failure,
    Notice,
    Notified,
    Warned,
    after_telling,
    fields_of,
    next_due_us,
    next_notice,
    variables_of,
    with_failure,
    with_time_limit,
    with_view,
    with_warning,
    without_failure,
)
from .core.outcome import AttemptView
from .environment import shown_devices
from .keeper.linux import boottime_us
from .notice_records import NoticeRecords, Subject

_log = logging.getLogger(__name__)

TOLD_AT_ONCE_MAX = 8
"""Commands and requests under way; the others wait their turn."""

ATTEMPTS_TOLD_MAX = 10_000
"""Attempts that run with notices, or are not told of to the end; of more nothing is told, and that is logged."""

CLOCK_SECONDS_MAX = 30.0
"""How long to sleep before the clock is read again: it goes on while the machine sleeps, the sleep does not."""


TellFailure = Callable[[RankKey, Failure, Callable[[], None]], None]
"""Tells the scheduler that a notice was not delivered; the last argument is to be called when it has stored that."""


class Notices:
    """The notices of one node's attempts. Failures go to the scheduler, until it has stored them."""

    def __init__(
        self,
        node: str,
        records: NoticeRecords,
        allows_local: Callable[[], bool] = lambda: False,
        tell_failure: TellFailure = lambda key, failure, stored: stored(),
    ) -> None:
        self._allows_local = allows_local
        self._tell_failure = tell_failure
        self._node = node
        self._records = records
        self._subjects: dict[RankKey, Subject] = {}
        self._news: dict[RankKey, asyncio.Event] = {}
        self._telling: dict[RankKey, asyncio.Task[None]] = {}
        self._turns = asyncio.Semaphore(TOLD_AT_ONCE_MAX)
        self._released: Callable[[RankKey], None] = lambda key: None

    def listen(self, released: Callable[[RankKey], None]) -> None:
        """Call this when no notice needs the folder of an attempt any more."""
        self._released = released

    def needs_folder(self, key: RankKey) -> bool:
        """Whether the folder of an attempt's files must stay: a command may still run in it."""
        subject = self._subjects.get(key)
        return subject is not None and subject.needs_folder

    def keys_with_folder(self) -> tuple[RankKey, ...]:
        """All attempts whose folders must stay."""
        return tuple(key for key, subject in self._subjects.items() if subject.needs_folder)

    def adopt(self, views: Iterable[AttemptView]) -> None:
        """Go on where an earlier agent stopped; drop what was never launched, or is forgotten and ended unseen."""
        known = {view.key: view for view in views}
        try:
            subjects = self._records.all()
        except OSError as problem:
            _log.warning("what is to be told of attempts cannot be read: %s", problem)
            return
        for subject in subjects:
            key = subject.facts.key
            self._subjects[key] = subject
            for failure in subject.facts.failures:
                self._report(key, failure)
            if key in known:
                self.see(known[key])
            if self._subjects[key].facts.end is None and (key not in known or not known[key].phase.is_live):
                self.drop(key)
            else:
                self._begin(key)

    def expect(self, command: LaunchAttempt, process: Process) -> None:
        """Expect this launch, perhaps once more. `process` says how a command of the node runs that belongs to it."""
        key = command.key
        if not command.notify or key.rank != 0 or key in self._subjects:
            return
        if len(self._subjects) >= ATTEMPTS_TOLD_MAX:
            why = f"the node already has {ATTEMPTS_TOLD_MAX:,} attempts with notices"
            _log.warning("nothing is told of attempt %s: %s", key, why)
            self._report(key, Failure(1, Notice.START.value, f"{why}, and tells nothing of this one"))
            return
        # Of a command's environment the devices are left out: by the end they are somebody else's.
        env = {} if is_url(command.notify) else {**process.env, **shown_devices(())[0]}
        for name in command.secret_variables:
            env.pop(name, None)  # they are the process's, and would lie in a file below
        line = command.notify
        if command.container is not None and not is_url(line):
            line = in_folder_if_there(process.cwd, line)
        subject = Subject(
            facts=Notified(
                key=key,
                time_limit_us=command.process.limits.time_limit_us,
                may_be_warned_at_end=bool(command.expectations.device_uuids),
            ),
            target=line,
            cwd="/" if command.container is not None else process.cwd,
            env=env,
            isolation=process.isolation,
            spans_nodes=command.node_count > 1,
        )
        self._subjects[key] = subject
        try:
            self._records.begin(subject)
        except OSError as problem:
            _log.warning("notices of attempt %s end with this agent: %s", key, problem)
        self._begin(key)

    def drop(self, key: RankKey) -> None:
        """Tell nothing of it: it was not launched."""
        if (telling := self._telling.get(key)) is not None:
            telling.cancel()
        self._finish(key)

    def see(self, view: AttemptView) -> None:
        """A keeper says where an attempt stands."""
        self._update(view.key, lambda facts: with_view(facts, view))

    def stopping(self, key: RankKey, cause: StopCause) -> None:
        """It is told to stop; the first cause stands."""
        self._update(key, lambda facts: replace(facts, stop_cause=facts.stop_cause or cause))

    def warn(self, command: TellWarning) -> None:
        """The scheduler has a warning; said again it changes nothing, and once the end was told it is too late."""
        warning = Warned(command.number, command.kind, command.sentence)
        self._update(command.key, lambda facts: with_warning(facts, warning))

    def limited(self, key: RankKey, time_limit_us: int | None) -> None:
        """It has another time limit; one that is raised is told of anew."""
        self._update(key, lambda facts: with_time_limit(facts, time_limit_us))

    def settle(self, key: RankKey) -> None:
        """The scheduler has stored the end of its only rank, and has warned of all that there is."""
        self._update(key, lambda facts: replace(facts, is_settled=not self._subjects[key].spans_nodes))

    async def close(self) -> None:
        """Stop in the middle: the next agent goes on."""
        telling = tuple(self._telling.values())
        for task in telling:
            task.cancel()
        await asyncio.gather(*telling, return_exceptions=True)

    def _update(self, key: RankKey, change: Callable[[Notified], Notified]) -> None:
        if (subject := self._subjects.get(key)) is not None:
            self._change(subject, change(subject.facts))

    def _change(self, subject: Subject, facts: Notified) -> None:
        if facts == subject.facts:
            return
        changed = self._subjects[facts.key] = replace(subject, facts=facts)
        try:
            self._records.note(subject.facts, facts)
        except OSError as problem:
            _log.warning("a notice of attempt %s may be told twice: %s", facts.key, problem)
        if (news := self._news.get(facts.key)) is not None:
            news.set()
        if subject.needs_folder and not changed.needs_folder:
            self._released(facts.key)

    def _finish(self, key: RankKey) -> None:
        subject = self._subjects.pop(key, None)
        self._news.pop(key, None)
        if subject is not None and subject.needs_folder:
            self._released(key)
        try:
            self._records.end(key)
        except OSError as problem:
            _log.warning("the notices of attempt %s cannot be forgotten: %s", key, problem)

    def _begin(self, key: RankKey) -> None:
        self._news[key] = asyncio.Event()
        task = asyncio.create_task(self._tell_of(key, self._news[key]))
        self._telling[key] = task
        task.add_done_callback(lambda done: self._ended(key, done))

    def _ended(self, key: RankKey, task: asyncio.Task[None]) -> None:
        if self._telling.get(key) is task:
            del self._telling[key]
        if not task.cancelled() and (problem := task.exception()) is not None:
            _log.error("the notices of attempt %s ended", key, exc_info=problem)

    async def _tell_of(self, key: RankKey, news: asyncio.Event) -> None:
        while not (facts := self._subjects[key].facts).is_over:
            news.clear()
            now_us = boottime_us()
            notice = next_notice(facts, now_us)
            if notice is not None:
                async with self._turns:
                    why = await self._tell(self._subjects[key], notice)
                subject = self._subjects[key]
                told = after_telling(subject.facts, notice)
                failed = with_failure(told, notice, why) if why else told
                self._change(subject, failed)
                if failed.failure_count > told.failure_count:
                    self._report(key, failed.failures[-1])
                continue
            due_us = next_due_us(facts, now_us)
            wait_s = None if due_us is None else min((due_us - now_us) / 1e6, CLOCK_SECONDS_MAX)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await news.wait()
        self._finish(key)

    def _report(self, key: RankKey, failure: Failure) -> None:
        def stored() -> None:
            self._update(key, lambda facts: without_failure(facts, failure.number))

        self._tell_failure(key, failure, stored)

    async def _tell(self, subject: Subject, notice: Notice) -> str:
        """Deliver it, or log why not and return that; never raises what goes wrong with it."""
        # Few jobs have notices, and what HTTP needs takes 1.6 MB.
        from .notice_delivery import NoticeNotDelivered, post, run_command, run_isolated, shown

        facts = subject.facts
        reason, message = wire.reason_and_sentence_of(facts.end) if facts.end is not None else ("", "")
        fields = {
            **fields_of(facts, notice, reason, message),
            "node": self._node,
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        }
        how = "the URL" if is_url(subject.target) else "the command"
        try:
            if is_url(subject.target):
                how = shown(subject.target)
                await post(subject.target, fields, allows_local=self._allows_local())
                said = ""
            else:
                env = {**subject.env, **variables_of(fields)}
                if subject.isolation is None:
                    said = await run_command(subject.target, subject.cwd, env)
                else:
                    said = await run_isolated(subject.target, subject.cwd, env, subject.isolation, self._records.spaces)
        except NoticeNotDelivered as problem:
            _log.warning("the notice %r of attempt %s did not reach %s: %s", notice.value, facts.key, how, problem)
            return f"it did not reach {how}: {problem}"
        except Exception as problem:
            _log.exception("the notice %r of attempt %s did not reach %s", notice.value, facts.key, how)
            return f"it did not reach {how}: {type(problem).__name__}; the agent's log says more"
        _log.info("told %r of attempt %s to %s%s", notice.value, facts.key, how, f": {said!r}" if said else "")
        return ""


def in_folder_if_there(folder: str, line: str) -> str:
    """Return a shell line that runs in a folder where there is one of that name, and else where the shell starts.

    The working folder of a job in a container is the container's; the node may have none of that name.
    """
    return f"cd -- {shlex.quote(folder)} 2>/dev/null || :\n{line}" if folder else line
