"""A field that may be absent says something by being there: a number that is 0 is shown again, and read again."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from gpufleet.fleet.submitting.job_options import JobOption, OptionKind, Sets
from gpufleet.fleet.submitting.option_kinds import Values, add_typed, is_said, shown

NUMBERS = {
    OptionKind.NUMBER: ("int32", FieldDescriptorProto.TYPE_INT32, 0, ("0",)),
    OptionKind.SIZE: ("int64", FieldDescriptorProto.TYPE_INT64, "0B", ("0B",)),
}
"""The kinds of options that read a number: the field, its type, what is typed, and what is shown."""


@cache
def spec_class() -> Any:
    """A spec as a later version may have it: each number and a flag may be absent, and one number may not."""
    file = FileDescriptorProto(name="later.proto", package="later", syntax="proto3")
    message = file.message_type.add(name="Spec")
    fields = [(name, kind) for name, kind, _, _ in NUMBERS.values()]
    fields += [("flag", FieldDescriptorProto.TYPE_BOOL), ("text", FieldDescriptorProto.TYPE_STRING)]
    for index, (name, kind) in enumerate(fields):
        message.oneof_decl.add(name=f"_{name}")
        message.field.add(
            name=name,
            number=index + 1,
            type=kind,
            label=FieldDescriptorProto.LABEL_OPTIONAL,
            proto3_optional=True,
            oneof_index=index,
        )
    message.field.add(
        name="plain",
        number=len(fields) + 1,
        type=FieldDescriptorProto.TYPE_INT32,
        label=FieldDescriptorProto.LABEL_OPTIONAL,
    )
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("later.Spec"))


def option(field: str, kind: OptionKind) -> JobOption:
    return JobOption(field, f"--{field}", Sets(field, kind), None)


@pytest.mark.parametrize("kind", NUMBERS)
def test_a_number_that_is_zero_survives(kind: OptionKind) -> None:
    field, _, typed, said = NUMBERS[kind]
    spec, asked = spec_class()(), option(field, kind)
    assert shown(spec, asked) == ()
    assert is_said(asked, typed)
    add_typed(spec, asked, typed)
    assert spec.HasField(field)
    assert shown(spec, asked) == said


@pytest.mark.parametrize(
    ("field", "value", "kind", "expected"),
    [
        ("plain", 0, OptionKind.NUMBER, ()),
        ("plain", 3, OptionKind.NUMBER, ("3",)),
        ("flag", False, OptionKind.FLAG, ()),
        ("flag", True, OptionKind.FLAG, (None,)),
        ("text", "", OptionKind.TEXT, ()),
        ("text", "a", OptionKind.TEXT, ("a",)),
    ],
)
def test_what_cannot_be_typed_is_not_shown(field: str, value: object, kind: OptionKind, expected: Values) -> None:
    spec = spec_class()()
    setattr(spec, field, value)
    assert shown(spec, option(field, kind)) == expected
