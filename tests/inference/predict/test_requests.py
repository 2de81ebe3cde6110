"""Bodies become items, or an error that names the field; whatever is sent, nothing else comes of it."""

from __future__ import annotations

import difflib
import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.predict import TensorSpec
from inference.predict.requests import RequestError, read
from inference.predict.tensors import DTYPES, WrongData, from_bytes, from_json, to_bytes, to_json

IMAGE = (TensorSpec("a", "FP32", (2, -1)), TensorSpec("b", "BYTES"))


def one(**fields: Any) -> bytes:
    tensor = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1.5], **fields}
    return json.dumps({"inputs": [{key: value for key, value in tensor.items() if value is not None}]}).encode()


WRONG: list[tuple[bytes, str]] = [
    (b"", "the body: is no JSON"),
    (b"[" * 100_000, "the body: is no JSON"),
    (b"[]", "the body: must be an object"),
    (b"{}", "inputs: must be a list"),
    (b'{"inputs": []}', "inputs: must be a list of 1 to 100"),
    (b'{"inputs": [3]}', "inputs[0]: must be an object"),
    (b'{"input": []}', 'the body: "input" is none of id, parameters, inputs, outputs; did you mean "inputs"?'),
    (b'{"id": 3, "inputs": []}', "id: must be a text"),
    (b'{"parameters": {"timeout": -1}, "inputs": [{}]}', "inputs[0].name: must be a text"),
    (one(name=None), "inputs[0].name: must be"),
    (one(datatype="FP31"), "inputs[0].datatype: 'FP31' is none of BOOL"),
    (one(datatype=["FP32"]), "inputs[0].datatype: ['FP32'] is none of"),
    (one(shape=None), "inputs[0].shape: must be a list of whole numbers"),
    (one(shape=[1.0]), "inputs[0].shape: must be a list of whole numbers"),
    (one(shape=[True]), "inputs[0].shape: must be a list of whole numbers"),
    (one(shape=[]), "inputs[0].shape: must have 1 to 32 numbers"),
    (one(shape=[0], data=[]), "inputs[0].shape: begins with 0"),
    (one(shape=[2]), "inputs[0].data: holds 1 elements, and the shape says 2"),
    (one(shape=[2**62, 2**62]), "inputs[0].data: holds 1 elements"),
    (one(shape=[1, 0, 2**62, 2**62], data=[]), "inputs[0].data: cannot have the shape [1, 0, "),
    (one(data=None), "inputs[0].data: is missing"),
    (one(data=1.5), "inputs[0].data: must be a list"),
    (one(data=["a"]), "inputs[0].data: holds other things than FP32"),
    (one(data=[None]), "inputs[0].data: holds other things than FP32"),
    (one(data=[[1], 2], shape=[2]), "inputs[0].data: holds lists of different lengths"),
    (one(datatype="UINT8", data=[256]), "inputs[0].data: holds numbers beyond UINT8: 0 to 255"),
    (one(datatype="INT64", data=[2**70]), "inputs[0].data: "),
    (one(datatype="INT32", data=[1.5]), "inputs[0].data: holds other things than INT32"),
    (one(datatype="BOOL", data=[1]), "inputs[0].data: holds other things than BOOL"),
    (one(datatype="BYTES", data=[1]), "inputs[0].data: holds other things than texts"),
    (one(datatype="BYTES", data=["\ud800"]), "inputs[0].data: holds a text that is no Unicode"),
    (
        one(datatype="BYTES", data=["?"], parameters={"content_type": "base64"}),
        "inputs[0].data: holds a text that is no b",
    ),
    (
        one(datatype="BYTES", data=["{"], parameters={"content_type": "json"}),
        "inputs[0].data: holds a text that is no J",
    ),
    (one(parameters={"content_type": "str"}), "inputs[0].parameters.content_type: goes with BYTES"),
    (one(parameters={"shared_memory_region": "r"}), 'inputs[0].parameters: "shared_memory_region" is none of'),
    (one(parameters={"binary_data_size": 4}), "inputs[0].parameters.binary_data_size: is 4, and 0 bytes are left"),
    (one(parameters={"binary_data_size": 0}), "inputs[0].data: does not go with binary_data_size"),
    (one(datatype="JSON", shape=[2], data=[1]), "inputs[0].data: holds 1 values, and the shape says 2"),
]


