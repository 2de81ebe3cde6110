"""Messages as JSON and back: the one form of `gpuctl -o json`, of the gateway's API and of what its page asks.

It is the JSON of protobuf by the protos' own field names: 64-bit numbers in quotes, times as in RFC 3339, spans as
"30s", enums by name, bytes in base64. What is told has every field but those that may be absent. What is asked is
looked at name by name, so that a refusal says which field is wrong and why.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from gpufleet.errors import GpufleetError, invalid
from gpufleet.text.spelling import did_you_mean

M = TypeVar("M", bound=Message)

SHOWN_CHARS_MAX = 64
"""Of what somebody wrote, so much stands in a refusal."""

NUMBER = re.compile(r"-?[0-9]{1,20}")
"""A whole number; no 64-bit one has more digits."""

INTEGERS: Mapping[int, tuple[int, int]] = {
    FieldDescriptor.TYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_SINT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.TYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_SINT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT64: (0, 2**64 - 1),
}
"""The least and the greatest value of each kind of whole number."""

WELL_KNOWN: Mapping[str, tuple[Callable[[], Any], str]] = {
    Timestamp.DESCRIPTOR.full_name: (Timestamp, 'must be a time such as "2026-01-31T09:30:00Z"'),
    Duration.DESCRIPTOR.full_name: (Duration, 'must be a span in seconds such as "30s"'),
    FieldMask.DESCRIPTOR.full_name: (
        FieldMask,
        'must be names of fields with commas, such as "band,timeLimit"',
    ),
}
"""Messages that are a text in JSON, and what that text must be."""


def message_object(message: Message) -> dict[str, Any]:
    """The message as what becomes JSON."""
    return dict(MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True))


def json_object(field: str, text: bytes | str) -> dict[str, Any]:
    """The JSON object in a text; nothing at all is an empty one. Raises INVALID_ARGUMENT that names `field`."""
    value = json_value(field, text or "{}")
    if not isinstance(value, dict):
        raise invalid(field, "must be a JSON object")
    return value


def json_value(field: str, text: bytes | str) -> Any:
    """What a JSON text says; a name that an object has twice is refused. Raises INVALID_ARGUMENT that names `field`."""
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
    except (ValueError, RecursionError) as problem:
        raise invalid(field, f"is no JSON: {problem}") from None


def message_of(kind: type[M], said: Mapping[str, Any], field: str = "") -> M:
    """The message that an object says. Raises INVALID_ARGUMENT with the path of the wrong field, below `field`."""
    descriptor: Any = kind.DESCRIPTOR  # of one of two classes that are told apart by their stubs alone
    _check_message(descriptor, said, field)
    try:
        return ParseDict(dict(said), kind())
    except (ParseError, ValueError, TypeError, RecursionError) as problem:  # what was checked passes
        raise invalid(field or "request", (str(problem).splitlines() or ["cannot be read"])[0]) from None


def unknown_field(kind: Descriptor, name: str, path: str) -> GpufleetError:
    """The refusal of a name that the message does not have."""
    known = [field.name for field in kind.fields]
    fields = f"The fields are {', '.join(known)}." if known else "It has no fields."
    return invalid(path, f"is no field of {kind.name}{did_you_mean(name, known)}", next_step=fields)


def shown(text: str) -> str:
    """Somebody's word as a refusal may repeat it."""
    clean = text.encode(errors="replace").decode()
    return clean if len(clean) <= SHOWN_CHARS_MAX else f"{clean[:SHOWN_CHARS_MAX]}…"


def field_of(kind: Descriptor, name: str) -> FieldDescriptor | None:
    """The message's field of this name, if it has one."""
    # Asked for half of a character, protobuf's own table fails. No field has such a name.
    return kind.fields_by_name.get(name) if name.isascii() else None


def inner(field: FieldDescriptor) -> Descriptor:
    """The message that a field holds."""
    assert field.message_type is not None, f"{field.full_name} holds no message"
    return field.message_type


def is_map(field: FieldDescriptor) -> bool:
    """Whether it is a map."""
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in pairs:
        if name in made:
            raise ValueError(f"{shown(name)!r} is said twice")
        made[name] = value
    return made


