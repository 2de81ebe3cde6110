"""From a value of the state to its JSON text, by closures compiled once per class.

The text is made directly: what is stored in several places (a queued job in its record and as an entity, what the specs
of a submit have in common) is then written once and put in as it is. A value that could not be read back (a float in a
field of integers, a subclass of the declared class) is refused here, before it reaches the store: what is committed can
be loaded.
"""

import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from json.encoder import encode_basestring_ascii
from math import isfinite
from operator import attrgetter
from typing import Any, TypeAlias, assert_never

from . import shapes
from .shapes import TAG, Shape, stored_fields

Encoder: TypeAlias = Callable[[Any], str]

# Escaped non-ASCII keeps the text valid UTF-8 even for a path with bytes that are not.
_text_of_str: Encoder = encode_basestring_ascii
_PLAIN_TEXTS: dict[type | None, Encoder] = {
    str: _text_of_str,
    int: int.__repr__,
    bool: {True: "true", False: "false"}.__getitem__,
}


class EncodeError(TypeError):
    """A value does not fit the annotation of the field it is in: a mistake in the code that made it."""


class _Once(threading.local):
    """What a thread has encoded while each value is to be encoded once, by the value's identity."""

    known: dict[int, str] | None = None


class Encoders:
    """The compiled encoder of each class, made at its first use."""

    def __init__(self) -> None:
        self.of_class: Callable[[type], Encoder] = shapes.OnceEach(self._compile_class)
        """The encoder of a dataclass to the members of an object, without its braces. Errors: NotStorable."""
        self._once = _Once()

    @contextmanager
    def each_once(self) -> Iterator[None]:
        """Within it encode no value twice: a queued job is in its record and an entity. All must stay alive."""
        self._once.known = {}
        try:
            yield
        finally:
            self._once.known = None

    def _compile_class(self, cls: type) -> Encoder:
        stored = stored_fields(cls)
        names = tuple(field.name for field in stored)
        left_out = tuple(field.left_out for field in stored)
        plain_types = tuple(field.plain_type for field in stored)
        plain_texts = tuple(_PLAIN_TEXTS.get(field.plain_type, _text_of_str) for field in stored)
        prefixes = tuple(f'"{name}":' for name in names)
        encoders = tuple(self._of_shape(field.shape) for field in stored)
        values_of: Callable[[Any], tuple[Any, ...]]
        if len(names) > 1:
            values_of = attrgetter(*names)
        else:
            values_of = lambda value: tuple(getattr(value, name) for name in names)  # noqa: E731
        each = tuple(zip(prefixes, left_out, plain_types, plain_texts, encoders, strict=True))

        def encode(value: Any) -> str:
            if type(value) is not cls:
                raise EncodeError(f"expected {cls.__name__}, got {value!r}")
            known = self._once.known
            if known is not None and (found := known.get(id(value))) is not None:
                return found
            members: list[str] = []
            prefix = ""
            try:
                for (prefix, empty, plain_type, plain_text, encode_item), item in zip(
                    each, values_of(value), strict=True
                ):
                    # All that can be left out is false, and asking that is cheaper than comparing.
                    if item is empty or (not item and item == empty):
                        continue
                    members.append(prefix + (plain_text(item) if type(item) is plain_type else encode_item(item)))
            except EncodeError as error:
                raise EncodeError(f"{cls.__name__}.{prefix[1:-2]}: {error}") from None
            text = ",".join(members)
            if known is not None:
                known[id(value)] = text
            return text

        return encode

    def _of_shape(self, shape: Shape) -> Encoder:
        match shape:
            case shapes.Plain():
                return _plain_encoder(shape.type)
            case shapes.Bytes():
                return _encode_bytes
            case shapes.Enumeration():
                return _enum_encoder(shape.type)
            case shapes.Record():
                return self._object_encoder(shape.type)
            case shapes.OneOf():
                return self._tagged_encoder(shape.types)
            case shapes.Maybe():
                return _maybe_encoder(self._of_shape(shape.inner))
            case shapes.Sequence():
                return self._sequence_encoder(self._of_shape(shape.item), shape.item)
            case shapes.Row():
                return _row_encoder(tuple(self._of_shape(item) for item in shape.items))
            case shapes.Group():
                return _group_encoder(self._of_shape(shape.item))
            case shapes.Table():
                return _table_encoder(shape, self._of_shape(shape.key), self._of_shape(shape.value))
            case _:
                assert_never(shape)

    def _object_encoder(self, cls: type) -> Encoder:
        encode = self.of_class(cls)
        return lambda value: "{" + encode(value) + "}"

    def _tagged_encoder(self, types: tuple[type, ...]) -> Encoder:
        encoders = {cls: (f'{{"{TAG}":"{cls.__name__}"', self.of_class(cls)) for cls in types}

        def encode(value: Any) -> str:
            member = encoders.get(type(value))
            if member is None:
                raise EncodeError(f"{value!r} is none of {', '.join(cls.__name__ for cls in types)}")
            begin, encode_member = member
            members = encode_member(value)
            return f"{begin},{members}}}" if members else begin + "}"

        return encode

    def _sequence_encoder(self, encode_item: Encoder, shape: Shape) -> Encoder:
        if isinstance(shape, shapes.Plain) and shape.type is not float:
            only, plain_text = {shape.type}, _PLAIN_TEXTS[shape.type]

            def encode_plain(value: Any) -> str:
                if type(value) is not tuple:
                    raise EncodeError(f"expected a tuple, got {value!r}")
                is_plain = set(map(type, value)) <= only
                return f"[{','.join(map(plain_text if is_plain else encode_item, value))}]"

            return encode_plain

        def encode(value: Any) -> str:
            if type(value) is not tuple:
                raise EncodeError(f"expected a tuple, got {value!r}")
            known = self._once.known
            if known is not None and (found := known.get(id(value))) is not None:
                return found
            text = f"[{','.join(map(encode_item, value))}]"
            if known is not None:
                known[id(value)] = text
            return text

        return encode


