"""The numbers of models' lines and turns in a settings file: a table [sessions.NAME] for each model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from gpufleet.config.kinds import DURATION, INTEGER, Kind, Unreadable, key, quoted, table_of
from gpufleet.text.spelling import did_you_mean

SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)
LINE_LENGTH_MAX = 1_000_000
MODELS_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionNumbers:
    """What is set for one model; None follows the default. Spans, people that may wait, and who may join."""

    idle: timedelta | None = None
    idle_warning: timedelta | None = None
    turn: timedelta | None = None
    turn_warning: timedelta | None = None
    grace: timedelta | None = None
    line_length: int | None = None
    places_per_address: int | None = None
    seats_per_address: int | None = None
    access: str | None = None


NUMBERS: Mapping[str, tuple[Kind[Any], Any, Any]] = {
    "idle": (DURATION, 2 * SECOND, DAY),
    "idle_warning": (DURATION, 0 * SECOND, DAY),
    "turn": (DURATION, SECOND, DAY),
    "turn_warning": (DURATION, 0 * SECOND, DAY),
    "grace": (DURATION, 0 * SECOND, DAY),
    "line_length": (INTEGER, 1, LINE_LENGTH_MAX),
    "places_per_address": (INTEGER, 0, LINE_LENGTH_MAX),
    "seats_per_address": (INTEGER, 0, LINE_LENGTH_MAX),
}
"""Spans, and counts of people, of which 0 per address is no limit: the least and the most that each may be."""

ACCESS = ("open", "pass-phrase", "login")
"""Who may join: everybody, who says the model's pass phrase, who is logged in to the dashboard."""

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
    for each, raw in table.items():
        try:
            found[each] = _number(each, raw)
        except Unreadable as why:
            raise Unreadable(f"{name}.{each}: {why}") from None
    numbers = SessionNumbers(**found)
    if numbers.idle is not None and numbers.idle_warning is not None and numbers.idle_warning >= numbers.idle:
        raise Unreadable(f"{name}.idle_warning: must be shorter than idle")
    return numbers


def _number(name: str, raw: Any) -> Any:
    if name == "access":
        if raw not in ACCESS:
            raise Unreadable(f"must be {', '.join(map(quoted, ACCESS[:-1]))} or {quoted(ACCESS[-1])}")
        return raw
    if name not in NUMBERS:
        raise Unreadable(f"there is no such number{did_you_mean(name, [*NUMBERS, 'access'])}")
    kind, least, most = NUMBERS[name]
    number = kind.from_toml(raw)
    if not least <= number <= most:
        bounds = (f"{each:,}" if kind is INTEGER else kind.to_toml(each) for each in (least, most))
        raise Unreadable(f"must be {' to '.join(bounds)}")
    return number


def _from_text(text: str) -> ByModel:
    return _from_toml(table_of(text, '{ canvas = { idle = "30s" } }'))


def _to_toml(models: ByModel) -> str:
    tables = (f"{key(name)} = {{ {', '.join(_pairs(numbers))} }}" for name, numbers in models)
    return f"{{ {', '.join(tables)} }}" if models else "{}"


def _pairs(numbers: SessionNumbers) -> list[str]:
    found = ((name, kind, getattr(numbers, name)) for name, (kind, _, _) in NUMBERS.items())
    pairs = [f"{name} = {kind.to_toml(number)}" for name, kind, number in found if number is not None]
    return pairs if numbers.access is None else [*pairs, f"access = {quoted(numbers.access)}"]


SESSIONS: Kind[ByModel] = Kind("a table for each model", _from_toml, _from_text, _to_toml)
