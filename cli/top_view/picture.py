"""The lines of `top`: columns that fit the width, and of all rows only those that are seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from gpufleet.text.units import format_duration

from ..full_screen.view import Mode, View
from ..render.table import ABSENT, GAP, Cell, Colour, Look, cut, fitted, shown_width
from .fleet import Fleet, Gpu, Totals

FULL, EMPTY = "█", "·"
BAR_LEAST, BAR_USUAL, BAR_MOST = 4, 8, 24
HEAD_LINES = 2
"""Above the rows: what they do together, and the titles."""
FOOT_LINES = 1

HELP = """\
q            leave                        h ?   this help
↑ ↓ j k      scroll by a line             Home End g G first and last GPU
PgUp PgDn    scroll by a page; Space, too
/ f          filter as you type: words of node, model, job, user, or free,
             unhealthy, foreign; Enter keeps it, Esc drops it
o and then   n node   s load   g memory   p power   t temperature
             j job    u user; a capital letter sorts the other way round
, .          sort by the column before, or behind
r F5         have the GPUs read anew

The bar of LOAD is how busy a GPU is, that of MEMORY how full. A reading that
is old shows its age in place of the number. – is what a GPU does not tell.
FREE counts GPUs that would be given whole to a job now.

Any key goes back."""

ORDER_PROMPT = "sort by: n node, s load, g memory, p power, t temperature, j job, u user"


@dataclass(frozen=True, slots=True)
class TopColumn:
    """A column. Texts are as wide as the widest of all rows, but at most `most`, and may shrink to `least`.

    `rank`: columns of a higher one are there only where there is room; 0 is always there.
    """

    title: str
    text: Callable[[Gpu, float], Cell | str]
    width: int = 0
    most: int = 0
    least: int = 0
    is_right: bool = False
    bar: Callable[[Gpu], float | None] | None = None
    rank: int = 0


def _load(gpu: Gpu, now: float) -> Cell | str:
    if not gpu.is_healthy:
        return Cell("bad", Colour.BAD)
    if gpu.old_since is not None:
        return Cell(_age(now - gpu.old_since), Colour.WARNING)
    return ABSENT if gpu.load_percent is None else f"{gpu.load_percent}%"


def _age(seconds: float) -> str:
    """Short enough for a column: `12s`, `5m`, `3h`, `2d`."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{int(seconds // length)}{unit}"
    return f"{int(max(seconds, 0))}s"


def _number(value: float | None, unit: str) -> str:
    return ABSENT if value is None else f"{value:.0f}{unit}"


def _power(gpu: Gpu, now: float) -> str:
    return ABSENT if gpu.power_w is None else f"{gpu.power_w:.0f}W"


NARROW_WITHOUT = ("POWER", "TEMP", "MODEL")
"""What a terminal that is too narrow does without, the last first."""

Layout = list[tuple[TopColumn, int, int]]
"""Each column, its width, and of that the width of its bar."""

COLUMNS = (
    TopColumn("NODE", lambda gpu, now: gpu.node, most=30, least=6),
    TopColumn("GPU", lambda gpu, now: str(gpu.index), width=3, is_right=True),
    TopColumn("MODEL", lambda gpu, now: gpu.model, most=24, least=6),
    TopColumn("LOAD", _load, width=4, bar=lambda gpu: None if gpu.load_percent is None else gpu.load_percent / 100),
    TopColumn("MEMORY", lambda gpu, now: gpu.memory or ABSENT, width=6, bar=lambda gpu: gpu.memory_share),
    TopColumn("POWER", _power, width=5, is_right=True),
    TopColumn("TEMP", lambda gpu, now: _number(gpu.temperature_c, "°C"), width=5, is_right=True),
    TopColumn("JOB", lambda gpu, now: gpu.job, most=16, least=5, is_right=True),
    TopColumn("USER", lambda gpu, now: gpu.user, most=20, least=5),
    TopColumn("CLOCK", lambda gpu, now: _number(gpu.clock_mhz, "MHz"), width=7, is_right=True, rank=1),
    TopColumn("FAN", lambda gpu, now: _number(gpu.fan_percent, "%"), width=4, is_right=True, rank=2),
    TopColumn("THROTTLED BY", lambda gpu, now: gpu.throttle, width=24, rank=3),
)


def frame(view: View[Fleet], look: Look, columns: int, rows: int, head: str, now: float) -> list[str]:
    """The whole screen, line by line. `head` is what stands on the first line; see `totals_text`."""
    view.room = max(1, rows - HEAD_LINES - FOOT_LINES)
    view.clamp()
    if view.mode is Mode.HELP:
        body = [cut(line, columns) for line in HELP.splitlines()]
        return [cut(head, columns), "", *_filled(body, view.room + 1)]
    shown = view.rows.shown
    seen = shown[view.first : view.first + view.room]
    lines = table(seen, _layout_of(view, columns), look, now)
    if not shown:
        lines.append(cut(_nothing(view), columns))
    return [cut(head, columns), *_filled(lines, view.room + 1), cut(_foot(view, len(shown), len(seen)), columns)]


def table(seen: Sequence[Gpu], layout: Layout, look: Look, now: float) -> list[str]:
    """The titles and these rows."""
    titles = [fitted(Cell(column.title), width, look, is_right=column.is_right) for column, width, _ in layout]
    return [GAP.join(titles).rstrip(), *(_row(gpu, layout, look, now) for gpu in seen)]


