"""An nvidia-smi for tests: answers -L and --query-gpu from the file that describes the devices."""

from __future__ import annotations

import os
import sys
from pathlib import Path

MIB = 2**20
ABSENT = "[N/A]"


def values_of(text: str) -> dict[str, str]:
    """The lines of the control file by their first word."""
    return dict(line.partition(" ")[::2] for line in text.splitlines() if line)


def field(values: dict[str, str], index: int, name: str) -> str:
    """One field, in nvidia-smi's words and units."""

    def number(counter: str, unit: float = 1) -> str:
        told = values.get(f"{index}.{counter}")
        return ABSENT if told is None else f"{int(told) / unit:g}"

    def mib(counter: str) -> str:
        return str(round(int(values[f"{index}.{counter}"]) / MIB))

    match name:
        case "index":
            return str(index)
        case "uuid" | "name":
            return values[f"{index}.{name}"]
        case "pci.bus_id":
            return values[f"{index}.pci"]
        case "driver_version":
            return values["driver"]
        case "mig.mode.current":
            return "Disabled"
        case "memory.total" | "memory.used":
            return mib(name.replace(".", "_"))
        case "memory.free":
            total, used, kept = (int(values[f"{index}.memory_{each}"]) for each in ("total", "used", "reserved"))
            return str(round((total - used - kept) / MIB))
        case "utilization.gpu" | "temperature.gpu":
            return number(name.partition(".")[0])
        case "power.draw":
            return number("power", 1000)
        case "enforced.power.limit":
            return number("power_limit", 1000)
        case "clocks.sm":
            return number("clock_sm")
        case "clocks.mem":
            return number("clock_memory")
        case "fan.speed":
            return number("fan")
        case "ecc.errors.uncorrected.volatile.total":
            return number("ecc_uncorrected")
        case _:
            return f"Field {name!r} is not a valid field to query."


def main() -> None:
    """Answer one call."""
    values = values_of(Path(os.environ["FAKE_NVML_CONTROL"]).read_text())
    count = int(values["devices"])
    if sys.argv[1:] == ["-L"]:
        for index in range(count):
            print(f"GPU {index}: {values[f'{index}.name']} (UUID: {values[f'{index}.uuid']})")
        return
    asked = next(word.removeprefix("--query-gpu=") for word in sys.argv if word.startswith("--query-gpu="))
    for index in range(count):
        print(", ".join(field(values, index, name) for name in asked.split(",")))


if __name__ == "__main__":
    main()