@pytest.mark.parametrize("body, words", WRONG)
def test_what_is_wrong_is_named(body: bytes, words: str) -> None:
    with pytest.raises(RequestError) as refused:
        read(body, None, ())
    assert refused.value.status == 400 and refused.value.message.startswith(words), refused.value.message


@pytest.mark.parametrize(
    "more, words",
    [
        ({"parameters": {"timeout": 1.5}}, "parameters.timeout: must be whole microseconds"),
        ({"parameters": {"temperature": 1}}, 'parameters: "temperature" is none of timeout, binary_data_output'),
        ({"parameters": {"binary_data_output": 1}}, "parameters.binary_data_output: must be true or false"),
        ({"outputs": {}}, "outputs: must be a list"),
        ({"outputs": [{"name": "y"}, {"name": "y"}]}, "outputs[1].name: must be a text, and name each output once"),
        ({"outputs": [{"name": "y", "parameters": {"classification": 3}}]}, 'outputs[0].parameters: "classification"'),
    ],
)
def test_what_is_wrong_beside_the_inputs_is_named(more: dict[str, Any], words: str) -> None:
    body = json.dumps({**json.loads(one()), **more}).encode()
    with pytest.raises(RequestError, match="^" + words.replace("(", r"\(").replace("[", r"\[")):
        read(body, None, ())


def image(**fields: Any) -> dict[str, Any]:
    return {"name": "a", "shape": [2, 2, 1], "datatype": "FP32", "data": [1, 2, 3, 4], **fields}


LABEL = {"name": "b", "shape": [2], "datatype": "BYTES", "data": ["x", "y"]}


@pytest.mark.parametrize(
    "inputs, words",
    [
        ([image()], "inputs: lack b"),
        ([image(), LABEL, {**LABEL, "name": "c"}], 'inputs: "c" is none of a, b'),
        ([image(), LABEL, LABEL], "inputs: has two of one name"),
        ([image(datatype="FP64"), LABEL], "input a: is FP64, and the model takes FP32"),
        ([image(shape=[2, 1, 2]), LABEL], "input a: has the shape [2, 1, 2], and the model takes [-1, 2, -1]"),
        ([image(), {**LABEL, "shape": [2, 1]}], "input b: has the shape [2, 1], and the model takes [-1]"),
        ([image(), {**LABEL, "shape": [1], "data": ["x"]}], "inputs: hold different numbers of items: [1, 2]"),
    ],
)
def test_inputs_are_those_that_the_class_declares(inputs: list[Any], words: str) -> None:
    with pytest.raises(RequestError) as refused:
        read(json.dumps({"inputs": inputs}).encode(), None, IMAGE)
    assert refused.value.message.startswith(words)


def test_items_are_cut_from_the_inputs_and_alike_by_shape() -> None:
    asked = read(json.dumps({"inputs": [LABEL, image()]}).encode(), None, IMAGE)
    assert [sorted(item) for item in asked.items] == [["a", "b"]] * 2
    assert asked.items[1]["b"] == b"y" and asked.items[1]["a"].tolist() == [[3.0], [4.0]]
    wide = read(json.dumps({"inputs": [image(shape=[2, 2, 2], data=list(range(8))), LABEL]}).encode(), None, IMAGE)
    assert wide.key != asked.key == read(json.dumps({"inputs": [image(), LABEL]}).encode(), None, IMAGE).key


def test_binary_data_of_several_inputs_lies_one_behind_the_other() -> None:
    raw = np.arange(4, dtype="<f4").tobytes()
    texts = b"".join(struct.pack("<I", len(each)) + each for each in (b"x", b"\xff\x00"))
    inputs = [
        {**image(), "parameters": {"binary_data_size": len(raw)}},
        {**LABEL, "parameters": {"binary_data_size": len(texts)}},
    ]
    head = json.dumps({"inputs": [{k: v for k, v in each.items() if k != "data"} for each in inputs]}).encode()
    asked = read(head + raw + texts, str(len(head)), IMAGE)
    assert asked.items[1]["b"] == b"\xff\x00" and asked.items[0]["a"].tolist() == [[0.0], [1.0]]
    for length, words in ((str(len(head) + 900), "says"), ("x", "is no number"), ("1" * 30, "is no number")):
        with pytest.raises(RequestError, match=f"^Inference-Header-Content-Length: .*{words}"):
            read(head + raw + texts, length, IMAGE)
    with pytest.raises(RequestError, match="3 bytes behind the binary data"):
        read(head + raw + texts + b"abc", str(len(head)), IMAGE)


