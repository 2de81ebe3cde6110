"""A child process that opens this machine's devices and answers questions about them, a JSON line each.

The driver library is chosen by the environment that the process starts with, so a test needs a process of its
own.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from dataclasses import asdict
from typing import Any

from gpufleet.devices import nvml, nvml_trouble
from gpufleet.devices.device import DeviceSample, DeviceSource
from gpufleet.devices.opening import open_devices
from gpufleet.devices.process_tree import LiveAttempt, mark_owners


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--virtual-gpus", type=int, default=0)
    parser.add_argument("--interval", type=float, default=0.05)
    parser.add_argument("--silent-after", type=float, default=30.0)
    parser.add_argument("--open-timeout", type=float, default=30.0)
    parser.add_argument("--again", type=float, default=nvml.OPEN_AGAIN_SECONDS, help="how often what fails is tried")
    options = parser.parse_args()
    nvml.OPEN_AGAIN_SECONDS = nvml_trouble.REGISTER_AGAIN_SECONDS = options.again
    source = open_devices(
        node="n1",
        virtual_gpus=options.virtual_gpus,
        interval_seconds=options.interval,
        silent_after_seconds=options.silent_after,
        open_timeout_seconds=options.open_timeout,
    )
    for line in sys.stdin:
        print(json.dumps(answer(source, **json.loads(line))), flush=True)


def answer(source: DeviceSource, do: str, **options: Any) -> Any:
    match do:
        case "list":
            return [asdict(device) | {"is_virtual": device.is_virtual} for device in source.list()]
        case "status":
            return asdict(source.status())
        case "sample":
            return [as_json(sample) for sample in source.sample()]
        case "fresh":
            return [as_json(sample) for sample in source.fresh(**options)]
        case "owners":
            attempts = [LiveAttempt(**attempt) for attempt in options["attempts"]]
            return [as_json(sample) for sample in mark_owners(source.sample(), attempts)]
        case "drain":
            return {uuid: asdict(tally) for uuid, tally in source.drain().items()}
        case "set_interval":
            source.set_interval(options["seconds"])
        case "clear":
            source.clear_troubles(tuple(options["uuids"]))
        case "close":
            source.close()
        case "threads":
            return sorted(thread.name for thread in threading.enumerate())
        case "loaded":
            return [name for name in ("pynvml", "amdsmi") if name in sys.modules]
        case _:
            raise ValueError(do)
    return None


def as_json(sample: DeviceSample) -> dict[str, Any]:
    shown = asdict(sample)
    shown |= {"is_healthy": sample.is_healthy, "unhealthy_reason": sample.unhealthy_reason}
    for process, seen in zip(shown["processes"] or (), sample.processes or (), strict=True):
        process["is_foreign"] = seen.is_foreign
    return shown


if __name__ == "__main__":
    main()
