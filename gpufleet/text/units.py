"""Durations and sizes as people write and read them: `90s`, `1h30m`, `8GB`, `8GiB`.

kB, MB, GB and TB are powers of 1000; KiB, MiB, GiB and TiB are powers of 1024. A number without a unit is
refused: other tools read it as seconds, as minutes, as MB or as MiB, and a wrong guess kills a job.
"""

from __future__ import annotations

import re
from datetime import timedelta

from gpufleet.errors import GpufleetError, Reason

_DURATION_UNITS_US = {
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
    "us": 1,
}
_SIZE_UNITS_BYTES = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_SIZE_UNITS_BY_LOWER_CASE = {unit.lower(): unit for unit in _SIZE_UNITS_BYTES}

_DURATION_PART = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)\s*([a-z]+)\s*")
_CLOCK = re.compile(r"(?:([0-9]{1,5})-)?([0-9]{1,6}):([0-5]\d):([0-5]\d)")
_SIZE = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,9})?)\s*([A-Za-z]+)")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")

DURATION_MAX = timedelta(days=3660)
SIZE_BYTES_MAX = 2**62


def parse_duration(text: str) -> timedelta:
    """Read `30s`, `5m`, `1h30m`, `250ms`, `2d`, or a clock `1:30:00` or `2-01:30:00`; zero is a duration.

    Raises INVALID_ARGUMENT for a number without a unit, an unknown or repeated unit, and more than ten years.
    """
    text = text.strip()
    if clock := _CLOCK.fullmatch(text):
        days, hours, minutes, seconds = (int(part or 0) for part in clock.groups())
        return _bounded(text, timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds))
    if _NUMBER.fullmatch(text):
        raise _refused(f"{text} has no unit", f"Write {text}s for seconds, {text}m for minutes, {text}h for hours.")
    total_us = 0.0
    seen: set[int] = set()
    position = 0
    while part := _DURATION_PART.match(text, position):
        unit_us = _DURATION_UNITS_US.get(part[2])
        if unit_us is None:
            raise _refused(f'"{part[2]}" in "{text}" is not a unit of time', "Use d, h, m, s or ms, as in 1h30m.")
        if unit_us in seen:
            raise _refused(f'"{text}" names the unit "{part[2]}" twice', "Name each unit once, as in 1h30m.")
        seen.add(unit_us)
        total_us += float(part[1]) * unit_us
        position = part.end()
    if not seen or position != len(text):
        raise _refused(f'"{text}" is not a duration', "Write it as 30s, 5m, 2h or 1h30m.")
    return _bounded(text, timedelta(microseconds=round(min(total_us, 1e18))))


def parse_seconds(text: str) -> timedelta:
    """The same where a number without a unit is seconds: of a wait, which a wrong guess does no harm."""
    bare = text.strip()
    return parse_duration(f"{bare}s" if _NUMBER.fullmatch(bare) else text)


def format_duration(duration: timedelta) -> str:
    """For people: the two largest units (`2d03h`, `1h05m`, `45s`, `250ms`), rounded down."""
    if duration < timedelta(0):
        return "-" + format_duration(-duration)
    total_ms = duration // timedelta(milliseconds=1)
    if total_ms < 1000:
        return f"{total_ms}ms" if total_ms else "0s"
    seconds = total_ms // 1000
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return _two(seconds // 60, "m", seconds % 60, "s")
    if seconds < 86400:
        return _two(seconds // 3600, "h", seconds % 3600 // 60, "m")
    return _two(seconds // 86400, "d", seconds % 86400 // 3600, "h")


def exact_duration(duration: timedelta) -> str:
    """The text that `parse_duration` reads as the very same duration; for files and commands."""
    assert duration >= timedelta(0)
    rest_us = duration // timedelta(microseconds=1)
    parts = []
    for unit in ("d", "h", "m", "s", "ms", "us"):
        count, rest_us = divmod(rest_us, _DURATION_UNITS_US[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def parse_size(text: str) -> int:
    """Bytes in `8GB` (8 × 10^9), `8GiB` (8 × 2^30), `1.5TB` or `512B`; in any case of letters.

    Raises INVALID_ARGUMENT for a number without a unit, for `8G` (8GB to some and 8GiB to others), and for
    what is not a whole number of bytes below 2^62.
    """
    text = text.strip()
    if _NUMBER.fullmatch(text):
        raise _refused(f"{text} has no unit", f"Write {text}MB or {text}GB; MB is 10^6 bytes.")
    parts = _SIZE.fullmatch(text)
    if parts is None:
        raise _refused(f'"{text}" is not a size', "Write it as 8GB or 8GiB.")
    number, unit = parts.groups()
    known = _SIZE_UNITS_BY_LOWER_CASE.get(unit.lower())
    if known is None:
        letter = unit.upper()
        if letter in ("K", "M", "G", "T"):
            decimal = f"{number}{letter.replace('K', 'k')}B"
            raise _refused(
                f'the unit "{unit}" has two meanings',
                f"Write {decimal} (powers of 1000) or {number}{letter}iB (powers of 1024).",
            )
        raise _refused(f'"{unit}" in "{text}" is not a unit of size', "Use MB, GB, TB, MiB, GiB or TiB.")
    size_bytes = _times(number, _SIZE_UNITS_BYTES[known])
    if size_bytes is None or size_bytes > SIZE_BYTES_MAX:
        raise _refused(f"{text} is not a whole number of bytes below 2^62", "Write it as 8GB or 8GiB.")
    return size_bytes


def format_size(size_bytes: int) -> str:
    """For people: three digits that count, in the largest decimal unit (`80GB`, `15.8GB`, `512MB`)."""
    if size_bytes < 0:
        return "-" + format_size(-size_bytes)
    for unit in ("TB", "GB", "MB", "kB"):
        scale = _SIZE_UNITS_BYTES[unit]
        # Half a last digit below the unit already rounds up to it: 999.96 MB reads 1GB, not 1000MB.
        if size_bytes >= scale * 0.9995:
            return f"{_three_digits(size_bytes / scale)}{unit}"
    return f"{size_bytes}B"


def exact_size(size_bytes: int) -> str:
    """The shortest text that `parse_size` reads as the very same number of bytes; for files and commands."""
    assert size_bytes >= 0
    candidates = [
        f"{size_bytes // scale}{unit}" for unit, scale in _SIZE_UNITS_BYTES.items() if size_bytes % scale == 0
    ]
    return min(candidates, key=len) if size_bytes else "0B"


def format_megabytes(size_bytes: int) -> str:
    """Memory of devices in whole MB (`81,559 MB`), so that a column compares at a glance."""
    return f"{round(size_bytes / 10**6):,} MB"


def _refused(message: str, next_step: str) -> GpufleetError:
    return GpufleetError(Reason.INVALID_ARGUMENT, message, next_step=next_step)


def _bounded(text: str, duration: timedelta) -> timedelta:
    if duration > DURATION_MAX:
        raise _refused(f"{text} is more than ten years", "Ten years are the longest span; what has no end is left out.")
    return duration


def _two(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large}{large_unit}{small:02d}{small_unit}" if small else f"{large}{large_unit}"


def _times(number: str, scale: int) -> int | None:
    """The product without a detour through floats, None when it is no whole number."""
    whole, _, fraction = number.partition(".")
    numerator = int(whole + fraction) * scale
    denominator = 10 ** len(fraction)
    return numerator // denominator if numerator % denominator == 0 else None


def _three_digits(value: float) -> str:
    decimals = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals else text


def counted(count: int, noun: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
