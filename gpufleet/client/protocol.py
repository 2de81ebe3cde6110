"""Requests and answers of the Open Inference Protocol, version 2, as bytes; how errors of single items are told.

What a worker of gpufleet's own says is in docs/predict.md; other servers of the protocol are understood, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpufleet.errors import Reason

from .core.outcomes import ERROR_CHARACTERS_MAX, Answer, Backend, Break, ErrorKind, Failure, Reply, failure_of_status
from .tensors import CannotDecode, InputSpec, Tensor, as_content, is_array, tensors_of, values_of

JSON_LENGTH_HEADER = "Inference-Header-Content-Length"
"""How much of a body is JSON, where binary data follows."""

MICROSECONDS = 1e6

BROKEN_OFF, UNAVAILABLE = 502, 503


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """What a worker says of its model: inputs, where it computes, the most items of a request (0: no limit), and the
    device's whole name, empty where it says none."""

    inputs: tuple[InputSpec, ...] = ()
    backend: Backend | None = None
    batch_max: int = 0
    device: str = ""


@dataclass(frozen=True, slots=True)
class EncodedRequest:
    """Headers and body of an infer request."""

    headers: tuple[tuple[str, str], ...]
    body: bytes


def metadata_of(body: bytes) -> ModelMetadata:
    """The answer to GET /v2/models/NAME. Raises CannotDecode."""
    document = _object(body)
    parameters = document.get("parameters")
    parameters = parameters if isinstance(parameters, dict) else {}
    inputs = document.get("inputs")
    specs = [
        InputSpec(str(each.get("name", "input")), str(each.get("datatype", "")))
        for each in (inputs if isinstance(inputs, list) else [])
        if isinstance(each, dict)
    ]
    device = parameters.get("device")
    name = device if isinstance(device, str) else ""
    return ModelMetadata(tuple(specs), backend_of(device), _batch_max(parameters), name)


FELL_BACK_HEADER = "gpufleet-fell-back"
"""In which a gateway says why a request is not where it prefers to be."""


def backend_of(device: object) -> Backend | None:
    """The backend of a device's name: "cpu", or as torch writes it, "cuda:0"; None where nothing is said."""
    if not isinstance(device, str) or not device:
        return None
    return Backend.CPU if device.lower().startswith("cpu") else Backend.GPU


def _batch_max(parameters: Mapping[str, Any]) -> int:
    limits = [parameters.get(name) for name in ("max_batch", "max_batch_size")]
    return min((each for each in limits if type(each) is int and each > 0), default=0)


def encode(items: Sequence[Any], specs: Sequence[InputSpec], *, binary: bool, timeout_s: float) -> EncodedRequest:
    """An infer request for these items, which have one key. Raises CannotEncode."""
    tensors = tensors_of(items, specs, binary=binary)
    parameters: dict[str, Any] = {"timeout": round(timeout_s * MICROSECONDS)}
    if binary and any(each.binary is not None for each in tensors):
        parameters["binary_data_output"] = True
    document = {"parameters": parameters, "inputs": [_input(each) for each in tensors]}
    head = json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
    tails = [each.binary for each in tensors if each.binary is not None]
    if not tails:
        return EncodedRequest((("Content-Type", "application/json"),), head)
    headers = (("Content-Type", "application/octet-stream"), (JSON_LENGTH_HEADER, str(len(head))))
    return EncodedRequest(headers, b"".join([head, *tails]))


def _input(tensor: Tensor) -> dict[str, Any]:
    said: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
    if tensor.binary is not None:
        return {**said, "parameters": {"binary_data_size": len(tensor.binary)}}
    return {**said, "data": tensor.data}


def decode(status: int, headers: Mapping[str, str], body: bytes, items: Sequence[Any]) -> Reply | Failure:
    """What a server answered to `encode`'s request; `headers` by their names in lower case."""
    if status != 200:
        return _refused(status, headers, body, len(items))
    try:
        return _answered(headers, body, items)
    except CannotDecode as problem:
        return Failure(ErrorKind.BAD_ANSWER, f"the answer is not what the protocol says: {problem}", status)


def _answered(headers: Mapping[str, str], body: bytes, items: Sequence[Any]) -> Reply:
    length = headers.get(JSON_LENGTH_HEADER.lower(), "")
    head = int(length) if length.isascii() and length.isdigit() and len(length) < 16 else len(body)
    if head > len(body):
        raise CannotDecode("its JSON is longer than itself")
    document, rest = _object(body[:head]), memoryview(body)[head:]
    outputs = document.get("outputs")
    if not isinstance(outputs, list) or not outputs:
        raise CannotDecode("it has no outputs")
    as_arrays = any(is_array(each) for each in _parts(items[0]))
    columns: dict[str, list[Any]] = {}
    for output in outputs:
        name, column, rest = _column(output, rest, len(items), as_arrays=as_arrays)
        columns[name] = column
    if len(rest):
        raise CannotDecode("more binary data than its outputs have")
    failures = _failures(document, len(items))
    only = next(iter(columns.values())) if len(columns) == 1 else None
    outcomes = tuple(
        failures.get(index)
        or Answer(only[index] if only is not None else {name: column[index] for name, column in columns.items()})
        for index in range(len(items))
    )
    parameters = document.get("parameters")
    device = parameters.get("device") if isinstance(parameters, dict) else None
    return Reply(outcomes, backend_of(device), headers.get(FELL_BACK_HEADER, "")[:ERROR_CHARACTERS_MAX])


