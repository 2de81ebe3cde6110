"""Tensors on their way between gRPC and HTTP: what was sent arrives, by each datatype and in each form."""

from __future__ import annotations

import contextlib
import json
import struct
from typing import Any

import numpy as np
import pytest
from gpufleet.v1.open_inference import open_inference_pb2 as pb
from hypothesis import given
from hypothesis import strategies as st

from gateway.open_inference.answers import NotSpoken, answer_of, metadata_of
from gateway.open_inference.requests import CONTENTS, HttpRequest, request_of
from gpufleet.errors import GpufleetError, Reason
from gpufleet.predict import DATATYPES
from inference.predict.requests import read
from inference.predict.tensors import DTYPES, from_bytes

BITS = {"INT8": 8, "INT16": 16, "INT32": 32, "INT64": 64, "UINT8": 8, "UINT16": 16, "UINT32": 32, "UINT64": 64}
ITEM_BYTES = {name: dtype.itemsize for name, dtype in DTYPES.items()} | {"BF16": 2}


def elements(datatype: str) -> st.SearchStrategy[Any]:
    """What a datatype holds."""
    if datatype == "BOOL":
        return st.booleans()
    if datatype == "BYTES":
        return st.binary(max_size=12)
    if datatype in ("FP32", "FP64"):
        return st.floats(width=32 if datatype == "FP32" else 64, allow_nan=False)
    bits = BITS[datatype]
    low = 0 if datatype.startswith("U") else -(2 ** (bits - 1))
    return st.integers(low, low + 2**bits - 1)


@st.composite
def tensors(draw: st.DrawFn) -> tuple[str, list[Any]]:
    datatype = draw(st.sampled_from(sorted(CONTENTS)))
    return datatype, draw(st.lists(elements(datatype), min_size=1, max_size=6))


def asked(datatype: str, shape: list[int], **said: Any) -> pb.ModelInferRequest:
    tensor = pb.ModelInferRequest.InferInputTensor(name="x", datatype=datatype, shape=shape)
    return pb.ModelInferRequest(model_name="m", inputs=[tensor], **said)


def body_of(request: HttpRequest) -> bytes:
    return b"".join((request.head, *request.tensors))


def echoed(request: HttpRequest) -> pb.ModelInferResponse:
    """What a program answers that gives its inputs back."""
    head = json.dumps({"model_name": "m", "model_version": "1", "outputs": json.loads(request.head)["inputs"]}).encode()
    return answer_of(b"".join((head, *request.tensors)), len(head), is_raw=request.is_raw)


@given(tensors())
def test_contents_arrive_as_a_replica_reads_them_and_come_back_as_contents(tensor: tuple[str, list[Any]]) -> None:
    datatype, values = tensor
    request = asked(datatype, [len(values)])
    field = CONTENTS[datatype][0]
    getattr(request.inputs[0].contents, field).extend(values)
    made = request_of(request)
    found = read(body_of(made), str(len(made.head)), ())
    assert [each if isinstance(each, bytes) else each.item() for each in found.items] == values
    answer = echoed(made)
    assert list(getattr(answer.outputs[0].contents, field)) == values and not answer.raw_output_contents
    assert [each.name for each, _ in answer.outputs[0].contents.ListFields()] == [field]


@given(st.sampled_from([each for each in DATATYPES if each not in ("BYTES", "JSON")]), st.integers(1, 5), st.data())
def test_raw_contents_pass_as_they_are(datatype: str, count: int, data: st.DataObject) -> None:
    wide = ITEM_BYTES[datatype] * count
    raw = data.draw(st.binary(min_size=wide, max_size=wide))
    made = request_of(asked(datatype, [count], raw_input_contents=[raw]))
    assert made.tensors == [raw]
    found = read(body_of(made), str(len(made.head)), ())
    sent = from_bytes(datatype, [count], memoryview(raw))
    assert np.array_equal(np.asarray(found.items), np.asarray(sent), equal_nan=True)
    answer = echoed(made)
    assert list(answer.raw_output_contents) == [raw] and not answer.outputs[0].contents.ListFields()


