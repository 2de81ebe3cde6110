"""Refusals in the shape in which clients of OpenAI's API read them: an object `error` with four fields."""

from __future__ import annotations

import math
from collections.abc import Mapping

from starlette.responses import JSONResponse, Response

from gpufleet.errors import Code, GpufleetError, Reason

from ..dashboard.guard import NOT_KEPT, STATUS_OF
from .core.named_model import FIELD, NoName
from .service import Busy
from .upstream import ReplicaFailed

INVALID_KEY = "invalid_api_key"
"""The word that clients know for a token that is missing or wrong."""

TOO_LARGE, TOO_MANY, BAD_GATEWAY, UNAVAILABLE, SERVER_FAILED = 413, 429, 502, 503, 500


class Refused(Exception):
    """What this gateway itself does not take: a status code, and what is said of it."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.response = error_response(status, message, code, param)


def error_response(
    status: int, message: str, code: str, param: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """The answer. `code` is the stable word, `param` the field that is wrong."""
    if status == TOO_MANY:
        kind = "rate_limit_error"
    else:
        kind = "server_error" if status >= SERVER_FAILED else "invalid_request_error"
    said = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return JSONResponse(said, status, {**NOT_KEPT, **(headers or {})})


def response_of(problem: Refused | NoName | Busy | ReplicaFailed | GpufleetError) -> Response:
    """The answer for what went wrong."""
    match problem:
        case Refused():
            return problem.response
        case NoName():
            param = FIELD if problem.code.startswith(FIELD) else None
            return error_response(400, f"{problem}.", problem.code, param)
        case Busy():
            place = "" if problem.place <= 1 else f" Your request was number {problem.place:,} in the line."
            headers = {"Retry-After": str(problem.retry_after_s)}
            text = _sentences(problem.error.message) + place
            return error_response(UNAVAILABLE, text, problem.error.reason.name.lower(), None, headers)
        case ReplicaFailed():
            text = f"A replica of the program did not answer: {problem}."
            return error_response(BAD_GATEWAY, text, Reason.REPLICA_FAILED.name.lower())
        case _:
            return _of_error(problem)


def _of_error(error: GpufleetError) -> Response:
    status = TOO_LARGE if error.reason is Reason.MESSAGE_TOO_LARGE else STATUS_OF[error.code]
    code = INVALID_KEY if error.code is Code.UNAUTHENTICATED else error.reason.name.lower()
    param = FIELD if error.reason is Reason.MODEL_NOT_FOUND else None
    headers = {"Retry-After": str(math.ceil(error.retry_after_s))} if error.retry_after_s is not None else {}
    return error_response(status, _sentences(error.message, error.next_step), code, param, headers)


def _sentences(*texts: str) -> str:
    return " ".join(text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".") for text in texts if text)
