"""gRPC channels and server options: the one place that says how programs of this project talk.

Every call carries the bearer token (and, where telemetry is on, the trace context) as metadata. They are
added where a method is made callable and not by interceptors: grpc.aio wraps each intercepted stream in
queues and tasks, and a follower of output would pay for that with every line. Imports nothing beyond grpc
and this project's plain values; what brings asyncio, once a channel of asyncio is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import grpc

from gpufleet.net.addresses import Address, is_loopback
from gpufleet.net.limits import MESSAGE_BYTES_MAX, METADATA_BYTES_MAX

if TYPE_CHECKING:
    import grpc.aio

Metadata = tuple[tuple[str, str], ...]
Options = tuple[tuple[str, int | str], ...]

KEEPALIVE_MS = 20_000
"""An idle connection with a call on it is probed this often, so that a vanished peer is noticed."""

KEEPALIVE_ANSWER_MS_MAX = 10_000
"""A probe that is not answered within this closes the connection."""

PROBE_INTERVAL_MS_MIN = 500
"""A server drops clients that probe more often."""

FOLLOWING_KEEPALIVE_MS = 1_000
FOLLOWING_ANSWER_MS_MAX = 2_000
"""The same two of a client that knows several addresses: one that is stopped (SIGSTOP) or cut off is left so soon."""

RECONNECT_MS_MIN = 100
RECONNECT_MS_MAX = 5_000
"""The pause between two dials grows from the first to the second: a restart is noticed within seconds."""

FOLLOWING_RECONNECT_MS_MAX = 1_000
FOLLOWING_CONNECT_MS_MAX = 2_000
"""The longest pause, and the longest dial, of a client that knows several addresses."""

AUTHORIZATION = "authorization"

METHOD_KINDS = frozenset({"unary_unary", "unary_stream", "stream_unary", "stream_stream"})
"""What a channel makes a method of a service by."""


def no_metadata() -> Metadata:
    """The metadata of a client with nothing to add."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server to talk to: where, as whom, and how well protected.

    Without `ca_file`, a loopback address is spoken to in plain text, and any other with TLS against the
    system's authorities, unless `is_insecure` says that the network is trusted. `client_cert_file` is the caller's
    own certificate with its key, for a server that asks for one. `call_metadata` is asked at each call (telemetry's
    trace context), and so is a `token` that may be another one later. With `certificate` (PEM) the server must hold
    just that one, which it made for itself: no authority is asked, and no name compared but OWN_NAME.

    `others` are where the same server's standbys are: a channel connects to whichever of all these addresses serves,
    and to another one when that is over. All of them are spoken to alike: in plain text only where each is loopback,
    and with TLS each certificate must hold the first address's name. `is_one_of_several`: who dials this one knows
    other addresses, too, and leaves it as soon.
    """

    address: Address
    others: tuple[Address, ...] = ()
    is_one_of_several: bool = False
    token: str | Callable[[], str] | None = field(default=None, repr=False)
    ca_file: Path | None = None
    client_cert_file: Path | None = None
    is_insecure: bool = False
    certificate: bytes = b""
    call_metadata: Callable[[], Metadata] = no_metadata

    @property
    def uses_tls(self) -> bool:
        """Whether the connection is encrypted."""
        if self.ca_file is not None or self.certificate:
            return True
        return not (self.is_insecure or all(is_loopback(each.host) for each in self.addresses))

    @property
    def addresses(self) -> tuple[Address, ...]:
        """All of them."""
        return (self.address, *self.others)


def connect(target: Target) -> grpc.Channel:
    """A channel for threads; dials at the first call, and again whenever the connection is lost.

    Raises what is wrong with the files, and SCHEDULER_UNREACHABLE for several names of which none is known.
    """
    options = _options_for(target)
    if target.uses_tls:
        channel = grpc.secure_channel(_grpc_target(target), _credentials(target), options=options)
    else:
        channel = grpc.insecure_channel(_grpc_target(target), options=options)
    return cast(grpc.Channel, _WithMetadata(channel, _metadata_of(target)))


def connect_async(target: Target, options: Options = ()) -> grpc.aio.Channel:
    """A channel for asyncio, with options beyond a client's usual ones; to be made inside the running loop."""
    from grpc import aio

    options = (*_options_for(target), *options)
    if target.uses_tls:
        channel = aio.secure_channel(_grpc_target(target), _credentials(target), options=options)
    else:
        channel = aio.insecure_channel(_grpc_target(target), options=options)
    return cast("grpc.aio.Channel", _AsyncWithMetadata(channel, _metadata_of(target)))


