"""What a dispatcher is given, what it wants done, and what it keeps of calls and requests."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TypeAlias

from .outcomes import Failure, Result
from .workers import WorkerState


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The settings that decide; `ClientSettings` has the same names, with their meaning and defaults."""

    backend: str
    batch_size: int
    retries: int
    backoff_first_s: float
    backoff_max_s: float
    timeout_s: float
    start_wait_s: float
    health_interval_s: float
    poison_breaks: int


@dataclass(frozen=True, slots=True)
class SendRequest:
    """Ask a worker for these items of a call, and tell `replied` or `failed`; after `timeout_s` as TIMED_OUT."""

    request: int
    call: int
    worker: str
    items: tuple[int, ...]
    timeout_s: float


@dataclass(frozen=True, slots=True)
class AbortRequest:
    """Its items are settled otherwise: end it; what it still says counts for nothing."""

    request: int


@dataclass(frozen=True, slots=True)
class CheckWorker:
    """Ask a worker how it is, and tell `checked`."""

    worker: str


@dataclass(frozen=True, slots=True)
class FinishCall:
    """All items of a call are settled; these are they, in their order."""

    call: int
    results: tuple[Result, ...]


Action: TypeAlias = SendRequest | AbortRequest | CheckWorker | FinishCall


@dataclass(slots=True, eq=False)
class Chunk:
    """Items of a call that are sent together. `tier` is the place of the first backend that they may go to.

    `broken` are the starts of workers that broke off while they had this one item: it is a suspect.
    """

    items: tuple[int, ...]
    retries: int = 0
    tier: int = 0
    avoided: str = ""
    fallback_reason: str = ""
    broken: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class Call:
    """Items that are to be answered by one deadline; `delayed` is a heap by time, `suspects` go before `ready`."""

    number: int
    deadline_s: float
    results: list[Result | None]
    attempts: list[int]
    open_items: int
    ready: deque[Chunk] = field(default_factory=deque)
    suspects: deque[Chunk] = field(default_factory=deque)
    delayed: list[tuple[float, int, Chunk]] = field(default_factory=list)
    last_failure: Failure | None = None

    def wait_no_more(self, chunk: Chunk) -> None:
        """A chunk that failed before is to be sent again, before others."""
        if chunk.broken:
            self.suspects.append(chunk)
        else:
            self.ready.appendleft(chunk)

    def forget_waiting(self) -> None:
        """Nothing more of it is to be sent."""
        self.suspects.clear()
        self.ready.clear()
        self.delayed.clear()


@dataclass(slots=True, eq=False)
class Request:
    """One request under way."""

    call: Call
    chunk: Chunk
    worker: WorkerState
    sent_at_s: float
    is_probe: bool
    is_fallback: bool
