"""What an agent writes down about attempts whose course it tells, so that a restart repeats little and misses nothing.

One file an attempt, `notices/<job.attempt.rank>`: what to tell and how in the first line, and a line for each thing
that happened or was told. It is not in the attempt's own folder, which is deleted as soon as the scheduler has its end.
Like the keeper's records these files must survive the agent, not the machine, so nothing waits for the disk.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from .core.notices import Notice, Notified, Warned
from .core.outcome import AttemptKey, StopCause
from .keeper.values import end_from, to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is told to whom: the facts, and the target with the folder and the variables of its command.

    `spans_nodes`: the attempt has ranks elsewhere, whose ends this node does not see.
    """

    facts: Notified
    target: str
    cwd: str
    env: Mapping[str, str]
    spans_nodes: bool = False


class NoticeRecords:
    """The files of one agent. Every method may raise OSError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def begin(self, subject: Subject) -> None:
        """Write down what is about to be launched, in place of what there was."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        first = {
            "target": subject.target,
            "cwd": subject.cwd,
            "env": dict(subject.env),
            "time_limit_us": subject.facts.time_limit_us,
            "may_be_warned_at_end": subject.facts.may_be_warned_at_end,
            "spans_nodes": subject.spans_nodes,
        }
        self._append(subject.facts.key, first, os.O_TRUNC)

    def note(self, before: Notified, after: Notified) -> None:
        """Write down what is new."""
        line: dict[str, Any] = {}
        if after.started_us != before.started_us:
            line["started_us"] = after.started_us
        if after.stop_cause != before.stop_cause:
            line["stop_cause"] = after.stop_cause
        if after.end != before.end:
            line["end"] = to_json(after.end)
        if after.told != before.told:
            line["told"] = sorted(after.told)
        if after.warnings != before.warnings:
            line["warnings"] = [[each.number, each.kind, each.sentence] for each in after.warnings]
        if after.warned != before.warned:
            line["warned"] = sorted(after.warned)
        if after.is_settled != before.is_settled:
            line["is_settled"] = after.is_settled
        if line:
            self._append(after.key, line, 0)

    def end(self, key: AttemptKey) -> None:
        """Nothing more is told of it."""
        (self._folder / str(key)).unlink(missing_ok=True)

    def all(self) -> list[Subject]:
        """Everything that was begun; what cannot be read is deleted."""
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

    def _append(self, key: AttemptKey, line: Mapping[str, Any], how: int) -> None:
        fd = os.open(self._folder / str(key), os.O_WRONLY | os.O_CREAT | os.O_APPEND | how, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")


def _read(path: Path) -> Subject | None:
    try:
        lines = path.read_text().splitlines()
        first = json.loads(lines[0])
        subject = Subject(
            facts=Notified(
                key=AttemptKey.parse(path.name),
                time_limit_us=first["time_limit_us"],
                may_be_warned_at_end=bool(first.get("may_be_warned_at_end")),
            ),
            target=first["target"],
            cwd=first["cwd"],
            env=first["env"],
            spans_nodes=bool(first.get("spans_nodes")),
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
    new: dict[str, Any] = {}
    if "started_us" in line:
        new["started_us"] = line["started_us"]
    if "stop_cause" in line:
        new["stop_cause"] = StopCause(line["stop_cause"])
    if "end" in line:
        new["end"] = end_from(line["end"])
    if "told" in line:
        new["told"] = frozenset(map(Notice, line["told"]))
    if "warnings" in line:
        new["warnings"] = tuple(Warned(int(number), str(kind), str(words)) for number, kind, words in line["warnings"])
    if "is_settled" in line:
        new["is_settled"] = bool(line["is_settled"])
    if "warned" in line:
        new["warned"] = frozenset(map(int, line["warned"]))
    return replace(facts, **new)
