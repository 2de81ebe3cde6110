"""A request of the protocol over gRPC becomes one over HTTP: a head of JSON, and behind it the tensors as they came."""

from __future__ import annotations

import json
import math
import struct
import sys
from array import array
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from google.protobuf.message import DecodeError
from gpufleet.v1.open_inference import open_inference_pb2 as pb

from gpufleet.errors import GpufleetError, Reason, invalid

from ..proxy.core.hosts import NAME

LENGTH = struct.Struct("<I")
"""What stands before each text of BYTES."""

CONTENTS: Mapping[str, tuple[str, str]] = {
    "BOOL": ("bool_contents", "B"),
    "INT8": ("int_contents", "b"),
    "INT16": ("int_contents", "h"),
    "INT32": ("int_contents", "i"),
    "INT64": ("int64_contents", "q"),
    "UINT8": ("uint_contents", "B"),
    "UINT16": ("uint_contents", "H"),
    "UINT32": ("uint_contents", "I"),
    "UINT64": ("uint64_contents", "Q"),
    "FP32": ("fp32_contents", "f"),
    "FP64": ("fp64_contents", "d"),
    "BYTES": ("bytes_contents", ""),
}
"""The field that goes with a datatype, and how an element lies in memory, in the words of `array`."""

BINARY_SIZE, BINARY_OUTPUT, BINARY = "binary_data_size", "binary_data_output", "binary_data"
"""Parameters of the protocol over HTTP, which are the gateway's to say."""

SHOWN_MAX = 80
"""So many characters of a name that is none are told back."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request as a replica gets it. `is_raw`: the tensors came as raw contents, and are answered so."""

    path: bytes
    head: bytes
    tensors: list[bytes]
    is_raw: bool

    @property
    def size_bytes(self) -> int:
        """Of the whole body."""
        return len(self.head) + sum(map(len, self.tensors))

    def release_parts(self) -> deque[bytes]:
        """The parts of the body, for whoever lets go of them; the request then has no tensors any more."""
        parts = deque([self.head, *self.tensors])
        self.tensors.clear()
        return parts


def path_of(name: str, version: str, what: str = "") -> bytes:
    """Where a program has a model that is called as itself. Raises MODEL_NOT_FOUND."""
    if not NAME.fullmatch(name):
        raise GpufleetError(Reason.MODEL_NOT_FOUND, f"no model is called {name[:SHOWN_MAX]!a}")
    of_version = f"/versions/{quote(version, safe='')}" if version else ""
    return f"/v2/models/{quote(name, safe='')}{of_version}{what}".encode()


def request_in(message: bytes) -> pb.ModelInferRequest:
    """The request in a message. Raises INVALID_ARGUMENT."""
    try:
        return pb.ModelInferRequest.FromString(message)
    except DecodeError:
        raise invalid("the message", "is no ModelInferRequest") from None


def request_of(asked: pb.ModelInferRequest) -> HttpRequest:
    """The same over HTTP. Raises INVALID_ARGUMENT with the field, MODEL_NOT_FOUND."""
    path = path_of(asked.model_name, asked.model_version, "/infer")
    raw = asked.raw_input_contents
    if raw and len(raw) != len(asked.inputs):
        raise invalid("raw_input_contents", f"has {len(raw)} tensors, and there are {len(asked.inputs)} inputs")
    tensors = [
        _raw(number, each, raw[number]) if raw else _contents(number, each) for number, each in enumerate(asked.inputs)
    ]
    head: dict[str, Any] = {"id": asked.id} if asked.id else {}
    head["parameters"] = {**_parameters("parameters", asked.parameters), BINARY_OUTPUT: True}
    head["inputs"] = [
        {
            "name": each.name,
            "datatype": each.datatype,
            "shape": list(each.shape),
            "parameters": {**_parameters(f"inputs[{number}].parameters", each.parameters), BINARY_SIZE: len(tensor)},
        }
        for number, (each, tensor) in enumerate(zip(asked.inputs, tensors, strict=True))
    ]
    if asked.outputs:
        head["outputs"] = [_output(number, each) for number, each in enumerate(asked.outputs)]
    return HttpRequest(path, json.dumps(head, separators=(",", ":")).encode(), tensors, bool(raw) or not asked.inputs)


def _output(number: int, wanted: pb.ModelInferRequest.InferRequestedOutputTensor) -> dict[str, Any]:
    parameters = _parameters(f"outputs[{number}].parameters", wanted.parameters)
    return {"name": wanted.name} | ({"parameters": parameters} if parameters else {})


def _raw(number: int, tensor: pb.ModelInferRequest.InferInputTensor, data: bytes) -> bytes:
    if tensor.contents.ListFields():
        raise invalid(f"inputs[{number}].contents", "does not go with raw_input_contents: one or the other")
    return data


def _contents(number: int, tensor: pb.ModelInferRequest.InferInputTensor) -> bytes:
    """The elements as they lie in memory. Raises INVALID_ARGUMENT."""
    where = f"inputs[{number}].contents"
    if tensor.datatype not in CONTENTS:
        raise invalid(where, f"has no field for {tensor.datatype[:SHOWN_MAX]!a}: send it in raw_input_contents")
    field, code = CONTENTS[tensor.datatype]
    set_ones = [each.name for each, _ in tensor.contents.ListFields()]
    if not set_ones and 0 not in tensor.shape:
        raise invalid(where, f"is missing: {tensor.datatype} goes into {field}, or into raw_input_contents")
    if set_ones not in ([], [field]):
        raise invalid(where, f"has {', '.join(set_ones)}: {tensor.datatype} goes into {field}, and into it alone")
    elements = getattr(tensor.contents, field)
    if not code:
        return b"".join(part for text in elements for part in (LENGTH.pack(len(text)), text))
    try:
        data = array(code, elements)
    except OverflowError:
        raise invalid(f"{where}.{field}", f"has a number that {tensor.datatype} does not hold") from None
    return as_little_endian(data).tobytes()


def as_little_endian(data: array[Any]) -> array[Any]:
    """The elements in the protocol's order of bytes, or from it."""
    if sys.byteorder == "big":
        data.byteswap()
    return data


def _parameters(where: str, given: Mapping[str, pb.InferParameter]) -> dict[str, Any]:
    """The parameters as JSON has them, but for those that say how data is sent. Raises INVALID_ARGUMENT."""
    said: dict[str, Any] = {}
    for name, value in given.items():
        if name == BINARY_SIZE:
            raise invalid(f"{where}[{name!a}]", "is of the protocol over HTTP: leave it out")
        if name in (BINARY_OUTPUT, BINARY):
            continue
        kind = value.WhichOneof("parameter_choice")
        if kind is None:
            raise invalid(f"{where}[{name[:SHOWN_MAX]!a}]", "has no value")
        said[name] = getattr(value, kind)
        if isinstance(said[name], float) and not math.isfinite(said[name]):
            raise invalid(f"{where}[{name[:SHOWN_MAX]!a}]", "must be a finite number")
    return said
