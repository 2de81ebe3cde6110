"""Items as bytes of the Open Inference Protocol and back, and answers of every kind, wrong ones too."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.client.core.outcomes import Answer, Backend, ErrorKind, Failure, Reply
from gpufleet.client.protocol import JSON_LENGTH_HEADER, backend_of, decode, encode, error_text, metadata_of
from gpufleet.client.tensors import CannotDecode, CannotEncode, InputSpec, key_of


def sent(items: list[Any], *specs: InputSpec, binary: bool = True) -> tuple[dict[str, Any], bytes]:
    """The JSON of a request, and its binary data."""
    encoded = encode(items, specs, binary=binary, timeout_s=1.5)
    length = int(dict(encoded.headers).get(JSON_LENGTH_HEADER, len(encoded.body)))
    return json.loads(encoded.body[:length]), encoded.body[length:]


def answered(document: Any, items: list[Any], tail: bytes = b"", status: int = 200) -> Reply | Failure:
    head = json.dumps(document).encode()
    return decode(status, {JSON_LENGTH_HEADER.lower(): str(len(head))}, head + tail, items)


def values(reply: Reply | Failure) -> list[Any]:
    assert isinstance(reply, Reply), reply
    return [each.value if isinstance(each, Answer) else each.kind for each in reply.outcomes]


def output(data: Any, shape: list[int], datatype: str = "FP32", **more: Any) -> dict[str, Any]:
    return {"name": "y", "datatype": datatype, "shape": shape, **({"data": data} if data is not None else {}), **more}


@pytest.mark.parametrize(
    ("items", "spec", "datatype", "shape", "data"),
    [
        ([1, 2], InputSpec("x", "FP32"), "FP32", [2], [1, 2]),
        ([[1, 2], [3, 4]], InputSpec("x", "FP32"), "FP32", [2, 2], [1, 2, 3, 4]),
        ([{"a": 1}, None], InputSpec("x", "JSON"), "JSON", [2], [{"a": 1}, None]),
        ([{"x": 1}], InputSpec("x", "JSON"), "JSON", [1], [{"x": 1}]),
        ([{"x": 1}], InputSpec("x", "INT64"), "INT64", [1], [1]),
        (["a", "é"], InputSpec("x", "BYTES"), "BYTES", [2], ["a", "é"]),
        (["a"], InputSpec("x", ""), "BYTES", [1], ["a"]),
        ([1, 2.5], InputSpec("x", ""), "FP64", [2], [1, 2.5]),
        ([True], InputSpec("x", ""), "BOOL", [1], [True]),
        ([{"a": 1}], InputSpec("x", ""), "JSON", [1], [{"a": 1}]),
    ],
)
def test_json_values_go_as_the_model_wants_them(
    items: list[Any], spec: InputSpec, datatype: str, shape: list[int], data: list[Any]
) -> None:
    document, tail = sent(items, spec)
    assert document["inputs"] == [{"name": "x", "datatype": datatype, "shape": shape, "data": data}] and tail == b""
    assert document["parameters"] == {"timeout": 1_500_000}


def test_bytes_and_arrays_go_as_binary_data() -> None:
    document, tail = sent([b"ab", b""], InputSpec("x", "BYTES"))
    assert tail == b"\x02\0\0\0ab\0\0\0\0" and document["parameters"]["binary_data_output"] is True
    assert document["inputs"][0]["parameters"] == {"binary_data_size": 10} and document["inputs"][0]["shape"] == [2]
    document, tail = sent([numpy.array([1, 2], ">i2")], InputSpec("x", "INT16"))
    assert document["inputs"][0]["datatype"] == "INT16" and document["inputs"][0]["shape"] == [1, 2]
    assert tail == b"\x01\0\x02\0"
    document, tail = sent([numpy.array([[1.5]])], binary=False)
    assert document["inputs"][0]["data"] == [1.5] and document["inputs"][0]["shape"] == [1, 1, 1] and tail == b""


def test_several_inputs_go_by_name() -> None:
    specs = (InputSpec("image", "BYTES"), InputSpec("size", "INT64"))
    document, tail = sent([{"image": b"a", "size": 1}, {"image": b"b", "size": 2}], *specs)
    assert [each["name"] for each in document["inputs"]] == ["image", "size"]
    assert document["inputs"][1]["data"] == [1, 2] and tail == b"\x01\0\0\0a\x01\0\0\0b"


@pytest.mark.parametrize(
    ("items", "specs", "binary", "words"),
    [
        ([[1], [1, 2]], [InputSpec("x", "FP32")], True, "differ in length"),
        ([[1], 2], [InputSpec("x", "FP32")], True, "side by side"),
        (["a"], [InputSpec("x", "FP32")], True, "takes numbers"),
        ([1], [InputSpec("x", "BYTES")], True, "takes text or bytes"),
        ([float("nan")], [InputSpec("x", "JSON")], True, "no JSON value"),
        ([b"\xff"], [InputSpec("x", "BYTES")], False, "leave the setting binary on"),
        ([1], [InputSpec("x"), InputSpec("y")], True, "inputs x, y"),
        ([numpy.array([object()])], [InputSpec("x")], True, "have no datatype"),
    ],
)
def test_what_cannot_be_sent_is_told(items: list[Any], specs: list[InputSpec], binary: bool, words: str) -> None:
    with pytest.raises(CannotEncode, match=words):
        encode(items, specs, binary=binary, timeout_s=1.0)


def test_items_share_a_request_by_what_they_are() -> None:
    one, other = numpy.zeros((2, 3)), numpy.zeros((3, 2))
    assert key_of(one) == key_of(one + 1) != key_of(other) and key_of(one) != key_of(one.astype("f4"))
    assert key_of(b"a") == key_of(bytearray(b"b")) != key_of("a") == key_of({"a": 1}) == key_of(None)
    assert key_of({"x": one}) == key_of({"x": one + 1}) != key_of({"x": other})
    for wrong in ({1, 2}, object(), {"x": b"", "y": {1}}):
        assert isinstance(key_of(wrong), Failure)


def test_answers_of_json_come_back_item_by_item() -> None:
    assert values(answered({"outputs": [output([1, 2], [2])]}, [0, 0])) == [1, 2]
    assert values(answered({"outputs": [output([1, 2, 3, 4], [2, 2])]}, [0, 0])) == [[1, 2], [3, 4]]
    assert values(answered({"outputs": [output([[1, 2], [3, 4]], [2, 2])]}, [0, 0])) == [[1, 2], [3, 4]]
    assert values(answered({"outputs": [output(list(range(8)), [2, 2, 2])]}, [0, 0])) == [
        [[0, 1], [2, 3]],
        [[4, 5], [6, 7]],
    ]
    assert values(answered({"outputs": [output([{"a": 1}, None], [2], "JSON")]}, [0, 0])) == [{"a": 1}, None]
    two = [output([1], [1]), {**output(["t"], [1], "BYTES"), "name": "label"}]
    assert values(answered({"outputs": two}, [0])) == [{"y": 1, "label": "t"}]


def test_binary_answers_come_back_as_what_was_sent() -> None:
    said = {"outputs": [output(None, [2, 1], parameters={"binary_data_size": 8})]}
    tail = struct.pack("<2f", 1.5, 2.5)
    assert values(answered(said, [b"", b""], tail)) == [[1.5], [2.5]]
    first, second = values(answered(said, [numpy.zeros(1), numpy.zeros(1)], tail))
    assert first.dtype == numpy.float32 and first.tolist() == [1.5] and second.tolist() == [2.5]
    texts = {"outputs": [output(None, [2], "BYTES", parameters={"binary_data_size": 10})]}
    assert values(answered(texts, [b"", b""], b"\x02\0\0\0ab\0\0\0\0")) == [b"ab", b""]
    objects = {"outputs": [output(None, [1], "JSON", parameters={"binary_data_size": 6})]}
    assert values(answered(objects, [b""], b"\x02\0\0\0{}")) == [{}]


def test_texts_that_stand_for_something_else_are_read_as_that() -> None:
    said = {"outputs": [output(['{"a": 1}', ""], [2], "BYTES", parameters={"content_type": "json"})]}
    assert values(answered(said, ["", ""])) == [{"a": 1}, None]
    said = {"outputs": [output(["/w==", "YQ=="], [2], "BYTES", parameters={"content_type": "base64"})]}
    assert values(answered(said, ["", ""])) == [b"\xff", b"a"]
    halves = {"outputs": [output(None, [2], "BF16", parameters={"binary_data_size": 4})]}
    assert values(answered(halves, [b"", b""], b"\x80\x3f\x00\xc0")) == [1.0, -2.0]


def test_errors_of_items_are_read_before_the_outputs() -> None:
    said = {
        "parameters": {"errors": {"1": "no face"}, "statuses": {"1": 422}, "device": "cpu"},
        "outputs": [output([0.9, 0.0, 0.4], [3])],
    }
    reply = answered(said, [0, 0, 0])
    assert values(reply) == [0.9, ErrorKind.REJECTED, 0.4]
    assert isinstance(reply, Reply) and reply.backend is Backend.CPU
    assert reply.outcomes[1] == Failure(ErrorKind.REJECTED, "no face", 422)


def test_a_batch_of_which_no_item_has_an_answer_tells_each_items_error() -> None:
    said = {"error": "late", "parameters": {"errors": {"0": "late", "1": "bad"}, "statuses": {"0": 504, "1": 422}}}
    assert values(answered(said, [0, 0], status=504)) == [ErrorKind.TIMED_OUT, ErrorKind.REJECTED]
    alone = answered({"error": "bad"}, [0], status=422)
    assert alone == Failure(ErrorKind.REJECTED, "bad", 422)


def test_retry_after_is_read_where_it_is_a_number() -> None:
    for text, expected in (("7", 7.0), ("Mon, 23 Nov 2026 16:00:00 GMT", None), ("-1", None), ("", None)):
        failure = decode(503, {"retry-after": text}, b"{}", [0])
        assert isinstance(failure, Failure) and failure.retry_after_s == expected


@pytest.mark.parametrize(
    "document",
    [
        [],
        {},
        {"outputs": []},
        {"outputs": [1]},
        {"outputs": [output([1], [1])]},
        {"outputs": [output([1, 2, 3], [2])]},
        {"outputs": [output([1, 2], [2, 10**12])]},
        {"outputs": [output([1, 2], [-2])]},
        {"outputs": [output("ab", [2])]},
        {"outputs": [output(None, [2])]},
        {"outputs": [output(None, [2], parameters={"binary_data_size": 8})]},
        {"outputs": [output(None, [2], parameters={"binary_data_size": -1})]},
        {"outputs": [output(None, [2], "WHAT", parameters={"binary_data_size": 0})]},
        {"outputs": [output([1, 2], [2])], "parameters": {"errors": {"2": "not asked"}}},
        {"outputs": [output([1, 2], [2])], "parameters": {"errors": [1]}},
    ],
)
def test_an_answer_that_breaks_the_protocol_is_no_answer(document: Any) -> None:
    failure = answered(document, [b"", b""])
    assert isinstance(failure, Failure) and failure.kind is ErrorKind.BAD_ANSWER


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(
    status=st.sampled_from([200, 200, 400, 429, 500, 503]),
    document=JSON
    | st.fixed_dictionaries(
        {
            "outputs": st.lists(
                st.fixed_dictionaries(
                    {"datatype": st.sampled_from(["FP32", "BYTES", "JSON", "FP16", "BOOL"])},
                    optional={
                        "name": JSON,
                        "shape": JSON | st.lists(st.integers(-1, 4), max_size=3),
                        "data": JSON,
                        "parameters": st.fixed_dictionaries(
                            {},
                            optional={
                                "binary_data_size": st.integers(-1, 20),
                                "content_type": st.sampled_from(["json", "base64", "str"]),
                            },
                        ),
                    },
                ),
                max_size=2,
            )
        },
        optional={"parameters": st.fixed_dictionaries({"errors": JSON, "statuses": JSON})},
    ),
    tail=st.binary(max_size=20),
    length=st.none() | st.integers(-5, 500) | st.text(max_size=4),
    is_array=st.booleans(),
)
def test_no_answer_makes_the_client_stumble(
    status: int, document: Any, tail: bytes, length: object, is_array: bool
) -> None:
    head = json.dumps(document).encode()
    headers = {JSON_LENGTH_HEADER.lower(): str(len(head) if length is None else length), "retry-after": str(length)}
    items: list[Any] = [numpy.zeros(2), numpy.zeros(2)] if is_array else [b"", b""]
    reply = decode(status, headers, head + tail, items)
    assert isinstance(reply, Failure) or len(reply.outcomes) == 2


@given(JSON)
def test_no_metadata_makes_the_client_stumble(document: Any) -> None:
    body = json.dumps(document).encode()
    error_text(body)
    try:
        metadata = metadata_of(body)
    except CannotDecode:
        return
    assert metadata.batch_max >= 0


def test_a_device_says_the_backend() -> None:
    for text, backend in (
        ("cuda:0 (NVIDIA H200, CUDA 13.0)", Backend.GPU),
        ("cpu", Backend.CPU),
        ("CPU:0", Backend.CPU),
    ):
        assert backend_of(text) is backend
    assert backend_of(None) is None and backend_of("") is None


@given(st.lists(st.binary(max_size=9), min_size=1, max_size=9))
def test_bytes_survive_the_way_there_and_back(items: list[bytes]) -> None:
    document, tail = sent(list(items), InputSpec("x", "BYTES"))
    size = document["inputs"][0]["parameters"]["binary_data_size"]
    said = {"outputs": [output(None, [len(items)], "BYTES", parameters={"binary_data_size": size})]}
    assert values(answered(said, list(items), tail)) == items
