"""Items as tensors of the Open Inference Protocol, version 2, and tensors as items: JSON, and binary data.

NumPy is used where the caller's items are arrays, and never imported: an array brings its own library along.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import sys
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .core.outcomes import ErrorKind, Failure

DATATYPES: Mapping[str, str] = {
    "?": "BOOL",
    "B": "UINT8",
    "H": "UINT16",
    "I": "UINT32",
    "Q": "UINT64",
    "b": "INT8",
    "h": "INT16",
    "i": "INT32",
    "q": "INT64",
    "e": "FP16",
    "f": "FP32",
    "d": "FP64",
}
"""The protocol's name of a type, by its letter in `struct`."""

_LETTERS = {name: letter for letter, name in DATATYPES.items()}
_BY_NUMPY = {
    ("b", 1): "BOOL",
    **{("u", size): f"UINT{size * 8}" for size in (1, 2, 4, 8)},
    **{("i", size): f"INT{size * 8}" for size in (1, 2, 4, 8)},
    **{("f", size): f"FP{size * 8}" for size in (2, 4, 8)},
}
_LENGTH = struct.Struct("<I")
DEPTH_MAX = 32
"""Lists within lists."""


class CannotEncode(ValueError):
    """An item cannot be sent; the text says why."""


class CannotDecode(ValueError):
    """An answer is not what the protocol says; the text says why."""


@dataclass(frozen=True, slots=True)
class InputSpec:
    """What a model says of an input: its name, and its datatype, empty where it is not known."""

    name: str = "input"
    datatype: str = ""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input. `binary` is its data where that travels behind the JSON; `shape` begins with the number of items."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: list[Any] | None = None
    binary: bytes | None = None


def is_array(item: object) -> bool:
    """Whether it is a NumPy array, or a scalar of NumPy."""
    return hasattr(item, "__array_interface__") and hasattr(item, "dtype") and hasattr(item, "tobytes")


def key_of(item: object) -> Hashable | Failure:
    """Items with equal keys can be sent in one request; a Failure for one that cannot be sent at all."""
    if isinstance(item, Failure):
        return item  # whoever made the items could not make this one
    if isinstance(item, (bytes, bytearray, memoryview)):
        return "bytes"
    if is_array(item):
        array: Any = item
        return ("array", array.dtype.str, tuple(array.shape))
    if isinstance(item, Mapping) and any(_is_data(value) for value in item.values()):
        keys = tuple((str(name), key_of(value)) for name, value in sorted(item.items(), key=lambda pair: str(pair[0])))
        return next((key for _, key in keys if isinstance(key, Failure)), ("inputs", keys))
    if item is None or isinstance(item, (str, int, float, list, tuple, Mapping)):
        return "json"
    kind = type(item).__name__
    return Failure(ErrorKind.REJECTED, f"an item is bytes, a NumPy array or a JSON value, and this one a {kind}")


def _is_data(value: object) -> bool:
    return isinstance(value, (bytes, bytearray, memoryview)) or is_array(value)


def tensors_of(items: Sequence[Any], specs: Sequence[InputSpec], *, binary: bool) -> list[Tensor]:
    """The items as the model's inputs, by what it says of them. Raises CannotEncode.

    An item is the one input of the model, or, where it has several, a mapping by their names. The items have one key.
    """
    first = items[0]
    names = {spec.name: spec for spec in specs}
    if isinstance(first, Mapping) and _is_by_name(first, specs):
        return [
            _tensor(_column(items, name), names.get(name, InputSpec(name)), binary=binary) for name in sorted(first)
        ]
    if len(specs) > 1:
        raise CannotEncode(f"the model has the inputs {', '.join(names)}: give each item as a mapping by these names")
    return [_tensor(items, specs[0] if specs else InputSpec(), binary=binary)]


def _is_by_name(item: Mapping[str, Any], specs: Sequence[InputSpec]) -> bool:
    if any(_is_data(value) for value in item.values()):
        return True
    if len(specs) == 1 and specs[0].datatype in ("JSON", ""):
        return False
    return bool(specs) and set(item) <= {spec.name for spec in specs}


