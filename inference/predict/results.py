"""Results of a model: read on its thread into plain values, and put together into the answer of a request."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpufleet.predict import TensorSpec

from .requests import InferRequest, RequestError
from .tensors import DTYPES, NAMES, Array, Data, WrongData, to_bytes, to_json

OUTPUT = "output"
"""The name of the only output of a model that declares none."""

HEADER_LENGTH = "Inference-Header-Content-Length"
VERSION = "1"


@dataclass(frozen=True, slots=True)
class Value:
    """What one item has of one output: an array, or bytes in row-major order; of JSON the text of the value."""

    datatype: str
    shape: tuple[int, ...]
    data: Array | list[bytes]


Values = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class ItemError:
    """What an item has in place of a result."""

    status: int
    message: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent: a status, a body, and how many bytes of it are JSON (0: all of it)."""

    status: int
    body: bytes
    header_length: int = 0
    retry_s: int = 0


def read_result(result: Any, specs: Sequence[TensorSpec]) -> Values:
    """What a model gave for one item, checked. Raises WrongData."""
    if not specs:
        return _undeclared(result)
    if len(specs) == 1 and not (isinstance(result, Mapping) and set(result) == {specs[0].name}):
        result = {specs[0].name: result}
    if not isinstance(result, Mapping) or set(result) != {spec.name for spec in specs}:
        had = f"a dict with {', '.join(map(str, result))}" if isinstance(result, Mapping) else type(result).__name__
        raise WrongData(f"the result is {had:.200}, and should be a dict with {', '.join(each.name for each in specs)}")
    return {spec.name: _declared(spec, result[spec.name]) for spec in specs}


def answer_of(name: str, request: InferRequest, found: Sequence[Values | ItemError]) -> Answer:
    """The answer to a request, of which each item has values or an error."""
    results = list(found)
    first = next((each for each in results if not isinstance(each, ItemError)), None)
    if first is not None:
        results = [each if isinstance(each, ItemError) else _like(first, each) for each in results]
    errors = {str(place): each for place, each in enumerate(results) if isinstance(each, ItemError)}
    parameters = {
        "errors": {place: each.message for place, each in errors.items()},
        "statuses": {place: each.status for place, each in errors.items()},
    }
    if first is None:
        one = errors["0"]
        said = {"error": one.message} | ({"parameters": parameters} if len(results) > 1 else {})
        return Answer(one.status, _dumped(said), retry_s=one.status in (429, 503))
    head: dict[str, Any] = {"model_name": name, "model_version": VERSION}
    if request.id:
        head["id"] = request.id
    if errors:
        head["parameters"] = parameters
    head["outputs"] = outputs = []
    parts: list[bytes] = []
    for output, is_binary in _wanted(request, first):
        values = [None if isinstance(each, ItemError) else each[output] for each in results]
        described, part = _output(output, first[output], values, is_binary=is_binary, speaks_json=request.speaks_json)
        outputs.append(described)
        if part is not None:
            parts.append(part)
    body = _dumped(head)
    return Answer(200, b"".join((body, *parts)), header_length=len(body)) if parts else Answer(200, body)


def error_of(problem: RequestError) -> Answer:
    """The answer to a request that was refused as a whole."""
    return Answer(problem.status, _dumped({"error": problem.message}), retry_s=problem.retry_s)


def _wanted(request: InferRequest, first: Values) -> list[tuple[str, bool]]:
    if request.outputs is None:
        return [(output, request.is_binary) for output in first]
    for output in request.outputs:
        if output not in first:
            raise RequestError(400, f'outputs: "{output[:80]}" is none of {", ".join(first)}')
    return list(request.outputs.items())


def _output(
    name: str, first: Value, values: Sequence[Value | None], *, is_binary: bool, speaks_json: bool
) -> tuple[dict[str, Any], bytes | None]:
    """An output of all items as the protocol has it, and its binary data; zeros and empty texts stand for None."""
    described: dict[str, Any] = {"name": name, "datatype": first.datatype, "shape": [len(values), *first.shape]}
    if first.datatype == "JSON" and speaks_json and not is_binary:
        texts = [b"null" if each is None else each.data[0] for each in values]
        described["data"] = [json.loads(text) for text in texts]
        return described, None
    parameters: dict[str, Any] = {"content_type": "json"} if first.datatype == "JSON" else {}
    described["datatype"] = datatype = "BYTES" if first.datatype == "JSON" else first.datatype
    data = _together(first, values)
    part: bytes | None = None
    listed: list[Any] = []
    if is_binary:
        part = to_bytes(datatype, data)
        parameters["binary_data_size"] = len(part)
    else:
        try:
            listed = to_json(datatype, data)
        except WrongData:  # bytes that are no text
            listed = [base64.b64encode(each).decode() for each in data]
            parameters["content_type"] = "base64"
    if parameters:
        described["parameters"] = parameters
    if part is None:
        described["data"] = listed
    return described, part


