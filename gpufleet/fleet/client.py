"""Calls to the scheduler, one at a time, and lists page by page; `async_client.py` is the same for commands that stay.

Every call is bounded by --connection-timeout, and every failure comes out as a GpufleetError. Imports grpc, so it is
imported inside the functions that need it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

import grpc
from google.protobuf.message_factory import GetMessageClass

from gpufleet.errors import GpufleetError, Reason, UnavailableError
from gpufleet.net.channel import Metadata, connect
from gpufleet.v1 import scheduler_pb2

from .settings import Settings

if TYPE_CHECKING:
    import grpc.aio

    from gpufleet.v1.scheduler_pb2_grpc import SchedulerAsyncStub, SchedulerStub

Q = TypeVar("Q")
A = TypeVar("A")

RETRY_PAUSE_S_MIN = 0.1
RETRY_PAUSE_S_MAX = 2.0
REFUSED_S_MAX = 3.0
"""What certainly was not done is given up after this: enough for a scheduler that restarts, short for a mistake."""

TAKEOVER_S_MAX = 10.0
"""The same where several addresses are known: a standby needs a few seconds to take over."""

CERTAINLY_NOT_DONE = frozenset({Reason.SCHEDULER_UNREACHABLE, Reason.STORE_UNAVAILABLE, Reason.NODE_UNREACHABLE})
OUTCOME_OPEN = frozenset({Reason.OUTCOME_UNKNOWN, Reason.DEADLINE, Reason.CANCELLED})


class Client:
    """A scheduler to call, until `close`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._channel = connect(settings.target())
        self.scheduler = scheduler_of(self._channel)

    def call(self, method: grpc.UnaryUnaryMultiCallable[Q, A], request: Q, metadata: Metadata = ()) -> A:
        """One answer, or a GpufleetError. Of several addresses one is waited for that serves: see `may_be_repeated`."""
        return self._asked(method, request, metadata, lambda problem: may_be_repeated(problem, self.settings, request))

    def call_again(
        self,
        method: grpc.UnaryUnaryMultiCallable[Q, A],
        request: Q,
        metadata: Metadata = (),
        timeout_s: float | None = None,
    ) -> A:
        """The same for a request that is done once however often it arrives: asked again while it may pass.

        `timeout_s` is for an answer that takes its time.
        """
        return self._asked(method, request, metadata, lambda problem: True, timeout_s)

    def _asked(
        self,
        method: grpc.UnaryUnaryMultiCallable[Q, A],
        request: Q,
        metadata: Metadata,
        is_asked_again: Callable[[GpufleetError], bool],
        timeout_s: float | None = None,
    ) -> A:
        timeout = self.settings.connection_timeout_s if timeout_s is None else timeout_s
        pauses = pauses_of(self.settings, time.monotonic())
        while True:
            try:
                return method(request, timeout=timeout, metadata=metadata)
            except grpc.RpcError as failure:
                problem = translated(failure, self.settings)
                if not (isinstance(problem, UnavailableError) and is_asked_again(problem)):
                    raise problem from None
                pause_s = pauses.after(problem, time.monotonic())
                if pause_s is None:
                    raise (pauses.unknown or problem) from None
            time.sleep(pause_s)

    def output(self, request: scheduler_pb2.StreamOutputRequest) -> str:
        """The whole of what is asked for, as text; for what does not follow."""
        try:
            stream = self.scheduler.StreamOutput(request, timeout=self.settings.connection_timeout_s)
            return b"".join(message.data for message in stream).decode(errors="replace")
        except grpc.RpcError as problem:
            raise translated(problem, self.settings) from None

    def close(self) -> None:
        """Let go of the connection."""
        self._channel.close()


class BegunCall(Generic[A]):
    """A call that is on its way, on a connection of its own, before who makes it can take the answer.

    `method` is its name. A program begins it, and imports meanwhile what it does with the answer.
    """

    def __init__(self, settings: Settings, method: str, request: object) -> None:
        self.client = Client(settings)
        """Its connection, for other calls as long as this is not closed."""
        self._call = getattr(self.client.scheduler, method).future(request, timeout=settings.connection_timeout_s)

    def call_when_done(self, tell: Callable[[], object]) -> None:
        """Call, from another thread, when there is an answer, or none will come."""
        self._call.add_done_callback(lambda call: tell())

    def result(self) -> A:
        """The answer, waited for; grpc.RpcError where there is none."""
        answer: A = self._call.result()
        return answer

    def close(self) -> None:
        """Let go of the connection; a call that is not done yet is given up."""
        self.client.close()


class RetryPauses:
    """How long to wait before asking again: doubling, until the time to answer is used up. Knows no clock."""

    def __init__(self, limit_s: float, started_at: float, refused_s_max: float = REFUSED_S_MAX) -> None:
        self._limit_s = limit_s
        self._refused_s_max = refused_s_max
        self._started_at = started_at
        self._pause_s = RETRY_PAUSE_S_MIN
        self.unknown: GpufleetError | None = None
        """The failure after which the request may have been done; None when it certainly was not."""

    def after(self, problem: GpufleetError, now: float) -> float | None:
        """Seconds to wait after this failure, or None to give up."""
        if self.unknown is None and problem.reason in OUTCOME_OPEN:
            self.unknown = problem
        is_refused = self.unknown is None and problem.reason in CERTAINLY_NOT_DONE
        limit_s = min(self._limit_s, self._refused_s_max) if is_refused else self._limit_s
        pause_s = max(self._pause_s, problem.retry_after_s or 0.0)
        self._pause_s = min(self._pause_s * 2, RETRY_PAUSE_S_MAX)
        return pause_s if now + pause_s < self._started_at + limit_s else None


