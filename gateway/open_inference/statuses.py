"""Which code of gRPC stands for which status of HTTP, and a program's refusal as a client of gRPC gets it.

What the gateway itself refuses has its reason in gpufleet/errors.py, and gpufleet/net/status.py tells it. A program's
refusal has an ErrorInfo of the domain PROGRAM_DOMAIN in its place, with the reason HTTP_ and the status.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from gpufleet.errors import Code, GpufleetError, Reason
from gpufleet.net.status import TEXT_CHARS_MAX, to_status

from ..proxy.service import Busy
from ..proxy.upstream import ReplicaFailed
from .answers import NotSpoken

PROGRAM_DOMAIN = "gpufleet.program"

RETRY_S_MAX = 86_400
"""A longer pause that a program wishes for is not told."""

CODE_OF: Mapping[int, Code] = {
    400: Code.INVALID_ARGUMENT,
    401: Code.UNAUTHENTICATED,
    403: Code.PERMISSION_DENIED,
    404: Code.NOT_FOUND,
    405: Code.UNIMPLEMENTED,
    408: Code.UNAVAILABLE,
    409: Code.ABORTED,
    413: Code.RESOURCE_EXHAUSTED,
    415: Code.INVALID_ARGUMENT,
    422: Code.INVALID_ARGUMENT,
    429: Code.RESOURCE_EXHAUSTED,
    499: Code.CANCELLED,
    500: Code.INTERNAL,
    501: Code.UNIMPLEMENTED,
    502: Code.UNAVAILABLE,
    503: Code.UNAVAILABLE,
    504: Code.DEADLINE_EXCEEDED,
}

OK, UNAVAILABLE = 200, 503
CLIENT_ERRORS, SERVER_ERRORS = range(400, 500), range(500, 600)


class ProgramRefused(Exception):
    """A program has refused a request: the status for who called."""

    def __init__(self, status: grpc.Status) -> None:
        super().__init__(status.details)
        self.status = status


PROBLEMS = (GpufleetError, Busy, ReplicaFailed, NotSpoken, ProgramRefused, TimeoutError)
"""What a request may end with in place of an answer."""


def code_of(status: int) -> Code:
    """The code for a status of a program's answer that is not OK."""
    if status in CODE_OF:
        return CODE_OF[status]
    if status in CLIENT_ERRORS:
        return Code.FAILED_PRECONDITION
    return Code.INTERNAL if status in SERVER_ERRORS else Code.UNIMPLEMENTED


def status_of_program(model: str, status: int, body: bytes | bytearray, retry_after: str) -> grpc.Status:
    """A program's refusal: its own sentence, when to ask again, and which items have which errors."""
    said = _said(body)
    message = said.get("error")
    if not isinstance(message, str) or not message:
        message = f"the program {model} answered with the status {status}"
    made = status_pb2.Status(code=int(code_of(status)), message=_cut(message))
    info = error_details_pb2.ErrorInfo(reason=f"HTTP_{status}", domain=PROGRAM_DOMAIN, metadata={"model": model})
    parameters = said.get("parameters")
    for name in ("errors", "statuses"):
        value = parameters.get(name) if isinstance(parameters, dict) else None
        if value is not None and len(text := json.dumps(value, separators=(",", ":"))) <= TEXT_CHARS_MAX:
            info.metadata[name] = text
    made.details.add().Pack(info)
    if retry_after.isascii() and retry_after.isdigit() and len(retry_after) < 10 and int(retry_after) <= RETRY_S_MAX:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromSeconds(int(retry_after))
        made.details.add().Pack(retry)
    told: grpc.Status = rpc_status.to_status(made)
    return told


def status_of(problem: GpufleetError | Busy | ReplicaFailed | NotSpoken | ProgramRefused | TimeoutError) -> grpc.Status:
    """What is said of one of the PROBLEMS."""
    match problem:
        case ProgramRefused():
            return problem.status
        case TimeoutError():
            error = GpufleetError(Reason.DEADLINE)
        case Busy():
            place = "" if problem.place <= 1 else f"; the request was number {problem.place:,} in the line"
            error = GpufleetError(
                problem.error.reason, problem.error.message + place, retry_after_s=problem.retry_after_s
            )
        case ReplicaFailed():
            error = GpufleetError(Reason.REPLICA_FAILED, f"a replica of the program did not answer: {problem}")
        case NotSpoken():
            why = f"the program does not speak the Open Inference Protocol: {problem}"
            error = GpufleetError(
                Reason.NOT_BUILT, why, next_step="Ask it over HTTP, at the gateway's address under /m/NAME/."
            )
        case _:
            error = problem
    return to_status(error)


def _said(body: bytes | bytearray) -> dict[str, Any]:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _cut(text: str) -> str:
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= TEXT_CHARS_MAX else f"{text[:TEXT_CHARS_MAX]}… (cut)"
