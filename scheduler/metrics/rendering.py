"""The process that writes pages of metrics: `python -P -m gpufleet.scheduler.metrics.rendering`, of the scheduler only.

It reads messages on stdin, each a pickle behind its length in 8 bytes: lists of devices, and then what is ordered. For
each order it writes a page to stdout, behind its length, until stdin ends.
"""

import os
import pickle
import signal
import struct
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from typing import BinaryIO

from gpufleet.telemetry.device_metrics import INSTRUMENTS, prometheus_labels, values_told
from gpufleet.telemetry.metrics import Instrument, InstrumentKind, Labels, prometheus_label, prometheus_name
from gpufleet.telemetry.metrics_door import packed

from .snapshot import DeviceSnapshot, Ordered

LENGTH = struct.Struct(">Q")

AGE = Instrument(name="gpufleet.device.sample.age", unit="s", doc="Age of the newest sample; metrics of old ones end.")
HELD = Instrument(name="gpufleet.device.held", unit="1", doc="The part of it that jobs hold, from 0 to 1.")
LEFT_OUT = Instrument(
    name="gpufleet.devices.left_out",
    unit="{device}",
    doc="Devices that a page has no room for.",
    kind=InstrumentKind.SUM,
)


NICENESS = 10
"""The scheduler goes first."""


def page(devices: Sequence[DeviceSnapshot], ordered: Ordered) -> bytes:
    """The program's own metrics, and behind them those of all devices."""
    text = ordered.own + "".join(_device_lines(devices, ordered)).encode()
    return packed(text) if ordered.is_packed else text


def _device_lines(devices: Sequence[DeviceSnapshot], ordered: Ordered) -> Iterator[str]:
    """The metrics that some device has, each behind its description.

    Written here, and not by Prometheus's library: a large fleet has 150,000 lines, most of a line are the labels of its
    device, and that library makes and sorts them anew for each.
    """
    lines: dict[str, list[str]] = {each.name: [] for each in (*INSTRUMENTS, AGE, HELD, LEFT_OUT)}
    beginnings = {each.name: prometheus_name(each) + "{" for each in (*INSTRUMENTS, AGE, HELD)}
    for device in devices:
        labels = _label_text(_labels_of(device))
        for name, own, value in _values(device, ordered.stale_s):
            lines[name].append(f"{beginnings[name]}{labels}{own}}} {float(value)!r}\n")
    lines[LEFT_OUT.name].append(f"{prometheus_name(LEFT_OUT)} {ordered.left_out}\n")
    for instrument in (*INSTRUMENTS, AGE, HELD, LEFT_OUT):
        if lines[instrument.name]:
            name = prometheus_name(instrument)
            yield f"# HELP {name} {instrument.doc}\n# TYPE {name} {_type_of(instrument)}\n"
            yield from lines[instrument.name]


def _values(device: DeviceSnapshot, stale_s: float) -> Iterator[tuple[str, str, float]]:
    """Name, the text of the labels beside those of the device, and value."""
    yield HELD.name, "", device.held
    if not device.told:
        return
    yield AGE.name, "", device.age_s
    if device.age_s > stale_s:
        return
    for metric, value, labels in values_told(device.told):
        yield metric.instrument.name, _own_text(tuple(labels.items())), value


def _labels_of(device: DeviceSnapshot) -> Labels:
    return prometheus_labels(
        device.uuid,
        device.gpu,
        name=device.name,
        pci_bus_id=device.pci_bus_id,
        node=device.node,
        hostname=device.hostname,
    )


@cache  # of the few that the table of metrics knows
def _own_text(labels: tuple[tuple[str, str | int], ...]) -> str:
    return "," + _label_text({prometheus_label(key): each for key, each in labels})


def _label_text(labels: Labels) -> str:
    return ",".join(f'{key}="{_escaped(str(each))}"' for key, each in sorted(labels.items()))


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _type_of(instrument: Instrument) -> str:
    return "counter" if instrument.kind is InstrumentKind.COUNT else "gauge"


def read_message(source: BinaryIO) -> bytes | None:
    """The next message; None at the end."""
    length = source.read(LENGTH.size)
    return source.read(LENGTH.unpack(length)[0]) if len(length) == LENGTH.size else None


def main() -> None:
    """Write pages until nobody asks any more."""
    # Ctrl-C is the scheduler's to see; this ends when its stdin does.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    devices: list[DeviceSnapshot] = []
    while (message := read_message(sys.stdin.buffer)) is not None:
        told = pickle.loads(message)
        if isinstance(told, list):
            devices += [DeviceSnapshot._make(each) for each in told]
            continue
        answer = page(devices, Ordered._make(told))
        devices = []
        sys.stdout.buffer.write(LENGTH.pack(len(answer)))
        sys.stdout.buffer.write(answer)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
