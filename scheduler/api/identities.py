"""Mutual TLS: whom a client's certificate names, checked against whom its token names, at each call.

A certificate is of `node:NAME`, `gateway:NAME`, `worker:NAME`, `user:NAME`, or of `job`, which all jobs of a node have:
they are told apart by their tokens. It replaces no token: a stolen token is of no use without a certificate of the
same, and the other way round. Which node a call speaks for is checked where the call says it (own_node.py).
"""

import inspect
from collections.abc import AsyncIterator, Callable
from typing import Any

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.refusing import refuse
from gpufleet.net.tls import identities_in

from ..state.access import Role, Token

PEOPLE = (Role.ADMIN, Role.USER, Role.VIEWER)
NAMES_PROPERTY = "x509_subject_alternative_name"


def identities_of(context: Any) -> frozenset[str]:
    """Whom the certificate of a call's connection names."""
    return identities_in(context.auth_context().get(NAMES_PROPERTY, ()))


def check_identity(identities: frozenset[str], caller: Any, token: Token | None) -> None:
    """Raise PERMISSION_DENIED where a certificate is not that of who the token says calls."""
    wanted = _wanted(caller, token)
    if any(_fits(identity, wanted) for identity in identities):
        return
    named = ", ".join(sorted(identities)) or "nobody that gpufleet knows"
    raise GpufleetError(
        Reason.PERMISSION_DENIED,
        f"the client's certificate is of {named[:200]}, and its token wants one of {wanted}",
        next_step=f"make one where the authority is: gpuctl config certificate --client {wanted.replace('*', 'NAME')}",
    )


def _wanted(caller: Any, token: Token | None) -> str:
    """Whose certificate goes with a caller; * for one of any name."""
    if caller.role is Role.JOB or caller.job is not None:
        return "job"
    if caller.role in PEOPLE:
        return f"user:{caller.user}"
    if caller.role in (Role.AGENT, Role.NODE):
        return f"node:{caller.node or '*'}"
    return f"{caller.role.value}:{token.program if token is not None and token.program else '*'}"


def _fits(identity: str, wanted: str) -> bool:
    return identity == wanted or (wanted.endswith(":*") and identity.startswith(wanted[:-1]))


def with_identity(handler: Any, check: Callable[[frozenset[str]], None]) -> Any:
    """The handler, which first checks the identities of the connection that its call came by."""

    async def checked(request: Any, context: Any) -> None:
        try:
            check(identities_of(context))
        except GpufleetError as error:
            await refuse(context, error, request)

    def guarded(method: Any) -> Any:
        async def answer(request: Any, context: Any) -> Any:
            await checked(request, context)
            return await method(request, context)

        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            await checked(request, context)
            async for message in method(request, context):
                yield message

        return stream if inspect.isasyncgenfunction(method) else answer

    kinds = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
    return handler._replace(**{kind: guarded(getattr(handler, kind)) for kind in kinds if getattr(handler, kind)})
