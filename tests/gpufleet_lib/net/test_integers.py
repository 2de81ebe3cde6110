"""Every integer of every request is in the range that a store can go on counting with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass
from gpufleet.v1 import node_agent_pb2, scheduler_pb2

from gpufleet.errors import Reason
from gpufleet.net.integers import INTEGER_MAX, problem_with_integers

SERVICES = (
    scheduler_pb2.DESCRIPTOR.services_by_name["Scheduler"],
    node_agent_pb2.DESCRIPTOR.services_by_name["NodeAgent"],
)
REQUESTS = {each.input_type.full_name: each.input_type for service in SERVICES for each in service.methods}
WIDE = (FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64)
ENDS = (2**63 - 1, -(2**63), INTEGER_MAX + 1, -INTEGER_MAX - 1)


def is_map(field: Any) -> bool:
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


def types_of(way: tuple[Any, ...]) -> set[Any]:
    return {each.message_type for each in way}


def wide_fields(descriptor: Descriptor, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to each integer of 64 bits in a message, and in those in it."""
    for field in descriptor.fields:
        inner = field.message_type
        if inner is None:
            if field.cpp_type in WIDE:
                yield (*above, field)
        elif inner.full_name.startswith("gpufleet.") and not is_map(field) and inner not in types_of(above):
            yield from wide_fields(inner, (*above, field))


def message_with(descriptor: Descriptor, way: tuple[Any, ...], value: int) -> tuple[Any, str]:
    message: Any = GetMessageClass(descriptor)()
    at, path = message, []
    for field in way[:-1]:
        at = getattr(at, field.name).add() if field.is_repeated else getattr(at, field.name)
        at.SetInParent()
        path.append(f"{field.name}[0]" if field.is_repeated else field.name)
    last = way[-1]
    if last.is_repeated:
        getattr(at, last.name).append(value)
    else:
        setattr(at, last.name, value)
    return message, ".".join((*path, f"{last.name}[0]" if last.is_repeated else last.name))


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_the_ends_of_the_range_are_refused_by_their_field(name: str) -> None:
    for way in wide_fields(REQUESTS[name]):
        for value in (1, INTEGER_MAX, -INTEGER_MAX):
            message, _ = message_with(REQUESTS[name], way, value)
            assert problem_with_integers(message) is None
        for value in ENDS:
            message, path = message_with(REQUESTS[name], way, value)
            problem = problem_with_integers(message)
            assert problem is not None and problem.reason is Reason.INVALID_ARGUMENT
            assert [each.field for each in problem.violations] == [path], path
