"""What the OTEL_ variables ask for: whether, by which exporter and over which protocol, under which name.

The variables are those of OpenTelemetry's own list (OTEL_EXPORTER_OTLP_ENDPOINT and its kin, OTEL_TRACES_EXPORTER,
OTEL_METRICS_EXPORTER, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_SDK_DISABLED). The SDK and its exporters read
the rest of it themselves. Nothing is imported here before something is asked for.
"""

from __future__ import annotations

import importlib
import logging
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import SpanExporter

log = logging.getLogger(__name__)

EXPORT_LAST_S_MAX = 2.0
"""The longest wait at the end for a collector to take what is left."""

GRPC, HTTP = "grpc", "http/protobuf"


class Signal(StrEnum):
    """What a program can tell of itself; the variables of each have its name in theirs."""

    TRACES = "TRACES"
    METRICS = "METRICS"


class CannotSend(Exception):
    """The variables ask for what cannot be sent."""


def is_wanted(signal: Signal, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the OTEL_ variables ask for this signal."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if exporter := environment.get(f"OTEL_{signal}_EXPORTER", "").strip():
        return exporter != "none"
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    return any(environment.get(name, "").strip() for name in endpoints)


def span_exporter(environment: Mapping[str, str]) -> SpanExporter | None:
    """The exporter of traces that is asked for; None, and a warning that says why, where there is none to be had."""
    return cast("SpanExporter | None", _exporter(Signal.TRACES, environment))


def metric_exporter(environment: Mapping[str, str]) -> MetricExporter | None:
    """The same for metrics."""
    return cast("MetricExporter | None", _exporter(Signal.METRICS, environment))


def resource_of(program: str, instance: str = "") -> Resource:
    """Who tells: OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES go before our own names.

    `instance` tells programs of one kind from each other; by default the machine's name.
    """
    from opentelemetry.sdk import resources

    from gpufleet.host.facts import first_installed

    host = socket.gethostname()
    own = {
        resources.SERVICE_NAME: f"gpufleet-{program}",
        resources.SERVICE_INSTANCE_ID: instance or host,
        resources.SERVICE_VERSION: first_installed(("gpufleet",)),
        resources.HOST_NAME: host,
    }
    given = resources.OTELResourceDetector().detect()
    return resources.Resource.create().merge(resources.Resource(own)).merge(given)


def close_in_time(shutdown: Callable[[], object], give_up: Callable[[], object], name: str) -> None:
    """Send what is left, at most for EXPORT_LAST_S_MAX, and as long again for `give_up` to end what hangs.

    The SDK tries for half a minute to reach a collector that is gone; its own time limits do not hold at the end.
    """
    closing = threading.Thread(target=shutdown, name=name, daemon=True)
    closing.start()
    closing.join(EXPORT_LAST_S_MAX)
    if closing.is_alive():
        give_up()
        closing.join(EXPORT_LAST_S_MAX)


_EXPORTERS = {
    (Signal.TRACES, "console"): ("opentelemetry.sdk.trace.export", "ConsoleSpanExporter"),
    (Signal.TRACES, GRPC): ("opentelemetry.exporter.otlp.proto.grpc.trace_exporter", "OTLPSpanExporter"),
    (Signal.TRACES, HTTP): ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "OTLPSpanExporter"),
    (Signal.METRICS, "console"): ("opentelemetry.sdk.metrics.export", "ConsoleMetricExporter"),
    (Signal.METRICS, GRPC): ("opentelemetry.exporter.otlp.proto.grpc.metric_exporter", "OTLPMetricExporter"),
    (Signal.METRICS, HTTP): ("opentelemetry.exporter.otlp.proto.http.metric_exporter", "OTLPMetricExporter"),
}


def _exporter(signal: Signal, environment: Mapping[str, str]) -> Any:
    what = signal.lower()
    try:
        is_console = _exporter_name(signal, environment) == "console"
        module, name = _EXPORTERS[signal, "console" if is_console else _protocol(signal, environment)]
        make = getattr(importlib.import_module(module), name)
        return make(out=sys.stderr) if is_console else make()  # stdout belongs to what the program answers
    except ImportError as problem:
        fix = "pip install 'gpufleet[telemetry]'"
        log.warning("OTEL_ variables ask for %s, but %s is missing: %s", what, problem.name, fix)
    except CannotSend as problem:
        log.warning("OTEL_ variables ask for %s that cannot be sent: %s", what, problem)
    return None


def _exporter_name(signal: Signal, environment: Mapping[str, str]) -> str:
    variable = f"OTEL_{signal}_EXPORTER"
    name = environment.get(variable, "").strip() or "otlp"
    if signal is Signal.METRICS and name == "prometheus":
        raise CannotSend(f"{variable} is prometheus; give scheduler and gateway --metrics-port instead")
    if name not in ("otlp", "console"):
        raise CannotSend(f'{variable} is "{name}"; otlp, console and none are known')
    return name


def _protocol(signal: Signal, environment: Mapping[str, str]) -> str:
    own = environment.get(f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "").strip()
    protocol = own or environment.get("OTEL_EXPORTER_OTLP_PROTOCOL", "").strip() or GRPC
    if protocol not in (GRPC, HTTP):
        raise CannotSend(f'the OTLP protocol is "{protocol}"; {GRPC} and {HTTP} are known')
    return protocol
