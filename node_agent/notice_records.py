"""What an agent writes down of attempts with `--notify`, so that the next agent goes on where it stopped."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpufleet.jobs.notify import is_url
from gpufleet.jobs.runs import RankKey, cause_of
from gpufleet.jobs.variables import JOB_TOKEN_VARIABLE

from .core.launch import Isolation
from .core.notices import Failure, Notice, Notified, Warned
from .keeper.values import end_from, isolation_from, to_json

SPACES = "spaces"


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

    @property
    def needs_folder(self) -> bool:
        """Whether a command may still run in the folder of the attempt's files."""
        return not is_url(self.target) and Notice.END not in self.facts.told


def _warnings(found: Iterable[tuple[Any, Any, Any]]) -> tuple[Warned, ...]:
    return tuple(Warned(int(number), str(kind), str(words)) for number, kind, words in found)


def _failures(found: Iterable[tuple[Any, Any, Any]]) -> tuple[Failure, ...]:
    return tuple(Failure(int(number), str(notice), str(message)) for number, notice, message in found)


_FIELDS: Mapping[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "started_us": (to_json, to_json),
    "time_limit_us": (to_json, to_json),
    "stop_cause": (to_json, cause_of),
    "end": (to_json, end_from),
    "told": (sorted, lambda found: frozenset(map(Notice, found))),
    "warnings": (lambda given: [[each.number, each.kind, each.sentence] for each in given], _warnings),
    "warned": (sorted, lambda found: frozenset(map(int, found))),
    "is_settled": (bool, bool),
    "failures": (lambda given: [[each.number, each.notice, each.message] for each in given], _failures),
    "failure_count": (int, int),
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
            cwd=first["cwd"] or "/",
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
