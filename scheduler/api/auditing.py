"""Takes calls down for the audit: an interceptor around all others, so that it sees who is refused, too.

What is written down each time is wrapped; of every other call only a refusal is heard of, which costs it nothing.
"""

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import Message

from gpufleet.errors import Code, GpufleetError
from gpufleet.net.passed_on import address_of_peer, client_said
from gpufleet.net.refusing import on_refusal
from gpufleet.telemetry.logs import fields

from ..audit.log import AuditLog
from ..audit.texts import words, written
from ..state.access import Role
from ..state.audited import AuditedCall
from .audited_calls import AUDITED_RPCS, NOTHING, About, AuditedRpc, Kept
from .roles import OPEN_SERVICES, PACKAGE, Authenticator, caller_if_known

log = logging.getLogger(__name__)

OPEN_AFTER_SECONDS = 1.0
"""A stream that is served for longer has a row when it begins, beside the one of its end."""

NOT_LET_IN = (Code.UNAUTHENTICATED, Code.PERMISSION_DENIED)
"""Codes of refusals that are written down whatever the call is."""


class AuditInterceptor(grpc.aio.ServerInterceptor):
    """The first of all interceptors."""

    def __init__(self, audit: AuditLog, authenticator: Authenticator) -> None:
        self._log = audit
        self._authenticator = authenticator

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Have refusals told, and wrap what is written down each time."""
        method = handler_call_details.method
        if method.startswith(OPEN_SERVICES):
            return await continuation(handler_call_details)
        rpc = AUDITED_RPCS.get(method.removeprefix(PACKAGE))
        if rpc is None:
            return await continuation(handler_call_details)
        call = _AuditedCallNow(self._log, self._authenticator, method, rpc, handler_call_details.invocation_metadata)
        on_refusal.set(call.refused)
        handler = await continuation(handler_call_details)
        return handler if handler is None or rpc.kept is Kept.REFUSED else call.wrapped(handler)


class _AuditedCallNow:
    """One call while it is served."""

    __slots__ = (
        "_authenticator",
        "_is_stream",
        "_is_told",
        "_log",
        "_metadata",
        "_method",
        "_peer",
        "_request",
        "_rpc",
    )

    def __init__(
        self, audit: AuditLog, authenticator: Authenticator, method: str, rpc: AuditedRpc, metadata: Any
    ) -> None:
        self._log = audit
        self._authenticator = authenticator
        self._method = method
        self._rpc = rpc
        self._metadata = metadata
        self._request: Any = None
        self._peer: str | None = None
        self._is_told = False
        self._is_stream = False

    def wrapped(self, handler: Any) -> Any:
        """The handler, whose end is written down."""
        for kind in ("unary_unary", "stream_unary", "unary_stream", "stream_stream"):
            method = getattr(handler, kind)
            if method is not None:
                self._is_stream = kind != "unary_unary"
                serve = self._generator(method) if inspect.isasyncgenfunction(method) else self._coroutine(method)
                return handler._replace(**{kind: serve})
        return handler

    def _coroutine(self, method: Any) -> Any:
        async def serve(request: Any, context: Any) -> Any:
            opening = self._begin(request, context)
            try:
                answer = await method(self._watched(request), context)
            except BaseException as error:
                self._failed(context, error)
                raise
            finally:
                if opening is not None:
                    opening.cancel()
            self._done(context, answer)
            return answer

        return serve

    def _generator(self, method: Any) -> Any:
        async def serve(request: Any, context: Any) -> AsyncIterator[Any]:
            opening = self._begin(request, context)
            try:
                async for message in method(self._watched(request), context):
                    yield message
            except BaseException as error:
                self._failed(context, error)
                raise
            finally:
                if opening is not None:
                    opening.cancel()
            self._done(context, None)

        return serve

    def _begin(self, request: Any, context: Any) -> asyncio.TimerHandle | None:
        # A call that is over has no peer, and asking gRPC for it ends the program by SIGSEGV: what wraps a stream may
        # be closed behind its end.
        self._peer = context.peer()
        if not self._is_stream:
            self._request = request
            return None
        loop = asyncio.get_running_loop()
        return loop.call_later(OPEN_AFTER_SECONDS, self._opened, context)

    def _watched(self, request: Any) -> Any:
        return _WithFirst(request, self) if self._is_stream and hasattr(request, "__anext__") else request

    def first(self, request: Any) -> None:
        """The first message of a stream has come."""
        self._request = request

    def _opened(self, context: Any) -> None:
        if not self._is_told and self._request is not None:
            self._add(context, self._about(), is_open=True)

    def _done(self, context: Any, answer: Any) -> None:
        if self._is_told:
            return
        self._is_told = True
        rpc = self._rpc
        if self._is_message(self._request) and not rpc.changes(self._request):
            return
        if rpc.came is not None and isinstance(answer, Message) and self._is_message(self._request):
            self._add(context, self._read(rpc.came, self._request, answer))
        else:
            self._add(context, self._about())

    def _failed(self, context: Any, error: BaseException) -> None:
        """What was refused is told of already; this is who went away, and what gRPC itself ended."""
        if not self._is_told:
            self._is_told = True
            code = "CANCELLED" if isinstance(error, asyncio.CancelledError | GeneratorExit) else "UNKNOWN"
            self._add(context, self._about(), code=code)

    def refused(self, context: Any, error: GpufleetError, request: Any) -> None:
        """A refusal is about to leave."""
        is_kept = self._rpc.kept is not Kept.REFUSED or error.code in NOT_LET_IN
        if self._is_told or not is_kept:
            return
        self._is_told = True
        if self._request is None:
            self._request = request
        why = words(error.message) if error.code in NOT_LET_IN else ""
        self._add(context, self._about(), code=error.code.name, reason=error.reason.name, message=why)

    def _about(self) -> About:
        # Of a call that is refused for its token nothing was read, and bytes of it say nothing.
        return self._read(self._rpc.about, self._request) if self._is_message(self._request) else NOTHING

    def _read(self, about: Callable[..., About], *messages: Any) -> About:
        """What messages say of what a call is about; a fault in that is none of the call's."""
        try:
            return about(*messages)
        except Exception:
            log.exception("a call is written down without what it is about", extra=fields(method=self._method))
            return NOTHING

    def _is_message(self, request: Any) -> bool:
        return isinstance(request, Message)

    def _add(
        self,
        context: Any,
        about: About,
        *,
        code: str = "OK",
        reason: str = "",
        message: str = "",
        is_open: bool = False,
    ) -> None:
        who = caller_if_known()
        peer, via = self._from(context)
        self._log.add(
            AuditedCall(
                at=self._log.now(),
                call=self._method.rpartition("/")[2],
                user="" if who is None else who.user,
                role="" if who is None else who.role.value,
                token="" if who is None else who.token,
                node="" if who is None or who.node is None else who.node,
                peer=peer,
                via=via,
                target=about.target,
                jobs=written(about.jobs),
                first_job=about.jobs[0][0] if about.jobs else 0,
                last_job=about.jobs[-1][1] if about.jobs else 0,
                detail=about.detail,
                code=code,
                reason=reason,
                message=message,
                is_open=is_open,
            ),
            counts_alike=self._rpc.kept is Kept.ALIKE_ONCE,
        )

    def _from(self, context: Any) -> tuple[str, str]:
        """The caller's address, and who passed the call on. Of an address that is said only a gateway is believed."""
        peer = address_of_peer(context.peer() if self._peer is None else self._peer)
        said = client_said(self._metadata)
        if said is None:
            return peer, ""
        address, token = said
        try:
            gateway = self._authenticator.known(token)
            if gateway.role is not Role.GATEWAY or not self._authenticator.is_good(gateway.token):
                return peer, ""
        except GpufleetError:
            return peer, ""
        return address, f"{gateway.user} at {peer}"


class _WithFirst:
    """A stream of requests, whose first one is shown to the audit on its way."""

    def __init__(self, requests: Any, call: _AuditedCallNow) -> None:
        self._requests = requests
        self._call: _AuditedCallNow | None = call

    def __aiter__(self) -> "_WithFirst":
        return self

    def __anext__(self) -> Any:
        return self._requests.__anext__() if self._call is None else self._first()

    async def _first(self) -> Any:
        call = self._call
        request = await self._requests.__anext__()
        self._call = None
        if call is not None:
            call.first(request)
        return request