def pauses_of(settings: Settings, now: float) -> RetryPauses:
    """The pauses between the tries of a call that begins now."""
    refused_s_max = REFUSED_S_MAX if len(settings.addresses) == 1 else TAKEOVER_S_MAX
    return RetryPauses(settings.connection_timeout_s, now, refused_s_max)


READS = ("Get", "List", "Queue", "Explain")
"""How the names of requests begin that only read."""


def may_be_repeated(problem: GpufleetError, settings: Settings, request: object) -> bool:
    """Whether any call may be made again: one of several addresses may soon serve, and it came to nobody, or reads."""
    if len(settings.addresses) == 1:
        return False
    is_reading = type(request).__name__.startswith(READS)
    return problem.reason is Reason.SCHEDULER_UNREACHABLE or (is_reading and problem.reason is Reason.OUTCOME_UNKNOWN)


@contextmanager
def connected(settings: Settings) -> Iterator[Client]:
    """A client for the length of one command."""
    with closing(Client(settings)) as client:
        yield client


def translated(problem: grpc.RpcError, settings: Settings) -> GpufleetError:
    """The error behind a failed call, told from where the caller stands."""
    from gpufleet.net.status import from_rpc_error  # only a failure pays for it

    error = from_rpc_error(problem)
    if "grpc" not in error.metadata:
        return error
    if error.reason is Reason.SCHEDULER_UNREACHABLE:
        return _broken_connection(error.metadata["grpc"], settings)
    if error.reason is Reason.DEADLINE:
        return GpufleetError(
            Reason.DEADLINE,
            f"no answer came from {settings.where} within {settings.connection_timeout_s:g} s",
            metadata=error.metadata,
        )
    return error


def _broken_connection(details: str, settings: Settings) -> GpufleetError:
    metadata = {"grpc": details}
    # Of several addresses one may be dying just now, and nobody is to wait for what is wrong with it.
    signs = PERHAPS_TLS if len(settings.addresses) == 1 else CERTAINLY_TLS
    if any(sign in details for sign in signs):
        from .encryption import tls_trouble

        if (found := tls_trouble(settings.target())) is not None:
            sentence = f"{found.sentence} ({settings.where}, {settings.address_origin})"
            return GpufleetError(Reason.TLS_FAILED, sentence, next_step=found.fix, metadata=metadata)
    if not any(sign in details for sign in NEVER_CONNECTED):
        return GpufleetError(
            Reason.OUTCOME_UNKNOWN,
            f"the connection to {settings.where} broke before the answer came",
            next_step="Try again; see why with: gpuctl doctor",
            metadata=metadata,
        )
    why = _why_not_connected(details)
    last = "" if len(settings.addresses) == 1 else "of the last address: "
    start_one = "Start one here with: gpuctl up · or name" if settings.is_local else "Name"
    return GpufleetError(
        Reason.SCHEDULER_UNREACHABLE,
        f"no scheduler answers at {settings.where} ({settings.address_origin}): {last}{why}",
        next_step=f"{start_one} another with --scheduler HOST:PORT · see why with: gpuctl doctor",
        metadata=metadata,
    )


NAME_UNKNOWN = ("errors resolving", "DNS resolution failed", "Name resolution")
NEVER_CONNECTED = ("failed to connect", *NAME_UNKNOWN)


PERHAPS_TLS = ("andshake", "SSL_ERROR", "erification", "Socket closed", "Connection reset")
"""What gRPC says where one side speaks TLS and the other does not, or a certificate is not trusted; and elsewhere."""
CERTAINLY_TLS = ("SSL_ERROR", "erification")


def _why_not_connected(details: str) -> str:
    if "Connection refused" in details:
        return "nothing listens there"
    if any(sign in details for sign in NAME_UNKNOWN):
        return "this machine does not know that name"
    return details.rpartition("last error: ")[2].rpartition("UNKNOWN: ")[2].strip()


_SERVICE = scheduler_pb2.DESCRIPTOR.services_by_name["Scheduler"]


def scheduler_of(channel: grpc.Channel) -> SchedulerStub:
    """The methods on a channel of threads."""
    return cast("SchedulerStub", _Methods(channel))


def async_scheduler_of(channel: grpc.aio.Channel) -> SchedulerAsyncStub:
    """The methods on a channel of asyncio."""
    return cast("SchedulerAsyncStub", _Methods(channel))


class _Methods:
    """Looks like the generated stub."""

    def __init__(self, channel: grpc.Channel | grpc.aio.Channel) -> None:
        self._channel: Any = channel

    def __getattr__(self, name: str) -> Any:
        method = _SERVICE.methods_by_name.get(name)
        if method is None:
            raise AttributeError(f"{_SERVICE.full_name} has no method {name}")
        sides = ("stream" if method.client_streaming else "unary", "stream" if method.server_streaming else "unary")
        request, answer = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        made = getattr(self._channel, "_".join(sides))(
            f"/{_SERVICE.full_name}/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=answer.FromString,
        )
        setattr(self, name, made)
        return made


PAGES_MAX = 10_000


class PagedRequest(Protocol):
    """A request with a page token."""

    page_token: str


class PagedAnswer(Protocol):
    """An answer that names the next page."""

    @property
    def next_page_token(self) -> str: ...


P = TypeVar("P", bound=PagedRequest)
R = TypeVar("R", bound=PagedAnswer)


def all_pages(client: Client, method: grpc.UnaryUnaryMultiCallable[P, R], request: P) -> Iterator[R]:
    """Every page; the request's own page token is moved on."""
    for _ in range(PAGES_MAX):
        answer = client.call(method, request)
        yield answer
        if not answer.next_page_token:
            return
        request.page_token = answer.next_page_token
