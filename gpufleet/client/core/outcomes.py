"""The values that go in and out: results of items, failures of requests, and what a failure means for its items."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Backend(StrEnum):
    """What computed an answer, the preferred one first."""

    GPU = "gpu"
    CPU = "cpu"
    CALLABLE = "callable"


class ErrorKind(StrEnum):
    """Why an item has no answer, or a request failed."""

    UNREACHABLE = "unreachable"
    """No connection was made: nothing was asked."""
    BROKEN = "broken"
    """The connection ended before the answer was whole, also the gateway's one to its worker: 502."""
    TIMED_OUT = "timed-out"
    """One request took longer than the time-out, or a server says so: 504."""
    UNAVAILABLE = "unavailable"
    """The worker or the gateway says that it cannot now: 503."""
    BUSY = "busy"
    """Too many requests: 429."""
    REJECTED = "rejected"
    """The item is not what the model takes: 400, 413, 422 and their like."""
    DENIED = "denied"
    """The token is missing or has not the right: 401 or 403."""
    NOT_FOUND = "not-found"
    """There is no such model or address: 404."""
    MODEL_FAILED = "model-failed"
    """The model failed with the item: 500, or what a callable raised."""
    BAD_ANSWER = "bad-answer"
    """The answer is not what the protocol says, or not one for each item."""
    DEADLINE = "deadline"
    """The call's deadline passed first."""
    NO_WORKER = "no-worker"
    """No worker was ready in time, and there was nothing to fall back to."""
    POISON = "poison"
    """Workers ended while they had it and nothing else: it is not asked again, of no backend."""
    MODEL_DOWN = "model-down"
    """The gateway says that the model has failed: none of its workers is waited for, as none is started any more."""
    CLOSED = "closed"
    """The client was closed, or the call given up."""


TRANSIENT = frozenset(
    {
        ErrorKind.UNREACHABLE,
        ErrorKind.BROKEN,
        ErrorKind.TIMED_OUT,
        ErrorKind.UNAVAILABLE,
        ErrorKind.BUSY,
        ErrorKind.MODEL_DOWN,
    }
)
"""The same request may pass later, and is sent again."""

FAULTS_OF_WORKERS = frozenset(
    {
        ErrorKind.UNREACHABLE,
        ErrorKind.BROKEN,
        ErrorKind.TIMED_OUT,
        ErrorKind.UNAVAILABLE,
        ErrorKind.MODEL_FAILED,
        ErrorKind.BAD_ANSWER,
        ErrorKind.MODEL_DOWN,
    }
)
"""What counts against a worker's circuit, and what another backend may do better."""

PERHAPS_ONE_ITEM = frozenset(
    {ErrorKind.BROKEN, ErrorKind.TIMED_OUT, ErrorKind.REJECTED, ErrorKind.MODEL_FAILED, ErrorKind.BAD_ANSWER}
)
"""One item of the batch may be to blame: each is asked alone, so that a bad one costs itself only."""

ERROR_CHARACTERS_MAX = 1_000
"""What is kept of a server's words."""


@dataclass(frozen=True, slots=True)
class ItemError:
    """Why an item has no answer: `kind` for programs, `message` for people, `status` the HTTP status or 0."""

    kind: ErrorKind
    message: str
    status: int = 0

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"kind": str(self.kind), "message": self.message, "status": self.status}


class InferenceFailed(Exception):
    """An item has no answer; `error` says why."""

    def __init__(self, error: ItemError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of one item: a value or an error.

    `index` is its place among the items. `worker` is who answered last, as the client names it; empty where nobody was
    asked. `backend` is what computed it, None without an answer. `attempts` is how many requests the item was in.
    `is_fallback`: a backend that is not the preferred one answered, and `fallback_reason` says why in a few words.
    """

    index: int
    value: Any = None
    error: ItemError | None = None
    worker: str = ""
    backend: Backend | None = None
    attempts: int = 0
    is_fallback: bool = False
    fallback_reason: str = ""

    @property
    def is_ok(self) -> bool:
        """Whether there is a value."""
        return self.error is None

    def unwrap(self) -> Any:
        """The value. Raises InferenceFailed where there is none."""
        if self.error is not None:
            raise InferenceFailed(self.error)
        return self.value


@dataclass(frozen=True, slots=True)
class Break:
    """A worker broke off a request that it had. `start` names that start of it; empty: nobody knows its name.

    `is_shared`: it had other requests then, as far as is known, so that it may have ended for one of those.
    """

    start: str = ""
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """A request, or one item of it, failed. `retry_after_s` is the server's wish for the pause, `broke` tells of a
    worker that broke it off and has ended, as far as is known."""

    kind: ErrorKind
    message: str
    status: int = 0
    retry_after_s: float | None = None
    broke: Break | None = None

    @property
    def is_transient(self) -> bool:
        """Whether it may pass later."""
        return self.kind in TRANSIENT

    def as_error(self) -> ItemError:
        """For an item that this was the last of."""
        return ItemError(self.kind, self.message[:ERROR_CHARACTERS_MAX], self.status)


@dataclass(frozen=True, slots=True)
class Answer:
    """The value of one item."""

    value: Any


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a request: an Answer or a Failure for each of its items, in their order.

    `backend` is what computed it, where the answer says so. `fell_back` is why a gateway did not have it computed where
    it was to be; empty: it was.
    """

    outcomes: tuple[Answer | Failure, ...]
    backend: Backend | None = None
    fell_back: str = ""


_KINDS: Mapping[int, ErrorKind] = {
    401: ErrorKind.DENIED,
    403: ErrorKind.DENIED,
    404: ErrorKind.NOT_FOUND,
    429: ErrorKind.BUSY,
    502: ErrorKind.BROKEN,  # the gateway's word for a worker that broke off
    503: ErrorKind.UNAVAILABLE,
    504: ErrorKind.TIMED_OUT,
}


def failure_of_status(status: int, message: str, retry_after_s: float | None = None) -> Failure:
    """What an HTTP status other than 200 means."""
    kind = _KINDS.get(status)
    if kind is None:
        kind = ErrorKind.REJECTED if 400 <= status < 500 else ErrorKind.MODEL_FAILED
        if not 400 <= status < 600:
            kind = ErrorKind.BAD_ANSWER
    return Failure(kind, message or f"the server answered with status {status}", status, retry_after_s)