@given(st.binary(max_size=60), st.sampled_from(sorted(CONTENTS)))
def test_any_bytes_of_a_program_are_an_answer_or_none_of_the_protocol(data: bytes, datatype: str) -> None:
    output = {"name": "y", "datatype": datatype, "shape": [1], "parameters": {"binary_data_size": len(data)}}
    for head in (json.dumps({"outputs": [output]}).encode(), data):
        with contextlib.suppress(NotSpoken):
            answer_of(head + data, len(head), is_raw=False)


@pytest.mark.parametrize(
    "head",
    [
        {"outputs": 1},
        {"outputs": [{}]},
        {"outputs": [{"name": "y", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 5}}]},
        {"outputs": [{"name": "y", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": -1}}]},
        {"outputs": [{"name": "y", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": True}}]},
        {"outputs": [{"name": "y", "datatype": "FP32", "shape": ["1"], "parameters": {"binary_data_size": 4}}]},
        {"outputs": [{"name": "y", "datatype": "FP32", "shape": [1], "data": [1.0]}]},
        {"model_name": 7},
        {"parameters": []},
        {"outputs": []},
        [],
    ],
)
def test_what_a_program_says_wrong_is_told_as_its_fault(head: object) -> None:
    text = json.dumps(head).encode()
    with pytest.raises(NotSpoken):
        answer_of(text + b"1234", len(text), is_raw=True)


def test_an_output_that_has_no_contents_of_its_own_makes_the_answer_raw() -> None:
    half = {"name": "h", "datatype": "FP16", "shape": [1], "parameters": {"binary_data_size": 2}}
    whole = {"name": "i", "datatype": "INT8", "shape": [1], "parameters": {"binary_data_size": 1}}
    head = json.dumps({"outputs": [half, whole]}).encode()
    assert list(answer_of(head + b"abc", len(head), is_raw=False).raw_output_contents) == [b"ab", b"c"]


def test_parameters_pass_both_ways_but_for_those_of_how_data_is_sent() -> None:
    request = asked("INT64", [1], id="7", raw_input_contents=[bytes(8)])
    request.parameters["timeout"].int64_param = 5
    request.parameters["share"].double_param = 0.5
    request.parameters["binary_data_output"].bool_param = False
    request.inputs[0].parameters["content_type"].string_param = "str"
    wanted = request.outputs.add(name="y")
    wanted.parameters["binary_data"].bool_param = False
    wanted.parameters["classification"].uint64_param = 2**64 - 1
    head = json.loads(request_of(request).head)
    assert head["id"] == "7" and head["parameters"] == {"timeout": 5, "share": 0.5, "binary_data_output": True}
    assert head["inputs"][0]["parameters"] == {"content_type": "str", "binary_data_size": 8}
    assert head["outputs"] == [{"name": "y", "parameters": {"classification": 2**64 - 1}}]
    said = {"a": True, "b": -1, "c": 2**63, "d": 0.5, "e": "x", "errors": {"1": "bad"}, "n": None}
    told = answer_of(text := json.dumps({"parameters": said}).encode(), len(text), is_raw=True).parameters
    kinds = {name: (each.WhichOneof("parameter_choice"), getattr(each, each.WhichOneof("parameter_choice") or ""))
             for name, each in told.items()}  # fmt: skip
    assert kinds == {
        "a": ("bool_param", True),
        "b": ("int64_param", -1),
        "c": ("uint64_param", 2**63),
        "d": ("double_param", 0.5),
        "e": ("string_param", "x"),
        "errors": ("string_param", '{"1":"bad"}'),
        "n": ("string_param", "null"),
    }


def wrong(change: str) -> pb.ModelInferRequest:
    request = asked("FP32", [1], raw_input_contents=[bytes(4)])
    tensor = request.inputs[0]
    match change:
        case "raw of another number":
            request.raw_input_contents.append(b"")
        case "both":
            tensor.contents.fp32_contents.append(1)
        case "none":
            del request.raw_input_contents[:]
        case "another field" | "two fields":
            del request.raw_input_contents[:]
            tensor.contents.fp64_contents.append(1)
            if change == "two fields":
                tensor.contents.fp32_contents.append(1)
        case "no field":
            del request.raw_input_contents[:]
            tensor.datatype = "BF16"
        case "too large":
            del request.raw_input_contents[:]
            tensor.datatype = "INT8"
            tensor.contents.int_contents.append(128)
        case "reserved":
            tensor.parameters["binary_data_size"].int64_param = 9
        case "no value":
            request.parameters["timeout"].SetInParent()
        case "not finite":
            request.parameters["timeout"].double_param = float("nan")
    return request


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("raw of another number", "raw_input_contents: has 2 tensors, and there are 1 inputs"),
        ("both", "inputs[0].contents: does not go with raw_input_contents: one or the other"),
        ("none", "inputs[0].contents: is missing: FP32 goes into fp32_contents, or into raw_input_contents"),
        ("another field", "inputs[0].contents: has fp64_contents: FP32 goes into fp32_contents, and into it alone"),
        (
            "two fields",
            "inputs[0].contents: has fp32_contents, fp64_contents: FP32 goes into fp32_contents, and into it",
        ),
        ("no field", "inputs[0].contents: has no field for 'BF16': send it in raw_input_contents"),
        ("too large", "inputs[0].contents.int_contents: has a number that INT8 does not hold"),
        ("reserved", "inputs[0].parameters['binary_data_size']: is of the protocol over HTTP: leave it out"),
        ("no value", "parameters['timeout']: has no value"),
        ("not finite", "parameters['timeout']: must be a finite number"),
    ],
)
def test_a_wrong_field_is_named(change: str, said: str) -> None:
    with pytest.raises(GpufleetError) as refused:
        request_of(wrong(change))
    assert refused.value.reason is Reason.INVALID_ARGUMENT and refused.value.message.startswith(said)


@pytest.mark.parametrize("name", ["", "a/b", "..", "m\r\nx: y", "m" * 64, "é"])
def test_a_name_that_no_program_has_is_no_path(name: str) -> None:
    with pytest.raises(GpufleetError) as refused:
        request_of(pb.ModelInferRequest(model_name=name))
    assert refused.value.reason is Reason.MODEL_NOT_FOUND


def test_a_version_is_one_part_of_the_path() -> None:
    made = request_of(pb.ModelInferRequest(model_name="m", model_version="1/../../x?y#z\r\n"))
    assert made.path == b"/v2/models/m/versions/1%2F..%2F..%2Fx%3Fy%23z%0D%0A/infer"


def test_texts_have_their_lengths_before_them() -> None:
    request = asked("BYTES", [2])
    request.inputs[0].contents.bytes_contents.extend([b"ab", b""])
    assert request_of(request).tensors == [struct.pack("<I2sI", 2, b"ab", 0)]


def test_metadata_of_a_model_pass() -> None:
    said = {"name": "m", "versions": ["1"], "platform": "p", "parameters": {"device": "cpu"}}
    tensor = {"name": "x", "datatype": "FP32", "shape": [-1, 3]}
    found = metadata_of(json.dumps(said | {"inputs": [tensor], "outputs": []}).encode())
    assert (found.name, list(found.versions), found.platform, len(found.outputs)) == ("m", ["1"], "p", 0)
    assert (found.inputs[0].name, found.inputs[0].datatype, list(found.inputs[0].shape)) == ("x", "FP32", [-1, 3])
    for wrong_one in (b"<html>", b"[]", b'{"name": 1}', b'{"inputs": [1]}', b'{"versions": 1}'):
        with pytest.raises(NotSpoken):
            metadata_of(wrong_one)
