"""From the objects that JSON knows to a value of the state, by closures compiled once per class and format.

A payload of an older format goes through the same closures; where an object's class has upgrades, they come
first. Nothing is guessed: an unknown field, a missing one or one of the wrong kind is an error that names
class and field.
"""

import binascii
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from types import MappingProxyType
from typing import Any, TypeAlias, assert_never

from . import shapes
from .shapes import TAG, Shape, stored_fields

Node: TypeAlias = dict[str, Any]
Decoder: TypeAlias = Callable[[Any], Any]
Upgrade: TypeAlias = Callable[[Node], Node]
Upgrades: TypeAlias = Mapping[tuple[str, int], Upgrade]


class DecodeError(Exception):
    """A payload does not hold a value of its class: which field, and why."""


KNOWN_PARTS_MAX = 10_000
"""Parts that many values have in common, such as what they ask for, of which a start makes each once."""


class Decoders:
    """The compiled decoder of each class for each format met, made at its first use.

    Values of the classes in `shared` are made once where they are equal, as are rows of texts.
    """

    def __init__(self, current_format: int, upgrades: Upgrades, shared: frozenset[type] = frozenset()) -> None:
        self._format = current_format
        self._upgrades = upgrades
        self._shared = shared
        self._of_class = shapes.OnceEach(self._compile_class)

    def of_class(self, cls: type, written_format: int) -> Decoder:
        """The decoder of a dataclass from an object written in that format. Errors: NotStorable."""
        return self._of_class((cls, written_format))

    def _compile_class(self, of: tuple[type, int]) -> Decoder:
        cls, written_format = of
        upgrade = self._upgrade_of(cls.__name__, written_format)
        decoders = {
            field.name: (field.plain_type, self._of_shape(field.shape, written_format)) for field in stored_fields(cls)
        }

        def decode(node: Any) -> Any:
            if type(node) is not dict:
                raise DecodeError(f"{cls.__name__}: expected an object, got {node!r}")
            values: dict[str, Any] = node if upgrade is None else upgrade(node)
            name = ""
            try:
                for name, item in values.items():
                    decoder = decoders.get(name)
                    if decoder is None:
                        raise DecodeError("unknown field")
                    if type(item) is not decoder[0]:
                        values[name] = decoder[1](item)
            except DecodeError as error:
                raise DecodeError(f"{cls.__name__}.{name}: {error}") from None
            try:
                return cls(**values)
            except TypeError:
                raise DecodeError(f"{cls.__name__}: {_missing(cls, values)}") from None
            except (ValueError, AssertionError) as error:
                raise DecodeError(f"{cls.__name__}: {error}") from error

        return decode

    def _upgrade_of(self, name: str, written_format: int) -> Upgrade | None:
        steps = [
            self._upgrades[name, step] for step in range(written_format, self._format) if (name, step) in self._upgrades
        ]
        if not steps:
            return None

        def upgrade(node: Node) -> Node:
            for step in steps:
                node = step(node)
            return node

        return upgrade

    def _of_shape(self, shape: Shape, written_format: int) -> Decoder:
        def inner(part: Shape) -> Decoder:
            return self._of_shape(part, written_format)

        match shape:
            case shapes.Plain():
                return _plain_decoder(shape.type)
            case shapes.Bytes():
                return _decode_bytes
            case shapes.Enumeration():
                return _enum_decoder(shape)
            case shapes.Record():
                decode = self.of_class(shape.type, written_format)
                return _once(decode) if shape.type in self._shared else decode
            case shapes.OneOf():
                return self._tagged_decoder(shape.types, written_format)
            case shapes.Maybe():
                return _maybe_decoder(inner(shape.inner))
            case shapes.Sequence():
                decode = _sequence_decoder(inner(shape.item), shape.item)
                return _once(decode) if _is_row_of_texts(shape.item) else decode
            case shapes.Row():
                return _row_decoder(tuple(inner(item) for item in shape.items))
            case shapes.Group():
                return _group_decoder(inner(shape.item))
            case shapes.Table():
                return _table_decoder(shape, inner(shape.key), inner(shape.value))
            case _:
                assert_never(shape)

    def _tagged_decoder(self, types: tuple[type, ...], written_format: int) -> Decoder:
        decoders = {cls.__name__: self.of_class(cls, written_format) for cls in types}

        def decode(node: Any) -> Any:
            if type(node) is not dict or TAG not in node:
                raise DecodeError(f"expected an object with {TAG!r}, got {node!r}")
            tag = node.pop(TAG)
            # A class that is gone or has another name now says in its upgrade what it became.
            if tag not in decoders and (upgrade := self._upgrade_of(tag, written_format)) is not None:
                node = upgrade(node)
                tag = node.pop(TAG, tag)
            if tag not in decoders:
                raise DecodeError(f"unknown class {tag!r}, expected one of {', '.join(decoders)}")
            return decoders[tag](node)

        return decode


