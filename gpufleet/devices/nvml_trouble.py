"""Which NVML errors and events make a device unhealthy, and the thread that waits for XID events."""

from __future__ import annotations

import ctypes
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .device import Trouble, TroubleKind

_log = logging.getLogger(__name__)

EVENT_WAIT_MS = 500
REGISTER_AGAIN_SECONDS = 5.0
WATCH_CLOSE_SECONDS = 3.0
XIDS_KEPT_PER_DEVICE = 8

# Errors of the program that ran, by NVIDIA's XID catalogue: the device itself is well, the next job may have
# it.
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})

# NVML return codes that say the device is gone, and what a person does about it. A reset is refused while anybody has
# the device open, and the agent has: its jobs go on without it, so that it is no loss to stop it for the reset.
GONE = {
    1: "the driver was unloaded",
    6: "the driver no longer lists it",
    9: "the driver is not loaded",
    15: "it fell off the bus; look at dmesg, then reset it with the agent stopped, or reboot the node",
    16: "it must be reset: stop the agent, nvidia-smi --gpu-reset, start it again; or reboot the node",
    28: "the driver no longer lists it",
}
# Of those, the codes that are the whole library's: it has to be opened anew, and every handle with it.
LIBRARY_GONE = frozenset({1, 9})
# Return codes that only say that this device or driver has no such counter, or not for us.
ABSENT = frozenset({3, 4, 13, 21, 25, 26, 27})
TIMEOUT = 10


class TroubleLog:
    """Past errors of each device, kept until a person clears them. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_xid: dict[str, int] = {}
        self._device_xids: dict[str, list[int]] = {}
        self._ecc_before: dict[str, int] = {}
        self._ecc_now: dict[str, int] = {}

    def xid_raised(self, uuid: str, xid: int) -> None:
        with self._lock:
            self._last_xid[uuid] = xid
            kept = self._device_xids.setdefault(uuid, [])
            if xid not in APPLICATION_XIDS and xid not in kept and len(kept) < XIDS_KEPT_PER_DEVICE:
                kept.append(xid)

    def ecc_counted(self, uuid: str, uncorrected: int) -> None:
        """Errors from before the agent looked are history; a count that fell means a reloaded driver."""
        with self._lock:
            before = self._ecc_before.setdefault(uuid, uncorrected)
            self._ecc_before[uuid] = min(before, uncorrected)
            self._ecc_now[uuid] = uncorrected

    def last_xid(self, uuid: str) -> int | None:
        with self._lock:
            return self._last_xid.get(uuid)

    def troubles(self, uuid: str) -> list[Trouble]:
        with self._lock:
            found = [
                Trouble(kind=TroubleKind.XID, detail=f"XID error {xid}; look at dmesg, then resume the device")
                for xid in self._device_xids.get(uuid, ())
            ]
            new = self._ecc_now.get(uuid, 0) - self._ecc_before.get(uuid, 0)
            if new > 0:
                detail = f"{new} uncorrected memory errors; reset the device, then resume it"
                found.append(Trouble(kind=TroubleKind.ECC, detail=detail))
            return found

    def clear(self, uuid: str) -> None:
        with self._lock:
            self._last_xid.pop(uuid, None)
            self._device_xids.pop(uuid, None)
            self._ecc_before.pop(uuid, None)
            self._ecc_now.pop(uuid, None)


class XidWatch:
    """A thread that waits for XID events of all devices and writes them into the trouble log.

    Events count from the moment the watch is made, not from when its thread gets to run. `handles` gives the handles
    by UUID as they are now; after a reset of the driver they are others.
    """

    def __init__(self, nvml: Any, handles: Callable[[], Mapping[str, Any]], log: TroubleLog) -> None:
        self._nvml = nvml
        self._handles = handles
        self._uuids: dict[int | None, str] = {}
        self._log = log
        self._stop = threading.Event()
        self._is_paused = threading.Event()
        self._is_outside = threading.Event()
        events = self._registered()
        self._is_offered = events is not None
        self._thread = threading.Thread(target=self._run, args=(events,), name="nvml-xid", daemon=True)
        self._thread.start()

    def close(self) -> bool:
        """Ask the thread to stop; whether it did within WATCH_CLOSE_SECONDS (a hung driver may keep it)."""
        self._stop.set()
        self._thread.join(WATCH_CLOSE_SECONDS)
        return not self._thread.is_alive()

    @contextmanager
    def paused(self) -> Iterator[bool]:
        """Keep it out of the driver meanwhile; gives whether it came out within WATCH_CLOSE_SECONDS."""
        self._is_paused.set()
        try:
            yield self._is_outside.wait(WATCH_CLOSE_SECONDS)
        finally:
            self._is_paused.clear()

    def _run(self, events: Any) -> None:
        again_at = -math.inf
        while self._is_offered:
            if events is not None:
                try:
                    self._wait(events)
                finally:
                    _succeeds(self._nvml, self._nvml.nvmlEventSetFree, events)
            self._is_outside.set()
            # The first failure is answered at once, as no event is kept while nobody listens.
            if self._stop.wait(max(0.0, again_at - time.monotonic())):
                return
            again_at = time.monotonic() + REGISTER_AGAIN_SECONDS
            self._is_outside.clear()
            # One device that is gone makes the whole set fail: register anew those that are left.
            events = None if self._is_paused.is_set() else self._registered()
        self._is_outside.set()

    def _registered(self) -> Any:
        """A new event set with every device that takes part; None when none does."""
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as error:
            _log.warning("XID errors are not watched: %s", error)
            return None
        kind = nvml.nvmlEventTypeXidCriticalError
        register = nvml.nvmlDeviceRegisterEvents
        handles = dict(self._handles())
        self._uuids = {_address(handle): uuid for uuid, handle in handles.items()}
        taking_part = [_succeeds(nvml, register, handle, kind, events) for handle in handles.values()]
        if any(taking_part):
            return events
        _log.info("XID errors are not watched: no device offers these events")
        _succeeds(nvml, nvml.nvmlEventSetFree, events)
        return None

    def _wait(self, events: Any) -> None:
        """Take events until told to stop or to pause, or until the set fails."""
        nvml = self._nvml
        while not (self._stop.is_set() or self._is_paused.is_set()):
            try:
                event = nvml.nvmlEventSetWait_v2(events, EVENT_WAIT_MS)
            except nvml.NVMLError as error:
                if error.value == TIMEOUT:
                    continue
                _log.warning("waiting for XID errors failed, trying again: %s", error)
                return
            uuid = self._uuids.get(_address(event.device))
            if uuid is None:
                _log.error("XID error %d on a device that is not known", event.eventData)
            elif event.eventType & nvml.nvmlEventTypeXidCriticalError:
                _log.error("XID error %d on %s", event.eventData, uuid)
                self._log.xid_raised(uuid, int(event.eventData))


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _succeeds(nvml: Any, call: Any, *arguments: Any) -> bool:
    try:
        call(*arguments)
    except nvml.NVMLError:
        return False
    return True
