"""One machine's devices for several who look at once: each look costs one reading, each monitor gets every reading.

Nothing is read while nobody looks: the source's interval is an hour then, and the shortest of the monitors' else.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .device import Device, DeviceSample, DeviceSource, Trouble, TroubleKind, Vendor
from .process_tree import LiveAttempt, mark_owners
from .snapshots import Snapshot, snapshot_of
from .tally import AttemptTally, DeviceTally, Series, TreeReading, begun

if TYPE_CHECKING:
    from gpufleet.v1 import capacity_pb2

_log = logging.getLogger(__name__)
# What is told by values is not also written to the stderr of a program that has set up no logging.
logging.getLogger(__package__).addHandler(logging.NullHandler())

RESTING_INTERVAL_SECONDS = 3600.0
INTERVAL_SECONDS_MIN, INTERVAL_SECONDS_MAX = 0.05, 3600.0
READ_TIMEOUT_SECONDS = 2.0
"""How long a look, and a begin and an end of a monitor, wait for a device that does not answer."""
CLOSE_SECONDS = 2.0

JOB_VARIABLES = ("GPUFLEET_JOB_ID", "GPUFLEET_ATTEMPT", "GPUFLEET_NODE_RANK")
"""What the processes of one job have in common, wherever they stand in the tree."""

Which = int | str


def monotonic_us() -> int:
    """Microseconds of a clock that is never set."""
    return time.monotonic_ns() // 1000


def _no_tree(pid: int) -> TreeReading | None:
    return None


class Hub:
    """The devices of this machine. Every method may be called from any thread, and waits a bounded time."""

    def __init__(
        self,
        source: DeviceSource,
        *,
        environment: Mapping[str, str] = os.environ,
        clock_us: Callable[[], int] = monotonic_us,
        read_tree: Callable[[int], TreeReading | None] | None = None,
        read_timeout_seconds: float = READ_TIMEOUT_SECONDS,
    ) -> None:
        self._source = source
        self._read_timeout_seconds = read_timeout_seconds
        self._environment = environment
        self._clock_us = clock_us
        self._read_tree = _tree_reader() if read_tree is None else read_tree
        self._changed = threading.Condition()
        self._monitors: list[Monitor] = []
        self._thread: threading.Thread | None = None
        self.devices: dict[str, Device] = {device.uuid: device for device in source.list()}
        source.set_interval(RESTING_INTERVAL_SECONDS)

    def look(self, *, max_age_seconds: float, timeout_seconds: float | None = None) -> Snapshot:
        """All devices, by readings no older than that; one that does not answer in time shows as unhealthy."""
        timeout_seconds = self._read_timeout_seconds if timeout_seconds is None else timeout_seconds
        began = time.monotonic()
        found = self._source.fresh(max_age_seconds=max_age_seconds, timeout_seconds=timeout_seconds)
        samples = {sample.uuid: sample for sample in mark_owners(found, self._own())}
        longest_seconds = max_age_seconds + time.monotonic() - began
        shown = (
            snapshot_of(device, _judged(samples.get(uuid), uuid, longest_seconds, timeout_seconds))
            for uuid, device in self.devices.items()
        )
        status = self._source.status()
        return Snapshot(devices=tuple(shown), reason=status.note, next_step=status.next_step)

    def start(
        self, *, interval_seconds: float = 1.0, devices: Iterable[Which] | None = None, pid: int | None = None
    ) -> Monitor:
        """A monitor that sums up from now on; see `gpufleet.monitor.start`."""
        if not INTERVAL_SECONDS_MIN <= interval_seconds <= INTERVAL_SECONDS_MAX:
            span = f"{INTERVAL_SECONDS_MIN:g} to {INTERVAL_SECONDS_MAX:,.0f} seconds"
            raise ValueError(f"interval_seconds: {interval_seconds:g} is not {span}")
        uuids = self._chosen(devices)
        # A count of energy goes from reading to reading: what was used before must not count.
        self._source.fresh(max_age_seconds=0.0, timeout_seconds=self._read_timeout_seconds, uuids=uuids)
        with self._changed:
            self._collect()
            monitor = Monitor(self, begun(self._clock_us(), uuids), interval_seconds, pid)
            self._read_processes([monitor])
            self._monitors.append(monitor)
            self._set_interval()
            if self._thread is None:
                self._thread = threading.Thread(target=self._keep_collecting, name="gpu-monitor", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return monitor

    def watch_process(self, monitor: Monitor, pid: int) -> None:
        """Have a monitor read this process, too, from now on."""
        with self._changed:
            monitor.pid = pid
            self._read_processes([monitor])

    def stop(self, monitor: Monitor) -> None:
        """One more reading, and no further one."""
        uuids = tuple(monitor.tally.devices)
        self._source.fresh(max_age_seconds=0.0, timeout_seconds=self._read_timeout_seconds, uuids=uuids)
        with self._changed:
            if monitor not in self._monitors:
                return
            self._collect()
            self._read_processes([monitor])
            monitor.tally.ended_us = self._clock_us()
            self._monitors.remove(monitor)
            self._set_interval()
            self._changed.notify_all()

    def statistics(self, monitor: Monitor) -> capacity_pb2.GetJobStatsResponse:
        """What a monitor summed up, until now or until it was stopped."""
        if monitor.is_parents:
            return self._told(monitor)  # a lock that a thread of the parent held at the fork is never given back
        with self._changed:
            if monitor.is_running:
                self._collect()
            return self._told(monitor)

    def close(self) -> None:
        """Stop every monitor and let the driver go."""
        with self._changed:
            running = list(self._monitors)
        for monitor in running:
            self.stop(monitor)
        thread = self._thread
        if thread is not None:
            thread.join(CLOSE_SECONDS)
        self._source.close()

    def _told(self, monitor: Monitor) -> capacity_pb2.GetJobStatsResponse:
        from .statistics import statistics_of  # brings protobuf, which looking does not need

        return statistics_of(monitor.tally, self.devices, node=socket.gethostname(), now_us=self._clock_us())

    def _own(self) -> list[LiveAttempt]:
        job = {name: self._environment[name] for name in JOB_VARIABLES if name in self._environment}
        return [LiveAttempt(name="own", leader_pid=os.getpid(), environment=job)]

    def _chosen(self, devices: Iterable[Which] | None) -> tuple[str, ...]:
        """The UUIDs of these devices; where the machine has none at all, of none."""
        everything = tuple(self.devices.values())
        if devices is None:
            return tuple(device.uuid for device in visible_devices(everything, self._environment))
        wanted = list(devices)
        unknown = [which for which in wanted if not any(which in (each.index, each.uuid) for each in everything)]
        if everything and unknown:
            there = ", ".join(str(device.index) for device in everything)
            raise ValueError(f"devices: there is no {unknown[0]!r}; there are {there}, or their UUIDs")
        return tuple(device.uuid for device in everything if device.index in wanted or device.uuid in wanted)

    def _set_interval(self) -> None:
        shortest = min((each.interval_seconds for each in self._monitors), default=RESTING_INTERVAL_SECONDS)
        self._source.set_interval(shortest)

    def _keep_collecting(self) -> None:
        with self._changed:
            while self._monitors:
                self._changed.wait(min(each.interval_seconds for each in self._monitors))
                self._collect()
                self._read_processes(self._monitors)
            self._thread = None

    def _collect(self) -> None:
        """Credit what was read since the last time to all who watch; the lock is held."""
        drained, now_us = self._source.drain(), self._clock_us()
        for monitor in self._monitors:
            monitor.credit(drained, now_us)

    def _read_processes(self, monitors: Iterable[Monitor]) -> None:
        now_us = self._clock_us()
        for monitor in monitors:
            if monitor.pid is None:
                continue
            try:
                reading = self._read_tree(monitor.pid)
            except Exception:
                # What cannot be read of /proc costs figures, and not the program that is watched.
                _log.exception("reading the processes below %d failed", monitor.pid)
                continue
            if reading is not None:
                monitor.take_processes(reading, now_us)


class Monitor:
    """Sums up what devices do, and a process with all below it, until `stop`; as a context manager it stops at the end.

    However long it lasts, it holds smallest, largest and sum of each counter and 600 points of the course.
    """

    def __init__(self, hub: Hub, tally: AttemptTally, interval_seconds: float, pid: int | None) -> None:
        self.tally = tally
        self.interval_seconds = interval_seconds
        self.pid = pid
        self._hub = hub
        self._owner_pid = os.getpid()
        self._before: TreeReading | None = None

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def is_running(self) -> bool:
        """Whether it still sums up; in a child made by fork it does not."""
        return self.tally.ended_us is None and not self.is_parents

    @property
    def is_parents(self) -> bool:
        """Whether another process made it, and this one is a fork of that."""
        return self._owner_pid != os.getpid()

    def stop(self) -> dict[str, Any]:
        """End it, and answer its statistics; a second time changes nothing."""
        if self.is_running:
            self._hub.stop(self)
        return self.statistics()

    def statistics(self) -> dict[str, Any]:
        """What was used so far, or until it was stopped: the JSON of `gpuctl stats`, less what is of a job."""
        from .statistics import statistics_object

        return statistics_object(self.message())

    def message(self) -> capacity_pb2.GetJobStatsResponse:
        """The same as a message."""
        return self._hub.statistics(self)

    def credit(self, drained: Mapping[str, DeviceTally], now_us: int) -> None:
        """These readings are new."""
        for uuid in self.tally.devices.keys() & drained.keys():
            self.tally.devices[uuid].add(drained[uuid])
            self.tally.series.setdefault(uuid, Series()).take(now_us - self.tally.begun_us, drained[uuid])

    def take_processes(self, reading: TreeReading, now_us: int) -> None:
        """One more reading of its processes; what they had used before it began does not count."""
        before = self._before = self._before or reading
        used = replace(
            reading,
            cpu_seconds=max(0.0, reading.cpu_seconds - before.cpu_seconds),
            read_bytes=_less(reading.read_bytes, before.read_bytes),
            write_bytes=_less(reading.write_bytes, before.write_bytes),
        )
        self.tally.processes.take(used, now_us / 1e6)


def _less(now: int | None, before: int | None) -> int | None:
    return None if now is None else max(0, now - (before or 0))


def _judged(sample: DeviceSample | None, uuid: str, longest_seconds: float, timeout_seconds: float) -> DeviceSample:
    """A sample as it is, or with the trouble that the device did not answer in time."""
    if sample is not None and sample.age_seconds <= longest_seconds:
        return sample
    silent = Trouble(kind=TroubleKind.SILENT, detail=f"it did not answer within {timeout_seconds:g} s; look at dmesg")
    if sample is None:
        return DeviceSample(uuid=uuid, troubles=(silent,))
    return replace(sample, troubles=(*sample.troubles, silent))


def _tree_reader() -> Callable[[int], TreeReading | None]:
    """How a process and all below it are read; where there is no /proc they are not."""
    if not Path("/proc/self/task").is_dir():
        return _no_tree
    from .process_tree import read_tree

    return read_tree


VARIABLES = {Vendor.NVIDIA: "CUDA_VISIBLE_DEVICES", Vendor.AMD: "ROCR_VISIBLE_DEVICES"}


def visible_devices(devices: Sequence[Device], environment: Mapping[str, str]) -> tuple[Device, ...]:
    """Those that CUDA_VISIBLE_DEVICES (for AMD ROCR_VISIBLE_DEVICES) names by UUID or number; all where it is not set.

    A list that cannot be understood hides nothing: numbers where CUDA counts by speed over unequal devices, and parts
    of a device. As CUDA does, it ends at the first entry that no device has. Virtual devices are never hidden.
    """
    return tuple(device for device in devices if device.is_virtual or _is_named(device, devices, environment))


def _is_named(device: Device, devices: Sequence[Device], environment: Mapping[str, str]) -> bool:
    listed = environment.get(VARIABLES.get(device.vendor, ""))
    if listed is None:
        return True
    alike = [other for other in devices if other.vendor is device.vendor]
    entries = [entry.strip() for entry in listed.split(",")] if listed.strip() else []
    if any(entry.startswith("MIG-") for entry in entries):
        return True
    counts_by_bus = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or device.vendor is Vendor.AMD
    if any(entry.isdigit() for entry in entries) and not counts_by_bus and len({each.name for each in alike}) > 1:
        return True
    for entry in entries:
        found = [other for other in alike if _matches(entry, other)]
        if len(found) != 1:
            return False
        if found[0] is device:
            return True
    return False


def _matches(entry: str, device: Device) -> bool:
    """A number, or the beginning of a UUID that is long enough to be one."""
    return int(entry) == device.index if entry.isdigit() else bool(entry) and device.uuid.startswith(entry)
