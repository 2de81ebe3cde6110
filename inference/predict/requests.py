"""Requests of the Open Inference Protocol, version 2: a body becomes items, or a sentence on what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpufleet.predict import DATATYPES, TensorSpec
from gpufleet.text.spelling import did_you_mean

from .tensors import Data, WrongData, count_of, from_bytes, from_json, value_of_json

INPUTS_MAX = 100
DIMENSIONS_MAX = 32
ITEMS_MAX = 1_000_000
ID_CHARS_MAX = 1_000
TIMEOUT_US_MAX = 24 * 3_600 * 1_000_000
CONTENT_TYPES = ("str", "base64", "json")
"""What the texts of BYTES in JSON are: themselves, bytes in base64, or values of JSON."""


class RequestError(Exception):
    """A request is answered with this status and message; `retry_s` is when to ask again, 0 for never."""

    def __init__(self, status: int, message: str, retry_s: int = 0) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_s = retry_s


@dataclass(frozen=True, slots=True)
class Input:
    """One input of a request: the data of all items."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Data

    def item(self, number: int) -> Any:
        """What one item has of it."""
        if isinstance(self.data, list) and len(self.shape) > 1:
            each = count_of(self.shape[1:])
            return self.data[number * each : (number + 1) * each]
        return self.data[number]


@dataclass(frozen=True, slots=True, kw_only=True)
class InferRequest:
    """What a request asks for. `key` says which items can be computed together.

    `outputs`: those that are wanted, and whether as binary data; None: all of them, and `is_binary` says how.
    `speaks_json`: values of JSON are answered as such, and not as texts.
    """

    id: str
    items: list[Any]
    key: Hashable
    timeout_us: int | None
    outputs: Mapping[str, bool] | None
    is_binary: bool
    speaks_json: bool


def read(
    body: bytes,
    header_length: str | None,
    specs: Sequence[TensorSpec],
    *,
    timeout_us: int | None = None,
    items_max: int = ITEMS_MAX,
) -> InferRequest:
    """The request in a body; with `Inference-Header-Content-Length` its first bytes are JSON, and the rest binary data.

    `timeout_us` is what its headers say; the shorter one holds. A shape may name any number of items that have no
    elements: beyond `items_max` none is made.

    Raises RequestError with status 400, which names the field, and 413 for too many items.
    """
    head, rest = _split(body, header_length)
    try:
        said = json.loads(head)
    except (ValueError, RecursionError) as problem:
        raise _wrong("the body", f"is no JSON: {problem}") from None
    _keys("the body", said, ("id", "parameters", "inputs", "outputs"))
    ident = said.get("id", "")
    if not isinstance(ident, str) or len(ident) > ID_CHARS_MAX:
        raise _wrong("id", f"must be a text of at most {ID_CHARS_MAX:,} characters")
    parameters = _keys("parameters", said.get("parameters", {}), ("timeout", "binary_data_output"))
    inputs = _inputs(said.get("inputs"), rest)
    if (count := inputs[0].shape[0]) > items_max:
        raise RequestError(413, f"the request holds {count:,} items, and at most {items_max:,} may wait")
    inputs = _declared(inputs, specs) if specs else inputs
    times_us = [each for each in (timeout_us, _timeout(parameters.get("timeout", 0))) if each is not None]
    is_binary = _flag("parameters.binary_data_output", parameters.get("binary_data_output", False))
    return InferRequest(
        id=ident,
        items=_items(inputs),
        key=tuple((each.name, each.datatype, each.shape[1:]) for each in inputs),
        timeout_us=min(times_us, default=None),
        outputs=_outputs(said.get("outputs"), is_binary=is_binary),
        is_binary=is_binary,
        speaks_json=any(each.get("datatype") == "JSON" for each in said["inputs"]),
    )


def _split(body: bytes, header_length: str | None) -> tuple[bytes, memoryview]:
    if header_length is None:
        return body, memoryview(b"")
    where = "Inference-Header-Content-Length"
    if not (header_length.isascii() and header_length.isdigit() and len(header_length) < 20):
        raise _wrong(where, f'"{header_length[:40]}" is no number of bytes')
    length = int(header_length)
    if length > len(body):
        raise _wrong(where, f"says {length:,} bytes of JSON, and the body has {len(body):,}")
    return body[:length], memoryview(body)[length:]


def _inputs(said: object, rest: memoryview) -> list[Input]:
    if not isinstance(said, list) or not 1 <= len(said) <= INPUTS_MAX:
        raise _wrong("inputs", f"must be a list of 1 to {INPUTS_MAX} tensors")
    inputs: list[Input] = []
    for number, each in enumerate(said):
        found, rest = _input(f"inputs[{number}]", each, rest)
        inputs.append(found)
    if len(rest):
        raise _wrong("the body", f"has {len(rest):,} bytes behind the binary data that the inputs name")
    names = [each.name for each in inputs]
    if len(set(names)) < len(names):
        raise _wrong("inputs", "has two of one name")
    counts = {each.shape[0] for each in inputs}
    if len(counts) > 1:
        raise _wrong("inputs", f"hold different numbers of items: {sorted(counts)}; that is the first of each shape")
    return sorted(inputs, key=lambda each: each.name)


