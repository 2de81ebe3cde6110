"""Tensors of the Open Inference Protocol: datatypes, and their data as JSON and as bytes, to and from NumPy.

BYTES are lists of bytes here, in row-major order, and JSON lists of values. All else are arrays.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import struct
from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Data: TypeAlias = Array | list[Any]

DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    **{f"UINT{bits}": np.dtype(f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": np.dtype(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": np.dtype(f"<f{bits // 8}") for bits in (16, 32, 64)},
    "BF16": np.dtype("<f4"),
}
"""How each is held; BF16 as float32, of which its bytes are the upper half."""

NAMES = {dtype: name for name, dtype in DTYPES.items() if name != "BF16"}

LENGTH = struct.Struct("<I")


class WrongData(ValueError):
    """Data is not what its datatype and shape say; the message is a clause that goes behind the field's name."""


def count_of(shape: Sequence[int]) -> int:
    """How many elements a shape has."""
    return math.prod(shape)


def from_bytes(datatype: str, shape: Sequence[int], data: memoryview) -> Data:
    """The elements of the binary extension. An array is a view of `data`, which nobody can write to."""
    count = count_of(shape)
    if datatype == "BYTES":
        return _texts_of(data, count)
    if datatype == "JSON":
        raise WrongData("JSON has no binary form: send its values in data, or their texts as BYTES")
    wide = 2 if datatype == "BF16" else DTYPES[datatype].itemsize
    if len(data) != count * wide:
        raise WrongData(f"{len(data):,} bytes are not {count:,} elements of {datatype}, {wide} bytes each")
    if datatype == "BF16":
        halves = np.frombuffer(data, np.dtype("<u2")).astype(np.uint32)
        return _shaped((halves << 16).view(np.float32), shape)
    if datatype == "BOOL":
        return _shaped(np.frombuffer(data, np.uint8).astype(np.bool_), shape)
    return _shaped(np.frombuffer(data, DTYPES[datatype]), shape)


def to_bytes(datatype: str, data: Data) -> bytes:
    """The elements as the binary extension has them."""
    if datatype == "BYTES":
        return b"".join(part for text in data for part in (LENGTH.pack(len(text)), text))
    array = cast(Array, data)
    if datatype == "BF16":
        whole = np.ascontiguousarray(array, np.float32).view(np.uint32)
        # To the nearest, and to the even one of two; what is no number stays none.
        rounded = ((whole + 0x7FFF + ((whole >> 16) & 1)) >> 16).astype("<u2")
        return np.where(np.isnan(array), np.uint16(0x7FC0), rounded).astype("<u2").tobytes()
    return array.astype(DTYPES[datatype], copy=False).tobytes()


def from_json(datatype: str, shape: Sequence[int], data: object, *, is_base64: bool = False) -> Data:
    """The elements of `data`, flat or nested as the shape is."""
    if not isinstance(data, list):
        raise WrongData("must be a list")
    count = count_of(shape)
    if datatype == "JSON":
        if len(data) != count:
            raise WrongData(f"holds {len(data):,} values, and the shape says {count:,}")
        return data
    if datatype == "BYTES":
        return _texts(_flat(data, len(shape)), count, is_base64=is_base64)
    if _holds_texts(data):  # to each element NumPy would give the room of the longest
        raise WrongData(f"holds other things than {datatype}")
    try:
        array = np.asarray(data)
    except (ValueError, OverflowError):
        raise WrongData("holds lists of different lengths, or other things than numbers") from None
    if array.size != count:
        raise WrongData(f"holds {array.size:,} elements, and the shape says {count:,}")
    return _shaped(_as(datatype, array), shape)


def to_json(datatype: str, data: Data) -> list[Any]:
    """The elements in one flat list; what is no finite number as None, for which JSON has no other word."""
    if datatype == "JSON":
        return list(data)
    if datatype == "BYTES":
        try:
            return [text.decode() for text in data]
        except UnicodeDecodeError:
            raise WrongData("holds bytes that are no text: ask for binary data") from None
    array = np.ravel(cast(Array, data))
    listed: list[Any] = array.tolist()
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return [each if math.isfinite(each) else None for each in listed]
    return listed


def value_of_json(text: bytes) -> Any:
    """The value that a text of JSON says."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise WrongData("holds a text that is no JSON") from None


def _shaped(array: Array, shape: Sequence[int]) -> Array:
    try:
        return array.reshape(shape)
    except ValueError:  # no elements, and the other numbers beyond what NumPy can count
        raise WrongData(f"cannot have the shape {list(shape)}") from None


def _as(datatype: str, array: Array) -> Array:
    wanted = DTYPES[datatype]
    kind = array.dtype.kind
    fits = {"b": "b", "u": "iu", "i": "iu", "f": "iuf"}[wanted.kind]
    if array.size and kind not in fits:
        raise WrongData(f"holds other things than {datatype}")
    if wanted.kind in "iu" and array.size:
        bounds = np.iinfo(wanted)
        if int(array.min()) < bounds.min or int(array.max()) > bounds.max:
            raise WrongData(f"holds numbers beyond {datatype}: {bounds.min} to {bounds.max}")
    with np.errstate(over="ignore"):
        return array.astype(wanted)


def _flat(data: list[Any], depth: int) -> list[Any]:
    for _ in range(depth - 1):
        if not data or not isinstance(data[0], list):
            break
        if not all(isinstance(each, list) for each in data):
            raise WrongData("holds lists beside other things")
        data = [each for part in data for each in part]
    return data


def _holds_texts(data: list[Any]) -> bool:
    while data:
        kinds = set(map(type, data))
        if str in kinds:
            return True
        data = [each for part in data if type(part) is list for each in part] if list in kinds else []
    return False


def _texts(elements: list[Any], count: int, *, is_base64: bool) -> list[bytes]:
    if len(elements) != count:
        raise WrongData(f"holds {len(elements):,} elements, and the shape says {count:,}")
    if not all(isinstance(each, str) for each in elements):
        raise WrongData("holds other things than texts")
    try:
        if is_base64:
            return [base64.b64decode(each, validate=True) for each in elements]
        return [each.encode() for each in elements]
    except (binascii.Error, ValueError):
        what = "base64" if is_base64 else "Unicode"
        raise WrongData(f"holds a text that is no {what}") from None


def _texts_of(data: memoryview, count: int) -> list[bytes]:
    texts: list[bytes] = []
    at = 0
    while at < len(data) and len(texts) < count:
        if at + LENGTH.size > len(data):
            break
        (length,) = LENGTH.unpack_from(data, at)
        at += LENGTH.size
        if at + length > len(data):
            raise WrongData(f"element {len(texts)} is {length:,} bytes long, and {len(data) - at:,} are left")
        texts.append(bytes(data[at : at + length]))
        at += length
    if at != len(data) or len(texts) != count:
        raise WrongData(f"{len(data):,} bytes are not {count:,} elements, each behind its length in 4 bytes")
    return texts