def _is_row_of_texts(shape: Shape) -> bool:
    return isinstance(shape, shapes.Row) and set(shape.items) == {shapes.Plain(str)}


def _once(decode: Decoder) -> Decoder:
    """The same, but what is written alike is one value; such values never change."""
    known: dict[str, Any] = {}

    def decode_once(node: Any) -> Any:
        key = repr(node)
        value = known.get(key)
        if value is None:
            if len(known) >= KNOWN_PARTS_MAX:
                known.clear()
            value = known[key] = decode(node)
        return value

    return decode_once


def _missing(cls: type, values: Node) -> str:
    missing = [
        field.name
        for field in fields(cls)
        if field.name not in values and field.default is MISSING and field.default_factory is MISSING
    ]
    return f"missing field {', '.join(map(repr, missing))}" if missing else "cannot be made from its fields"


def _plain_decoder(cls: type) -> Decoder:
    if cls is float:
        return _decode_float

    def decode(node: Any) -> Any:
        if type(node) is not cls:
            raise DecodeError(f"expected {cls.__name__}, got {node!r}")
        return node

    return decode


def _decode_float(node: Any) -> float:
    if type(node) not in (int, float):
        raise DecodeError(f"expected float, got {node!r}")
    return float(node)


def _decode_bytes(node: Any) -> bytes:
    try:
        return b64decode(node, validate=True)
    except (TypeError, binascii.Error, ValueError):
        raise DecodeError(f"expected base64, got {node!r}") from None


def _enum_decoder(shape: shapes.Enumeration) -> Decoder:
    members = {member.name: member for member in shape.type}

    def decode(node: Any) -> Any:
        try:
            return members[node]
        except (KeyError, TypeError):
            raise DecodeError(f"{shape.type.__name__} has no member {node!r}") from None

    return decode


def _maybe_decoder(decode_inner: Decoder) -> Decoder:
    return lambda node: None if node is None else decode_inner(node)


def _expect_list(node: Any) -> list[Any]:
    if type(node) is not list:
        raise DecodeError(f"expected a list, got {node!r}")
    return node


def _sequence_decoder(decode_item: Decoder, shape: Shape) -> Decoder:
    if isinstance(shape, shapes.Plain) and shape.type is not float:
        only = {shape.type}

        def decode_plain(node: Any) -> tuple[Any, ...]:
            if set(map(type, _expect_list(node))) <= only:
                return tuple(node)
            return tuple([decode_item(item) for item in node])

        return decode_plain
    # Lists: a start decodes hundreds of thousands of these, and generators cost half as much again.
    return lambda node: tuple([decode_item(item) for item in _expect_list(node)])


def _row_decoder(decoders: tuple[Decoder, ...]) -> Decoder:
    def decode(node: Any) -> tuple[Any, ...]:
        if len(_expect_list(node)) != len(decoders):
            raise DecodeError(f"expected {len(decoders)} items, got {node!r}")
        return tuple([decode_item(item) for decode_item, item in zip(decoders, node, strict=True)])

    return decode


def _group_decoder(decode_item: Decoder) -> Decoder:
    return lambda node: frozenset(decode_item(item) for item in _expect_list(node))


def _table_decoder(shape: shapes.Table, decode_key: Decoder, decode_value: Decoder) -> Decoder:
    def decode_object(node: Any) -> Mapping[Any, Any]:
        if type(node) is not dict:
            raise DecodeError(f"expected an object, got {node!r}")
        return MappingProxyType({key: decode_value(item) for key, item in node.items()})

    def decode_pairs(node: Any) -> Mapping[Any, Any]:
        pairs = [_decode_pair(pair) for pair in _expect_list(node)]
        return MappingProxyType({decode_key(key): decode_value(item) for key, item in pairs})

    return decode_object if shape.key == shapes.Plain(str) else decode_pairs


def _decode_pair(node: Any) -> list[Any]:
    if type(node) is not list or len(node) != 2:
        raise DecodeError(f"expected a key and a value, got {node!r}")
    return node
