"""Messages and dataclasses in which one field at a time says something, made from descriptors and from `fields`.

A conversion is asked field by field whether what it makes differs when that field alone says something else. Whoever
adds a field and forgets a conversion is told its path; nobody keeps a list of fields by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, TypeVar, assert_never

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from gpufleet.errors import GpufleetError
from scheduler.store import shapes
from scheduler.store.shapes import Shape, stored_fields
from tests.store.stored_format import LINEAGE, example, members_of, value_of

M = TypeVar("M", bound=Message)

SPANS = "google.protobuf.Duration"
TIMES = "google.protobuf.Timestamp"
BEGIN_SECONDS = 1_700_000_000
INTEGERS = frozenset(
    {FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64}
    | {FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64}
)
Values = Mapping[str, Any]
"""What to put at some paths: where not anything will do, and what else a field needs beside it."""
Needs = Mapping[str, Values]
NOTHING: Mapping[str, Any] = MappingProxyType({})


def paths(descriptor: Any, prefix: str = "", within: tuple[Any, ...] = ()) -> Iterator[str]:
    """The path of each field of a message and of those inside it; a message in itself (`more`) is not entered again."""
    for field in descriptor.fields:
        inner = field.message_type
        if inner is None or _is_map(field) or inner.full_name in (SPANS, TIMES) or not inner.fields:
            yield f"{prefix}{field.name}"
        elif inner not in (descriptor, *within):
            yield from paths(inner, f"{prefix}{field.name}.", (descriptor, *within))


def put(message: Message, path: str, value: Any = None) -> None:
    """Let one field say something: `value`, or something of its own that is not its default."""
    *holders, name = path.split(".")
    for holder in holders:
        message = _entered(message, message.DESCRIPTOR.fields_by_name[holder])
    field = message.DESCRIPTOR.fields_by_name[name]
    value = _something(field, path) if value is None else value
    if _is_map(field):
        getattr(message, name).update(value)
    elif field.is_repeated:
        del getattr(message, name)[:]
        getattr(message, name).extend(value)
    elif isinstance(value, timedelta):
        getattr(message, name).FromTimedelta(value)
    elif isinstance(value, datetime):
        getattr(message, name).FromDatetime(value)
    elif field.message_type is not None:
        getattr(message, name).SetInParent()
    else:
        setattr(message, name, value)


def get(message: Message, path: str) -> Any:
    """What a field says; of a message in a list the first one's. None where it is absent."""
    *holders, name = path.split(".")
    for holder in holders:
        inner = getattr(message, holder)
        if message.DESCRIPTOR.fields_by_name[holder].is_repeated:
            if not inner:
                return None
            inner = inner[0]
        elif not message.HasField(holder):
            return None
        message = inner
    field = message.DESCRIPTOR.fields_by_name[name]
    if _is_map(field):
        return dict(getattr(message, name))
    if field.is_repeated:
        return list(getattr(message, name))
    if field.has_presence and not message.HasField(name):
        return None
    return getattr(message, name)


def alone(base: M, path: str, values: Values = NOTHING, needs: Needs = NOTHING) -> tuple[M, M]:
    """Two messages that differ in one field: without it and with it, both with what it needs beside it.

    Both have the messages that hold it: that those are there says nothing of the field.
    """
    without = type(base)()
    without.CopyFrom(base)
    holder: Message = without
    for name in path.split(".")[:-1]:
        holder = _entered(holder, holder.DESCRIPTOR.fields_by_name[name])
        holder.SetInParent()
    for other, value in needs.get(path, {}).items():
        put(without, other, value)
    told = type(base)()
    told.CopyFrom(without)
    put(told, path, values.get(path))
    assert told != without, f"{path}: the value to try it with is what it says by default"
    return without, told


def unheard(
    convert: Callable[[M], object],
    base: M,
    *,
    values: Values = NOTHING,
    needs: Needs = NOTHING,
    exceptions: Mapping[str, str] = NOTHING,
) -> list[str]:
    """The fields of a message of which a conversion makes nothing, but for `exceptions`, each with its reason.

    An exception that is none any more, or names no field, is told as well.
    """
    known = list(paths(base.DESCRIPTOR))
    wrong = [f"{path}: excepted, and there is no such field" for path in exceptions if path not in known]
    for path in known:
        without, told = alone(base, path, values, needs)
        is_heard = _answer(convert, told) != _answer(convert, without)
        if is_heard == (path in exceptions):
            wrong.append(f"{path}: excepted, and it is converted" if is_heard else f"{path}: dropped")
    return wrong


def _answer(convert: Callable[[M], object], message: M) -> object:
    """What comes of a message, or how it is refused."""
    try:
        return convert(message)
    except GpufleetError as refused:
        return str(refused)


def changes(cls: type[Any]) -> Iterator[tuple[str, Any, Any]]:
    """For each field of a dataclass, and of those inside it: its path, and two values that differ in it alone."""
    for path, one, other in _changes(shapes.Record(cls), cls.__name__, 1):
        yield path.removeprefix("."), one, other


