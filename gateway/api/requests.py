"""A request of the API as the message that the scheduler gets: from its path, its query, its body and its key.

Nothing is guessed and nothing left out: what is said twice, or not known, is refused with the name of the field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from gpufleet.errors import invalid
from gpufleet.net.json_messages import (
    INTEGERS,
    NUMBER,
    field_of,
    inner,
    is_map,
    json_value,
    message_of,
    shown,
    unknown_field,
)
from gpufleet.net.json_messages import WELL_KNOWN as TEXTS

from .table import Row

_FLOAT = re.compile(r"-?[0-9]{1,30}(\.[0-9]{1,30})?")

KEY_HEADER = "idempotency-key"

NO_KEY_STEP = "Leave the header out: only calls with a request_id take it, and others may be sent again as they are."


def asked_of(
    row: Row,
    in_path: Mapping[str, str],
    query: Iterable[tuple[str, str]],
    body: Mapping[str, Any],
    key: str | None,
) -> Message:
    """The request. Raises INVALID_ARGUMENT with the path of the wrong field."""
    if row.has_body:
        for name, _ in query:
            raise invalid(shown(name), "stands in the query; this call takes its fields in the body")
        said = dict(body)
    else:
        said = query_object(row.asked, query)
    for name in row.in_path & said.keys():
        raise invalid(name, "is said by the path already")
    for name in row.needed:
        if said.get(name) is None:
            raise invalid(name, "is not said, and left out it is not left as it is", next_step=f"Say {name}, too.")
    if row.masked and "update_mask" not in said:
        said["update_mask"] = mask_of(row, said)
    for name, field in row.parameters.items():
        _put(row.asked, said, field, in_path[name])
    if key is not None:
        if not row.takes_key:
            raise invalid(KEY_HEADER, f"is not taken by {row.rpc}", next_step=NO_KEY_STEP)
        if said.get("request_id", key) != key:
            raise invalid("request_id", f"differs from the header {KEY_HEADER}")
        said["request_id"] = key
    return message_of(row.kind, said)


def mask_of(row: Row, said: Mapping[str, Any]) -> str:
    """What is changed where a request does not say it: the fields that it names, a null one too."""
    fields = (field_of(row.asked, name) for name in said if name != "jobs")
    return ",".join(field.json_name for field in fields if field is not None)


def query_object(kind: Descriptor, query: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """What a query says, as the same in JSON. A field that is a list is said several times."""
    said: dict[str, Any] = {}
    for name, text in query:
        field = field_of(kind, name)
        if field is None:
            raise unknown_field(kind, name, shown(name))
        if is_map(field):
            key, found, value = text.partition("=")
            of_map = said.setdefault(name, {})
            if not found or key in of_map:
                raise invalid(name, f"must be {name}=KEY=VALUE, each key once")
            of_map[key] = value
        elif is_json(field):
            _once(said, name)
            said[name] = json_value(name, text)
        elif field.is_repeated:
            said.setdefault(name, []).append(_value(field, name, text))
        else:
            _once(said, name)
            said[name] = _value(field, name, text)
    return said


def is_json(field: FieldDescriptor) -> bool:
    """Whether a query says this field as JSON: it holds a message that is no single text."""
    return field.message_type is not None and not is_map(field) and field.message_type.full_name not in TEXTS


def _once(said: Mapping[str, Any], name: str) -> None:
    if name in said:
        raise invalid(name, "is said twice")


def _value(field: FieldDescriptor, name: str, text: str) -> Any:
    """A text of a query as what JSON would say. What is wrong with a text is found where JSON is looked at."""
    match field.type:
        case FieldDescriptor.TYPE_BOOL:
            if text not in ("true", "false"):
                raise invalid(name, "must be true or false")
            return text == "true"
        case FieldDescriptor.TYPE_DOUBLE | FieldDescriptor.TYPE_FLOAT:
            if not _FLOAT.fullmatch(text):
                raise invalid(name, "must be a number")
            return float(text)
        case kind if kind in INTEGERS:
            if not NUMBER.fullmatch(text):
                raise invalid(name, "must be a whole number")
            return int(text)
    return text


def _put(kind: Descriptor, said: dict[str, Any], field: str, text: str) -> None:
    """Put a part of the path where its field is; a whole list is that one."""
    *outer, leaf = field.split(".")
    for name in outer:
        part = said.get(name)
        if part is not None and not isinstance(part, dict):
            raise invalid(name, "must be an object")
        part = said[name] = dict(part or {})
        said = part
        kind = inner(kind.fields_by_name[name])
    of_leaf = kind.fields_by_name[leaf]
    value = _value(of_leaf, field if outer else leaf, text)
    if not of_leaf.is_repeated and said.get(leaf, value) != value:
        raise invalid(field, "differs from what the path says")
    said[leaf] = [value] if of_leaf.is_repeated else value