async def connected_within(channel: grpc.aio.Channel, seconds_max: float) -> None:
    """Return once the channel is connected, or refused, which the next call tells the reason of.

    Raises SCHEDULER_UNREACHABLE where neither comes in that time: packets are dropped, or a server takes connections
    and says nothing.
    """
    import asyncio

    from gpufleet.errors import GpufleetError, Reason

    state = channel.get_state(try_to_connect=True)
    try:
        async with asyncio.timeout(seconds_max):
            while state in (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING):
                await channel.wait_for_state_change(state)
                state = channel.get_state(try_to_connect=True)
    except TimeoutError:
        raise GpufleetError(Reason.SCHEDULER_UNREACHABLE, f"no connection within {seconds_max:g} s") from None


def client_options(*, has_others: bool = False) -> Options:
    """Limits and habits of a client; `has_others`: of one that knows several addresses."""
    keepalive_ms = FOLLOWING_KEEPALIVE_MS if has_others else KEEPALIVE_MS
    answer_ms_max = FOLLOWING_ANSWER_MS_MAX if has_others else KEEPALIVE_ANSWER_MS_MAX
    reconnect_ms_max = FOLLOWING_RECONNECT_MS_MAX if has_others else RECONNECT_MS_MAX
    # The time in which a dial has to become a connection: gRPC's default of 20 s is kept for a single address.
    dialling = (("grpc.min_reconnect_backoff_ms", FOLLOWING_CONNECT_MS_MAX),) if has_others else ()
    return (
        *dialling,
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_metadata_size", METADATA_BYTES_MAX),
        *_probing(keepalive_ms, answer_ms_max),
        ("grpc.initial_reconnect_backoff_ms", RECONNECT_MS_MIN),
        ("grpc.max_reconnect_backoff_ms", reconnect_ms_max),
        # A scheduler is inside its team's network; an http_proxy set for package downloads only breaks it.
        ("grpc.enable_http_proxy", 0),
    )


PENDING_CALLS_MAX = 20_000
"""Calls that may have come and not begun. Beyond them, which is twice the followers of a scheduler, gRPC ends some by
chance, with CANCELLED and no reason; its own default is 1,000, which a burst of watches passes."""


UNREAD_BYTES_MAX = 512 * 1024
"""What a bounded server takes in of a stream that it does not read: 10 MB/s over a way of 50 ms."""


def bounded_server_options(message_bytes_max: int) -> Options:
    """Those of a server that many send much to: what nobody has read yet waits where it comes from.

    gRPC's default grows with the speed of a connection: it took in 15 MB of each upload.
    """
    bounds = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", UNREAD_BYTES_MAX))
    return (*server_options(message_bytes_max), *bounds)


def server_options(message_bytes_max: int = MESSAGE_BYTES_MAX) -> Options:
    """Limits and habits of a server that takes messages up to this length, and sends what every client takes."""
    return (
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_receive_message_length", message_bytes_max),
        ("grpc.max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.server.max_pending_requests", PENDING_CALLS_MAX),
        ("grpc.server.max_pending_requests_hard_limit", PENDING_CALLS_MAX),
        *_probing(KEEPALIVE_MS, KEEPALIVE_ANSWER_MS_MAX),
        ("grpc.http2.min_ping_interval_without_data_ms", PROBE_INTERVAL_MS_MIN),
        # With port sharing on, a second server on a taken port would silently get half of the calls.
        ("grpc.so_reuseport", 0),
    )


def bearer(token: str) -> Metadata:
    """The metadata of one call made with this token, for channels that were made elsewhere."""
    return ((AUTHORIZATION, f"Bearer {token}"),)


def token_now(target: Target) -> str:
    """The token of who calls, as it is now; empty for nobody."""
    return target.token() if callable(target.token) else target.token or ""


def token_of(metadata: Sequence[tuple[str, str | bytes]] | None) -> str | None:
    """The bearer token in a call's metadata as a server sees it, None without one."""
    for key, value in metadata or ():
        if key == AUTHORIZATION and isinstance(value, str):
            scheme, _, token = value.partition(" ")
            if scheme.lower() == "bearer":
                return token.strip()
    return None


def _metadata_of(target: Target) -> Callable[[], Metadata]:
    token = target.token
    if callable(token):
        return lambda: bearer(token()) + target.call_metadata()
    own = bearer(token) if token is not None else ()
    if target.call_metadata is no_metadata:
        return lambda: own
    return lambda: own + target.call_metadata()


