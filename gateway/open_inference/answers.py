"""An answer over HTTP becomes one over gRPC: its head of JSON says what the bytes behind it are."""

from __future__ import annotations

import json
from array import array
from typing import Any, TypeGuard, TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message
from gpufleet.v1.open_inference import open_inference_pb2 as pb

from .requests import BINARY_SIZE, CONTENTS, LENGTH, as_little_endian

Reply = TypeVar("Reply", bound=Message)

WHOLE = range(-(2**63), 2**63)
UNSIGNED = range(2**63, 2**64)


class NotSpoken(Exception):
    """An answer is none of the protocol; the text says why."""


def answer_of(body: bytes | bytearray, head_bytes: int, *, is_raw: bool) -> pb.ModelInferResponse:
    """The answer in a body whose first bytes are JSON. Contents only where each output has a field of its own for
    them, and raw ones else. Raises NotSpoken."""
    head = json_object(body[:head_bytes])
    answer = pb.ModelInferResponse()
    try:
        answer.model_name = head.get("model_name", "")
        answer.model_version = head.get("model_version", "")
        answer.id = head.get("id", "")
        _tell(answer.parameters, head.get("parameters", {}))
        outputs = head.get("outputs", [])
        tensors = _tensors(outputs, memoryview(body)[head_bytes:])
        is_raw = is_raw or any(each["datatype"] not in CONTENTS for each in outputs)
        for output, tensor in zip(outputs, tensors, strict=True):
            made = answer.outputs.add(name=output["name"], datatype=output["datatype"], shape=output["shape"])
            _tell(made.parameters, {k: v for k, v in output.get("parameters", {}).items() if k != BINARY_SIZE})
            if is_raw:
                answer.raw_output_contents.append(bytes(tensor))
            else:
                _fill(made.contents, output["datatype"], tensor)
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise NotSpoken(f"its answer is none of the protocol: {type(problem).__name__}: {problem}") from None
    return answer


def metadata_of(body: bytes | bytearray) -> pb.ModelMetadataResponse:
    """What a model takes and gives. Raises NotSpoken."""
    said = json_object(body)
    answer = pb.ModelMetadataResponse()
    try:
        answer.name, answer.platform = said.get("name", ""), said.get("platform", "")
        answer.versions.extend(said.get("versions", []))
        for tensors, name in ((answer.inputs, "inputs"), (answer.outputs, "outputs")):
            for each in said.get(name, []):
                tensors.add(name=each["name"], datatype=each["datatype"], shape=each["shape"])
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise NotSpoken(f"its metadata are none of the protocol: {type(problem).__name__}: {problem}") from None
    return answer


def message_of(empty: Reply, body: bytes | bytearray) -> Reply:
    """The message that a body tells in JSON; what the message has no field for is left out. Raises NotSpoken."""
    try:
        return json_format.ParseDict(json_object(body), empty, ignore_unknown_fields=True)
    except (json_format.ParseError, RecursionError) as problem:
        raise NotSpoken(f"its answer is no {type(empty).__name__}: {problem}") from None


def json_object(text: bytes | bytearray) -> dict[str, Any]:
    """The JSON object in a text. Raises NotSpoken."""
    try:
        said = json.loads(text)
    except (ValueError, RecursionError):
        raise NotSpoken("its answer is no JSON") from None
    if not isinstance(said, dict):
        raise NotSpoken("its answer is no JSON object")
    return said


def _tensors(outputs: Any, rest: memoryview) -> list[memoryview]:
    """The binary data of each output."""
    tensors: list[memoryview] = []
    for each in outputs:
        size = each["parameters"][BINARY_SIZE]
        if not _is_whole(size) or not 0 <= size <= len(rest):
            raise ValueError(f"{each['name']!a} has {size!a:.40} bytes, and {len(rest):,} are left")
        tensors.append(rest[:size])
        rest = rest[size:]
    if len(rest):
        raise ValueError(f"{len(rest):,} bytes stand behind the outputs")
    return tensors


def _fill(contents: pb.InferTensorContents, datatype: str, data: memoryview) -> None:
    name, code = CONTENTS[datatype]
    field = getattr(contents, name)
    if code:
        elements = array(code)
        elements.frombytes(data)
        as_little_endian(elements)
        field.extend(map(bool, elements) if datatype == "BOOL" else elements)
        return
    at = 0
    while at < len(data):
        if at + LENGTH.size > len(data):
            raise ValueError("a text has no length")
        (length,) = LENGTH.unpack_from(data, at)
        at += LENGTH.size
        if at + length > len(data):
            raise ValueError(f"a text of {length:,} bytes is cut")
        field.append(bytes(data[at : at + length]))
        at += length


def _tell(parameters: Any, said: dict[str, Any]) -> None:
    """Values of JSON as parameters; what none of them holds is a text of JSON."""
    for name, value in said.items():
        made = parameters[name]
        match value:
            case bool():
                made.bool_param = value
            case int() if value in WHOLE:
                made.int64_param = value
            case int() if value in UNSIGNED:
                made.uint64_param = value
            case float():
                made.double_param = value
            case str():
                made.string_param = value
            case _:
                made.string_param = json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _is_whole(value: object) -> TypeGuard[int]:
    return type(value) is int
