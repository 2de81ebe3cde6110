"""Tells users of the course of their attempts: what `core/notices.py` finds due is told, one after the other.

A notice harms nothing: whatever goes wrong with it is logged, and the attempt hears of nothing. It is told at least
once: one that an agent was killed in the middle of is told again by the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

from gpufleet.notify import is_url

from . import wire
from .clocks import boottime_us
from .core.commands import LaunchAttempt, TellWarning
from .core.launch import Launch
from .core.notices import (
    Notice,
    Notified,
    Warned,
    after_telling,
    fields_of,
    next_due_us,
    next_notice,
    seen,
    variables_of,
    with_warning,
)
from .core.outcome import AttemptKey, AttemptView, StopCause
from .environment import shown_devices
from .notice_records import NoticeRecords, Subject
from .telling import NotTold, post, run_command, shown

_log = logging.getLogger(__name__)

TOLD_AT_ONCE_MAX = 8
"""Commands and requests under way; the others wait their turn."""

ATTEMPTS_TOLD_MAX = 10_000
"""Attempts that run with notices, or are not told of to the end; of more nothing is told, and that is logged."""

CLOCK_SECONDS_MAX = 30.0
"""How long to sleep before the clock is read again: it goes on while the machine sleeps, the sleep does not."""


class Notices:
    """The notices of one node's attempts."""

    def __init__(self, node: str, records: NoticeRecords) -> None:
        self._node = node
        self._records = records
        self._subjects: dict[AttemptKey, Subject] = {}
        self._news: dict[AttemptKey, asyncio.Event] = {}
        self._telling: dict[AttemptKey, asyncio.Task[None]] = {}
        self._turns = asyncio.Semaphore(TOLD_AT_ONCE_MAX)

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
            if key in known:
                self.see(known[key])
            if self._subjects[key].facts.end is None and (key not in known or not known[key].phase.is_live):
                self.drop(key)
            else:
                self._begin(key)

    def expect(self, command: LaunchAttempt, launch: Launch) -> None:
        """This is about to be launched, perhaps once more."""
        key = command.key
        if not command.notify or key.rank != 0 or key in self._subjects:
            return
        if len(self._subjects) >= ATTEMPTS_TOLD_MAX:
            _log.warning("nothing is told of attempt %s: there are %d such attempts", key, ATTEMPTS_TOLD_MAX)
            return
        # Of a command's environment the devices are left out: by the end they are somebody else's.
        env = {} if is_url(command.notify) else {**launch.env, **shown_devices(())[0]}
        subject = Subject(
            facts=Notified(
                key=key,
                time_limit_us=command.limits.time_limit_us,
                may_be_warned_at_end=bool(command.expectations.device_uuids),
            ),
            target=command.notify,
            cwd=command.cwd,
            env=env,
            spans_nodes=command.node_count > 1,
        )
        self._subjects[key] = subject
        try:
            self._records.begin(subject)
        except OSError as problem:
            _log.warning("notices of attempt %s end with this agent: %s", key, problem)
        self._begin(key)

    def drop(self, key: AttemptKey) -> None:
        """Tell nothing of it: it was not launched."""
        if (telling := self._telling.get(key)) is not None:
            telling.cancel()
        self._finish(key)

    def see(self, view: AttemptView) -> None:
        """A keeper says where an attempt stands."""
        if (subject := self._subjects.get(view.key)) is not None:
            self._change(subject, seen(subject.facts, view))

    def stopping(self, key: AttemptKey, cause: StopCause) -> None:
        """It is told to stop; the first cause stands."""
        if (subject := self._subjects.get(key)) is not None and subject.facts.stop_cause is None:
            self._change(subject, replace(subject.facts, stop_cause=cause))

    def warn(self, command: TellWarning) -> None:
        """The scheduler has a warning; said again it changes nothing, and once the end was told it is too late."""
        if (subject := self._subjects.get(command.key)) is not None:
            warning = Warned(command.number, command.kind, command.sentence)
            self._change(subject, with_warning(subject.facts, warning))

    def settle(self, key: AttemptKey) -> None:
        """The scheduler has stored the end of its only rank, and has warned of all that there is."""
        if (subject := self._subjects.get(key)) is not None and not subject.spans_nodes:
            self._change(subject, replace(subject.facts, is_settled=True))

    async def close(self) -> None:
        """Stop in the middle: the next agent goes on."""
        telling = tuple(self._telling.values())
        for task in telling:
            task.cancel()
        await asyncio.gather(*telling, return_exceptions=True)

    def _change(self, subject: Subject, facts: Notified) -> None:
        if facts == subject.facts:
            return
        self._subjects[facts.key] = replace(subject, facts=facts)
        try:
            self._records.note(subject.facts, facts)
        except OSError as problem:
            _log.warning("a notice of attempt %s may be told twice: %s", facts.key, problem)
        if (news := self._news.get(facts.key)) is not None:
            news.set()

    def _finish(self, key: AttemptKey) -> None:
        self._subjects.pop(key, None)
        self._news.pop(key, None)
        try:
            self._records.end(key)
        except OSError as problem:
            _log.warning("the notices of attempt %s cannot be forgotten: %s", key, problem)

    def _begin(self, key: AttemptKey) -> None:
        self._news[key] = asyncio.Event()
        task = asyncio.create_task(self._tell_of(key, self._news[key]))
        self._telling[key] = task
        task.add_done_callback(lambda done: self._ended(key, done))

    def _ended(self, key: AttemptKey, task: asyncio.Task[None]) -> None:
        if self._telling.get(key) is task:
            del self._telling[key]
        if not task.cancelled() and (problem := task.exception()) is not None:
            _log.error("the notices of attempt %s ended", key, exc_info=problem)

    async def _tell_of(self, key: AttemptKey, news: asyncio.Event) -> None:
        while not (facts := self._subjects[key].facts).is_over:
            news.clear()
            now_us = boottime_us()
            notice = next_notice(facts, now_us)
            if notice is not None:
                async with self._turns:
                    await self._tell(self._subjects[key], notice)
                subject = self._subjects[key]
                self._change(subject, after_telling(subject.facts, notice))
                continue
            due_us = next_due_us(facts, now_us)
            wait_s = None if due_us is None else min((due_us - now_us) / 1e6, CLOCK_SECONDS_MAX)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await news.wait()
        self._finish(key)

    async def _tell(self, subject: Subject, notice: Notice) -> None:
        """Deliver it or log why not; never raises what goes wrong with it."""
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
                await post(subject.target, fields)
                said = ""
            else:
                said = await run_command(subject.target, subject.cwd, {**subject.env, **variables_of(fields)})
        except NotTold as problem:
            _log.warning("the notice %r of attempt %s did not reach %s: %s", notice.value, facts.key, how, problem)
        except Exception:
            _log.exception("the notice %r of attempt %s did not reach %s", notice.value, facts.key, how)
        else:
            _log.info("told %r of attempt %s to %s%s", notice.value, facts.key, how, f": {said!r}" if said else "")
