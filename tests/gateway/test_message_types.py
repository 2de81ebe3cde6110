"""The page's types of messages are those of the JSON that the gateway makes of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pool import Default
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from gateway.dashboard.calls import CALLS, STREAMS, json_text
from protos.page_types import ALWAYS_SET

SOURCE = (Path(__file__).parents[2] / "gateway" / "web" / "src" / "generated" / "messages.ts").read_text()
INTERFACES = dict(re.findall(r"^export interface (\w+) \{\n(.*?)^\}", SOURCE, re.MULTILINE | re.DOTALL))
ENUMS = {
    name: re.findall(r'"(\w+)"', values)
    for name, values in re.findall(r'^export type (\w+) =\n((?:  \| "\w+"\n?)+);', SOURCE, re.MULTILINE)
}
METHODS = {"Calls": CALLS, "Streams": STREAMS}
MESSAGES = sorted(INTERFACES.keys() - METHODS.keys())
TEXTS = {
    "string": r"text",
    "Bytes": r"dGV4dA==",
    "Int64": r"7",
    "Timestamp": r"1970-01-01T00:00:07Z",
    "Duration": r"7s",
    "FieldMask": r"isHeld",
}
"""What the values that this file sets are as JSON, by the names of their types."""


def fields_of(name: str) -> dict[str, tuple[bool, str]]:
    """By name: whether it may be absent, and its type."""
    found = re.findall(r"^  readonly (\w+)(\??): (.+);$", INTERFACES[name], re.MULTILINE)
    return {field: (mark == "?", kind) for field, mark, kind in found}


def descriptor_of(name: str) -> Descriptor:
    return Default().FindMessageTypeByName(f"gpufleet.v1.{name}")


async def as_told(message: Message) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(await json_text(message))
    return told


def each_field_set(descriptor: Descriptor) -> Iterator[tuple[FieldDescriptor, Message]]:
    """A message for each field, with a value in that one alone."""
    for field in descriptor.fields:
        message = GetMessageClass(descriptor)()
        held = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            value = field.message_type.fields_by_name["value"]
            held["key"] = value_of(value)
        elif field.is_repeated and field.message_type is not None:
            fill(held.add())
        elif field.is_repeated:
            held.append(value_of(field))
        elif field.message_type is not None:
            held.SetInParent()
            fill(held)
        else:
            setattr(message, field.name, value_of(field))
        yield field, message


def fill(message: Any) -> None:
    """Give a well-known type a value; any other message stays empty."""
    match message.DESCRIPTOR.name:
        case "Timestamp" | "Duration":
            message.seconds = 7
        case "FieldMask":
            message.paths.append("is_held")


def value_of(field: FieldDescriptor) -> Any:
    if field.enum_type is not None:
        return field.enum_type.values[-1].number
    texts = {FieldDescriptor.CPPTYPE_STRING: "text", FieldDescriptor.CPPTYPE_BOOL: True}
    return b"text" if field.type == FieldDescriptor.TYPE_BYTES else texts.get(field.cpp_type, 7)


def is_of(value: Any, kind: str) -> bool:
    """Whether a value of JSON is of a type."""
    if inner := re.fullmatch(r"readonly (\w+)\[\]", kind):
        return isinstance(value, list) and all(is_of(each, inner[1]) for each in value)
    if inner := re.fullmatch(r"Readonly<Record<string, (\w+)>>", kind):
        return isinstance(value, dict) and all(is_of(each, inner[1]) for each in value.values())
    if kind in ENUMS:
        return value in ENUMS[kind]
    if kind in TEXTS:
        return bool(value == TEXTS[kind])
    if kind == "boolean":
        return value is True
    return type(value) in (int, float) if kind == "number" else kind in INTERFACES and isinstance(value, dict)


async def test_a_message_has_the_fields_and_the_values_that_the_page_takes_for_granted() -> None:
    for name in MESSAGES:
        descriptor, fields = descriptor_of(name), fields_of(name)
        assert list(fields) == [field.name for field in descriptor.fields], name
        granted = {field for field, (may_be_absent, _) in fields.items() if not may_be_absent}
        always_set = {each.partition(".")[2] for each in ALWAYS_SET if each.startswith(f"{name}.")}
        assert (await as_told(GetMessageClass(descriptor)())).keys() == granted - always_set, name
        for field, message in each_field_set(descriptor):
            value, kind = (await as_told(message))[field.name], fields[field.name][1]
            assert is_of(value, kind), f"{name}.{field.name} is {value!r}, which is no {kind}"


@pytest.mark.parametrize("name", ENUMS)
def test_an_enum_has_the_names_of_all_its_values(name: str) -> None:
    assert ENUMS[name] == [value.name for value in Default().FindEnumTypeByName(f"gpufleet.v1.{name}").values]


@pytest.mark.parametrize("kind", METHODS)
def test_what_the_gateway_passes_on_has_a_type(kind: str) -> None:
    typed = {method: asked for method, (_, asked) in fields_of(kind).items()}
    for name, request in METHODS[kind].items():
        assert f"request: {request.DESCRIPTOR.name};" in typed[name]
