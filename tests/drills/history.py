"""All that is known of a drill when it is over, as values: who asked for what, what is stored, what the jobs saw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class AttemptKey(NamedTuple):
    """A numbered run of a job."""

    job: int
    number: int

    def __str__(self) -> str:
        return f"{self.job}/{self.number}"


class StreamKey(NamedTuple):
    """One output of one rank of an attempt."""

    job: int
    number: int
    rank: int
    stream: int

    @property
    def attempt(self) -> AttemptKey:
        """Whose it is."""
        return AttemptKey(self.job, self.number)

    def __str__(self) -> str:
        return f"{'stdout' if self.stream == 1 else 'stderr'} of {self.job}/{self.number}.{self.rank}"


class Cut(NamedTuple):
    """The store was put back at `until_ns` to what it was at `since_ns` (CLOCK_BOOTTIME)."""

    since_ns: int
    until_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """One request of one person, as their own log has it.

    `answers` are the first ids that acknowledgements named. `after` are (job, "OK" | "ANY" | "FAIL"). An array of so
    many `items` is a job, and each item one more, with the next ids; at most `active_max` are active, 0 is no cap.
    """

    request_id: str
    user: str
    kind: str
    count: int = 1
    items: int = 0
    active_max: int = 0
    answers: tuple[int, ...] = ()
    asked_ns: int = 0
    answered_ns: int = 0
    """When it was asked for, and when it was answered first (CLOCK_BOOTTIME): with the numbers of `jobs`."""

    refusal: str = ""
    is_requeueable: bool = True
    retries: int = 0
    is_held: bool = False
    has_time_limit: bool = False
    share_milli: int = 0
    """Thousandths of a GPU that each of its jobs asks for; 0 is none, or whole ones."""

    after: tuple[tuple[int, str], ...] = ()

    @property
    def jobs(self) -> range:
        """The jobs that were acknowledged."""
        count = self.count + self.items
        return range(self.answers[0], self.answers[0] + count) if self.answers else range(0)

    @property
    def array(self) -> int | None:
        """The id of the array, where it is one."""
        return self.answers[0] if self.items and self.answers else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAttempt:
    """An attempt that ended, as the store has it. `code` is None where it had no exit code of its own."""

    number: int
    reason: str
    code: int | None = None
    is_complete: bool = True
    ends: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """Where its output ended, by (rank, stream)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredJob:
    """A job as the store has it; `outcome` is empty for one that has not ended."""

    id: int
    user: str
    outcome: str
    reason: str = ""
    code: int | None = None
    attempts: tuple[StoredAttempt, ...] = ()
    ends_recorded: int = 1
    """How often its story says that it has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """From one record to another, an attempt held these devices of a node; `end` is None when it still does.

    It had `milli` thousandths of each. With a `slot` it took turns at them with that attempt, and what followed it.
    """

    attempt: AttemptKey
    rank: int
    node: str
    devices: tuple[str, ...]
    begin: int
    end: int | None
    is_void: bool = False
    milli: int = 1000
    slot: AttemptKey | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A process, as it told by itself: it certainly lived from `began_ns` to `seen_ns` (CLOCK_BOOTTIME).

    `code` and the number of bytes written are from its last word; a code of None means that it was ended.
    """

    attempt: AttemptKey
    rank: int
    pid: int
    who: str
    node: str
    devices: tuple[str, ...]
    began_ns: int
    seen_ns: int
    code: int | None
    written: Mapping[int, int]
    """Bytes by stream; of a process that was ended, at least so many."""

    @property
    def is_leader(self) -> bool:
        """Whether it is the process that was asked for, and not a child of it."""
        return self.who == "leader"

    def __str__(self) -> str:
        return f"process {self.pid} ({self.who}) of {self.attempt} on {self.node}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """So many bytes; `wrong_at` is the first offset where they are not what the job must have printed."""

    length: int
    wrong_at: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """What one person got who followed a job; `is_whole`: they were told that it is the end."""

    name: str
    job: int
    is_whole: bool
    streams: Mapping[StreamKey, Output] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Account:
    """What one user had in all: thousandths of devices × microseconds, jobs that ended, and attempts that started."""

    device_time: int = 0
    jobs: int = 0
    starts: int = 0

    def __str__(self) -> str:
        return f"{self.device_time / 1e9:.6f} GPU-seconds, {self.jobs} jobs and {self.starts} starts"


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """A drill that is over."""

    submits: tuple[Submit, ...] = ()
    cancelled: frozenset[int] = frozenset()
    """Jobs that somebody asked to cancel."""

    released_ns: Mapping[int, int] = field(default_factory=dict)
    """When the release of a held job was first asked for."""

    jobs: Mapping[int, StoredJob] = field(default_factory=dict)
    holds: tuple[Hold, ...] = ()
    runs: tuple[Run, ...] = ()
    outputs: Mapping[StreamKey, Output] = field(default_factory=dict)
    followed: tuple[Followed, ...] = ()
    accounts: Mapping[str, Account] = field(default_factory=dict)
    """What the file of histories tells of each user."""

    records: Mapping[str, Account] = field(default_factory=dict)
    """The same by the store's own records."""

    cuts: tuple[Cut, ...] = ()
    """When the store was put back."""

    hostile: int = 0
    """How many jobs meant harm."""

    loot: tuple[str, ...] = ()
    """What jobs that mean harm got."""

    surprises: tuple[str, ...] = ()
    """What no fault explains: a program that left by itself, a traceback in a log, an error that means a bug."""

    leftovers: tuple[str, ...] = ()
    """What was not as before once all had ended."""
