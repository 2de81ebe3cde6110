"""Integers of a request that a store could not count on with: found by the descriptors of its message, and refused.

A column of the store holds 64 bits with a sign. A number at the end of that range is one on which `+ 1` fails, in
Python's way (OverflowError in the middle of a call), so requests have half of the range: no sum of two leaves it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from gpufleet.errors import GpufleetError, invalid

INTEGER_MAX = 2**62
"""No integer of a request is greater, nor less than its negative."""

_WIDE = frozenset({FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT64})
_OWN = "gpufleet."

Wide = Iterator[tuple[str, int]]
"""Fields that are out of range, by their paths, with what they say."""


def problem_with_integers(message: Any) -> GpufleetError | None:
    """What is wrong with the integers of a message, by the path of the first such field; None: nothing.

    Google's times and durations are for those who read them: they have ranges of their own.
    """
    for path, value in _beyond(message):
        return invalid(path, f"is {value}; it must be between -{INTEGER_MAX} and {INTEGER_MAX}")
    return None


def _beyond(message: Any) -> Wide:
    for name, look in _looks(message.DESCRIPTOR):
        for path, value in look(message):
            yield f"{name}{path}", value


@cache
def _looks(descriptor: Descriptor) -> Sequence[tuple[str, Callable[[Any], Wide]]]:
    """How each field of a message is looked at in which such an integer can be."""
    return tuple((field.name, _look_at(field)) for field in descriptor.fields if _is_of_interest(field, frozenset()))


def _look_at(field: Any) -> Callable[[Any], Wide]:
    name, is_message, is_map = field.name, field.message_type is not None, _is_map(field)
    is_inner = is_map and field.message_type.fields_by_name["value"].message_type is not None

    def look(message: Any) -> Wide:
        if is_map:
            for key, value in getattr(message, name).items():
                if isinstance(key, int):
                    yield from _if_beyond(f"[{key}]", key)
                if is_inner:
                    yield from ((f"[{key!r}].{path}", found) for path, found in _beyond(value))
                else:
                    yield from _if_beyond(f"[{key!r}]", value)
        elif field.is_repeated:
            for number, each in enumerate(getattr(message, name)):
                if is_message:
                    yield from ((f"[{number}].{path}", found) for path, found in _beyond(each))
                else:
                    yield from _if_beyond(f"[{number}]", each)
        elif not is_message:
            yield from _if_beyond("", getattr(message, name))
        elif message.HasField(name):
            yield from ((f".{path}", found) for path, found in _beyond(getattr(message, name)))

    return look


def _if_beyond(path: str, value: Any) -> Wide:
    if isinstance(value, int) and not -INTEGER_MAX <= value <= INTEGER_MAX:
        yield path, value


def _is_of_interest(field: Any, above: frozenset[str]) -> bool:
    inner = field.message_type
    if inner is None:
        return field.cpp_type in _WIDE
    if inner.full_name in above:
        return False  # a message in itself: its other fields say
    if not inner.full_name.startswith(_OWN):
        return False
    return any(_is_of_interest(each, above | {inner.full_name}) for each in inner.fields)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)
