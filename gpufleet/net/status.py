"""Errors to and from gRPC's rich status (google.rpc): the only place that translates either way.

A status carries ErrorInfo (reason, domain, metadata), BadRequest (wrong fields), RetryInfo (when to try
again) and Help (what to do next), so that any client, grpcurl too, sees the whole error. Servers answer
with `to_status`; clients turn every `grpc.RpcError`, of threads or of asyncio, with `from_rpc_error`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from gpufleet.errors import Code, FieldViolation, GpufleetError, Reason

_Detail = TypeVar("_Detail", bound=Message)

ERROR_DOMAIN = "gpufleet"
HELP_URL = "docs/troubleshooting.md"

TEXT_CHARS_MAX = 2_000
VIOLATIONS_MAX = 16
METADATA_ENTRIES_MAX = 16
"""The status travels in a call's trailers, which peers limit to a few kB: what is longer is cut."""

# What a bare status means: one that gRPC itself or a proxy made, or a server of another kind.
_BARE: Mapping[Code, Reason] = {
    Code.CANCELLED: Reason.CANCELLED,
    Code.INVALID_ARGUMENT: Reason.INVALID_ARGUMENT,
    Code.DEADLINE_EXCEEDED: Reason.DEADLINE,
    Code.PERMISSION_DENIED: Reason.PERMISSION_DENIED,
    Code.UNAUTHENTICATED: Reason.TOKEN_INVALID,
    Code.UNAVAILABLE: Reason.SCHEDULER_UNREACHABLE,
    Code.UNIMPLEMENTED: Reason.METHOD_UNKNOWN,
    Code.INTERNAL: Reason.INTERNAL,
}


def to_status(error: GpufleetError) -> grpc.Status:
    """The status that a servicer aborts with: `await context.abort_with_status(to_status(error))`."""
    status: grpc.Status = rpc_status.to_status(to_proto(error))
    return status


def to_proto(error: GpufleetError) -> status_pb2.Status:
    """The error as google.rpc.Status, for answers that carry errors of their parts."""
    metadata = {_clean(key): _clean(value) for key, value in [*error.metadata.items()][:METADATA_ENTRIES_MAX]}
    status = status_pb2.Status(code=int(error.code), message=_clean(error.message))
    info = error_details_pb2.ErrorInfo(reason=error.reason.name, domain=ERROR_DOMAIN, metadata=metadata)
    status.details.add().Pack(info)
    if error.violations:
        request = error_details_pb2.BadRequest()
        for violation in error.violations[:VIOLATIONS_MAX]:
            request.field_violations.add(field=_clean(violation.field), description=_clean(violation.why))
        status.details.add().Pack(request)
    if error.retry_after_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(round(error.retry_after_s * 1e9))
        status.details.add().Pack(retry)
    link = error_details_pb2.Help.Link(description=_clean(error.next_step), url=HELP_URL)
    status.details.add().Pack(error_details_pb2.Help(links=[link]))
    return status


def from_rpc_error(problem: grpc.RpcError) -> GpufleetError:
    """The error behind a failed call; a status without our details becomes the nearest reason."""
    call: Any = problem  # what grpc raises is a Call too, of threads or of asyncio, with equal methods
    try:
        status = rpc_status.from_call(call)
    except ValueError:  # code or message were changed on the way: the bare status is still worth telling
        status = None
    if status is not None:
        return from_proto(status)
    return _from_bare(Code(call.code().value[0]), call.details() or "")


def from_proto(status: status_pb2.Status) -> GpufleetError:
    """The error in a google.rpc.Status; details that this version does not know are left out."""
    info = _unpacked(status, error_details_pb2.ErrorInfo())
    request = _unpacked(status, error_details_pb2.BadRequest())
    retry = _unpacked(status, error_details_pb2.RetryInfo())
    advice = _unpacked(status, error_details_pb2.Help())
    if info.domain != ERROR_DOMAIN:
        return _from_bare(Code(status.code), status.message)
    metadata = dict(info.metadata)
    reason = Reason.__members__.get(info.reason)
    if reason is None:  # a newer server: keep its word, and react to the code
        metadata["reason"] = info.reason
        reason = _BARE.get(Code(status.code), Reason.UNKNOWN)
    return GpufleetError(
        reason,
        status.message,
        violations=[FieldViolation(each.field, each.description) for each in request.field_violations],
        next_step=advice.links[0].description if advice.links else "",
        retry_after_s=retry.retry_delay.ToNanoseconds() / 1e9 if retry.HasField("retry_delay") else None,
        metadata=metadata,
    )


def _from_bare(code: Code, details: str) -> GpufleetError:
    reason = _BARE.get(code, Reason.UNKNOWN)
    if code is Code.RESOURCE_EXHAUSTED and "larger than max" in details:
        reason = Reason.MESSAGE_TOO_LARGE
    if not details:
        return GpufleetError(reason)
    return GpufleetError(reason, f"{reason.meaning.rstrip('.')}: {details}", metadata={"grpc": details})


def _unpacked(status: status_pb2.Status, empty: _Detail) -> _Detail:
    """The status's detail of this type, or the empty one where it has none."""
    for detail in status.details:
        if detail.Unpack(empty):  # false, and nothing changed, for a detail of another type
            break
    return empty


def _clean(text: str) -> str:
    """Text that protobuf takes: a path may hold bytes that are no UTF-8, kept as lone surrogates."""
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= TEXT_CHARS_MAX else f"{text[:TEXT_CHARS_MAX]}… (cut)"


assert all(code_pb2.Code.Name(int(code)) == code.name for code in Code), "numbers of the wire"