def totals_text(totals: Totals, count: int) -> str:
    """`64 GPUs, 12 free, load 45%, 31.2kW`; `12 of 64 GPUs` where a filter leaves some out."""
    of = f"{totals.count:,} of {count:,}" if totals.count != count else f"{count:,}"
    parts = [f"{of} GPU{'' if count == 1 else 's'}", f"{totals.free:,} free"]
    if totals.load_percent is not None:
        parts.append(f"load {totals.load_percent:.0f}%")
    if totals.power_w:
        parts.append(f"{totals.power_w / 1000:,.1f}kW")
    return ", ".join(parts)


def none_text(user: str) -> str:
    """Where there is nothing to show, what to type next."""
    if user:
        return f"No GPU is held by a job of {user}. See their jobs with: gpuctl queue --user {user}"
    return "No GPU. See the nodes with: gpuctl nodes"


def age_text(seconds: float) -> str:
    """`2s old`."""
    return f"{format_duration(timedelta(seconds=int(max(seconds, 0.0))))} old"


def _filled(lines: list[str], count: int) -> list[str]:
    return [*lines[:count], *([""] * (count - len(lines)))]


def _nothing(view: View[Fleet]) -> str:
    if view.filter:
        return f'No GPU matches "{view.filter}"; Esc shows all.'
    return none_text(view.rows.user)


def _foot(view: View[Fleet], shown: int, seen: int) -> str:
    if view.mode is Mode.ORDER:
        return ORDER_PROMPT
    if view.mode is Mode.FILTER:
        return f"filter: {view.filter}_  (Enter keeps it, Esc drops it)"
    parts = [f'filter "{view.filter}", Esc drops it'] if view.filter else []
    if seen < shown:
        parts.append(f"{view.first:,} above, {shown - view.first - seen:,} below")
    return " · ".join(parts)


def _layout_of(view: View[Fleet], columns: int) -> Layout:
    """The layout of all rows, so that nothing jumps when one scrolls; worked out anew when they or the width change."""
    rows = view.rows.shown
    if view.layout is None or view.layout[0] is not rows or view.layout[1] != columns:
        view.layout = (rows, columns, layout_for(rows, columns))
    layout: Layout = view.layout[2]
    return layout


def layout_for(rows: Sequence[Gpu], columns: int | None) -> Layout:
    """How wide each column is: texts as they need, then the bars, then more columns, then longer bars."""
    chosen = [column for column in COLUMNS if not column.rank]
    widths = {column.title: _text_width(column, rows) for column in COLUMNS}
    bars = 2
    room = 10_000 if columns is None else columns

    def left(bar: int) -> int:
        gaps = len(GAP) * (len(chosen) - 1)
        return room - sum(widths[column.title] for column in chosen) - gaps - bars * (bar + 1)

    while left(BAR_LEAST) < 0:
        column = max(chosen, key=lambda each: widths[each.title] - (each.least or widths[each.title]))
        if column.least and widths[column.title] > column.least:
            widths[column.title] -= 1
        elif droppable := [each for each in chosen if each.title in NARROW_WITHOUT]:
            chosen.remove(max(droppable, key=lambda each: NARROW_WITHOUT.index(each.title)))
            widths = {column.title: _text_width(column, rows) for column in COLUMNS}
        else:
            break
    bar = BAR_LEAST + max(0, min(BAR_USUAL - BAR_LEAST, left(BAR_LEAST) // bars))
    if left(bar) >= (wide := max((shown_width(gpu.memory) for gpu in rows), default=0) - widths["MEMORY"]) > 0:
        widths["MEMORY"] += wide
    for column in sorted((each for each in COLUMNS if each.rank), key=lambda each: each.rank):
        is_told = any(column.text(gpu, 0.0) not in ("", ABSENT) for gpu in rows)
        if is_told and left(bar) >= widths[column.title] + len(GAP):
            chosen.append(column)
    # A node's whole name is worth more than a longer bar.
    name = max((shown_width(gpu.node) for gpu in rows), default=0) - widths["NODE"]
    widths["NODE"] += max(0, min(name, left(bar)))
    bar += max(0, min(BAR_MOST - bar, left(bar) // bars)) if columns is not None else 0
    return [
        (column, widths[column.title] + (bar + 1 if column.bar else 0), bar if column.bar else 0) for column in chosen
    ]


def _text_width(column: TopColumn, rows: Sequence[Gpu]) -> int:
    if column.width:
        return max(column.width, len(column.title) if not column.bar else 0)
    widest = max((shown_width(str(column.text(gpu, 0.0))) for gpu in rows), default=0)
    return max(len(column.title), min(widest, column.most))


def _row(gpu: Gpu, layout: Layout, look: Look, now: float) -> str:
    cells = []
    for column, width, bar in layout:
        value = column.text(gpu, now)
        text, colour = (value.text, value.colour) if isinstance(value, Cell) else (value, None)
        if column.bar is not None:
            share = column.bar(gpu)
            if column.title == "MEMORY" and shown_width(text) > width - bar - 1:
                text = text.partition("/")[0]
            if share is not None:
                text = f"{_bar(share, bar)} {text}"
        cells.append(fitted(Cell(text, colour), width, look, is_right=column.is_right))
    return GAP.join(cells).rstrip()


def _bar(share: float, width: int) -> str:
    full = max(0, min(width, round(share * width)))
    return FULL * full + EMPTY * (width - full)