def _input(where: str, said: object, rest: memoryview) -> tuple[Input, memoryview]:
    """One input, and what is left of the binary data behind it."""
    said = _keys(where, said, ("name", "datatype", "shape", "parameters", "data"))
    name, datatype = said.get("name"), said.get("datatype")
    if not isinstance(name, str) or not name:
        raise _wrong(f"{where}.name", "must be a text")
    if datatype not in DATATYPES:
        near = did_you_mean(str(datatype), DATATYPES)
        raise _wrong(f"{where}.datatype", f"{datatype!r:.40} is none of {', '.join(DATATYPES)}{near}")
    shape = _shape(f"{where}.shape", said.get("shape"))
    parameters = _keys(f"{where}.parameters", said.get("parameters", {}), ("binary_data_size", "content_type"))
    content = parameters.get("content_type", "str")
    if content not in CONTENT_TYPES or ("content_type" in parameters and datatype != "BYTES"):
        raise _wrong(f"{where}.parameters.content_type", f"goes with BYTES, and is one of {', '.join(CONTENT_TYPES)}")
    try:
        if "binary_data_size" in parameters:
            size = parameters["binary_data_size"]
            if type(size) is not int or not 0 <= size <= len(rest):
                raise _wrong(
                    f"{where}.parameters.binary_data_size", f"is {size!r:.40}, and {len(rest):,} bytes are left"
                )
            if "data" in said:
                raise _wrong(f"{where}.data", "does not go with binary_data_size")
            data, rest = from_bytes(datatype, shape, rest[:size]), rest[size:]
        elif "data" in said:
            data = from_json(datatype, shape, said["data"], is_base64=content == "base64")
        else:
            raise _wrong(f"{where}.data", "is missing")
        if content == "json":
            return Input(name, "JSON", shape, [value_of_json(text) for text in data]), rest
    except WrongData as problem:
        raise _wrong(f"{where}.data", str(problem)) from None
    return Input(name, datatype, shape, data), rest


def _shape(where: str, said: object) -> tuple[int, ...]:
    if not isinstance(said, list) or not all(type(each) is int and 0 <= each < 2**63 for each in said):
        raise _wrong(where, "must be a list of whole numbers")
    if not 1 <= len(said) <= DIMENSIONS_MAX:
        raise _wrong(where, f"must have 1 to {DIMENSIONS_MAX} numbers; the first is how many items there are")
    if not said[0]:
        raise _wrong(where, "begins with 0: there is no item")
    return tuple(said)


def _declared(inputs: list[Input], specs: Sequence[TensorSpec]) -> list[Input]:
    """The inputs as the model declares them. Raises what is missing, too much or of another kind."""
    by_name = {each.name: each for each in inputs}
    names = [spec.name for spec in specs]
    for name in by_name:
        if name not in names:
            raise _wrong("inputs", f'"{name[:80]}" is none of {", ".join(names)}{did_you_mean(name, names)}')
    found: list[Input] = []
    for spec in specs:
        if (each := by_name.get(spec.name)) is None:
            raise _wrong("inputs", f"lack {spec.name}")
        if spec.datatype == "JSON" and each.datatype == "BYTES":
            try:
                each = Input(each.name, "JSON", each.shape, [value_of_json(text) for text in each.data])
            except WrongData as problem:
                raise _wrong(f"input {spec.name}", str(problem)) from None
        if each.datatype != spec.datatype:
            raise _wrong(f"input {spec.name}", f"is {each.datatype}, and the model takes {spec.datatype}")
        rest = each.shape[1:]
        if len(rest) != len(spec.shape) or any(
            want not in (-1, have) for want, have in zip(spec.shape, rest, strict=True)
        ):
            wanted = [-1, *spec.shape]
            raise _wrong(f"input {spec.name}", f"has the shape {list(each.shape)}, and the model takes {wanted}")
        found.append(each)
    return found


def _items(inputs: list[Input]) -> list[Any]:
    count = inputs[0].shape[0]
    if len(inputs) == 1:
        return [inputs[0].item(number) for number in range(count)]
    return [{each.name: each.item(number) for each in inputs} for number in range(count)]


def _outputs(said: object, *, is_binary: bool) -> dict[str, bool] | None:
    if said is None:
        return None
    if not isinstance(said, list) or len(said) > INPUTS_MAX:
        raise _wrong("outputs", f"must be a list of at most {INPUTS_MAX}")
    wanted: dict[str, bool] = {}
    for number, each in enumerate(said):
        where = f"outputs[{number}]"
        each = _keys(where, each, ("name", "parameters"))
        name = each.get("name")
        if not isinstance(name, str) or name in wanted:
            raise _wrong(f"{where}.name", "must be a text, and name each output once")
        parameters = _keys(f"{where}.parameters", each.get("parameters", {}), ("binary_data",))
        wanted[name] = _flag(f"{where}.parameters.binary_data", parameters.get("binary_data", is_binary))
    return wanted or None


def _timeout(said: object) -> int | None:
    if type(said) is not int or not 0 <= said <= TIMEOUT_US_MAX:
        raise _wrong("parameters.timeout", f"must be whole microseconds, 0 to {TIMEOUT_US_MAX:,}")
    return said or None


def _flag(where: str, said: object) -> bool:
    if not isinstance(said, bool):
        raise _wrong(where, "must be true or false")
    return said


def _keys(where: str, said: object, known: Sequence[str]) -> dict[str, Any]:
    """An object that has no other keys."""
    if not isinstance(said, dict):
        raise _wrong(where, "must be an object")
    for key in said:
        if key not in known:
            raise _wrong(where, f'"{key[:80]}" is none of {", ".join(known)}{did_you_mean(key, known)}')
    return said


def _wrong(where: str, why: str) -> RequestError:
    return RequestError(400, f"{where}: {why}")
