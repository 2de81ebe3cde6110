"""The payload codec: every storable shape comes back equal, old formats are upgraded, trouble is named."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NewType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.store.codec import Codec, PayloadTooNew
from scheduler.store.decoding import DecodeError, Node
from scheduler.store.encoding import EncodeError
from scheduler.store.shapes import NotStorable

ItemId = NewType("ItemId", int)


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Circle:
    radius: int
    colour: Colour = Colour.RED


@dataclass(frozen=True, slots=True, kw_only=True)
class Square:
    side: float = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """One field of every shape that can be stored."""

    id: ItemId
    title: str = ""
    grace_seconds: int = 30
    is_public: bool = False
    thumbnail: bytes = b""
    main: Circle | Square
    spare: Circle | Square | None = None
    frame: Square | None = None
    colours: frozenset[Colour] = frozenset()
    parts: tuple[Circle | Square, ...] = ()
    corner: tuple[int, str] = (0, "")
    labels: Mapping[str, int] = field(default_factory=dict)
    by_circle: Mapping[Circle, tuple[int, ...]] = field(default_factory=dict)
    children: tuple[Drawing, ...] = ()


circles = st.builds(Circle, radius=st.integers(), colour=st.sampled_from(Colour))
squares = st.builds(Square, side=st.floats(allow_nan=False, allow_infinity=False))
figures = circles | squares
# Paths with bytes that are not UTF-8 reach Python as lone surrogates.
texts = st.text(st.characters(codec=None), max_size=8)


def drawings(children: st.SearchStrategy[tuple[Drawing, ...]]) -> st.SearchStrategy[Drawing]:
    return st.builds(
        Drawing,
        id=st.integers().map(ItemId),
        title=texts,
        grace_seconds=st.sampled_from([0, 30, 31]),
        is_public=st.booleans(),
        thumbnail=st.binary(max_size=8),
        main=figures,
        spare=st.none() | figures,
        frame=st.none() | squares,
        colours=st.frozensets(st.sampled_from(Colour)),
        parts=st.lists(figures, max_size=3).map(tuple),
        corner=st.tuples(st.integers(), texts),
        labels=st.dictionaries(texts, st.integers(), max_size=3),
        by_circle=st.dictionaries(circles, st.just((1, 2)), max_size=2),
        children=children,
    )


leaves = drawings(st.just(()))
any_drawing = drawings(st.lists(leaves, max_size=2).map(tuple))
small = Drawing(id=ItemId(7), main=Circle(radius=2))


@given(any_drawing)
def test_every_storable_value_comes_back_equal(drawing: Drawing) -> None:
    codec = Codec()
    payload = codec.encode(drawing)
    payload.encode("utf-8")
    back = codec.decode(Drawing, payload)
    assert back == drawing
    assert codec.encode(back) == payload


def test_empty_defaults_are_left_out_and_telling_defaults_are_written() -> None:
    assert json.loads(Codec().encode(small)) == {
        "v": 1,
        "id": 7,
        "grace_seconds": 30,
        "main": {"$": "Circle", "radius": 2, "colour": "RED"},
        "corner": [0, ""],
    }


def test_equal_sets_are_written_equally() -> None:
    there = Drawing(id=ItemId(1), main=Square(), colours=frozenset([Colour.RED, Colour.BLUE]))
    back = Drawing(id=ItemId(1), main=Square(), colours=frozenset([Colour.BLUE, Colour.RED]))
    assert Codec().encode(there) == Codec().encode(back)


def test_a_mapping_keeps_its_order_and_cannot_be_changed_after_reading() -> None:
    drawing = Drawing(id=ItemId(1), main=Square(), labels={"b": 1, "a": 2})
    labels = Codec().decode(Drawing, Codec().encode(drawing)).labels
    assert list(labels) == ["b", "a"]
    assert isinstance(labels, MappingProxyType)


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        ('{"v":1,"id":1', "Drawing: not JSON"),
        ("[]", "Drawing: the payload does not say its format"),
        ('{"id":1}', "Drawing: the payload does not say its format"),
        ('{"v":1,"id":1,"main":{"$":"Square"},"size":3}', "Drawing.size: unknown field"),
        ('{"v":1,"id":1}', "Drawing: missing field 'main'"),
        ('{"v":1,"id":"1","main":{"$":"Square"}}', "Drawing.id: expected int, got '1'"),
        ('{"v":1,"id":true,"main":{"$":"Square"}}', "Drawing.id: expected int, got True"),
        ('{"v":1,"id":1,"main":{"radius":1}}', "Drawing.main: expected an object with '\\$'"),
        ('{"v":1,"id":1,"main":{"$":"Oval"}}', "Drawing.main: unknown class 'Oval', expected one of Circle"),
        ('{"v":1,"id":1,"main":{"$":"Circle","radius":[]}}', "Drawing.main: Circle.radius: expected int"),
        ('{"v":1,"id":1,"main":{"$":"Circle","colour":"PINK","radius":1}}', "Colour has no member 'PINK'"),
        ('{"v":1,"id":1,"main":{"$":"Square"},"thumbnail":"é"}', "Drawing.thumbnail: expected base64"),
        ('{"v":1,"id":1,"main":{"$":"Square"},"parts":{}}', "Drawing.parts: expected a list"),
        ('{"v":1,"id":1,"main":{"$":"Square"},"corner":[1]}', "Drawing.corner: expected 2 items"),
        ('{"v":1,"id":1,"main":{"$":"Square"},"by_circle":[[1]]}', "Drawing.by_circle: expected a key"),
    ],
)
def test_a_payload_that_cannot_be_read_names_class_and_field(payload: str, complaint: str) -> None:
    with pytest.raises(DecodeError, match=complaint):
        Codec().decode(Drawing, payload)


def test_a_value_that_could_not_be_read_back_is_refused_before_it_is_written() -> None:
    wrong = Drawing(id=ItemId(1), main=Circle(radius=1.0))  # type: ignore[arg-type]
    with pytest.raises(EncodeError, match=r"Drawing\.main: Circle\.radius: expected int, got 1\.0"):
        Codec().encode(wrong)


def test_a_payload_of_a_newer_format_is_told_apart_from_a_broken_one() -> None:
    with pytest.raises(PayloadTooNew, match="format 2, this program knows 1"):
        Codec().decode(Drawing, '{"v":2}')


def test_old_objects_are_upgraded_step_by_step_wherever_they_occur() -> None:
    def radius_was_called_size(node: Node) -> Node:
        return {"radius": node.pop("size"), **node}

    def radius_was_in_halves(node: Node) -> Node:
        return {**node, "radius": node["radius"] // 2}

    codec = Codec(3, {("Circle", 1): radius_was_called_size, ("Circle", 2): radius_was_in_halves})
    oldest = '{"v":1,"id":1,"main":{"$":"Circle","size":8},"parts":[{"$":"Circle","size":6}]}'
    older = '{"v":2,"id":1,"main":{"$":"Circle","radius":8},"parts":[{"$":"Circle","radius":6}]}'
    newest = '{"v":3,"id":1,"main":{"$":"Circle","radius":4},"parts":[{"$":"Circle","radius":3}]}'
    expected = Drawing(id=ItemId(1), main=Circle(radius=4), parts=(Circle(radius=3),))
    assert [codec.decode(Drawing, payload) for payload in (oldest, older, newest)] == [expected] * 3


def test_a_class_that_got_another_name_is_found_by_its_old_one() -> None:
    def disc_became_circle(node: Node) -> Node:
        return {"$": "Circle", **node}

    codec = Codec(2, {("Disc", 1): disc_became_circle})
    drawing = codec.decode(Drawing, '{"v":1,"id":1,"main":{"$":"Disc","radius":3}}')
    assert drawing.main == Circle(radius=3)


@dataclass(frozen=True)
class WithList:
    items: list[int]


@dataclass(frozen=True)
class WithMixedUnion:
    item: int | str


@dataclass(frozen=True)
class WithTakenName:
    v: int


@dataclass(frozen=True)
class WithHiddenField:
    total: int = field(init=False, default=0)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (WithList([1]), "WithList.items: the store cannot write list"),
        (WithMixedUnion(1), "WithMixedUnion.item: members of a union must be dataclasses"),
        (WithTakenName(1), "WithTakenName.v: the name 'v' is taken"),
        (WithHiddenField(), "WithHiddenField.total: a field that cannot be given"),
        (3, "int is not a dataclass"),
    ],
)
def test_a_class_that_cannot_be_stored_is_refused_at_its_first_use(value: object, complaint: str) -> None:
    with pytest.raises(NotStorable, match=complaint):
        Codec().encode(value)
    with pytest.raises(NotStorable, match=complaint):
        Codec().encode(value)
