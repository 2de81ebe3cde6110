"""The one place where errors become statuses: every servicer is made from `Calls`."""

import functools
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc.aio

from gpufleet.errors import FieldViolation, GpufleetError, Reason
from gpufleet.net.refusing import refuse
from gpufleet.telemetry.logs import fields

from ..engine import StoreAway, TooManyEvents
from ..outputs.errors import OutputStoreUnavailable
from ..state.replies import Refused, Reply
from ..store.errors import StoreUnavailable, TermSuperseded

log = logging.getLogger(__name__)
Method = Callable[..., Any]


class Calls:
    """What answers calls. In each class made from it a method with the name of an RPC, such as `ListNodes`, is one:
    it takes the request, and the context where it needs that, and what it raises becomes a rich status.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name, method in list(vars(cls).items()):
            if name[0].isupper() and inspect.isfunction(method):
                setattr(cls, name, _streams(method) if inspect.isasyncgenfunction(method) else _answers(method))


def _answers(method: Method) -> Method:
    call = _with_context(method)

    @functools.wraps(method)
    async def wrapped(self: Any, request: Any, context: Any) -> Any:
        try:
            return await call(self, request, context)
        except Exception as error:
            await _abort(context, method.__name__, error, request)

    return wrapped


def _streams(method: Method) -> Method:
    call = _with_context(method)

    @functools.wraps(method)
    async def wrapped(self: Any, request: Any, context: Any) -> AsyncIterator[Any]:
        try:
            async for message in call(self, request, context):
                yield message
        except Exception as error:
            await _abort(context, method.__name__, error, request)

    return wrapped


def _with_context(method: Method) -> Method:
    """The method as gRPC calls it: most need no context and do not take it."""
    if "context" in inspect.signature(method).parameters:
        return method
    return lambda self, request, context: method(self, request)


async def _abort(context: Any, name: str, error: Exception, request: Any) -> None:
    if isinstance(error, grpc.aio.AbortError | grpc.aio.BaseError):
        raise error
    await refuse(context, as_gpufleet_error(name, error), request)


def as_gpufleet_error(name: str, error: Exception) -> GpufleetError:
    """What went wrong, in the words of the error table; anything unexpected is logged with its trace."""
    match error:
        case GpufleetError():
            return error
        case StoreAway(outcome_is_known=True):
            return GpufleetError(
                Reason.STORE_UNAVAILABLE, f"the store takes no commits now: {error}", retry_after_s=1.0
            )
        case StoreAway():
            return GpufleetError(
                Reason.OUTCOME_UNKNOWN,
                f"the store failed while this request was being stored: {error}",
                retry_after_s=1.0,
            )
        case TooManyEvents():
            return GpufleetError(Reason.QUEUE_FULL, "the scheduler has too many requests waiting", retry_after_s=1.0)
        case StoreUnavailable() | OutputStoreUnavailable() | TermSuperseded():
            return GpufleetError(Reason.STORE_UNAVAILABLE, str(error), retry_after_s=1.0)
        case _:
            log.exception("a call failed", extra=fields(method=name))
            return GpufleetError(Reason.INTERNAL, f"{name} failed: {type(error).__name__}: {error}")


async def reply_of(waiting: Awaitable[Reply]) -> Reply:
    """The reply of the core; a refusal is raised."""
    reply = await waiting
    if isinstance(reply, Refused):
        violations = [FieldViolation(reply.field, reply.message)] if reply.field else []
        text = f"{reply.field}: {reply.message}" if reply.field else reply.message
        raise GpufleetError(Reason[reply.reason], text, violations=violations, next_step=reply.next_step)
    return reply