def test_the_shorter_timeout_holds_and_0_says_nothing() -> None:
    body = json.loads(one())
    for said, header_us, holds in ((0, None, None), (5, None, 5), (5, 3, 3), (0, 3, 3), (5, 9, 5)):
        body["parameters"] = {"timeout": said}
        assert read(json.dumps(body).encode(), None, (), timeout_us=header_us).timeout_us == holds


def test_items_without_elements_are_bounded_before_any_is_made() -> None:
    body = one(shape=[10**12, 0], data=[])
    with pytest.raises(RequestError, match="holds 1,000,000,000,000 items, and at most 9 may wait") as refused:
        read(body, None, (), items_max=9)
    assert refused.value.status == 413
    assert len(read(one(shape=[9, 0], data=[]), None, (), items_max=9).items) == 9


def test_a_long_text_among_numbers_is_refused_before_all_others_have_its_length() -> None:
    count = 200_000  # of 200,000 characters each: 160 GB
    for data in (["a" * count] + ["b"] * (count - 1), [1] * (count - 1) + ["a" * count]):
        for nested in (data, [[each] for each in data]):
            with pytest.raises(RequestError, match="holds other things than FP32") as refused:
                read(one(shape=[count], data=nested), None, ())
            assert refused.value.status == 400


def test_a_long_name_is_compared_with_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(difflib, "get_close_matches", None)  # it would take seconds for each million characters
    with pytest.raises(RequestError, match=r"is none of id, parameters, inputs, outputs$"):
        read(json.dumps({"inputs" * 100: 0}).encode(), None, ())


@given(st.binary(max_size=200), st.none() | st.text(max_size=5))
def test_whatever_is_sent_is_a_request_or_an_error(body: bytes, length: str | None) -> None:
    with pytest.raises(RequestError):
        read(body, length, ())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=3), part, max_size=3),
    max_leaves=8,
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(("name", "datatype", "shape", "parameters", "data"), JSON)))
def test_an_input_of_anything_is_items_or_an_error(fields: dict[str, Any]) -> None:
    tensor = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1.5], **fields}
    try:
        asked = read(json.dumps({"inputs": [tensor]}).encode(), None, ())
    except RequestError as refused:
        assert refused.status in (400, 413)
    else:
        assert len(asked.items) == tensor["shape"][0]


@pytest.mark.parametrize("datatype", sorted(DTYPES))
def test_each_datatype_is_the_same_by_json_and_by_bytes(datatype: str) -> None:
    numbers: list[Any] = [True, False, True, True] if datatype == "BOOL" else [0, 1, 100, 3]
    by_json = from_json(datatype, (2, 2), [numbers[:2], numbers[2:]])
    raw = to_bytes(datatype, by_json)
    assert len(raw) == 4 * (2 if datatype == "BF16" else DTYPES[datatype].itemsize)
    by_bytes = from_bytes(datatype, (2, 2), memoryview(raw))
    assert isinstance(by_bytes, np.ndarray) and by_bytes.dtype == DTYPES[datatype] and by_bytes.shape == (2, 2)
    assert to_json(datatype, by_bytes) == to_json(datatype, by_json) == numbers
    with pytest.raises(WrongData, match="bytes are not 4 elements"):
        from_bytes(datatype, (2, 2), memoryview(raw[:-1]))


def test_bfloat16_is_rounded_to_the_nearest_and_what_is_no_number_stays_none() -> None:
    sent = np.array([1.0, 1.00390625, 1.01171875, -np.inf, np.nan], np.float32)
    back = from_bytes("BF16", (5,), memoryview(to_bytes("BF16", sent)))
    assert isinstance(back, np.ndarray) and back[:4].tolist() == [1.0, 1.0, 1.015625, -np.inf] and np.isnan(back[4])


def test_what_is_not_finite_is_null_in_json() -> None:
    assert to_json("FP32", np.array([1, np.nan, np.inf], np.float32)) == [1.0, None, None]


@given(st.lists(st.binary(max_size=6), max_size=5), st.integers(0, 40))
def test_texts_with_their_lengths_are_whole_or_refused(texts: list[bytes], cut: int) -> None:
    raw = to_bytes("BYTES", texts)
    assert from_bytes("BYTES", (len(texts),), memoryview(raw)) == texts
    if cut < len(raw):
        with pytest.raises(WrongData):
            from_bytes("BYTES", (len(texts),), memoryview(raw[:cut]))
