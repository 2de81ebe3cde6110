"""Calls to the scheduler, one at a time; `async_client.py` is the same for commands that stay.

Every call is bounded by --connection-timeout, and every failure comes out as a GpufleetError. Imports grpc, so it is
imported inside the functions that need it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import grpc

from gpufleet.channel import Metadata, connect
from gpufleet.errors import GpufleetError, Reason, UnavailableError

from .settings import Settings
from .stub import scheduler_of

Q = TypeVar("Q")
A = TypeVar("A")

RETRY_PAUSE_S_MIN = 0.1
RETRY_PAUSE_S_MAX = 2.0
REFUSED_S_MAX = 3.0
"""What certainly was not done is given up after this: enough for a scheduler that restarts, short for a mistake."""

CERTAINLY_NOT_DONE = frozenset({Reason.SCHEDULER_UNREACHABLE, Reason.STORE_UNAVAILABLE, Reason.NODE_UNREACHABLE})
OUTCOME_OPEN = frozenset({Reason.OUTCOME_UNKNOWN, Reason.DEADLINE, Reason.CANCELLED})


class Client:
    """A scheduler to call, until `close`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._channel = connect(settings.target())
        self.scheduler = scheduler_of(self._channel)

    def call(self, method: grpc.UnaryUnaryMultiCallable[Q, A], request: Q, metadata: Metadata = ()) -> A:
        """One answer, or a GpufleetError."""
        try:
            return method(request, timeout=self.settings.connection_timeout_s, metadata=metadata)
        except grpc.RpcError as problem:
            raise translated(problem, self.settings) from None

    def call_again(self, method: grpc.UnaryUnaryMultiCallable[Q, A], request: Q, metadata: Metadata = ()) -> A:
        """The same for a request that is done once however often it arrives: asked again while it may pass."""
        pauses = RetryPauses(self.settings.connection_timeout_s, time.monotonic())
        while True:
            try:
                return self.call(method, request, metadata)
            except UnavailableError as problem:
                pause_s = pauses.after(problem, time.monotonic())
                if pause_s is None:
                    raise (pauses.unknown or problem) from None
            time.sleep(pause_s)

    def close(self) -> None:
        """Let go of the connection."""
        self._channel.close()


class RetryPauses:
    """How long to wait before asking again: doubling, until the time to answer is used up. Knows no clock."""

    def __init__(self, limit_s: float, started_at: float) -> None:
        self._limit_s = limit_s
        self._started_at = started_at
        self._pause_s = RETRY_PAUSE_S_MIN
        self.unknown: GpufleetError | None = None
        """The failure after which the request may have been done; None when it certainly was not."""

    def after(self, problem: GpufleetError, now: float) -> float | None:
        """Seconds to wait after this failure, or None to give up."""
        if self.unknown is None and problem.reason in OUTCOME_OPEN:
            self.unknown = problem
        is_refused = self.unknown is None and problem.reason in CERTAINLY_NOT_DONE
        limit_s = min(self._limit_s, REFUSED_S_MAX) if is_refused else self._limit_s
        pause_s = max(self._pause_s, problem.retry_after_s or 0.0)
        self._pause_s = min(self._pause_s * 2, RETRY_PAUSE_S_MAX)
        return pause_s if now + pause_s < self._started_at + limit_s else None


@contextmanager
def connected(settings: Settings) -> Iterator[Client]:
    """A client for the length of one command."""
    client = Client(settings)
    try:
        yield client
    finally:
        client.close()


def translated(problem: grpc.RpcError, settings: Settings) -> GpufleetError:
    """The error behind a failed call, told from where the caller stands."""
    from gpufleet.status import from_rpc_error  # only a failure pays for it

    error = from_rpc_error(problem)
    if "grpc" not in error.metadata:
        return error
    if error.reason is Reason.SCHEDULER_UNREACHABLE:
        return _broken_connection(error.metadata["grpc"], settings)
    if error.reason is Reason.DEADLINE:
        return GpufleetError(
            Reason.DEADLINE,
            f"no answer came from {settings.address} within {settings.connection_timeout_s:g} s",
            metadata=error.metadata,
        )
    return error


def _broken_connection(details: str, settings: Settings) -> GpufleetError:
    metadata = {"grpc": details}
    if not any(sign in details for sign in NEVER_CONNECTED):
        return GpufleetError(
            Reason.OUTCOME_UNKNOWN,
            f"the connection to {settings.address} broke before the answer came",
            next_step="Try again; see why with: gpuctl doctor",
            metadata=metadata,
        )
    why = _why_not_connected(details)
    start_one = "Start one here with: gpuctl up · or name" if settings.is_local else "Name"
    return GpufleetError(
        Reason.SCHEDULER_UNREACHABLE,
        f"no scheduler answers at {settings.address} ({settings.address_origin}): {why}",
        next_step=f"{start_one} another with --scheduler HOST:PORT · see why with: gpuctl doctor",
        metadata=metadata,
    )


NAME_UNKNOWN = ("errors resolving", "DNS resolution failed", "Name resolution")
NEVER_CONNECTED = ("failed to connect", *NAME_UNKNOWN)


def _why_not_connected(details: str) -> str:
    if "Connection refused" in details:
        return "nothing listens there"
    if any(sign in details for sign in NAME_UNKNOWN):
        return "this machine does not know that name"
    return _innermost(details)


def _innermost(details: str) -> str:
    return details.rpartition("last error: ")[2].rpartition("UNKNOWN: ")[2].strip()
