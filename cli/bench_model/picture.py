"""The report as a picture: throughput and latency by concurrency, or by rate, in two panels of one SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from gpufleet.text.units import counted

from .program import BenchRow, Measured, Report

WIDTH, HEIGHT = 960, 420
PANEL_WIDTH, PANEL_HEIGHT = 370, 250
TOP, LEFT, GAP = 92, 76, 94
TICKS = 5
NAMES_MAX = 70

BLUE, ORANGE, GREEN, RED, GREY = "#1f5fa8", "#b85c00", "#2b7a3d", "#a32a2a", "#5b5f66"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a panel: a name, a colour, and a value at each place, None where there is none."""

    name: str
    colour: str
    values: Sequence[float | None]
    is_dashed: bool = False


def drawn(report: Report) -> str:
    """The SVG."""
    rows = report.main.rows
    is_open = any(row.shape.rate for row in rows)
    order = sorted(range(len(rows)), key=lambda place: rows[place].shape.rate or rows[place].shape.concurrency)
    places = [f"{rows[each].shape.rate:g}" if is_open else str(rows[each].shape.concurrency) for each in order]
    below = "requests due a second" if is_open else "requests under way at a time"

    def values(measured: Measured, of: Callable[[BenchRow], float | None]) -> list[float | None]:
        return [of(measured.rows[each]) for each in order]

    throughput = [Line(_side(report.main), BLUE, values(report.main, lambda row: row.figures.items_per_s))]
    latency = [
        Line("p50", GREEN, values(report.main, lambda row: row.figures.latency_ms.p50)),
        Line("p95", ORANGE, values(report.main, lambda row: row.figures.latency_ms.p95)),
        Line("p99", RED, values(report.main, lambda row: row.figures.latency_ms.p99)),
    ]
    if report.cpu is not None:
        throughput.append(Line("cpu", GREY, values(report.cpu, lambda row: row.figures.items_per_s), is_dashed=True))
        latency.append(
            Line("cpu p95", GREY, values(report.cpu, lambda row: row.figures.latency_ms.p95), is_dashed=True)
        )
    target = report.main.target
    title = f"{target.get('model') or target['url']}: throughput and latency"
    under = " · ".join(
        text
        for text in (str(target.get("device") or ""), f"{counted(report.batch_size, 'item')} a request", target["url"])
        if text
    )
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="system-ui, sans-serif" font-size="12" role="img">',
        f"<title>{_text(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="28" font-size="16" font-weight="600" fill="#1b1d21">{_text(title)}</text>',
        f'<text x="{LEFT}" y="48" fill="{GREY}">{_text(under)}</text>',
    ]
    second = LEFT + PANEL_WIDTH + GAP
    return "\n".join(
        [
            *head,
            *_panel(LEFT, "items per second", below, places, throughput),
            *_panel(second, "latency in ms", below, places, latency),
            "</svg>",
            "",
        ]
    )


def _side(measured: Measured) -> str:
    return str(measured.target.get("backend") or "all")


def _text(text: str) -> str:
    shown = text if len(text) <= NAMES_MAX else text[: NAMES_MAX - 1] + "…"
    return escape("".join(each if each.isprintable() else "?" for each in shown))


def _panel(left: int, title: str, below: str, places: Sequence[str], lines: Sequence[Line]) -> list[str]:
    step = _step(max((value for line in lines for value in line.values if value is not None), default=1.0))
    top_value = step * TICKS
    bottom, right = TOP + PANEL_HEIGHT, left + PANEL_WIDTH

    def x(place: int) -> float:
        return left + PANEL_WIDTH * (place + 0.5) / len(places)

    def y(value: float) -> float:
        return bottom - PANEL_HEIGHT * value / top_value

    parts = [f'<text x="{left}" y="{TOP - 14}" font-weight="600" fill="#1b1d21">{title}</text>']
    for tick in range(TICKS + 1):
        value = step * tick
        parts.append(
            f'<line x1="{left}" x2="{right}" y1="{y(value):.1f}" y2="{y(value):.1f}" '
            f'stroke="{GREY if tick == 0 else "#e3e5e8"}"/>'
            f'<text x="{left - 8}" y="{y(value) + 4:.1f}" text-anchor="end" fill="{GREY}">{_number(value)}</text>'
        )
    for number, name in enumerate(places):
        parts.append(f'<text x="{x(number):.1f}" y="{bottom + 18}" text-anchor="middle" fill="{GREY}">{name}</text>')
    middle = left + PANEL_WIDTH / 2
    parts.append(f'<text x="{middle:.1f}" y="{bottom + 38}" text-anchor="middle" fill="#1b1d21">{below}</text>')
    legend = right
    for line in reversed(lines):
        legend -= 26 + 7 * len(line.name)
        parts.append(
            f'<line x1="{legend}" x2="{legend + 14}" y1="{TOP - 18}" y2="{TOP - 18}" {_stroke(line)}/>'
            f'<text x="{legend + 18}" y="{TOP - 14}" fill="#1b1d21">{_text(line.name)}</text>'
        )
    for line in lines:
        points = [(x(place), y(value)) for place, value in enumerate(line.values) if value is not None]
        way = " ".join(f"{across:.1f},{up:.1f}" for across, up in points)
        parts.append(f'<polyline points="{way}" fill="none" {_stroke(line)}/>')
        parts += [f'<circle cx="{across:.1f}" cy="{up:.1f}" r="3.5" fill="{line.colour}"/>' for across, up in points]
    return parts


def _stroke(line: Line) -> str:
    return f'stroke="{line.colour}" stroke-width="2"' + (' stroke-dasharray="5 4"' if line.is_dashed else "")


def _step(most: float) -> float:
    """A round step of which TICKS reach the largest value."""
    least = max(most, 1e-9) / TICKS
    scale = float(10 ** math.floor(math.log10(least)))
    return next(each * scale for each in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 15) if each * scale >= least * (1 - 1e-9))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
