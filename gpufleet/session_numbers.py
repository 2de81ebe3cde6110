"""The numbers of models' lines and turns in a settings file: a table [sessions.NAME] for each model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from gpufleet.kinds import DURATION, INTEGER, Kind, Unreadable, quoted
from gpufleet.spelling import did_you_mean

SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)
LINE_LENGTH_MAX = 1_000_000
MODELS_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionNumbers:
    """What is set for one model; None follows the default. Spans, and people that may wait."""

    idle: timedelta | None = None
    idle_warning: timedelta | None = None
    turn: timedelta | None = None
    turn_warning: timedelta | None = None
    grace: timedelta | None = None
    line_length: int | None = None


LEAST: Mapping[str, timedelta] = {
    "idle": 2 * SECOND,
    "idle_warning": 0 * SECOND,
    "turn": 1 * SECOND,
    "turn_warning": 0 * SECOND,
    "grace": 0 * SECOND,
}
"""The spans, and the shortest that each may be."""

ByModel = tuple[tuple[str, SessionNumbers], ...]


def _from_toml(raw: Any) -> ByModel:
    if not isinstance(raw, dict):
        raise Unreadable("this is a table for each model; write [sessions.NAME] and its numbers below")
    if len(raw) > MODELS_MAX:
        raise Unreadable(f"{len(raw):,} models are more than the {MODELS_MAX:,} that are taken")
    return tuple(sorted((name, _numbers(name, table)) for name, table in raw.items()))


def _numbers(name: str, table: Any) -> SessionNumbers:
    if not isinstance(table, dict):
        raise Unreadable(f"{name} is not a table; write [sessions.NAME] with the model's name")
    found: dict[str, Any] = {}
    for key, raw in table.items():
        try:
            found[key] = _number(key, raw)
        except Unreadable as why:
            raise Unreadable(f"{name}.{key}: {why}") from None
    numbers = SessionNumbers(**found)
    if numbers.idle is not None and numbers.idle_warning is not None and numbers.idle_warning >= numbers.idle:
        raise Unreadable(f"{name}.idle_warning: must be shorter than idle")
    return numbers


def _number(key: str, raw: Any) -> Any:
    if key == "line_length":
        people = INTEGER.from_toml(raw)
        if not 1 <= people <= LINE_LENGTH_MAX:
            raise Unreadable(f"must be 1 to {LINE_LENGTH_MAX:,}")
        return people
    if key not in LEAST:
        raise Unreadable(f"there is no such number{did_you_mean(key, [*LEAST, 'line_length'])}")
    span = DURATION.from_toml(raw)
    if not LEAST[key] <= span <= DAY:
        raise Unreadable(f"must be {DURATION.to_toml(LEAST[key])} to {DURATION.to_toml(DAY)}")
    return span


def _from_text(text: str) -> ByModel:
    import tomllib

    try:
        return _from_toml(tomllib.loads(f"sessions = {text}")["sessions"])
    except tomllib.TOMLDecodeError:
        raise Unreadable('it is not a table such as { canvas = { idle = "30s" } }') from None


def _to_toml(models: ByModel) -> str:
    tables = (f"{_key(name)} = {{ {', '.join(_pairs(numbers))} }}" for name, numbers in models)
    return f"{{ {', '.join(tables)} }}" if models else "{}"


def _pairs(numbers: SessionNumbers) -> list[str]:
    spans = ((key, getattr(numbers, key)) for key in LEAST)
    pairs = [f"{key} = {DURATION.to_toml(span)}" for key, span in spans if span is not None]
    return pairs if numbers.line_length is None else [*pairs, f"line_length = {numbers.line_length}"]


def _key(name: str) -> str:
    is_bare = name.replace("-", "").replace("_", "").isalnum() and name.isascii()
    return name if is_bare else quoted(name)


SESSIONS: Kind[ByModel] = Kind("a table for each model", _from_toml, _from_text, _to_toml)
