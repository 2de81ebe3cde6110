"""A report for people, and as JSON."""

from __future__ import annotations

from typing import Any

from gpufleet.text.cleaning import clean

from .. import screen
from ..printing import print_object
from ..render.table import ABSENT, Column, Look, draw
from .histogram import RELATIVE_ERROR
from .program import BUSY, BenchRow, Measured, Report


def print_report(report: Report, form: str) -> None:
    """As a table; as JSON whole, or a row a line; or by name the target alone."""
    match form:
        case "json":
            print_object(report.as_dict(), "json")
        case "jsonl":
            for measured in (report.main, report.cpu):
                for row in measured.rows if measured is not None else ():
                    print_object({"target": measured.target, **row.as_dict()} if measured else {}, "jsonl")
        case "name":
            screen.print_lines([str(report.main.target.get("model") or report.main.target["url"])])
        case _:
            screen.print_lines(lines_of(report, screen.look(form)))


def lines_of(report: Report, look: Look) -> list[str]:
    """The whole screen."""
    lines = [*_measured(report.main, look)]
    if report.cpu is not None:
        lines += ["", *_measured(report.cpu, look), "", *_compared(report)]
    if gpus := _gpus(report.gpu_monitoring):
        lines += ["", *gpus]
    rows = [*report.main.rows, *(report.cpu.rows if report.cpu is not None else ())]
    for row in rows:
        if row.figures.errors:
            counted = ", ".join(f"{count:,} {kind}" for kind, count in sorted(row.figures.errors.items()))
            lines.append(f"{_what(row)}: {counted}: {clean(row.figures.error_sentence)}")
        if row.client_cpu > BUSY:
            share = f"{row.client_cpu:.0%} of a core"
            lines.append(f"{_what(row)}: gpuctl itself took {share}: the server may be faster than these figures.")
    return [*lines, "", f"Latencies in ms; percentiles within {RELATIVE_ERROR:.1%}. Nothing was asked twice."]


def _measured(measured: Measured, look: Look) -> list[str]:
    target = measured.target
    on = f" on {target['device'] or target['backend']}" if "model" in target else ""
    is_open = any(row.shape.rate for row in measured.rows)
    columns: list[Column[BenchRow]] = [
        Column("DUE/S" if is_open else "AT A TIME", _number, is_right=True),
        Column("OK", lambda row: _share(row.figures.success_rate), is_right=True),
        Column("ITEMS/S", lambda row: _rate(row.figures.items_per_s), is_right=True),
        Column("REQUESTS/S", lambda row: _rate(row.figures.requests_per_s), is_right=True),
        Column("P50", lambda row: _ms(row.figures.latency_ms.p50), is_right=True),
        Column("P95", lambda row: _ms(row.figures.latency_ms.p95), is_right=True),
        Column("P99", lambda row: _ms(row.figures.latency_ms.p99), is_right=True),
        Column("MAX", lambda row: _ms(row.figures.latency_ms.max), is_right=True),
    ]
    if any(row.gpu_monitoring for row in measured.rows):
        columns.append(Column("GPU", lambda row: _utilization(row.gpu_monitoring), is_right=True))
    if look.is_wide:
        columns.append(Column("REQUESTS", lambda row: f"{row.figures.requests:,}", is_right=True))
        columns.append(Column("SECONDS", lambda row: f"{row.figures.seconds:,.2f}", is_right=True))
        columns.append(Column("OWN CPU", lambda row: f"{row.client_cpu:.0%}", is_right=True))
    head = f"{target.get('model') or 'endpoint'}{on}, {target['url']}"
    return [clean(head), *draw(columns, measured.rows, look)]


def _compared(report: Report) -> list[str]:
    assert report.cpu is not None
    lines = []
    for row, ratios in zip(report.main.rows, report.as_dict()["gpu_to_cpu"], strict=True):
        if ratios["items_per_s"] is not None:
            lines.append(f"{_what(row)}: the GPU gives {ratios['items_per_s']:,.2f} times the items a second.")
    return lines


def _gpus(told: dict[str, Any] | None) -> list[str]:
    lines = []
    for each in told["devices"] if told is not None else ():
        parts = [
            _quantity(each["utilization_percent"], "busy", "%"),
            _quantity(each["memory_used_bytes"], "memory", "GB", 1e-9, 1),
            _quantity(each["power_w"], "power", "W"),
            _quantity(each["temperature_c"], "temperature", "°C"),
        ]
        said = " · ".join(part for part in parts if part) or "nothing is known of it"
        lines.append(f"GPU {each['node']}:{each['index']} mean (max): {said}")
    return lines


def _quantity(told: dict[str, float] | None, name: str, unit: str, scale: float = 1.0, digits: int = 0) -> str:
    if told is None:
        return ""
    return f"{name} {told['mean'] * scale:,.{digits}f} ({told['max'] * scale:,.{digits}f}) {unit}"


def _what(row: BenchRow) -> str:
    return f"{row.shape.rate:g}/s" if row.shape.rate else f"{row.shape.concurrency} at a time"


def _number(row: BenchRow) -> str:
    return f"{row.shape.rate:g}" if row.shape.rate else str(row.shape.concurrency)


def _share(share: float | None) -> str:
    # Rounded down: one failure of a million is not 100 %.
    return ABSENT if share is None else f"{int(share * 1000) / 10:g} %"


def _rate(rate: float | None) -> str:
    return ABSENT if rate is None else f"{rate:,.1f}"


def _ms(value: float | None) -> str:
    return ABSENT if value is None else f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def _utilization(told: dict[str, Any] | None) -> str:
    found = [each["utilization_percent"] for each in told["devices"]] if told is not None else []
    means = [each["mean"] for each in found if each is not None]
    return f"{sum(means) / len(means):.0f} %" if means else ABSENT
