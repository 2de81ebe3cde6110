"""Requests that nobody should send, made from the descriptors of their messages alone: by kind, and from a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

DEPTH_MAX = 6
MANY = 2_000
"""Entries of a list that is far too long."""
LONG_CHARS = 70_000
"""Of a text that is far too long, and longer than a worker takes."""

DENSITIES = (1.0, 0.5, 0.2, 0.05)

MARK, SURROGATE = "☃".encode(), b"\xed\xa0\x80"
"""Protobuf makes no text with half of a character: what stands for one is changed behind it, and is as long."""

BEGINNINGS = frozenset({"open", "hello", "inventory", "start", "join"})
"""The bodies that a stream begins with."""

INTEGERS = (0, 1, 2, 3, 7, -1, -2, 255, 256, 65_535, 65_536, 2**31 - 1, -(2**31), 2**32 - 1, 2**53, 2**63 - 1, -(2**63))
FLOATS = (0.0, 1.0, 0.5, -1.0, -0.0, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf"))
TEXTS = (
    *("", "a", "1", "-1", "0", "true", "null", "A" * 64, "x" * 129, "x" * 5_000, "é" * 40, "日本", "☃", "a☃b", "\0"),
    *("a\nb", "\x1b[2J", "‮", "../../x", "/", "a/b", "%s%n", "{}", "a=b", "a,b", "127.0.0.1:1", "[::1]:0", ":"),
    *("http://127.0.0.1:1/", "1-10", "[0-99999999]", "1e9", "00:00:00", "16GB", "*", "?", "'", '"', "\\", "\u2028"),
)

Steer = Callable[[Any, Random], None]
"""Changes a message so that it does not end what is being fuzzed."""


@dataclass(slots=True)
class Forge:
    """Makes messages. `known` has, by the name of a field, values that mean something here.

    `density`: how many of a message's fields are set, of those that may be; with few of them more requests are taken.
    """

    random: Random
    known: Mapping[str, Sequence[Any]]
    density: float = 1.0

    def request(self, descriptor: Descriptor, steer: Steer | None, *, is_first: bool = True) -> bytes:
        """One message as it goes over the wire."""
        draw = self.random.random()
        if draw < 0.10:
            return self.garbage()
        self.density = self.random.choice(DENSITIES)
        message = GetMessageClass(descriptor)()
        self.fill(message, 0, is_first=is_first)
        if draw > 0.94:
            self.reach_an_end(message)
        if draw > 0.98:
            self._exaggerate(message)
        if steer is not None:
            steer(message, self.random)
        data = message.SerializeToString().replace(MARK, SURROGATE if draw < 0.3 else MARK)
        if draw < 0.40:
            return self.mutated(data)
        if draw < 0.44 and steer is None:
            # Two messages behind each other are one: each member of a oneof is there, and the last one counts.
            other = GetMessageClass(descriptor)()
            self.fill(other, 0, is_first=False)
            return data + other.SerializeToString()
        return data

    def garbage(self) -> bytes:
        """Bytes of no message."""
        return self.random.randbytes(self.random.choice((0, 1, 2, 3, 8, 40, 300, 3_000)))

    def mutated(self, data: bytes) -> bytes:
        """The bytes with something wrong."""
        if not data:
            return self.garbage()
        changed = bytearray(data)
        at = self.random.randrange(len(changed))
        match self.random.randrange(6):
            case 0:
                del changed[at:]
            case 1:
                changed[at] ^= 1 << self.random.randrange(8)
            case 2:
                changed[at : at + 1] = self.random.randbytes(self.random.randrange(1, 9))
            case 3:
                changed[at:at] = changed[: self.random.randrange(len(changed)) + 1]
            case 4:
                changed[at : at + 4] = b"\xff\xff\xff\xff"
            case _:
                for _ in range(self.random.randrange(1, 12)):
                    changed[self.random.randrange(len(changed))] = self.random.randrange(256)
        return bytes(changed)

    def fill(self, message: Message, depth: int, *, is_first: bool) -> None:
        """Set some of its fields, and some of theirs."""
        descriptor = message.DESCRIPTOR
        chosen = {each.name: self._of_oneof(each.fields, is_first=is_first) for each in descriptor.oneofs}
        likely = self.density * (0.8, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)[min(depth, DEPTH_MAX)]
        for field in descriptor.fields:
            oneof = field.containing_oneof
            if oneof is not None and len(oneof.fields) > 1:
                if chosen[oneof.name] is not field:
                    continue
            elif self.random.random() > likely:
                continue
            self._set(message, field, depth)

    def _of_oneof(self, members: Sequence[Any], *, is_first: bool) -> Any:
        beginnings = [each for each in members if each.name in BEGINNINGS]
        if is_first and beginnings and self.random.random() < 0.8:
            return beginnings[0]
        return self.random.choice(members) if self.random.random() < 0.9 else None

    def _set(self, message: Any, field: Any, depth: int) -> None:
        if _is_map(field):
            self._set_map(getattr(message, field.name), field, depth)
        elif field.is_repeated:
            values = getattr(message, field.name)
            for _ in range(self.random.choice((0, 1, 1, 2, 3))):
                if field.message_type is not None:
                    if depth < DEPTH_MAX:
                        self.fill(values.add(), depth + 1, is_first=False)
                else:
                    values.append(self._scalar(field))
        elif field.message_type is not None:
            if depth < DEPTH_MAX:
                inner = getattr(message, field.name)
                inner.SetInParent()
                self.fill(inner, depth + 1, is_first=False)
        else:
            setattr(message, field.name, self._scalar(field))

    def _set_map(self, values: Any, field: Any, depth: int) -> None:
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        for _ in range(self.random.choice((0, 1, 2, 5))):
            if value.message_type is not None:
                if depth < DEPTH_MAX:
                    self.fill(values[self._scalar(key)], depth + 1, is_first=False)
            else:
                values[self._scalar(key)] = self._scalar(value)

    def _scalar(self, field: Any) -> Any:
        known = self.known.get(field.name)
        kind = field.cpp_type
        if known and self.random.random() < 0.6 and _suits(known[0], field):
            return self.random.choice(known)
        if kind == FieldDescriptor.CPPTYPE_BOOL:
            return self.random.random() < 0.5
        if kind == FieldDescriptor.CPPTYPE_ENUM:
            numbers = [each.number for each in field.enum_type.values]
            return self.random.choice((*numbers, *numbers, 99, -1, 2**31 - 1))
        if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
            value = self.random.choice((*FLOATS, self.random.random()))
            return value if kind == FieldDescriptor.CPPTYPE_DOUBLE or not 1e39 > abs(value) > 3e38 else 0.0
        if kind == FieldDescriptor.CPPTYPE_STRING:
            if field.type == FieldDescriptor.TYPE_BYTES:
                return self.random.randbytes(self.random.choice((0, 1, 16, 32, 300)))
            return self.random.choice(TEXTS)
        low, high = RANGES[kind]
        return min(max(self.random.choice((*INTEGERS, 1, 1, 2, self.random.randrange(100))), low), high)

    def reach_an_end(self, message: Any, depth: int = 0) -> None:
        """One integer is the least or the greatest of its type, where the message can have one."""
        fields = [each for each in message.DESCRIPTOR.fields if each.cpp_type in RANGES and not each.is_repeated]
        inner = [each for each in message.DESCRIPTOR.fields if each.message_type and not each.is_repeated]
        if inner and depth < DEPTH_MAX and (not fields or self.random.random() < 0.5):
            field = self.random.choice(inner)
            getattr(message, field.name).SetInParent()
            self.reach_an_end(getattr(message, field.name), depth + 1)
        elif fields:
            field = self.random.choice(fields)
            setattr(message, field.name, self.random.choice(RANGES[field.cpp_type]))

    def _exaggerate(self, message: Any) -> None:
        """One field is far too long, where there is one that can be."""
        fields = [each for each in message.DESCRIPTOR.fields if each.is_repeated or each.cpp_type == _STRING]
        if not fields:
            return
        field = self.random.choice(fields)
        values = getattr(message, field.name)
        if _is_map(field):
            value = field.message_type.fields_by_name["value"]
            if field.message_type.fields_by_name["key"].cpp_type == _STRING and value.message_type is None:
                for number in range(MANY):
                    values[f"key-{number}"] = self._scalar(value)
        elif field.is_repeated:
            if field.message_type is not None:
                for _ in range(MANY):
                    values.add()
            else:
                values.extend(self._scalar(field) for _ in range(MANY))
        else:
            setattr(
                message, field.name, b"x" * LONG_CHARS if field.type == FieldDescriptor.TYPE_BYTES else "x" * LONG_CHARS
            )


_STRING = FieldDescriptor.CPPTYPE_STRING
RANGES: Mapping[int, tuple[int, int]] = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _suits(value: Any, field: Any) -> bool:
    if isinstance(value, str):
        return bool(field.cpp_type == _STRING and field.type != FieldDescriptor.TYPE_BYTES)
    if isinstance(value, bytes):
        return bool(field.type == FieldDescriptor.TYPE_BYTES)
    return isinstance(value, int) and field.cpp_type in RANGES
