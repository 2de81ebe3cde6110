"""What the stored format looks like: a payload of every kind in which every field says something, as lines of text.

The values are made from the stored classes themselves, so that no field can be forgotten: a text says the field's name,
a number its place among the fields. A line is `entity KIND PAYLOAD`, `record KIND PAYLOAD`, `enum NAME MEMBERS` or
`left_out CLASS FIELD=VALUE…`; an entity has a line for each alternative of its widest union (a job has one a state).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING
from enum import Enum
from typing import Any, assert_never

from scheduler.store import shapes
from scheduler.store.codec import Codec
from scheduler.store.kinds import ENTITY_CLASSES, RECORD_CLASSES
from scheduler.store.shapes import Shape, stored_fields

Line = tuple[str, str, str]
"""What it is (entity, record, enum or left_out), of which kind, and its payload, members or values."""

CLASSES: dict[str, Mapping[str, type[Any]]] = {"entity": ENTITY_CLASSES, "record": RECORD_CLASSES}


def lines() -> list[Line]:
    """The format as the code has it now."""
    codec = Codec()
    found: list[Line] = []
    reached: set[Shape] = set()
    for what, classes in CLASSES.items():
        for kind, cls in sorted(classes.items()):
            within = set(_reached(shapes.Record(cls)))
            widest = max((len(each.types) for each in within if isinstance(each, shapes.OneOf)), default=1)
            count = widest if what == "entity" else 1
            found += [(what, kind, codec.encode(example(cls, variant))) for variant in range(count)]
            reached |= within
    enums = [each.type for each in reached if isinstance(each, shapes.Enumeration)]
    found += sorted(("enum", each.__name__, " ".join(each.__members__)) for each in enums)
    found += sorted(("left_out", each.type.__name__, _left_out(each.type)) for each in _dataclasses(reached))
    return [line for line in found if line[2]]


def parse(text: str) -> list[Line]:
    """The lines of a golden file."""
    rows = [line.split(" ", 2) for line in text.splitlines() if line and not line.startswith("#")]
    return [(what, kind, rest) for what, kind, rest in rows]


def lost(pinned: list[Line], codec: Codec) -> list[str]:
    """What was stored once and does not come back as it was: a field, a member, a kind, or a whole payload."""
    wrong: list[str] = []
    words = {(what, kind): set(rest.split()) for what, kind, rest in lines() if what not in CLASSES}
    for what, kind, rest in pinned:
        if what not in CLASSES:
            gone = [word for word in rest.split() if word not in words.get((what, kind), ())]
            if what == "enum":
                wrong += [f"{kind} has no member {word} any more" for word in gone]
            else:
                wrong += [f"a {kind} without {word.split('=')[0]} does not mean {word} any more" for word in gone]
            continue
        cls = CLASSES[what].get(kind)
        if cls is None:
            wrong.append(f"no {what} is of the kind {kind} any more")
            continue
        try:
            again = json.loads(codec.encode(codec.decode(cls, rest)))
        except Exception as problem:
            wrong.append(f"{what} {kind} cannot be read: {problem}")
            continue
        wrong += [f"{what} {kind}: {where} does not come back" for where in _differing(json.loads(rest), again, kind)]
    return wrong


def _differing(before: Any, after: Any, where: str) -> Iterator[str]:
    """What is in the first and not, or not equally, in the second; what only the second has is new and no loss."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if key not in after:
                yield f"{where}.{key}"
            else:
                yield from _differing(value, after[key], f"{where}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for one, other in zip(before, after, strict=True):
            yield from _differing(one, other, where)
    elif before != after:
        yield where


def example(cls: type, variant: int) -> Any:
    """A value of a dataclass in which every field says something; `variant` chooses members of enums and unions."""
    fields = enumerate(stored_fields(cls), start=1)
    return cls(**{field.name: value_of(field.shape, field.name, number, variant) for number, field in fields})


def members_of(kind: type[Enum]) -> list[Enum]:
    """The members of an enum, or, of one that is divided and has none itself, those of its parts."""
    return list(kind) or [member for part in kind.__subclasses__() for member in part]


LINEAGE = "0123456789abcdef"


def value_of(shape: Shape, name: str, number: int, variant: int) -> Any:
    """A value of a shape: a text says `name`, a number is `number`. A lineage has its form wherever it stands."""
    match shape:
        case shapes.Plain(type=kind) if kind is str and name == "lineage":
            return LINEAGE
        case shapes.Plain(type=kind):
            return {bool: True, int: number, float: number + 0.5, str: name}[kind]
        case shapes.Bytes():
            return name.encode()
        case shapes.Enumeration(type=kind):
            members = members_of(kind)
            return members[variant % len(members)]
        case shapes.Record(type=kind):
            return example(kind, variant)
        case shapes.OneOf(types=kinds):
            return example(kinds[variant % len(kinds)], variant)
        case shapes.Maybe(inner=inner):
            return value_of(inner, name, number, variant)
        case shapes.Sequence(item=item):
            return (value_of(item, name, number, variant),)
        case shapes.Row(items=items):
            return tuple(value_of(item, name, number + place, variant) for place, item in enumerate(items))
        case shapes.Group(item=item):
            return frozenset({value_of(item, name, number, variant)})
        case shapes.Table(key=key, value=value):
            return {value_of(key, name, number, variant): value_of(value, name, number, variant)}
        case _:
            assert_never(shape)


def _left_out(cls: type) -> str:
    """The fields that are not written where they have these values, as words without blanks."""
    return " ".join(f"{field.name}={field.left_out!r}" for field in stored_fields(cls) if field.left_out is not MISSING)


def _dataclasses(reached: set[Shape]) -> list[shapes.Record]:
    return [each for each in reached if isinstance(each, shapes.Record)]


def _reached(shape: Shape) -> Iterator[Shape]:
    """A shape and all that it is made of."""
    yield shape
    for part in _parts(shape):
        yield from _reached(part)


def _parts(shape: Shape) -> tuple[Shape, ...]:
    match shape:
        case shapes.Plain() | shapes.Bytes() | shapes.Enumeration():
            return ()
        case shapes.Record(type=kind):
            return tuple(field.shape for field in stored_fields(kind))
        case shapes.OneOf(types=kinds):
            return tuple(shapes.Record(kind) for kind in kinds)
        case shapes.Maybe(inner=inner) | shapes.Sequence(item=inner) | shapes.Group(item=inner):
            return (inner,)
        case shapes.Row(items=items):
            return items
        case shapes.Table(key=key, value=value):
            return (key, value)
        case _:
            assert_never(shape)
