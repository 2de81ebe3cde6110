"""What became of one row as a line of JSON, whatever its value is."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

from gpufleet.client import Result


def answer_object(result: Result, index: int, name: str = "") -> dict[str, Any]:
    """The answer or the error of a row: `index` and, where it has one, its name as `input`."""
    said: dict[str, Any] = {"index": index}  # first, as answers.LINE_BEGINS says
    if name:
        said["input"] = name
    if result.error is not None:
        said["error"] = result.error.as_dict()
    else:
        said["output"] = result.value
    said["attempts"] = result.attempts
    if result.backend is not None:
        said["backend"] = str(result.backend)
    if result.is_fallback:
        said["is_fallback"] = True
    return said


def as_json(value: Any) -> str:
    """It on one line, with null for numbers that are not finite: JSON has no other word for them."""
    try:
        return json.dumps(value, ensure_ascii=False, default=_plain, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False, default=_plain)


def _finite(value: Any) -> Any:
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return {name: _finite(each) for name, each in value.items()} if isinstance(value, dict) else value


def _plain(value: Any) -> Any:
    """What JSON lacks: bytes as text, or in base64 where they are none; anything else as its words."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    return value.tolist() if hasattr(value, "tolist") else str(value)
