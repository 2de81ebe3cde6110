"""The GPUs of this machine, for programs: what they do now, which are free, and what a stretch of work used.

    from gpufleet import monitor

    for gpu in monitor.snapshot():
        print(gpu.index, gpu.name, gpu.utilization_percent, gpu.memory_free_mb, gpu.availability_score)

    best = monitor.free_devices(min_memory="10GB", max_utilization=30)

    with monitor.start() as watch:
        train()
    print(watch.statistics()["gpu_stats"]["0"]["utilization"]["mean"])

It needs neither a scheduler nor a job. NVIDIA GPUs are read through nvidia-ml-py (`pip install 'gpufleet[node]'`),
AMD's through amdsmi. docs/monitor.md shows more.

**Nothing there.** Without a GPU, a driver or its library every call works and finds nothing: `snapshot().reason` says
why, and `.next_step` what to do about it. A counter that a GPU lacks is None. Only arguments that make no sense raise
ValueError.

**Time.** The first call opens the driver, which may take seconds, and waits OPEN_TIMEOUT_SECONDS at most; a driver that
hangs gives no devices, with that as the reason. A look waits 2 s at most for a GPU that does not answer.

**Threads.** Every function may be called from any thread. Readings are made on the library's own threads, and only
while somebody looks or a monitor runs. A child made by fork opens the driver anew; monitors stay with their parent.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable

from .devices.hub import Hub, Monitor, Which
from .devices.opening import open_devices
from .devices.snapshots import DeviceSnapshot, ProcessSnapshot, Snapshot, free_of
from .text.units import parse_size

__all__ = [
    "DeviceSnapshot",
    "Monitor",
    "ProcessSnapshot",
    "Snapshot",
    "close",
    "device",
    "free_devices",
    "fresh",
    "snapshot",
    "start",
]

OPEN_TIMEOUT_SECONDS = 30.0
SNAPSHOT_AGE_SECONDS_MAX = 1.0
OWN_PROCESS = -1
"""Stands for the process that calls."""

_lock = threading.Lock()
_hub: Hub | None = None


def snapshot() -> Snapshot:
    """All GPUs, by readings that are a second old at most; what CUDA_VISIBLE_DEVICES hides is shown, too."""
    return _opened().look(max_age_seconds=SNAPSHOT_AGE_SECONDS_MAX)


def fresh() -> Snapshot:
    """All GPUs, read anew."""
    return _opened().look(max_age_seconds=0.0)


def free_devices(*, min_memory: int | str = 0, max_utilization: int = 100) -> tuple[DeviceSnapshot, ...]:
    """The GPUs that could be taken, best first by their score: healthy, and without a process of somebody else's.

    `min_memory` is the free memory wanted, in bytes or as "10GB"; `max_utilization` the highest load, in percent.
    """
    if not 0 <= max_utilization <= 100:
        raise ValueError(f"max_utilization: {max_utilization} is not 0 to 100")
    min_memory_bytes = min_memory if isinstance(min_memory, int) else _size(min_memory)
    if min_memory_bytes < 0:
        raise ValueError(f"min_memory: {min_memory} is less than nothing")
    return free_of(fresh(), min_memory_bytes=min_memory_bytes, max_utilization_percent=max_utilization)


def device(which: Which) -> DeviceSnapshot | None:
    """One GPU by its index or UUID; None when there is no such GPU."""
    return next((each for each in snapshot() if which in (each.index, each.uuid)), None)


def start(
    *, interval_seconds: float = 1.0, devices: Iterable[Which] | None = None, pid: int | None = OWN_PROCESS
) -> Monitor:
    """Sum up from now on until `stop()`, or to the end of a `with`: the statistics that `gpuctl stats` tells of a job.

    Reads every `interval_seconds` (0.05 to 3,600), and once more at the end. `devices` are indices or UUIDs; by default
    those that CUDA_VISIBLE_DEVICES leaves, or all of them. `pid` is the process whose tree is read, too: by default the
    own one; None for no process. Several monitors may run at once.
    """
    return _opened().start(
        interval_seconds=interval_seconds, devices=devices, pid=os.getpid() if pid == OWN_PROCESS else pid
    )


def close() -> None:
    """Stop what runs and let the driver go. The next call opens it anew; a program that ends need not call it."""
    global _hub
    with _lock:
        closing, _hub = _hub, None
    if closing is not None:
        closing.close()


def _opened() -> Hub:
    global _hub
    with _lock:
        if _hub is None:
            _hub = Hub(open_devices(node="here", open_timeout_seconds=OPEN_TIMEOUT_SECONDS))
        return _hub


def _size(text: str) -> int:
    from .errors import GpufleetError

    try:
        return parse_size(text)
    except GpufleetError as problem:
        raise ValueError(f"min_memory: {problem}") from None


def _forget() -> None:
    """In a child made by fork: the threads that read are not there, and their locks may be held for ever."""
    global _hub, _lock
    _hub, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
