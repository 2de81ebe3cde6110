"""From a value of the state to the objects that JSON knows, by closures compiled once per class.

A value that could not be read back (a float in a field of integers, a subclass of the declared class) is
refused here, before it reaches the store: what is committed can be loaded.
"""

from __future__ import annotations

import json
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isfinite
from operator import attrgetter
from typing import Any, TypeAlias, assert_never

from .shapes import (
    TAG,
    Bytes,
    Enumeration,
    Group,
    Maybe,
    OneOf,
    Plain,
    Record,
    Row,
    Sequence,
    Shape,
    Table,
    stored_fields,
)

Encoder: TypeAlias = Callable[[Any], Any]


class EncodeError(TypeError):
    """A value does not fit the annotation of the field it is in: a mistake in the code that made it."""


class _Once(threading.local):
    """What a thread has encoded while each value is to be encoded once, by the value's identity."""

    known: dict[int, dict[str, Any]] | None = None


class Encoders:
    """The compiled encoder of each class, made at its first use."""

    def __init__(self) -> None:
        self._of_class: dict[type, Encoder] = {}
        self._begun: set[type] = set()
        self._compiling = threading.RLock()
        self._once = _Once()

    @contextmanager
    def each_once(self) -> Iterator[None]:
        """Within it encode no value twice: a queued job is in its record and an entity. All must stay alive."""
        self._once.known = {}
        try:
            yield
        finally:
            self._once.known = None

    def of_class(self, cls: type) -> Encoder:
        """The encoder of a dataclass to an object without a tag. Errors: NotStorable."""
        encoder = self._of_class.get(cls)
        if encoder is not None:
            return encoder
        # One thread compiles: another must never get what is not done yet.
        with self._compiling:
            if cls in self._begun:
                # A class that contains itself finds this one while it is being compiled.
                return lambda value: self.of_class(cls)(value)
            if cls not in self._of_class:
                self._begun.add(cls)
                try:
                    self._of_class[cls] = self._compile_class(cls)
                finally:
                    self._begun.discard(cls)
            return self._of_class[cls]

    def _compile_class(self, cls: type) -> Encoder:
        stored = stored_fields(cls)
        names = tuple(field.name for field in stored)
        left_out = tuple(field.left_out for field in stored)
        plain_types = tuple(field.plain_type for field in stored)
        encoders = tuple(self._of_shape(field.shape) for field in stored)
        values_of: Callable[[Any], tuple[Any, ...]]
        if len(names) > 1:
            values_of = attrgetter(*names)
        else:
            values_of = lambda value: tuple(getattr(value, name) for name in names)  # noqa: E731

        def encode(value: Any) -> dict[str, Any]:
            if type(value) is not cls:
                raise EncodeError(f"expected {cls.__name__}, got {value!r}")
            known = self._once.known
            if known is not None and (found := known.get(id(value))) is not None:
                return found
            node: dict[str, Any] = {}
            name = ""
            try:
                for name, item, empty, plain_type, encode_item in zip(
                    names, values_of(value), left_out, plain_types, encoders, strict=True
                ):
                    # All that can be left out is false, and asking that is cheaper than comparing.
                    if item is empty or (not item and item == empty):
                        continue
                    node[name] = item if type(item) is plain_type else encode_item(item)
            except EncodeError as error:
                raise EncodeError(f"{cls.__name__}.{name}: {error}") from None
            if known is not None:
                known[id(value)] = node
            return node

        return encode

    def _of_shape(self, shape: Shape) -> Encoder:
        match shape:
            case Plain():
                return _plain_encoder(shape.type)
            case Bytes():
                return _encode_bytes
            case Enumeration():
                return _enum_encoder(shape.type)
            case Record():
                return self.of_class(shape.type)
            case OneOf():
                return self._tagged_encoder(shape.types)
            case Maybe():
                return _maybe_encoder(self._of_shape(shape.inner))
            case Sequence():
                return _sequence_encoder(self._of_shape(shape.item), shape.item)
            case Row():
                return _row_encoder(tuple(self._of_shape(item) for item in shape.items))
            case Group():
                return _group_encoder(self._of_shape(shape.item))
            case Table():
                return _table_encoder(shape, self._of_shape(shape.key), self._of_shape(shape.value))
            case _:
                assert_never(shape)

    def _tagged_encoder(self, types: tuple[type, ...]) -> Encoder:
        encoders = {cls: self.of_class(cls) for cls in types}

        def encode(value: Any) -> dict[str, Any]:
            encode_member = encoders.get(type(value))
            if encode_member is None:
                raise EncodeError(f"{value!r} is none of {', '.join(cls.__name__ for cls in types)}")
            return {TAG: type(value).__name__, **encode_member(value)}

        return encode


def _encode_float(value: Any) -> float:
    # A whole number is a float to the type checker, and equal to one.
    if type(value) not in (int, float) or not isfinite(value):
        raise EncodeError(f"expected a finite float, got {value!r}")
    return float(value)


def _plain_encoder(cls: type) -> Encoder:
    if cls is float:
        return _encode_float

    def encode(value: Any) -> Any:
        if type(value) is not cls:
            raise EncodeError(f"expected {cls.__name__}, got {value!r}")
        return value

    return encode


def _encode_bytes(value: Any) -> str:
    if type(value) is not bytes:
        raise EncodeError(f"expected bytes, got {value!r}")
    return b64encode(value).decode("ascii")


def _enum_encoder(cls: type) -> Encoder:
    def encode(value: Any) -> Any:
        if type(value) is not cls:
            raise EncodeError(f"expected {cls.__name__}, got {value!r}")
        return value._name_  # type: ignore[attr-defined]  # `name` is a slow property

    return encode


def _maybe_encoder(encode_inner: Encoder) -> Encoder:
    return lambda value: None if value is None else encode_inner(value)


def _sequence_encoder(encode_item: Encoder, shape: Shape) -> Encoder:
    only = {shape.type} if isinstance(shape, Plain) and shape.type is not float else set[type]()

    def encode(value: Any) -> list[Any]:
        if type(value) is not tuple:
            raise EncodeError(f"expected a tuple, got {value!r}")
        if only and set(map(type, value)) <= only:
            return list(value)
        return [encode_item(item) for item in value]

    return encode


def _row_encoder(encoders: tuple[Encoder, ...]) -> Encoder:
    def encode(value: Any) -> list[Any]:
        if type(value) is not tuple or len(value) != len(encoders):
            raise EncodeError(f"expected a tuple of {len(encoders)}, got {value!r}")
        return [encode_item(item) for encode_item, item in zip(encoders, value, strict=True)]

    return encode


def _group_encoder(encode_item: Encoder) -> Encoder:
    def encode(value: Any) -> list[Any]:
        if type(value) is not frozenset:
            raise EncodeError(f"expected a frozenset, got {value!r}")
        # Equal sets give equal text, whatever the order in which they were built.
        return sorted((encode_item(item) for item in value), key=json.dumps)

    return encode


def _table_encoder(shape: Table, encode_key: Encoder, encode_value: Encoder) -> Encoder:
    if shape.key == Plain(str):
        return lambda value: {encode_key(key): encode_value(item) for key, item in value.items()}
    return lambda value: [[encode_key(key), encode_value(item)] for key, item in value.items()]
