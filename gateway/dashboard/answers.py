"""How errors are told to a page: a status code that fits, and an object with what is wrong and what to do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse, Response

from gpufleet.errors import Code, GpufleetError

STATUS_OF: Mapping[Code, int] = {
    Code.INVALID_ARGUMENT: 400,
    Code.OUT_OF_RANGE: 400,
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.NOT_FOUND: 404,
    Code.FAILED_PRECONDITION: 409,
    Code.ALREADY_EXISTS: 409,
    Code.ABORTED: 409,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.CANCELLED: 499,
    Code.INTERNAL: 500,
    Code.DATA_LOSS: 500,
    Code.UNIMPLEMENTED: 501,
    Code.UNKNOWN: 502,
    Code.UNAVAILABLE: 503,
    Code.DEADLINE_EXCEEDED: 504,
}

NOT_KEPT = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
"""What is told to one person is kept by nobody on the way."""


def error_object(error: GpufleetError) -> dict[str, Any]:
    """The error as a page gets it. `field` is the first wrong field's path in the request; `fields` are all of them."""
    violations = [{"field": each.field, "why": each.why} for each in error.violations]
    return {
        # A newer scheduler's own word where this version has none.
        "error": error.metadata.get("reason", error.reason.name),
        "message": error.message,
        "next_step": error.next_step,
        "field": violations[0]["field"] if violations else "",
        "fields": violations,
    }


def refusal(error: GpufleetError) -> Response:
    """The error as an answer."""
    headers = dict(NOT_KEPT)
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(math.ceil(error.retry_after_s))
    return JSONResponse(error_object(error), status_code=STATUS_OF[error.code], headers=headers)
