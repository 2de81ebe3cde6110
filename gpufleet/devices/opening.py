"""Finds out which devices this machine has, within a bounded time, and gives them as one source."""

from __future__ import annotations

import logging
import math
import queue
import threading
from collections.abc import Callable

from .amd import open_amd
from .device import DeviceReader, DeviceSource, SourceStatus, Unavailable
from .nvml import open_nvml
from .playback import Load, PlaybackReader
from .sampler import INTERVAL_SECONDS, SILENT_AFTER_SECONDS, Sampler
from .virtual import NoDevices, VirtualDevices

_log = logging.getLogger(__name__)

# A driver without persistence mode takes a second or more per GPU to wake.
OPEN_TIMEOUT_SECONDS = 60.0
FIRST_SAMPLE_TIMEOUT_SECONDS = 5.0

Opened = DeviceReader | Unavailable


def open_devices(
    *,
    node: str,
    virtual_gpus: int = 0,
    virtual_load: Load | None = None,
    interval_seconds: float = INTERVAL_SECONDS,
    silent_after_seconds: float = SILENT_AFTER_SECONDS,
    open_timeout_seconds: float = OPEN_TIMEOUT_SECONDS,
) -> DeviceSource:
    """The devices of this machine; blocks until they are known, or a driver used up `open_timeout_seconds`.

    With `virtual_gpus` (1 to 128) the node has these instead of its real ones, playing back `virtual_load` if given.
    NVIDIA devices come before AMD ones, and one node gives those of one vendor only. Without any, the source's status
    says why.
    """
    if virtual_gpus:
        virtual = VirtualDevices(node=node, count=virtual_gpus, interval_seconds=interval_seconds)
        if virtual_load is None:
            return virtual
        return _sampled(PlaybackReader(virtual.list(), virtual_load), interval_seconds, silent_after_seconds, math.inf)
    misses: list[tuple[str, Unavailable]] = []
    for vendor, opener in (("nvml", open_nvml), ("amd", open_amd)):
        opened = _open_in_time(vendor, opener, open_timeout_seconds)
        if isinstance(opened, Unavailable):
            misses.append((vendor, opened))
        elif opened.list():
            return _sampled(opened, interval_seconds, silent_after_seconds, open_timeout_seconds)
        else:
            status = opened.status()
            opened.close()
            misses.append((vendor, Unavailable(status.note, status.next_step, is_expected=False)))
    return NoDevices(_why_none(misses))


def _sampled(
    reader: DeviceReader, interval_seconds: float, silent_after_seconds: float, open_timeout_seconds: float
) -> Sampler:
    sampler = Sampler(reader, interval_seconds=interval_seconds, silent_after_seconds=silent_after_seconds)
    # The node registers with figures where the devices answer at once.
    patience = min(FIRST_SAMPLE_TIMEOUT_SECONDS, open_timeout_seconds)
    sampler.fresh(max_age_seconds=math.inf, timeout_seconds=patience)
    return sampler


def _why_none(misses: list[tuple[str, Unavailable]]) -> SourceStatus:
    """One story of several: trouble with a driver that is there counts before a driver that is not."""
    kind, miss = next((miss for miss in misses if not miss[1].is_expected), misses[0])
    return SourceStatus(kind=kind if not miss.is_expected else "none", note=miss.reason, next_step=miss.next_step)


def _open_in_time(vendor: str, opener: Callable[[], Opened], timeout_seconds: float) -> Opened:
    """Run `opener` on a thread of its own and give up on it when the driver does not return."""
    answers: queue.SimpleQueue[Opened] = queue.SimpleQueue()
    given_up = threading.Event()

    def run() -> None:
        try:
            opened = opener()
        except Exception as error:
            _log.exception("looking for %s devices failed", vendor)
            opened = Unavailable(f"looking for {vendor} devices failed: {error}", is_expected=False)
        if given_up.is_set() and not isinstance(opened, Unavailable):
            opened.close()
        answers.put(opened)

    threading.Thread(target=run, name=f"open-{vendor}", daemon=True).start()
    try:
        return answers.get(timeout=timeout_seconds)
    except queue.Empty:
        given_up.set()
        return Unavailable(
            reason=f"the {vendor} driver did not answer within {timeout_seconds:.0f} s",
            next_step="look at dmesg, reset the GPUs or reboot, then start the agent again",
            is_expected=False,
        )
