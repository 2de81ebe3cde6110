"""The rows that were asked for, of what was typed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from gpufleet.client.settings import ClientSettings, load_settings
from gpufleet.errors import invalid
from gpufleet.fleet.reading import read
from gpufleet.text.units import parse_duration

from .pacing import UNDER_WAY_MAX, Shape

N = TypeVar("N", int, float)

CONCURRENCIES = "1,4,16"
DURATION = "10s"
ROWS_MAX = 32
REQUESTS_MAX = 10_000_000
RATE_MAX = 100_000.0
LEAST, MOST = timedelta(milliseconds=100), timedelta(hours=1)


def shapes_of(
    concurrency: str | None, rate: str | None, requests: int | None, duration: str | None, timeout_s: float
) -> list[Shape]:
    """A row for each concurrency, or each rate. Raises INVALID_ARGUMENT with the option."""
    if requests is not None and duration is not None:
        raise invalid("--requests", "--duration says when a row ends, too", next_step="Leave one of them out.")
    if requests is not None and requests > REQUESTS_MAX:
        raise invalid("--requests", f"must be {REQUESTS_MAX:,} at most")
    duration_s = 0.0 if requests is not None else _duration_s(duration or DURATION)
    if rate is not None:
        if concurrency is not None:
            step = "Leave --concurrency out: a rate is kept whatever is under way."
            raise invalid("--rate", "--concurrency is for a closed loop", next_step=step)
        rates = _numbers("--rate", rate, float, 0.001, RATE_MAX, "100 or 50,100,200")
        return [Shape(rate=r, duration_s=duration_s, requests=requests or 0, overrun_s=timeout_s) for r in rates]
    counts = _numbers("--concurrency", concurrency or CONCURRENCIES, int, 1, UNDER_WAY_MAX, "1,4,16,64")
    return [Shape(concurrency=count, duration_s=duration_s, requests=requests or 0) for count in counts]


def timeout_s_of(text: str | None) -> float:
    """The longest that a request may take. Raises INVALID_ARGUMENT."""
    if text is None:
        return load_settings({}).timeout_s
    timeout = read("--timeout", parse_duration, text)
    if not timedelta(milliseconds=1) <= timeout <= MOST:
        raise invalid("--timeout", "must be from 1ms to 1h")
    return timeout.total_seconds()


def client_settings(timeout_s: float) -> ClientSettings:
    """What holds for requests to any endpoint."""
    return load_settings({"timeout_s": timeout_s})


def _duration_s(text: str) -> float:
    duration = read("--duration", parse_duration, text)
    if not LEAST <= duration <= MOST:
        raise invalid("--duration", "must be from 100ms to 1h")
    return duration.total_seconds()


def _numbers(option: str, text: str, kind: Callable[[str], N], least: N, most: N, such_as: str) -> list[N]:
    found: list[N] = []
    for part in text.split(","):
        try:
            number = kind(part.strip())
        except ValueError:
            raise invalid(option, f'"{part.strip()}" is not a number', next_step=f"Write {such_as}.") from None
        if not least <= number <= most:
            raise invalid(option, f"{part.strip()} is not from {least} to {most:,}")
        found.append(number)
    if len(found) > ROWS_MAX:
        raise invalid(option, f"these are {len(found)} rows, and {ROWS_MAX} are the most")
    return found
