"""What `nvidia-smi --query-gpu` says: the same driver, asked by another program."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass

ASK_SECONDS_MAX = 60.0
ABSENT = ("N/A", "Not Supported", "Unknown Error", "Insufficient Permissions", "Requested functionality")

TEXTS = ("uuid", "name", "pci.bus_id", "driver_version", "mig.mode.current")
NUMBERS = (
    "index",
    "memory.total",
    "memory.used",
    "memory.free",
    "utilization.gpu",
    "temperature.gpu",
    "power.draw",
    "enforced.power.limit",
    "clocks.sm",
    "clocks.mem",
    "fan.speed",
    "ecc.errors.uncorrected.volatile.total",
)


@dataclass(frozen=True, slots=True)
class Shown:
    """One device, as nvidia-smi shows it; what it has not is None. Memory in MiB, power in W, clocks in MHz."""

    texts: dict[str, str]
    numbers: dict[str, float | None]


def why_none() -> str:
    """Why there is no NVIDIA GPU to test with; empty when there is one."""
    if shutil.which("nvidia-smi") is None:
        return "no NVIDIA GPU here: nvidia-smi is not there"
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=ASK_SECONDS_MAX, check=False)
    if done.returncode or "GPU 0" not in done.stdout:
        return f"no NVIDIA GPU here: nvidia-smi -L says {(done.stdout + done.stderr).strip()[:200]!r}"
    return ""


def ask() -> list[Shown]:
    """All devices, now."""
    fields = [*TEXTS, *NUMBERS]
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ASK_SECONDS_MAX, check=True)
    return [_parsed(fields, line) for line in done.stdout.splitlines() if line.strip()]


def _parsed(fields: list[str], line: str) -> Shown:
    values = [value.strip() for value in line.split(",")]
    assert len(values) == len(fields), f"nvidia-smi told {len(values)} values of {len(fields)}: {line!r}"
    by_field = dict(zip(fields, values, strict=True))
    return Shown({name: by_field[name] for name in TEXTS}, {name: _number(by_field[name]) for name in NUMBERS})


def _number(text: str) -> float | None:
    return None if any(word in text for word in ABSENT) else float(text)
