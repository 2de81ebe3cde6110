"""Settings that every program has: its own log."""

from __future__ import annotations

from dataclasses import dataclass

from gpufleet.kinds import INTEGER, SIZE, one_of
from gpufleet.settings import setting

GB = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """The program's own log, on stderr and in a rotated file."""

    level: str = setting(
        "info",
        "The least serious lines that are logged.",
        one_of("debug", "info", "warning", "error"),
        reloadable=True,
    )
    format: str = setting(
        "text", "Lines for people, or one JSON object a line.", one_of("text", "json"), reloadable=True
    )
    file_bytes_max: int = setting(
        10_000_000, "The log file is renamed and begun anew at this size.", SIZE, low=100_000, high=10 * GB
    )
    old_files_max: int = setting(5, "So many renamed log files are kept.", INTEGER, low=0, high=100)
