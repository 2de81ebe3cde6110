"""Reads devices on threads of its own: a driver that hangs costs the agent fresh figures, nothing more."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from .device import Device, DeviceReader, DeviceSample, SourceStatus, Trouble, TroubleKind
from .tally import DeviceTally, Meter

_log = logging.getLogger(__name__)

INTERVAL_SECONDS = 2.0
INTERVAL_SECONDS_MIN = 0.05
# Long enough for a driver that is busy with a reset next door; a shorter silence only makes the figures old.
SILENT_AFTER_SECONDS = 30.0
CLOSE_SECONDS = 2.0


@dataclass(slots=True)
class _Watched:
    """One device, its newest reading, when that began, and since when a newer one is wanted.

    `tally` sums up the readings since the last `drain`: however long nobody asks, it stays as small.
    """

    device: Device
    read_at: float
    sample: DeviceSample | None = None
    wanted_since: float = -math.inf
    meter: Meter = field(default_factory=Meter)
    tally: DeviceTally = field(default_factory=DeviceTally)


class Sampler:
    """A DeviceSource over a reader that may block: a thread per device, so that one hanging hides no other.

    A reading is dated by its begin. A device that has not answered for `silent_after_seconds` is unhealthy
    (SILENT) until it answers again; before that its last figures stand, with their age.
    """

    def __init__(
        self,
        reader: DeviceReader,
        *,
        interval_seconds: float = INTERVAL_SECONDS,
        silent_after_seconds: float = SILENT_AFTER_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = reader
        self._devices = reader.list()
        self._status = reader.status()
        self._silent_after_seconds = silent_after_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._asked = threading.Condition(self._lock)
        self._answered = threading.Condition(self._lock)
        self._is_closing = False
        self._interval_seconds = max(interval_seconds, INTERVAL_SECONDS_MIN)
        self._watched = tuple(_Watched(device, read_at=clock()) for device in self._devices)
        self._threads = tuple(
            threading.Thread(target=self._keep_reading, args=(watched,), name=f"device-{watched.device.index}")
            for watched in self._watched
        )
        for thread in self._threads:
            # A thread that is stuck in the driver must not keep the process alive.
            thread.daemon = True
            thread.start()

    def list(self) -> tuple[Device, ...]:
        return self._devices

    def status(self) -> SourceStatus:
        return self._status

    def sample(self) -> tuple[DeviceSample, ...]:
        with self._lock:
            return self._newest(self._watched)

    def fresh(
        self, *, max_age_seconds: float, timeout_seconds: float, uuids: tuple[str, ...] | None = None
    ) -> tuple[DeviceSample, ...]:
        with self._lock:
            wanted = self._ask(uuids, since=self._clock() - max_age_seconds)
            self._answered.wait_for(lambda: not any(map(_is_wanting, wanted)), timeout_seconds)
            return self._newest(wanted)

    def drain(self) -> dict[str, DeviceTally]:
        with self._lock:
            drained = {each.device.uuid: each.tally for each in self._watched if each.tally.count}
            for each in self._watched:
                each.tally = DeviceTally()
        return drained

    def set_interval(self, seconds: float) -> None:
        with self._lock:
            self._interval_seconds = max(seconds, INTERVAL_SECONDS_MIN)
            self._asked.notify_all()

    def clear_troubles(self, uuids: tuple[str, ...]) -> None:
        self._reader.clear_troubles(uuids)
        with self._lock:
            self._ask(uuids, since=self._clock())

    def close(self) -> None:
        """Stop the threads. One that hangs in the driver is left behind; the driver is then not shut down."""
        with self._lock:
            self._is_closing = True
            self._asked.notify_all()
        deadline = self._clock() + CLOSE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - self._clock()))
        stuck = [thread.name for thread in self._threads if thread.is_alive()]
        if stuck:
            _log.warning("the driver does not return from reading %s; leaving it", ", ".join(stuck))
        else:
            self._reader.close()

    def _keep_reading(self, watched: _Watched) -> None:
        while True:
            began = self._clock()
            sample = self._read(watched.device)
            _log_change(watched, sample)
            with self._lock:
                watched.sample, watched.read_at = sample, began
                if sample.is_readable:
                    watched.tally.take(sample, *watched.meter.between(sample, began))
                self._answered.notify_all()
                while not (self._is_closing or _is_wanting(watched)):
                    remaining = began + self._interval_seconds - self._clock()
                    if remaining <= 0:
                        break
                    self._asked.wait(remaining)
                if self._is_closing:
                    return

    def _read(self, device: Device) -> DeviceSample:
        try:
            return self._reader.read(device)
        except Exception as error:
            # A reader does not raise by contract; a fault in one must still not end the watch over a device.
            _log.exception("reading device %s failed", device.uuid)
            trouble = Trouble(kind=TroubleKind.UNREADABLE, detail=f"reading it failed: {error}")
            return DeviceSample(uuid=device.uuid, troubles=(trouble,))

    def _ask(self, uuids: tuple[str, ...] | None, *, since: float) -> Sequence[_Watched]:
        """Have these devices (None: all) read anew where their newest reading began before `since`."""
        wanted = [watched for watched in self._watched if uuids is None or watched.device.uuid in uuids]
        for watched in wanted:
            watched.wanted_since = max(watched.wanted_since, since)
        self._asked.notify_all()
        return wanted

    def _newest(self, devices: Sequence[_Watched]) -> tuple[DeviceSample, ...]:
        now = self._clock()
        found = (self._dated(watched, now - watched.read_at) for watched in devices)
        return tuple(sample for sample in found if sample is not None)

    def _dated(self, watched: _Watched, age_seconds: float) -> DeviceSample | None:
        sample = watched.sample
        if age_seconds <= self._silent_after_seconds + self._interval_seconds:
            return None if sample is None else replace(sample, age_seconds=age_seconds)
        # The same words from one sample to the next: a changing figure would be news each time.
        detail = f"no answer for over {self._silent_after_seconds:g} s; look at dmesg, reset it or reboot the node"
        silent = Trouble(kind=TroubleKind.SILENT, detail=detail)
        sample = sample or DeviceSample(uuid=watched.device.uuid)
        return replace(sample, age_seconds=age_seconds, troubles=(*sample.troubles, silent))


def _log_change(watched: _Watched, sample: DeviceSample) -> None:
    before = watched.sample.unhealthy_reason if watched.sample is not None else ""
    if sample.unhealthy_reason == before:
        return
    device = watched.device
    if sample.is_healthy:
        _log.warning("GPU %d (%s) is healthy again", device.index, device.uuid)
    else:
        _log.error("GPU %d (%s) is unhealthy: %s", device.index, device.uuid, sample.unhealthy_reason)


def _is_wanting(watched: _Watched) -> bool:
    return watched.sample is None or watched.read_at < watched.wanted_since
