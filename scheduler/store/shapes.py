"""What a field's annotation allows, as a value that the encoders and the decoders are built from.

Only what can be written and read back without a doubt has a shape; any other annotation is refused when the
class is first used, naming the class and the field.
"""

from __future__ import annotations

import enum
import threading
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Any, Generic, TypeAlias, TypeVar

TAG = "$"
"""The key under which a member of a union names its class."""

FORMAT_KEY = "v"
"""The key under which the outermost object says in which format it was written; no field may be called so."""

K = TypeVar("K")
Compiled = Callable[[Any], Any]
PLAIN_TYPES: tuple[type, ...] = (bool, int, float, str)


class NotStorable(TypeError):
    """A class has a field that the store has no way of writing: a mistake in the code, found at the first
    use.
    """


@dataclass(frozen=True, slots=True)
class Plain:
    """A number, a text or a truth value, as JSON has it."""

    type: type


@dataclass(frozen=True, slots=True)
class Bytes:
    """Bytes, written as base64."""


@dataclass(frozen=True, slots=True)
class Enumeration:
    """A member of an enum, written by its name."""

    type: type[enum.Enum]


@dataclass(frozen=True, slots=True)
class Record:
    """One dataclass, which needs no tag."""

    type: type


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of several dataclasses, told apart by a tag."""

    types: tuple[type, ...]


@dataclass(frozen=True, slots=True)
class Maybe:
    """None, or what the inner shape says."""

    inner: Shape


@dataclass(frozen=True, slots=True)
class Sequence:
    """A tuple of any length with items of one shape."""

    item: Shape


@dataclass(frozen=True, slots=True)
class Row:
    """A tuple with a shape for each of its places."""

    items: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """A frozenset, written in a fixed order."""

    item: Shape


@dataclass(frozen=True, slots=True)
class Table:
    """A mapping; its order is kept."""

    key: Shape
    value: Shape


Shape: TypeAlias = Plain | Bytes | Enumeration | Record | OneOf | Maybe | Sequence | Row | Group | Table


@dataclass(frozen=True, slots=True)
class StoredField:
    """A field of a stored dataclass; `left_out` is the value that is not written (MISSING: it is always
    written).
    """

    name: str
    shape: Shape
    left_out: Any

    @property
    def plain_type(self) -> type | None:
        """The type whose values are written as they are, without asking the shape; None where there is none."""
        inner = self.shape.inner if isinstance(self.shape, Maybe) else self.shape
        return inner.type if isinstance(inner, Plain) and inner.type is not float else None


class OnceEach(Generic[K]):
    """What is compiled for each key at its first use; several threads may ask."""

    def __init__(self, compile_for: Callable[[K], Compiled]) -> None:
        self._compile_for = compile_for
        self._done: dict[K, Compiled] = {}
        self._begun: set[K] = set()
        self._compiling = threading.RLock()

    def __call__(self, key: K) -> Compiled:
        """What is compiled for a key. Errors: those of compiling."""
        done = self._done.get(key)
        if done is not None:
            return done
        # One thread compiles: another must never get what is not done yet.
        with self._compiling:
            if key in self._begun:
                # A class that contains itself finds this one while it is being compiled.
                return lambda value: self(key)(value)
            if key not in self._done:
                self._begun.add(key)
                try:
                    self._done[key] = self._compile_for(key)
                finally:
                    self._begun.discard(key)
            return self._done[key]


def stored_fields(cls: type) -> tuple[StoredField, ...]:
    """The fields of a dataclass in their order. Errors: NotStorable, naming the class and the field."""
    if not is_dataclass(cls):
        raise NotStorable(f"{cls.__name__} is not a dataclass")
    hints = typing.get_type_hints(cls, include_extras=False)
    return tuple(_stored_field(cls, field, hints[field.name]) for field in fields(cls))


def _stored_field(cls: type, field: Field[Any], annotation: object) -> StoredField:
    where = f"{cls.__name__}.{field.name}"
    if field.name == FORMAT_KEY:
        raise NotStorable(f"{where}: the name {FORMAT_KEY!r} is taken by the payload's format")
    if not field.init:
        raise NotStorable(f"{where}: a field that cannot be given to the class cannot be read back")
    return StoredField(field.name, _shape_of(annotation, where), _empty_default(field))


def _empty_default(field: Field[Any]) -> Any:
    if field.default is not MISSING:
        default = field.default
    elif field.default_factory is not MISSING:
        default = field.default_factory()
    else:
        return MISSING
    if isinstance(default, enum.Enum) or is_dataclass(default) or default:
        return MISSING
    return default


def _shape_of(annotation: Any, where: str) -> Shape:
    while hasattr(annotation, "__supertype__"):  # a NewType
        annotation = annotation.__supertype__
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return _union_shape(arguments, where)
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return Sequence(_shape_of(arguments[0], where))
    if origin is tuple:
        return Row(tuple(_shape_of(argument, where) for argument in arguments))
    if origin is frozenset:
        return Group(_shape_of(arguments[0], where))
    if origin is Mapping:
        return Table(_shape_of(arguments[0], where), _shape_of(arguments[1], where))
    if isinstance(annotation, type) and origin is None:
        return _class_shape(annotation, where)
    raise NotStorable(f"{where}: the store cannot write {annotation}")


def _class_shape(cls: type, where: str) -> Shape:
    if issubclass(cls, enum.Enum):
        return Enumeration(cls)
    if is_dataclass(cls):
        return Record(cls)
    if cls is bytes:
        return Bytes()
    if cls in PLAIN_TYPES:
        return Plain(cls)
    raise NotStorable(f"{where}: the store cannot write {cls.__name__}")


def _union_shape(arguments: tuple[Any, ...], where: str) -> Shape:
    members = [_shape_of(argument, where) for argument in arguments if argument is not type(None)]
    inner: Shape
    if len(members) == 1:
        inner = members[0]
    elif all(isinstance(member, Record) for member in members):
        inner = OneOf(tuple(member.type for member in members if isinstance(member, Record)))
    else:
        raise NotStorable(f"{where}: members of a union must be dataclasses (and None), to be told apart when read")
    return Maybe(inner) if len(members) < len(arguments) else inner
