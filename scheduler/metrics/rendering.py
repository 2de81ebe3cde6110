"""The process that writes pages of metrics: `python -P -m gpufleet.scheduler.metrics.rendering`, of the scheduler only.

It reads messages on stdin, each a pickle behind its length in 8 bytes: lists of devices, and then what is ordered. For
each order it writes a page to stdout, behind its length, until stdin ends.
"""

import os
import pickle
import signal
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

from prometheus_client import generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gpufleet.device_metrics import INSTRUMENTS, prometheus_labels, values_told
from gpufleet.metrics import Instrument, Kind
from gpufleet.metrics_door import packed
from gpufleet.prometheus_names import prometheus_label, prometheus_name

from .taken import Ordered, TakenDevice

LENGTH = struct.Struct(">Q")

AGE = Instrument(name="gpufleet.device.sample.age", unit="s", doc="Age of the newest sample; metrics of old ones end.")
HELD = Instrument(name="gpufleet.device.held", unit="1", doc="The part of it that jobs hold, from 0 to 1.")
LEFT_OUT = Instrument(
    name="gpufleet.devices.left_out",
    unit="{device}",
    doc="Devices that a page has no room for.",
    kind=Kind.SUM,
)


NICENESS = 10
"""The scheduler goes first."""


def page(devices: Sequence[TakenDevice], ordered: Ordered) -> bytes:
    """The program's own metrics, and behind them those of all devices."""
    text = ordered.own + generate_latest(_Devices(devices, ordered))
    return packed(text) if ordered.is_packed else text


class _Devices(Collector):
    """Looks like a registry to Prometheus's library."""

    def __init__(self, devices: Sequence[TakenDevice], ordered: Ordered) -> None:
        self._devices = devices
        self._ordered = ordered

    def collect(self) -> Iterable[Metric]:
        families = {each.name: _family(each) for each in (*INSTRUMENTS, AGE, HELD, LEFT_OUT)}
        for device in self._devices:
            for name, labels, value in _samples(device, self._ordered.stale_s):
                family = families[name]
                family.add_sample(_sample_name(family), labels, value)
        families[LEFT_OUT.name].add_sample(prometheus_name(LEFT_OUT), {}, self._ordered.left_out)
        return (family for family in families.values() if family.samples)


def _samples(device: TakenDevice, stale_s: float) -> Iterator[tuple[str, dict[str, str], float]]:
    base = prometheus_labels(
        device.uuid,
        device.gpu,
        name=device.name,
        pci_bus_id=device.pci_bus_id,
        node=device.node,
        hostname=device.hostname,
    )
    yield HELD.name, base, device.held
    if not device.told:
        return
    yield AGE.name, base, device.age_s
    if device.age_s > stale_s:
        return
    for metric, value, labels in values_told(device.told):
        yield metric.instrument.name, base | {prometheus_label(key): str(each) for key, each in labels.items()}, value


def _family(instrument: Instrument) -> Metric:
    is_count = instrument.kind is Kind.COUNT
    name = prometheus_name(instrument)
    return Metric(name.removesuffix("_total") if is_count else name, instrument.doc, "counter" if is_count else "gauge")


def _sample_name(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def read_message(source: BinaryIO) -> bytes | None:
    """The next message; None at the end."""
    length = source.read(LENGTH.size)
    return source.read(LENGTH.unpack(length)[0]) if len(length) == LENGTH.size else None


def main() -> None:
    """Write pages until nobody asks any more."""
    # Ctrl-C is the scheduler's to see; this ends when its stdin does.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    devices: list[TakenDevice] = []
    while (message := read_message(sys.stdin.buffer)) is not None:
        told = pickle.loads(message)
        if isinstance(told, list):
            devices += [TakenDevice._make(each) for each in told]
            continue
        answer = page(devices, Ordered._make(told))
        devices = []
        sys.stdout.buffer.write(LENGTH.pack(len(answer)))
        sys.stdout.buffer.write(answer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
