"""JSON in the field names of the protos: what grpcurl shows, with every field present."""

from __future__ import annotations

import sys
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message


def message_text(message: Message, form: str) -> str:
    """The message as JSON: over several lines for `json`, on one for `jsonl`."""
    import json

    value = message_object(message)
    return json.dumps(value, indent=2 if form == "json" else None, ensure_ascii=False)


def message_object(message: Message) -> dict[str, Any]:
    """The message as what becomes JSON."""
    return dict(MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True))


def print_message(message: Message, form: str) -> None:
    """Print it."""
    # Names and paths may hold what the terminal's encoding lacks; JSON is UTF-8 whatever the locale says.
    sys.stdout.buffer.write(message_text(message, form).encode(errors="replace") + b"\n")
    sys.stdout.buffer.flush()