def _no_number(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")


def _check_message(kind: Descriptor, said: Any, path: str) -> None:
    if not isinstance(said, Mapping):
        raise invalid(path, f"must be an object: {kind.name}")
    of_oneof: dict[str, str] = {}
    for name, value in said.items():
        where = f"{path}.{shown(name)}" if path else shown(name)
        field = field_of(kind, name)
        if field is None:
            raise unknown_field(kind, name, where)
        if value is None:
            continue  # as if it were not there
        oneof = field.containing_oneof
        if oneof is not None:
            other = of_oneof.setdefault(oneof.name, name)
            if other != name:
                raise invalid(where, f"cannot be said together with {other}")
        _check_field(field, value, where)


def _check_field(field: FieldDescriptor, value: Any, path: str) -> None:
    if is_map(field):
        if not isinstance(value, Mapping):
            raise invalid(path, "must be an object")
        kind = inner(field).fields_by_name["value"]
        for key, each in value.items():
            _check_text(key, f"{path}.{shown(key)}")
            _check_one(kind, each, f"{path}.{shown(key)}")
    elif field.is_repeated:
        if not isinstance(value, list):
            raise invalid(path, "must be a list")
        for index, each in enumerate(value):
            _check_one(field, each, f"{path}[{index}]")
    else:
        _check_one(field, value, path)


def _check_one(field: FieldDescriptor, value: Any, path: str) -> None:
    match field.type:
        case FieldDescriptor.TYPE_MESSAGE:
            known = WELL_KNOWN.get(inner(field).full_name)
            if known is None:
                _check_message(inner(field), value, path)
            else:
                _check_well_known(known, value, path)
        case FieldDescriptor.TYPE_ENUM:
            assert field.enum_type is not None
            names = list(field.enum_type.values_by_name)
            if not isinstance(value, str) or value not in names:
                why = f"must be a name of {field.enum_type.name}"
                if isinstance(value, str):
                    why = f"is {shown(value)!r}; it {why}{did_you_mean(value, names)}"
                raise invalid(path, why, next_step=f"Choose one of {', '.join(names)}.")
        case FieldDescriptor.TYPE_BOOL:
            if not isinstance(value, bool):
                raise invalid(path, "must be true or false")
        case FieldDescriptor.TYPE_STRING:
            _check_text(value, path)
        case FieldDescriptor.TYPE_BYTES:
            _check_bytes(value, path)
        case FieldDescriptor.TYPE_DOUBLE | FieldDescriptor.TYPE_FLOAT:
            _check_float(field, value, path)
        case kind:
            _check_integer(INTEGERS[kind], value, path)


def _check_well_known(known: tuple[Callable[[], Any], str], value: Any, path: str) -> None:
    make, form = known
    if not isinstance(value, str):
        raise invalid(path, form)
    try:
        make().FromJsonString(value)
    except (ValueError, TypeError, OverflowError):
        raise invalid(path, form) from None


def _check_text(value: Any, path: str) -> None:
    if not isinstance(value, str):
        raise invalid(path, "must be a text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise invalid(path, "holds half of a character") from None


def _check_bytes(value: Any, path: str) -> None:
    if not isinstance(value, str):
        raise invalid(path, "must be bytes in base64")
    try:
        base64.b64decode(value.encode(), validate=True)
    except (binascii.Error, ValueError):
        raise invalid(path, "must be bytes in base64") from None


def _check_float(field: FieldDescriptor, value: Any, path: str) -> None:
    limit = 3.4e38 if field.type == FieldDescriptor.TYPE_FLOAT else math.inf
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid(path, "must be a number")
    try:
        is_held = abs(float(value)) < limit
    except OverflowError:
        is_held = False
    if not is_held:
        raise invalid(path, "is too large a number")


def _check_integer(span: tuple[int, int], value: Any, path: str) -> None:
    least, greatest = span
    number = value
    if isinstance(value, str) and NUMBER.fullmatch(value):
        number = int(value)
    if isinstance(number, bool) or not isinstance(number, int):
        raise invalid(path, "must be a whole number")
    if not least <= number <= greatest:
        raise invalid(path, f"must be {least} to {greatest}")
