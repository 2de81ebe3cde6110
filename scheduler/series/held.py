"""The table of what attempts held: one row for each hold that is long, and one for all short ones of a bucket that are
of the same user, node, model and band. So a flood of small jobs costs no more than its five minutes do.
"""

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from ..state.ids import NodeName, UserName
from ..state.jobs import Band
from ..state.units import Instant, Span
from .accounts import Hold, Totals, UsageSpan, bucket_of, is_short, name_in, spread

ROWS_MAX = 10_000_000
"""Beyond it the oldest rows are dropped; each takes some 150 bytes."""

CREATE = """
CREATE TABLE IF NOT EXISTS held (
    begin_us INTEGER NOT NULL, end_us INTEGER NOT NULL, is_sum INTEGER NOT NULL, milli INTEGER NOT NULL,
    user TEXT NOT NULL, node TEXT NOT NULL, model TEXT NOT NULL, band INTEGER NOT NULL,
    milli_us INTEGER NOT NULL, started_us INTEGER, finished_us INTEGER,
    starts INTEGER NOT NULL, wait_us INTEGER NOT NULL, wait_us_min INTEGER NOT NULL, wait_us_max INTEGER NOT NULL,
    jobs INTEGER NOT NULL, failed INTEGER NOT NULL, load_milli_us REAL NOT NULL, load REAL NOT NULL, energy_mj REAL
);
CREATE INDEX IF NOT EXISTS held_by_end ON held (end_us);
CREATE UNIQUE INDEX IF NOT EXISTS held_sums ON held (begin_us, user, node, model, band) WHERE is_sum;
"""
_ADD = "INSERT INTO held VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_ADD_TO_SUM = f"""{_ADD}
ON CONFLICT (begin_us, user, node, model, band) WHERE is_sum DO UPDATE SET
    milli_us = milli_us + excluded.milli_us,
    wait_us_min = CASE WHEN starts = 0 THEN excluded.wait_us_min WHEN excluded.starts = 0 THEN wait_us_min
        ELSE min(wait_us_min, excluded.wait_us_min) END,
    wait_us_max = max(wait_us_max, excluded.wait_us_max),
    wait_us = wait_us + excluded.wait_us, starts = starts + excluded.starts,
    jobs = jobs + excluded.jobs, failed = failed + excluded.failed,
    load_milli_us = load_milli_us + excluded.load_milli_us, load = load + excluded.load,
    energy_mj = CASE WHEN energy_mj IS NULL THEN excluded.energy_mj
        ELSE energy_mj + coalesce(excluded.energy_mj, 0) END"""
_COLUMNS = {"user": "user", "node": "node", "model": "model", "band": "band"}
_CROSSING = (
    "SELECT begin_us, end_us, milli, user, node, model, band, started_us, finished_us, wait_us, jobs, failed, "
    "load_milli_us, load, energy_mj FROM held WHERE end_us >= ?1 AND begin_us < ?2 AND NOT is_sum "
)
_SUMS = (
    "sum(milli_us / 1000000), sum(milli_us % 1000000), sum(jobs), sum(failed), sum(starts), sum(wait_us), "
    "min(CASE WHEN starts THEN wait_us_min END), max(wait_us_max), total(load_milli_us), total(load), sum(energy_mj)"
)


@dataclass(slots=True)
class Group:
    """What is counted for one row of an answer."""

    totals: Totals = field(default_factory=Totals)
    course: list[int] = field(default_factory=list)


def add(connection: sqlite3.Connection, holds: Iterable[Hold]) -> None:
    """Store holds; the caller sees to it that each comes once."""
    short: list[tuple[object, ...]] = []
    long: list[tuple[object, ...]] = []
    for hold in holds:
        (short if is_short(hold) else long).append(_values(hold))
    connection.executemany(_ADD_TO_SUM, short)
    connection.executemany(_ADD, long)


def _values(hold: Hold) -> tuple[object, ...]:
    totals = Totals()
    totals.add(hold, Instant(0), Instant(2**62))
    is_sum = is_short(hold)
    begin = bucket_of(hold.begin) if is_sum else hold.begin
    return (
        begin,
        begin if is_sum else hold.end,
        is_sum,
        0 if is_sum else hold.milli,
        hold.user,
        hold.node,
        hold.model,
        int(hold.band),
        totals.milli_us,
        None if is_sum else hold.started_at,
        None if is_sum else hold.finished_at,
        totals.starts,
        totals.wait_us,
        totals.wait_us_min,
        totals.wait_us_max,
        totals.jobs,
        totals.failed,
        totals.load_milli_us,
        totals.load,
        totals.energy_mj,
    )


def read(
    connection: sqlite3.Connection, more: Iterable[Hold], span: UsageSpan, group: str, user: str
) -> dict[str, Group]:
    """What is stored, and `more`, by user, node, model or band, as far as it lies in the span."""
    found: dict[str, Group] = {}

    def of(name: str) -> Group:
        if name not in found:
            found[name] = Group(course=[0] * span.steps)
        return found[name]

    # What lies whole in one step is summed up by the database; what crosses a border is cut here.
    only = "AND user = ?4" if user else "AND ?4 = ''"
    step = "(begin_us - ?1) / ?3"
    within = (
        f"SELECT {_COLUMNS[group]} AS name, {step} AS step, {_SUMS} FROM held WHERE end_us >= ?1 AND begin_us >= ?1 "
        f"AND begin_us < ?2 AND (is_sum OR {_lies_in_step(step)}) {only} GROUP BY name, step"
    )
    bounds = (span.begin, span.end, span.step, user)
    with closing(connection.execute(within, bounds)) as rows:
        for name, number, *sums in rows:
            each = of(Band(name).name.lower() if group == "band" else name)
            totals = _totals(sums)
            each.totals.add_all(totals)
            if span.steps:
                each.course[number] += totals.milli_us
    crossing = _CROSSING + f"AND NOT (begin_us >= ?1 AND {_lies_in_step(step)}) {only}"
    with closing(connection.execute(crossing, bounds)) as rows:
        for row in rows:
            _count(of, _hold(row), span, group)
    for hold in more:
        if not user or hold.user == user:
            _count(of, hold, span, group)
    return found


def _lies_in_step(step: str) -> str:
    last = f"?1 + ({step} + 1) * ?3"
    return f"(end_us < {last} AND end_us < ?2)"


def _count(of: Callable[[str], Group], hold: Hold, span: UsageSpan, group: str) -> None:
    if hold.begin < span.end and hold.end >= span.begin:
        each = of(name_in(hold, group))
        each.totals.add(hold, span.begin, span.end)
        spread(hold, span, each.course)


def _totals(sums: list[float | None]) -> Totals:
    whole, rest, jobs, failed, starts, wait, least, most = (int(value or 0) for value in sums[:8])
    return Totals(
        milli_us=whole * 1_000_000 + rest,
        jobs=jobs,
        failed=failed,
        starts=starts,
        wait_us=wait,
        wait_us_min=least,
        wait_us_max=most,
        load_milli_us=sums[8] or 0.0,
        load=sums[9] or 0.0,
        energy_mj=sums[10],
    )


def _hold(row: tuple[Any, ...]) -> Hold:
    begin, end, milli, user, node, model, band, started, finished, wait, jobs, failed, load_milli_us, load, energy = row
    return Hold(
        begin=Instant(begin),
        end=Instant(end),
        milli=milli,
        user=UserName(user),
        node=NodeName(node),
        model=str(model),
        band=Band(band),
        started_at=started,
        waited=Span(wait),
        finished_at=finished,
        jobs=jobs,
        failed=failed,
        load_percent=load / load_milli_us if load_milli_us else None,
        energy_mj=energy,
    )
