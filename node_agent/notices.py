"""Tells users of the course of their attempts: what `core/notices.py` finds due is told, one after the other.

A notice harms nothing: whatever goes wrong with it is logged, and the attempt hears of nothing. It is told at least
once: one that an agent was killed in the middle of is told again by the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpufleet.jobs.notify import is_url
from gpufleet.jobs.runs import RankKey, StopCause, cause_of
from gpufleet.jobs.variables import JOB_TOKEN_VARIABLE

from . import wire
from .core.commands import LaunchAttempt, TellWarning
from .core.launch import Isolation, Launch
from .core.notices import (
    Notice,
    Notified,
    Warned,
    after_telling,
    fields_of,
    next_due_us,
    next_notice,
    variables_of,
    with_time_limit,
    with_view,
    with_warning,
)
from .core.outcome import AttemptView
from .environment import shown_devices
from .keeper.linux import boottime_us
from .keeper.values import end_from, isolation_from, to_json

_log = logging.getLogger(__name__)

TOLD_AT_ONCE_MAX = 8
"""Commands and requests under way; the others wait their turn."""

ATTEMPTS_TOLD_MAX = 10_000
"""Attempts that run with notices, or are not told of to the end; of more nothing is told, and that is logged."""

SPACES = "spaces"

CLOCK_SECONDS_MAX = 30.0
"""How long to sleep before the clock is read again: it goes on while the machine sleeps, the sleep does not."""


class Notices:
    """The notices of one node's attempts."""

    def __init__(self, node: str, records: NoticeRecords, allows_local: Callable[[], bool] = lambda: False) -> None:
        self._allows_local = allows_local
        self._node = node
        self._records = records
        self._subjects: dict[RankKey, Subject] = {}
        self._news: dict[RankKey, asyncio.Event] = {}
        self._telling: dict[RankKey, asyncio.Task[None]] = {}
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
        env = {} if is_url(command.notify) else {**launch.process.env, **shown_devices(())[0]}
        for name in command.secret_variables:
            env.pop(name, None)  # they are the process's, and would lie in a file below
        subject = Subject(
            facts=Notified(
                key=key,
                time_limit_us=command.process.limits.time_limit_us,
                may_be_warned_at_end=bool(command.expectations.device_uuids),
            ),
            target=command.notify,
            cwd=command.process.cwd,
            env=env,
            isolation=launch.process.isolation,
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
        self._subjects[facts.key] = replace(subject, facts=facts)
        try:
            self._records.note(subject.facts, facts)
        except OSError as problem:
            _log.warning("a notice of attempt %s may be told twice: %s", facts.key, problem)
        if (news := self._news.get(facts.key)) is not None:
            news.set()

    def _finish(self, key: RankKey) -> None:
        self._subjects.pop(key, None)
        self._news.pop(key, None)
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
        except Exception:
            _log.exception("the notice %r of attempt %s did not reach %s", notice.value, facts.key, how)
        else:
            _log.info("told %r of attempt %s to %s%s", notice.value, facts.key, how, f": {said!r}" if said else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is told to whom: the facts, and the target with the folder and the variables of its command.

    `spans_nodes`: the attempt has ranks elsewhere, whose ends this node does not see. `isolation` says as whom a
    command runs and what it reaches: as the job did.
    """

    facts: Notified
    target: str
    cwd: str
    env: Mapping[str, str]
    spans_nodes: bool = False
    isolation: Isolation | None = None


def _warnings(found: Iterable[tuple[Any, Any, Any]]) -> tuple[Warned, ...]:
    return tuple(Warned(int(number), str(kind), str(words)) for number, kind, words in found)


_FIELDS: Mapping[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "started_us": (to_json, to_json),
    "time_limit_us": (to_json, to_json),
    "stop_cause": (to_json, cause_of),
    "end": (to_json, end_from),
    "told": (sorted, lambda found: frozenset(map(Notice, found))),
    "warnings": (lambda given: [[each.number, each.kind, each.sentence] for each in given], _warnings),
    "warned": (sorted, lambda found: frozenset(map(int, found))),
    "is_settled": (bool, bool),
}
"""The facts that may change: how each is written as JSON, and read."""


class NoticeRecords:
    """What an agent writes down of attempts whose course it tells, so that a restart repeats little and misses nothing.

    One file an attempt, `notices/<job.attempt.rank>`: what to tell and how in the first line, and a line for each thing
    that happened or was told. It is not in the attempt's own folder, which is deleted as soon as the scheduler has its
    end. Like the keeper's records these files must survive the agent, not the machine, so nothing waits for the disk.
    Every method may raise OSError.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.spaces = folder.with_name(f"{folder.name}-{SPACES}")
        """What commands have for their own while they run, where users are kept apart."""

    def begin(self, subject: Subject) -> None:
        """Write down what is about to be launched, in place of what there was."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        first = {
            "target": subject.target,
            "cwd": subject.cwd,
            # The token ends with the attempt, and stands in no file. Commands that a later start runs do without it.
            "env": {name: value for name, value in subject.env.items() if name != JOB_TOKEN_VARIABLE},
            "time_limit_us": subject.facts.time_limit_us,
            "may_be_warned_at_end": subject.facts.may_be_warned_at_end,
            "spans_nodes": subject.spans_nodes,
            "isolation": to_json(subject.isolation),
        }
        self._append(subject.facts.key, first, os.O_TRUNC)

    def note(self, before: Notified, after: Notified) -> None:
        """Write down what is new."""
        line = {
            name: write(getattr(after, name))
            for name, (write, _) in _FIELDS.items()
            if getattr(after, name) != getattr(before, name)
        }
        if line:
            self._append(after.key, line, 0)

    def end(self, key: RankKey) -> None:
        """Nothing more is told of it."""
        (self._folder / key.name).unlink(missing_ok=True)

    def all(self) -> list[Subject]:
        """Everything that was begun; what cannot be read is deleted, and what commands of an earlier agent had."""
        shutil.rmtree(self.spaces, ignore_errors=True)
        if not self._folder.is_dir():
            return []
        found: list[Subject] = []
        for path in sorted(self._folder.iterdir()):
            subject = _read(path)
            if subject is None:
                path.unlink(missing_ok=True)
            else:
                found.append(subject)
        return found

    def _append(self, key: RankKey, line: Mapping[str, Any], how: int) -> None:
        fd = os.open(self._folder / key.name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | how, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


def _read(path: Path) -> Subject | None:
    try:
        lines = path.read_text().splitlines()
        first = json.loads(lines[0])
        subject = Subject(
            facts=Notified(
                key=RankKey.parse(path.name),
                time_limit_us=first["time_limit_us"],
                may_be_warned_at_end=bool(first.get("may_be_warned_at_end")),
            ),
            target=first["target"],
            cwd=first["cwd"],
            env=first["env"],
            spans_nodes=bool(first.get("spans_nodes")),
            isolation=isolation_from(first.get("isolation")),
        )
    except (OSError, LookupError, TypeError, ValueError):
        return None
    for line in lines[1:]:
        try:
            subject = replace(subject, facts=_with_line(subject.facts, json.loads(line)))
        except (LookupError, TypeError, ValueError):
            break  # a disk that was full in the middle of it: what was told may be told again
    return subject


def _with_line(facts: Notified, line: Mapping[str, Any]) -> Notified:
    return replace(facts, **{name: read(line[name]) for name, (_, read) in _FIELDS.items() if name in line})