def _column(items: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    if any(name not in item or len(item) != len(items[0]) for item in items):
        raise CannotEncode("the items of a request do not have the same inputs")
    return [item[name] for item in items]


def _tensor(items: Sequence[Any], spec: InputSpec, *, binary: bool) -> Tensor:
    if is_array(items[0]):
        return _of_arrays(items, spec, binary=binary)
    if all(isinstance(item, (bytes, bytearray, memoryview)) for item in items):
        return _of_bytes([bytes(item) for item in items], spec, binary=binary)
    datatype = spec.datatype or _guessed(items)
    if datatype == "JSON":
        return Tensor(spec.name, "JSON", (len(items),), data=_checked_json(items))
    if datatype == "BYTES":
        wrong = next((item for item in items if not isinstance(item, str)), None)
        if wrong is not None:
            raise CannotEncode(f"the input {spec.name} takes text or bytes, and not {type(wrong).__name__}")
        return Tensor(spec.name, "BYTES", (len(items),), data=list(items))
    flat: list[Any] = []
    shape = _flatten(items, flat, 0)
    if not all(isinstance(value, (bool, int, float)) for value in flat):
        raise CannotEncode(f"the input {spec.name} takes numbers ({datatype})")
    return Tensor(spec.name, datatype, shape, data=_checked_json(flat))


def _of_arrays(items: Sequence[Any], spec: InputSpec, *, binary: bool) -> Tensor:
    first = items[0]
    if any(not is_array(each) or each.dtype != first.dtype or each.shape != first.shape for each in items):
        raise CannotEncode(f"the arrays of the input {spec.name} differ in type or shape")
    datatype = _BY_NUMPY.get((first.dtype.kind, first.dtype.itemsize))
    if datatype is None:
        raise CannotEncode(
            f"arrays of {first.dtype} have no datatype in the protocol: give lists, bytes, or another type"
        )
    shape = (len(items), *first.shape)
    if binary:
        little = first.dtype.newbyteorder("<")
        return Tensor(
            spec.name, datatype, shape, binary=b"".join(each.astype(little, copy=False).tobytes() for each in items)
        )
    flat = [value for each in items for value in each.reshape(-1).tolist()]
    return Tensor(spec.name, datatype, shape, data=_checked_json(flat))


def _of_bytes(items: list[bytes], spec: InputSpec, *, binary: bool) -> Tensor:
    if binary:
        data = b"".join(part for item in items for part in (_LENGTH.pack(len(item)), item))
        return Tensor(spec.name, "BYTES", (len(items),), binary=data)
    try:
        return Tensor(spec.name, "BYTES", (len(items),), data=[item.decode() for item in items])
    except UnicodeDecodeError:
        raise CannotEncode("bytes that are no UTF-8 travel in binary data only: leave the setting binary on") from None


def _guessed(items: Sequence[Any]) -> str:
    """The datatype for a model that does not say what it takes."""
    if all(isinstance(item, str) for item in items):
        return "BYTES"
    flat: list[Any] = []
    try:
        _flatten(items, flat, 0)
    except CannotEncode:
        return "JSON"
    kinds = {type(value) for value in flat}
    if kinds == {bool}:
        return "BOOL"
    if kinds == {int}:
        return "INT64"
    return "FP64" if kinds and kinds <= {int, float} else "JSON"


def _flatten(values: Sequence[Any], flat: list[Any], depth: int) -> tuple[int, ...]:
    """The shape of lists within lists, whose values are added to `flat`."""
    if depth > DEPTH_MAX:
        raise CannotEncode(f"lists lie in lists more than {DEPTH_MAX} deep")
    if not any(isinstance(value, (list, tuple)) for value in values):
        flat.extend(values)
        return (len(values),)
    if not all(isinstance(value, (list, tuple)) for value in values):
        raise CannotEncode("numbers and lists lie side by side")
    shapes = {_flatten(value, flat, depth + 1) for value in values}
    if len(shapes) != 1:
        raise CannotEncode("the lists of the items differ in length")
    return (len(values), *shapes.pop())


def _checked_json(values: Iterable[Any]) -> list[Any]:
    values = list(values)
    try:
        json.dumps(values, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as problem:
        raise CannotEncode(f"it is no JSON value: {problem}") from None
    return values


def values_of(
    datatype: str, shape: Sequence[int], data: object, binary: memoryview | None, count: int, *, as_arrays: bool
) -> list[Any]:
    """The values of an output, one for each of `count` items. Raises CannotDecode."""
    if not shape or shape[0] != count:
        raise CannotDecode(f"an output of the shape {list(shape)} where {count} items were asked")
    row = math.prod(shape[1:])
    if binary is not None:
        if as_arrays and datatype in _LETTERS:
            return _arrays(datatype, shape, binary)
        flat = _unpacked(datatype, binary, count * row)
    else:
        if not isinstance(data, list):
            raise CannotDecode("an output without data")
        flat = data
        if len(shape) > 1 and len(data) == count and any(isinstance(each, list) for each in data):
            return data  # nested, as its shape is
        if len(flat) != count * row:
            raise CannotDecode(f"an output of the shape {list(shape)} with {len(flat)} values")
    if len(shape) == 1:
        return flat
    return [_nested(flat[place * row : (place + 1) * row], shape[1:]) for place in range(count)]


def _nested(flat: list[Any], shape: Sequence[int]) -> list[Any]:
    if len(shape) == 1:
        return flat
    row = len(flat) // shape[0] if shape[0] else 0
    return [_nested(flat[start : start + row], shape[1:]) for start in range(0, len(flat), row)] if row else []


def _arrays(datatype: str, shape: Sequence[int], binary: memoryview) -> list[Any]:
    numpy: Any = sys.modules["numpy"]
    try:
        whole = numpy.frombuffer(binary, dtype=numpy.dtype(_LETTERS[datatype]).newbyteorder("<")).reshape(tuple(shape))
    except ValueError as problem:
        raise CannotDecode(f"binary data that does not fit its shape: {problem}") from None
    # A copy: the answer's buffer holds all items, and is not to live as long as any of them.
    return [whole[index].copy() for index in range(shape[0])]


def _unpacked(datatype: str, binary: memoryview, count: int) -> list[Any]:
    if datatype in ("BYTES", "JSON"):
        texts = _split(binary, count)
        return texts if datatype == "BYTES" else [_json_of(text) for text in texts]
    if datatype == "BF16":
        # The upper halves of FP32.
        halves = _unpacked("UINT16", binary, count)
        return list(struct.unpack(f"<{count}f", struct.pack(f"<{count}I", *(half << 16 for half in halves))))
    letter = _LETTERS.get(datatype)
    if letter is None:
        raise CannotDecode(f"an output of the datatype {datatype[:40]!r} in binary data")
    if len(binary) != struct.calcsize(f"<{letter}") * count:
        raise CannotDecode(f"{len(binary)} bytes for {count} values of {datatype}")
    return list(struct.unpack(f"<{count}{letter}", binary))


def _split(binary: memoryview, count: int) -> list[bytes]:
    found: list[bytes] = []
    start = 0
    while start < len(binary):
        if start + _LENGTH.size > len(binary) or len(found) == count:
            raise CannotDecode("the lengths in binary data do not add up")
        (length,) = _LENGTH.unpack_from(binary, start)
        start += _LENGTH.size
        if start + length > len(binary):
            raise CannotDecode("the lengths in binary data do not add up")
        found.append(bytes(binary[start : start + length]))
        start += length
    if len(found) != count:
        raise CannotDecode(f"{len(found)} texts where {count} were asked")
    return found


def as_content(value: object, content: str) -> Any:
    """What a text of BYTES stands for: a value of JSON, or bytes that were written in base64."""
    if isinstance(value, list):
        return [as_content(each, content) for each in value]
    if not isinstance(value, (str, bytes)):
        raise CannotDecode(f"{content} in something that is no text")
    if not value:
        return None if content == "json" else b""  # where the item has an error of its own
    if content == "json":
        return _json_of(value)
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        raise CannotDecode("base64 that is none") from None


def _json_of(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise CannotDecode("a JSON output that is no JSON") from None
