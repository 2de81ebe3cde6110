"""What tells two requests apart: a repeated one from another, and one list from another."""

import hashlib
from typing import Any


def digest_of(request: Any) -> str:
    """A hash of what a request asks for, without its id and trace context, which differ between tries."""
    bare = type(request)()
    bare.CopyFrom(request)
    bare.ClearField("request_id")
    for spec in getattr(bare, "specs", ()):
        spec.ClearField("trace_context")
    return hashlib.sha256(bare.SerializeToString(deterministic=True)).hexdigest()


def query_of(request: Any) -> str:
    """A page's list and filters, without where it goes on."""
    bare = type(request)()
    bare.CopyFrom(request)
    bare.ClearField("page_token")
    bare.ClearField("page_size")
    return f"{bare.DESCRIPTOR.name} {bare.SerializeToString(deterministic=True).hex()}"
