"""From a model's frame to bytes: check it, bring it to the host, encode it. Called on encoder threads, never on the
loop.

Measured on one core, 512×384: JPEG q75 with 4:2:0 by simplejpeg 0.4 ms (it leaves the interpreter to others meanwhile),
WebP 5 ms, PNG of level 1 11 ms, where level 6 may take 100 ms.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import simplejpeg
from numpy.typing import NDArray

JPEG, PNG, WEBP, RAW = "jpeg", "png", "webp", "raw"
ENCODINGS = (JPEG, PNG, WEBP, RAW)
PIXELS_ACROSS_MAX = 8_192
"""A larger picture is a mistake; JPEG ends at 65,535, and a message at 16 MB."""

PNG_LEVEL = 1
WEBP_METHOD = 0

Picture = NDArray[np.uint8]


class BadFrame(TypeError):
    """What a step gave is no picture; the message says what was expected."""


def chosen(wanted: Sequence[str]) -> str:
    """The first encoding that is known; JPEG where none was named or none is known."""
    return next((each for each in wanted if each in ENCODINGS), JPEG)


def picture_of(frame: Any) -> Picture:
    """The frame on the host: uint8, (height, width, 3), its bytes in order. Raises BadFrame.

    A tensor is recognised by its methods, so that nothing imports torch for a model that does without it.
    """
    if hasattr(frame, "detach") and hasattr(frame, "cpu"):
        frame = frame.detach().cpu().numpy()
    try:
        array = np.asarray(frame)
    except Exception as problem:
        raise BadFrame(f"step gave {type(frame).__name__}, which NumPy cannot read: {problem}") from None
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
        raise BadFrame(
            f"step gave {type(frame).__name__} of {array.dtype} and shape {array.shape}, expected uint8 of "
            "(height, width, 3)"
        )
    if not all(1 <= side <= PIXELS_ACROSS_MAX for side in array.shape[:2]):
        raise BadFrame(f"step gave a picture of shape {array.shape}; sides are 1 to {PIXELS_ACROSS_MAX} pixels")
    return np.ascontiguousarray(array)


def is_same(one: Picture, other: Picture) -> bool:
    """Whether two pictures show the same."""
    if one.shape == other.shape and one.size % 8 == 0:
        # Eight bytes at a time: half of the 40 µs that 512×384 take byte by byte, with each frame.
        return np.array_equal(one.reshape(-1).view(np.uint64), other.reshape(-1).view(np.uint64))
    return np.array_equal(one, other)


def encode(picture: Picture, encoding: str, quality: int) -> bytes:
    """The picture's bytes; `quality`, 1 to 100, is for JPEG and WebP."""
    match encoding:
        case "jpeg":
            data: bytes = simplejpeg.encode_jpeg(picture, quality=quality, colorspace="RGB", colorsubsampling="420")
            return data
        case "raw":
            return picture.tobytes()
        case "png":
            return _by_pillow(picture, "PNG", compress_level=PNG_LEVEL)
        case _:
            return _by_pillow(picture, "WEBP", quality=quality, method=WEBP_METHOD)


def _by_pillow(picture: Picture, name: str, **options: int) -> bytes:
    from PIL import Image  # here: most clients take JPEG, and it would cost every start

    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, name, **options)
    return buffer.getvalue()
