"""What a call of the API may be refused with, as OpenAPI has it."""

from __future__ import annotations

from typing import Any

REFUSALS = {
    "400": "A field is wrong.",
    "401": "The token is missing, or not known.",
    "403": "The token's role does not allow it, or the job is somebody else's.",
    "404": "What is named is not there.",
    "409": "The state of things does not allow it.",
    "413": "The body is too long.",
    "415": "The body is not said to be JSON, or a form where one is taken.",
    "429": "Too much at once: Retry-After says when.",
    "500": "The program met a case that should not exist.",
    "501": "This version does not do that.",
    "502": "The scheduler answered what this version does not know.",
    "503": "The scheduler is away, or cannot store; the same may pass later.",
    "504": "The scheduler did not answer in time.",
}
ONLY_WITH_A_BODY = frozenset({"413", "415"})


def refusals(*, has_body: bool) -> dict[str, Any]:
    """The responses of an operation beside its answer."""
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        status: {"description": text, "content": content}
        for status, text in REFUSALS.items()
        if has_body or status not in ONLY_WITH_A_BODY
    }