def _parts(item: Any) -> Sequence[Any]:
    return list(item.values()) if isinstance(item, Mapping) else [item]


def _column(output: object, rest: memoryview, count: int, *, as_arrays: bool) -> tuple[str, list[Any], memoryview]:
    """An output's name, its values, and the binary data behind its own."""
    if not isinstance(output, dict):
        raise CannotDecode("an output that is no object")
    shape, parameters = output.get("shape"), output.get("parameters")
    if not isinstance(shape, list) or not all(type(each) is int and each >= 0 for each in shape):
        raise CannotDecode("an output without a shape")
    size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    binary = None
    if size is not None:
        if type(size) is not int or not 0 <= size <= len(rest):
            raise CannotDecode("less binary data than its outputs have")
        binary, rest = rest[:size], rest[size:]
    datatype = str(output.get("datatype", ""))
    content = parameters.get("content_type") if isinstance(parameters, dict) else None
    values = values_of(datatype, shape, output.get("data"), binary, count, as_arrays=as_arrays)
    if datatype == "BYTES" and content in ("json", "base64"):
        values = [as_content(value, str(content)) for value in values]
    return str(output.get("name", "")), values, rest


def _failures(document: Mapping[str, Any], count: int) -> dict[int, Failure]:
    """The items that have an error of their own, by their places."""
    parameters = document.get("parameters")
    errors = parameters.get("errors") if isinstance(parameters, dict) else None
    if errors is None:
        return {}
    statuses = parameters.get("statuses") if isinstance(parameters, dict) else None
    if not isinstance(errors, dict):
        raise CannotDecode("its errors are no object")
    found: dict[int, Failure] = {}
    for place, message in errors.items():
        if not (place.isascii() and place.isdigit() and len(place) < 10 and int(place) < count):
            raise CannotDecode(f"an error of the item {place[:20]!r}, which was not asked")
        status = statuses.get(place) if isinstance(statuses, dict) else None
        status = status if type(status) is int and status >= 400 else 500
        found[int(place)] = failure_of_status(status, str(message)[:ERROR_CHARACTERS_MAX])
    return found


def _refused(status: int, headers: Mapping[str, str], body: bytes, count: int) -> Reply | Failure:
    retry_after = headers.get("retry-after", "").strip()
    retry_after_s = float(retry_after) if retry_after.isascii() and retry_after.isdigit() else None
    try:
        document = _object(body)
        failures = _failures(document, count)
    except CannotDecode:
        return failure_of_status(status, _text(body), retry_after_s)
    if len(failures) == count:
        return Reply(tuple(replace(failures[index], retry_after_s=retry_after_s) for index in range(count)))
    if (down := _down(status, document)) is not None:
        return down
    return replace(failure_of_status(status, message_of(document), retry_after_s), broke=_break(status, document))


def failure_of_model(status: int, body: bytes) -> Failure | None:
    """What a gateway says of a model that has failed, so that no wait helps; None of any other answer."""
    try:
        return _down(status, _object(body))
    except CannotDecode:
        return None


def _down(status: int, document: Mapping[str, Any]) -> Failure | None:
    error = document.get("error")
    if status != UNAVAILABLE or not isinstance(error, dict) or error.get("reason") != Reason.MODEL_DOWN.name:
        return None
    words = f"{error.get('message')}. {error.get('next_step') or ''}".strip()
    return Failure(ErrorKind.MODEL_DOWN, words[:ERROR_CHARACTERS_MAX], status)


def _break(status: int, document: Mapping[str, Any]) -> Break | None:
    """What a gateway says of the replica that broke off a request: a server that says nothing of it has no such."""
    start = document.get("replica")
    if status != BROKEN_OFF or not isinstance(start, str) or not start:
        return None
    return Break(start[:ERROR_CHARACTERS_MAX], is_shared=document.get("shared") is True)


def message_of(document: Mapping[str, Any]) -> str:
    """What an error's body says: of the protocol, or of the gateway."""
    said = document.get("message") or document.get("error") or ""
    if isinstance(said, dict):
        said = said.get("message") or ""
    return str(said)[:ERROR_CHARACTERS_MAX]


def error_text(body: bytes) -> str:
    """The same of the whole body."""
    try:
        return message_of(_object(body))
    except CannotDecode:
        return _text(body)


def _text(body: bytes) -> str:
    return " ".join(body[:ERROR_CHARACTERS_MAX].decode("utf-8", "replace").split())


def _object(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as problem:
        raise CannotDecode(f"it is no JSON: {problem}") from None
    if not isinstance(document, dict):
        raise CannotDecode("it is no JSON object")
    return document