def _together(first: Value, values: Sequence[Value | None]) -> Data:
    if isinstance(first.data, list):
        empty = [b""] * len(first.data)
        return [text for each in values for text in (empty if each is None else each.data)]
    if len(values) == 1:
        return first.data
    zeros = np.zeros_like(first.data)
    return np.stack([zeros if each is None else each.data for each in values])


def _like(first: Values, values: Values) -> Values | ItemError:
    """The values, or an error where they cannot be in one answer with the first ones."""
    if set(values) != set(first):
        words = f"the result has {', '.join(values)}, and the first of the request {', '.join(first)}"
        return ItemError(422, f"{words}: send this item in a request of its own")
    for name, value in values.items():
        want = first[name]
        if (value.datatype, value.shape) != (want.datatype, want.shape):
            had = f"{value.datatype} {list(value.shape)}, and in the first item {want.datatype} {list(want.shape)}"
            return ItemError(422, f"output {name} is {had}: send this item in a request of its own")
    return values


# --- what models give


def _undeclared(result: Any) -> Values:
    if isinstance(result, Mapping) and result and all(isinstance(name, str) for name in result):
        found = {name: _plain(value) for name, value in result.items()}
        values = {name: value for name, value in found.items() if value is not None}
        if len(values) == len(found):
            return values
    value = _plain(result)
    return {OUTPUT: value if value is not None else _json(OUTPUT, result)}


def _plain(value: Any) -> Value | None:
    """A number, a text, bytes or a tensor; None for anything else."""
    match value:
        case bytes() | bytearray() | memoryview():
            return Value("BYTES", (), [bytes(value)])
        case str():
            return Value("BYTES", (), [value.encode(errors="replace")])
        case bool():
            return Value("BOOL", (), np.asarray(value))
        case int() if -(2**63) <= value < 2**63:
            return Value("INT64", (), np.asarray(value, np.int64))
        case float():
            return Value("FP64", (), np.asarray(value, np.float64))
    if not (isinstance(value, np.ndarray | np.generic) or hasattr(value, "detach")):
        return None
    array = _array(value)
    if (datatype := NAMES.get(array.dtype.newbyteorder("<"))) is None:
        return None
    return Value(datatype, array.shape, array)


def _declared(spec: TensorSpec, value: Any) -> Value:
    where = f"output {spec.name}"
    if spec.datatype == "JSON":
        return _json(spec.name, value)
    if spec.datatype == "BYTES":
        texts = _texts(where, value)
        shape = () if isinstance(value, str | bytes | bytearray | memoryview) else (len(texts),)
        found = Value("BYTES", shape, texts)
    else:
        array = _array(value)
        wanted = DTYPES[spec.datatype]
        if array.dtype != wanted:
            if array.dtype.kind not in "biuf" or not _can_be(array, wanted):
                raise WrongData(f"{where} is {array.dtype}, and the class says {spec.datatype}")
            array = array.astype(wanted)
        found = Value(spec.datatype, array.shape, array)
    if len(found.shape) != len(spec.shape) or any(
        want not in (-1, have) for want, have in zip(spec.shape, found.shape, strict=True)
    ):
        raise WrongData(f"{where} has the shape {list(found.shape)}, and the class says {list(spec.shape)}")
    return found


def _can_be(array: Array, wanted: np.dtype[Any]) -> bool:
    """Whether nothing but exactness is lost: integers that fit, and any numbers as floating ones."""
    if np.can_cast(array.dtype, wanted, "same_kind") and wanted.kind == "f":
        return True
    if wanted.kind not in "iu" or array.dtype.kind not in "iu":
        return False
    bounds = np.iinfo(wanted)
    return not array.size or (int(array.min()) >= bounds.min and int(array.max()) <= bounds.max)


def _array(value: Any) -> Array:
    if hasattr(value, "detach"):  # of torch
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            value = value.float()
        value = value.numpy()
    # A copy where it is somebody else's: what a model writes into later must not change an answer.
    return np.array(value)


def _texts(where: str, value: Any) -> list[bytes]:
    each = value if isinstance(value, list | tuple) else [value]
    texts = [part.encode(errors="replace") if isinstance(part, str) else part for part in each]
    if not all(isinstance(text, bytes | bytearray | memoryview) for text in texts):
        raise WrongData(f"{where} is {type(value).__name__}, and should be bytes or a text, or a list of them")
    return [bytes(text) for text in texts]


def _json(name: str, value: Any) -> Value:
    try:
        return Value("JSON", (), [json.dumps(value, allow_nan=False, separators=(",", ":")).encode()])
    except (TypeError, ValueError, RecursionError) as problem:
        raise WrongData(f"output {name} is nothing that JSON can say: {problem}") from None


def _dumped(value: object) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
