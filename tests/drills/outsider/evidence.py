"""What the outsider has in hand, as values: what it asked for and was answered, what it saw, what its jobs noted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

FINAL = frozenset({"JOB_STATE_SUCCEEDED", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED", "JOB_STATE_TIMED_OUT"})
SUCCEEDED = "JOB_STATE_SUCCEEDED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """One submit of one person. `word` is printed by this job alone; `value` is a variable's, and printed by none."""

    request: str
    person: str
    word: str
    value: str
    seconds: float = 0.0
    lines: int = 10
    code: int = 0


class About(Enum):
    """What is looked at."""

    JOB = "job"
    LOGS = "logs"
    STORY = "story"
    QUEUE = "queue"
    WAIT = "wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One command that somebody gave, and all that it printed; times are CLOCK_BOOTTIME in nanoseconds."""

    person: str
    about: About
    job: int = 0
    code: int = 0
    out: bytes = b""
    err: bytes = b""
    begun_ns: int = 0
    ended_ns: int = 0

    @property
    def command(self) -> str:
        """The command as a person would name it."""
        return f"gpuctl {self.about.value} {self.job or '--all'} of {self.person}"


@dataclass(frozen=True, slots=True)
class Cut:
    """The store was put back at `until_ns` to what it was at `since_ns`: what came between may be lost, and is said."""

    since_ns: int
    until_ns: int

    def holds(self, ns: int) -> bool:
        """Whether a moment is in what was lost."""
        return self.since_ns <= ns <= self.until_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A process of a job, by its own word: it lived from `began_ns` to `seen_ns` at least; no `code`: it was ended."""

    word: str
    job: int
    attempt: int
    pid: int
    began_ns: int
    seen_ns: int
    code: int | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that must not be."""

    rule: str
    text: str


def ran(folder: Path) -> Iterator[Ran]:
    """What the jobs have noted."""
    for file in sorted(folder.iterdir()):
        word, job, attempt, pid = file.name.split(".")
        notes = [line.split() for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
        if not notes:  # ended before its first word
            continue
        last = notes[-1]
        yield Ran(
            word=word,
            job=int(job),
            attempt=int(attempt),
            pid=int(pid),
            began_ns=int(notes[0][1]),
            seen_ns=int(last[1]),
            code=int(last[2]) if last[0] == "ended" else None,
        )


def by_word(runs: Iterable[Ran]) -> Mapping[str, list[Ran]]:
    """The processes of each job, in the order in which they began."""
    found: dict[str, list[Ran]] = {}
    for run in sorted(runs, key=lambda each: each.began_ns):
        found.setdefault(run.word, []).append(run)
    return found