def _encode_float(value: Any) -> str:
    # A whole number is a float to the type checker, and equal to one.
    if type(value) not in (int, float) or not isfinite(value):
        raise EncodeError(f"expected a finite float, got {value!r}")
    return repr(float(value))


def _plain_encoder(cls: type) -> Encoder:
    if cls is float:
        return _encode_float
    plain_text = _PLAIN_TEXTS[cls]

    def encode(value: Any) -> str:
        if type(value) is not cls:
            raise EncodeError(f"expected {cls.__name__}, got {value!r}")
        return plain_text(value)

    return encode


def _encode_bytes(value: Any) -> str:
    if type(value) is not bytes:
        raise EncodeError(f"expected bytes, got {value!r}")
    return f'"{b64encode(value).decode("ascii")}"'


def _enum_encoder(cls: type) -> Encoder:
    def encode(value: Any) -> str:
        if type(value) is not cls:
            raise EncodeError(f"expected {cls.__name__}, got {value!r}")
        return f'"{value._name_}"'  # type: ignore[attr-defined]  # `name` is a slow property

    return encode


def _maybe_encoder(encode_inner: Encoder) -> Encoder:
    return lambda value: "null" if value is None else encode_inner(value)


def _row_encoder(encoders: tuple[Encoder, ...]) -> Encoder:
    def encode(value: Any) -> str:
        if type(value) is not tuple or len(value) != len(encoders):
            raise EncodeError(f"expected a tuple of {len(encoders)}, got {value!r}")
        return f"[{','.join([encode_item(item) for encode_item, item in zip(encoders, value, strict=True)])}]"

    return encode


def _group_encoder(encode_item: Encoder) -> Encoder:
    def encode(value: Any) -> str:
        if type(value) is not frozenset:
            raise EncodeError(f"expected a frozenset, got {value!r}")
        # Equal sets give equal text, whatever the order in which they were built.
        return f"[{','.join(sorted(map(encode_item, value)))}]"

    return encode


def _table_encoder(shape: shapes.Table, encode_key: Encoder, encode_value: Encoder) -> Encoder:
    if shape.key == shapes.Plain(str):
        return lambda value: (
            "{" + ",".join([f"{encode_key(key)}:{encode_value(item)}" for key, item in value.items()]) + "}"
        )
    return lambda value: (
        "[" + ",".join([f"[{encode_key(key)},{encode_value(item)}]" for key, item in value.items()]) + "]"
    )