def unsaid(
    convert: Callable[[Any], object],
    cls: type[Any],
    *,
    exceptions: Mapping[str, str] = NOTHING,
    prepare: Callable[[Any], Any] = lambda value: value,
) -> list[str]:
    """The fields of a dataclass of which a conversion says nothing, but for `exceptions`, each with its reason.

    An exception is a path, or a pattern of paths, and stands for all that is inside it. `prepare` mends a value that
    cannot be as it was made.
    """
    wrong: list[str] = []
    needed: set[str] = set()
    for path, one, other in changes(cls):
        excepted = next((each for each in exceptions if _covers(each, path)), None)
        is_said = convert(prepare(one)) != convert(prepare(other))
        if not is_said and excepted is None:
            wrong.append(f"{path}: dropped")
        elif not is_said and excepted is not None:
            needed.add(excepted)
    return wrong + [
        f"{each}: excepted, and it is converted, or is no field" for each in exceptions if each not in needed
    ]


def _covers(exception: str, path: str) -> bool:
    return fnmatchcase(path, exception) or path.startswith((f"{exception}.", f"{exception}?"))


def unsaid_of(
    convert: Callable[[Any], object], one: Any, other: Any, *, exceptions: Mapping[str, str] = NOTHING
) -> list[str]:
    """As `unsaid`, of a class whose fields no shape tells: the two values differ in every one of them."""
    wrong: list[str] = []
    for field in fields(one):
        changed = replace(one, **{field.name: getattr(other, field.name)})
        assert changed != one, f"{field.name} is alike in both"
        is_said = convert(changed) != convert(one)
        if is_said == (field.name in exceptions):
            wrong.append(f"{field.name}: excepted, and it is converted" if is_said else f"{field.name}: dropped")
    return wrong


def _changes(shape: Shape, name: str, number: int) -> Iterator[tuple[str, Any, Any]]:
    match shape:
        case shapes.Plain() if name == "lineage":
            yield "", LINEAGE, LINEAGE[::-1]
        case shapes.Plain(type=kind):
            yield "", value_of(shape, name, number, 0), {bool: False, int: 77, float: 7.25, str: "another"}[kind]
        case shapes.Bytes():
            yield "", b"one", b"another"
        case shapes.Enumeration(type=kind):
            members = members_of(kind)
            yield "", members[0], members[-1]
        case shapes.Record(type=kind):
            whole = example(kind, 0)
            for place, field in enumerate(stored_fields(kind), start=1):
                for inside, one, other in _changes(field.shape, field.name, place):
                    pair = replace(whole, **{field.name: one}), replace(whole, **{field.name: other})
                    yield f".{field.name}{inside}", *pair
        case shapes.OneOf(types=kinds):
            for each in kinds:
                for inside, one, other in _changes(shapes.Record(each), name, number):
                    yield f".{each.__name__}{inside}", one, other
        case shapes.Maybe(inner=inner):
            yield "?", value_of(inner, name, number, 0), None
            yield from _changes(inner, name, number)
        case shapes.Sequence(item=item):
            for inside, one, other in _changes(item, name, number):
                yield inside, (one,), (other,)
        case shapes.Group(item=item):
            for inside, one, other in _changes(item, name, number):
                yield inside, frozenset({one}), frozenset({other})
        case shapes.Row(items=items):
            kept = list(value_of(shape, name, number, 0))
            for place, item in enumerate(items):
                for inside, one, other in _changes(item, name, number + place):
                    before, after = kept[:place], kept[place + 1 :]
                    yield f"[{place}]{inside}", (*before, one, *after), (*before, other, *after)
        case shapes.Table(key=key, value=value):
            yield "{}", {value_of(key, name, number, 0): value_of(value, name, number, 0)}, {}
            for inside, one, other in _changes(value, name, number):
                at = value_of(key, name, number, 0)
                yield f"{{}}{inside}", {at: one}, {at: other}
        case _:
            assert_never(shape)


def _is_map(field: Any) -> bool:
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


def _entered(message: Message, field: Any) -> Message:
    inner = getattr(message, field.name)
    if not field.is_repeated:
        return inner  # type: ignore[no-any-return]
    return inner[0] if inner else inner.add()  # type: ignore[no-any-return]


def _something(field: Any, path: str) -> Any:
    if _is_map(field):
        inner = field.message_type
        return {_single(inner.fields_by_name["key"], path): _single(inner.fields_by_name["value"], path)}
    single = _single(field, path)
    return [single] if field.is_repeated else single


def _single(field: Any, path: str) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_BOOL:
            return True
        case kind if kind in INTEGERS:
            return field.number + 1
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return field.number + 0.5
        case FieldDescriptor.CPPTYPE_ENUM:
            return field.enum_type.values[-1].number
        case FieldDescriptor.CPPTYPE_STRING:
            is_bytes = field.type == FieldDescriptor.TYPE_BYTES
            if field.name == "lineage":
                return LINEAGE
            return path.encode() if is_bytes else path.rpartition(".")[2]
        case _ if field.message_type.full_name == SPANS:
            return timedelta(seconds=field.number + 1)
        case _ if field.message_type.full_name == TIMES:
            return datetime.fromtimestamp(BEGIN_SECONDS + field.number, UTC)
        case _:
            return field.message_type  # a message without fields: that it is there says it
