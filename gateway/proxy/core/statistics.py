"""Statistics of the Open Inference Protocol: which requests ask for them, what an answer says, and sums of answers.

What is added up are whole numbers, wherever they stand: counts, and times in nanoseconds. Of moments the latest stays.
All else that a program may say of itself is left out, since it is no matter of several replicas.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeGuard, Union

PATH = re.compile(rb"/v2/models(?:/[^/]+(?:/versions/[^/]+)?)?/stats")
"""Where a program has the statistics of one of its models, or of all."""

NUMBER_MAX = 2**64 - 1
"""The protocol's numbers have 64 bits; a sum stays there."""

DEPTH_MAX = 4
"""Objects within objects of a model that are looked into: inference_stats, success, and two to spare."""

MOMENTS = frozenset({"last_inference"})
"""Numbers that say when something was."""

Numbers = Mapping[str, Union[int, "Numbers"]]


class ModelStatistics(NamedTuple):
    """What is said of a model: its own numbers, and those of its batches by their size."""

    numbers: Numbers
    batches: Mapping[int, Numbers]


Statistics = Mapping[tuple[str, str], ModelStatistics]
"""By a model's name and version."""


def asks_for_statistics(method: str, path: bytes) -> bool:
    """Whether a request is one for them, by the protocol's own path below a program's."""
    return method == "GET" and PATH.fullmatch(path) is not None


def statistics_in(body: bytes | bytearray) -> Statistics | None:
    """What an answer's body says; None where it is none of the protocol's."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return None
    models = said.get("model_stats") if isinstance(said, dict) else None
    if not isinstance(models, list):
        return None
    found: dict[tuple[str, str], ModelStatistics] = {}
    for model in models:
        if not isinstance(model, dict) or not isinstance(model.get("name"), str):
            return None
        version = model.get("version")
        numbers = {name: value for name, value in model.items() if name not in ("name", "version", "batch_stats")}
        told = ModelStatistics(_numbers(numbers), _batches(model.get("batch_stats")))
        _add(found, (model["name"], version if isinstance(version, str) else ""), told)
    return found


def added(some: Statistics, others: Statistics) -> Statistics:
    """The sum of both."""
    merged = dict(some)
    for key, model in others.items():
        _add(merged, key, model)
    return merged


def count_of(statistics: Statistics) -> int:
    """How many numbers there are, with those that name a size."""
    return sum(
        _count(model.numbers) + sum(1 + _count(each) for each in model.batches.values())
        for model in statistics.values()
    )


def body_of(statistics: Statistics) -> bytes:
    """An answer's body that says so."""
    models = [
        {
            "name": name,
            "version": version,
            **model.numbers,
            "batch_stats": [{"batch_size": size, **numbers} for size, numbers in sorted(model.batches.items())],
        }
        for (name, version), model in sorted(statistics.items())
    ]
    return json.dumps({"model_stats": models}, separators=(",", ":")).encode()


def _add(merged: dict[tuple[str, str], ModelStatistics], key: tuple[str, str], model: ModelStatistics) -> None:
    before = merged.get(key)
    if before is None:
        merged[key] = model
        return
    batches = dict(before.batches)
    for size, numbers in model.batches.items():
        batches[size] = _sum(batches.get(size, {}), numbers)
    merged[key] = ModelStatistics(_sum(before.numbers, model.numbers), batches)


def _numbers(said: Mapping[str, Any], depth: int = DEPTH_MAX) -> Numbers:
    return dict(_those_known(said, depth))


def _those_known(said: Mapping[str, Any], depth: int) -> Iterator[tuple[str, int | Numbers]]:
    for name, value in said.items():
        if _is_number(value):
            yield name, value
        elif isinstance(value, dict) and depth:
            yield name, _numbers(value, depth - 1)


def _batches(said: Any) -> Mapping[int, Numbers]:
    found: dict[int, Numbers] = {}
    for each in said if isinstance(said, list) else ():
        size = each.get("batch_size") if isinstance(each, dict) else None
        if _is_number(size):
            numbers = _numbers({name: value for name, value in each.items() if name != "batch_size"})
            found[size] = _sum(found.get(size, {}), numbers)
    return found


def _is_number(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= NUMBER_MAX


def _sum(some: Numbers, others: Numbers) -> Numbers:
    merged = dict(some)
    for name, other in others.items():
        one = merged.get(name)
        match one, other:
            case None, _:
                merged[name] = other
            case int(), int():
                merged[name] = max(one, other) if name in MOMENTS else min(one + other, NUMBER_MAX)
            case Mapping(), Mapping():
                merged[name] = _sum(one, other)
            case _:
                pass  # Replicas that disagree about what it is: the first says.
    return merged


def _count(numbers: Numbers) -> int:
    return sum(1 if isinstance(each, int) else 1 + _count(each) for each in numbers.values())
