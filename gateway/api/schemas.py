"""JSON Schemas of the contract's messages, from their descriptors and comments, for OpenAPI 3.1.

A message that is asked and told has two: `JobSpec` as it is told, with every field that has no presence, and
`JobSpecInput` as it may be asked, where any field may be left out, 64-bit numbers need no quotes, and no others stand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp

from gpufleet.net.json_messages import INTEGERS, inner, is_map

Schema = dict[str, Any]

INPUT = "Input"
"""Behind the name of a message as it may be asked."""

IN_QUOTES = frozenset({FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_SINT64, FieldDescriptor.TYPE_UINT64})
FLOATS = frozenset({FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT})

DIGITS: Schema = {"type": "string", "pattern": "^-?[0-9]{1,20}$"}

TEXTS: Mapping[str, Schema] = {
    Timestamp.DESCRIPTOR.full_name: {"type": "string", "format": "date-time"},
    Duration.DESCRIPTOR.full_name: {"type": "string", "pattern": r"^-?[0-9]{1,12}(\.[0-9]{1,9})?s$"},
    FieldMask.DESCRIPTOR.full_name: {"type": "string", "pattern": r"^([A-Za-z.]+(,[A-Za-z.]+)*)?$"},
}

PLAIN: Mapping[int, Schema] = {
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_BYTES: {"type": "string", "contentEncoding": "base64", "pattern": "^[A-Za-z0-9+/]*={0,2}$"},
}


@cache
def comments() -> Mapping[str, str]:
    """What the protos say of each call, message, field, enum and value, by "Message.field"."""
    told: dict[str, str] = json.loads((files("gpufleet.v1") / "comments.json").read_text(encoding="utf-8"))
    return told


def described(schema: Schema, name: str) -> Schema:
    """The schema with what the protos say of `name`."""
    text = comments().get(name)
    return schema | {"description": text} if text else schema


class Schemas:
    """The schemas that were referred to so far, by name."""

    def __init__(self) -> None:
        self.made: dict[str, Schema] = {}

    def answer(self, kind: Descriptor) -> Schema:
        """A message as an answer holds it."""
        return self._message(kind, is_asked=False)

    def body(self, kind: Descriptor, left_out: frozenset[str], needed: Sequence[str] = ()) -> Schema:
        """A request as a body says it, without some fields, and with those that it needs."""
        schema = self._object(kind, is_asked=True, left_out=left_out)
        return schema | {"required": list(needed)} if needed else schema

    def parameter(self, field: FieldDescriptor) -> Schema:
        """A field that a query or a path says as a text, a list as several."""
        one = self._parameter(field)
        return {"type": "array", "items": one} if field.is_repeated else one

    def asked(self, field: FieldDescriptor) -> Schema:
        """A field as a body says it."""
        return self._field(field, is_asked=True)

    def _parameter(self, field: FieldDescriptor) -> Schema:
        if is_map(field):
            return {"type": "string", "pattern": "^[^=]*=", "description": "KEY=VALUE"}
        if field.type in INTEGERS:
            return _integer(field)
        return self._one(field, is_asked=True)

    def _message(self, kind: Descriptor, *, is_asked: bool) -> Schema:
        name = kind.name + INPUT * is_asked
        if name not in self.made:
            self.made[name] = {}  # it may hold itself
            self.made[name] = self._object(kind, is_asked=is_asked)
        return {"$ref": f"#/components/schemas/{name}"}

    def _object(self, kind: Descriptor, *, is_asked: bool, left_out: frozenset[str] = frozenset()) -> Schema:
        kept = [field for field in kind.fields if field.name not in left_out]
        properties = {
            field.name: described(self._field(field, is_asked=is_asked), f"{kind.name}.{field.name}") for field in kept
        }
        schema: Schema = {"type": "object", "properties": properties}
        if is_asked:
            schema["additionalProperties"] = False
        elif required := [field.name for field in kept if not field.has_presence]:
            schema["required"] = required
        return described(schema, kind.name)

    def _field(self, field: FieldDescriptor, *, is_asked: bool) -> Schema:
        if is_map(field):
            value = inner(field).fields_by_name["value"]
            return {"type": "object", "additionalProperties": self._one(value, is_asked=is_asked)}
        one = self._one(field, is_asked=is_asked)
        return {"type": "array", "items": one} if field.is_repeated else one

    def _one(self, field: FieldDescriptor, *, is_asked: bool) -> Schema:
        if field.message_type is not None:
            text = TEXTS.get(field.message_type.full_name)
            return dict(text) if text is not None else self._message(field.message_type, is_asked=is_asked)
        if field.enum_type is not None:
            return self._enum(field.enum_type)
        if field.type in FLOATS:
            number: Schema = {"type": "number"}
            return number if is_asked else {"anyOf": [number, {"enum": ["NaN", "Infinity", "-Infinity"]}]}
        if field.type in IN_QUOTES:
            return {"anyOf": [_integer(field), DIGITS]} if is_asked else dict(DIGITS)
        return _integer(field) if field.type in INTEGERS else dict(PLAIN[field.type])

    def _enum(self, kind: EnumDescriptor) -> Schema:
        if kind.name not in self.made:
            names = [value.name for value in kind.values]
            told = comments()
            values = [f"* `{name}`: {told[f'{kind.name}.{name}']}" for name in names if f"{kind.name}.{name}" in told]
            description = "\n".join([told.get(kind.name, ""), "", *values])
            self.made[kind.name] = {"type": "string", "enum": names, "description": description}
        return {"$ref": f"#/components/schemas/{kind.name}"}


def _integer(field: FieldDescriptor) -> Schema:
    least, greatest = INTEGERS[field.type]
    return {"type": "integer", "minimum": least, "maximum": greatest}
