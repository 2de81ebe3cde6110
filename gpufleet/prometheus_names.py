"""How OpenTelemetry's names look in Prometheus: dots become underscores, the unit and `_total` are written behind.

By OpenTelemetry's rules for Prometheus, as its collector and Prometheus's own OTLP receiver follow them. Python's
exporter leaves a ratio's unit out; so what is exported by it has no ratios.
"""

from __future__ import annotations

from gpufleet.metrics import Instrument, Kind

_UNITS = {"By": "bytes", "Cel": "celsius", "W": "watts", "J": "joules", "s": "seconds", "Hz": "hertz"}


def prometheus_name(instrument: Instrument) -> str:
    """The metric's name in Prometheus."""
    words = [instrument.name.replace(".", "_")]
    if unit := _UNITS.get(instrument.unit):
        words.append(unit)
    if instrument.unit == "1" and instrument.kind is Kind.GAUGE:
        words.append("ratio")
    if instrument.kind is Kind.COUNT:
        words.append("total")
    return "_".join(words)


def prometheus_label(name: str) -> str:
    """A label's name in Prometheus."""
    return name.replace(".", "_")