def _probing(keepalive_ms: int, answer_ms_max: int) -> Options:
    return (
        ("grpc.keepalive_time_ms", keepalive_ms),
        ("grpc.keepalive_timeout_ms", answer_ms_max),
        # gRPC waits for the answer as long as this says, a minute by default, and never looks at the line above (its
        # pull request 39239).
        ("grpc.http2.ping_timeout_ms", answer_ms_max),
        # Without: after two probes it waits for data of its own before the next, and a silent stream has none.
        ("grpc.http2.max_pings_without_data", 0),
    )


def _grpc_target(target: Target) -> str:
    if not target.others:
        return str(target.address)
    from gpufleet.net.resolving import target_of_all

    return target_of_all(target.addresses)


def _options_for(target: Target) -> Options:
    options = client_options(has_others=bool(target.others) or target.is_one_of_several)
    if target.certificate:
        from gpufleet.net.tls import OWN_NAME

        return (*options, ("grpc.ssl_target_name_override", OWN_NAME))
    if not target.others:
        return options
    if target.uses_tls:
        return (*options, ("grpc.ssl_target_name_override", target.address.host))
    return (*options, ("grpc.default_authority", str(target.address)))


def _credentials(target: Target) -> grpc.ChannelCredentials:
    if target.certificate:
        return grpc.ssl_channel_credentials(root_certificates=target.certificate)
    from gpufleet.net.tls import read_authority, read_client_pair

    roots = None if target.ca_file is None else read_authority(target.ca_file)
    if target.client_cert_file is None:
        return grpc.ssl_channel_credentials(root_certificates=roots)
    key, chain = read_client_pair(target.client_cert_file)
    return grpc.ssl_channel_credentials(root_certificates=roots, private_key=key, certificate_chain=chain)


class _Callable:
    """A method of a service that adds the channel's metadata to each of its calls."""

    def __init__(self, inner: Any, metadata: Callable[[], Metadata]) -> None:
        self._inner = inner
        self._metadata = metadata

    def __call__(self, *request: Any, metadata: Any = None, **options: Any) -> Any:
        return self._inner(*request, metadata=self._joined(metadata), **options)

    def with_call(self, *request: Any, metadata: Any = None, **options: Any) -> Any:
        return self._inner.with_call(*request, metadata=self._joined(metadata), **options)

    def future(self, *request: Any, metadata: Any = None, **options: Any) -> Any:
        return self._inner.future(*request, metadata=self._joined(metadata), **options)

    def _joined(self, metadata: Any) -> Metadata:
        return (*self._metadata(), *(metadata or ()))


class _WithMetadata:
    """A channel, of threads or of asyncio, whose methods are `_Callable`; all else is the channel's own."""

    def __init__(self, channel: Any, metadata: Callable[[], Metadata]) -> None:
        self._channel = channel
        self._metadata = metadata

    def _callable(self, kind: str, *args: Any, **options: Any) -> _Callable:
        return _Callable(getattr(self._channel, kind)(*args, **options), self._metadata)

    def __getattr__(self, name: str) -> Any:
        return partial(self._callable, name) if name in METHOD_KINDS else getattr(self._channel, name)

    def __enter__(self) -> _WithMetadata:
        self._channel.__enter__()
        return self

    def __exit__(self, *problem: Any) -> Any:
        return self._channel.__exit__(*problem)

    async def __aenter__(self) -> _WithMetadata:
        await self._channel.__aenter__()
        return self

    async def __aexit__(self, *problem: Any) -> Any:
        return await self._channel.__aexit__(*problem)


class _RequestStreamCallable(_Callable):
    """A method of asyncio with a stream of requests: its calls lose nothing that came, and tell the server's status."""

    def __init__(self, inner: Any, metadata: Callable[[], Metadata], kind: str) -> None:
        super().__init__(inner, metadata)
        self._kind = kind

    def __call__(self, *request: Any, metadata: Any = None, **options: Any) -> Any:
        from gpufleet.net.stream_calls import StreamCall, UploadCall

        call = super().__call__(*request, metadata=metadata, **options)
        return StreamCall(call) if self._kind == "stream_stream" else UploadCall(call)


class _AsyncWithMetadata(_WithMetadata):
    """A channel of asyncio."""

    def _callable(self, kind: str, *args: Any, **options: Any) -> _Callable:
        method = getattr(self._channel, kind)(*args, **options)
        if kind in ("stream_stream", "stream_unary"):
            return _RequestStreamCallable(method, self._metadata, kind)
        return _Callable(method, self._metadata)
