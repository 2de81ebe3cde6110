"""The table of what attempts held: one row for each hold that is long, and one for all short ones of a bucket that are
of the same user, node, model, band and group. So a flood of small jobs costs no more than its five minutes do.
"""

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from ..state.specs import Band
from ..state.units import Instant
from .accounts import AccountedHold, Totals, UsageSpan, bucket_of, is_short, name_in, spread

ROWS_MAX = 10_000_000
"""Beyond it the oldest rows are dropped; each takes some 150 bytes."""

CREATE = """
CREATE TABLE IF NOT EXISTS held (
    begin_us INTEGER NOT NULL, end_us INTEGER NOT NULL, is_sum INTEGER NOT NULL, milli INTEGER NOT NULL,
    user TEXT NOT NULL, node TEXT NOT NULL, model TEXT NOT NULL, band INTEGER NOT NULL,
    milli_us INTEGER NOT NULL, started_us INTEGER, finished_us INTEGER,
    starts INTEGER NOT NULL, wait_us INTEGER NOT NULL, wait_us_min INTEGER NOT NULL, wait_us_max INTEGER NOT NULL,
    jobs INTEGER NOT NULL, failed INTEGER NOT NULL, load_milli_us REAL NOT NULL, load REAL NOT NULL, energy_mj REAL,
    job_group INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS held_by_end ON held (end_us);
"""
_ADD_GROUPS = "ALTER TABLE held ADD COLUMN job_group INTEGER NOT NULL DEFAULT 0"
"""For files of before there were groups: what they hold is of none."""
_INDEX_SUMS = (
    "DROP INDEX IF EXISTS held_sums",
    "CREATE UNIQUE INDEX IF NOT EXISTS held_sums_of_groups ON held (begin_us, user, node, model, band, job_group)"
    " WHERE is_sum",
)
_ADD = f"INSERT INTO held VALUES ({', '.join('?' * 21)})"
_ADD_TO_SUM = f"""{_ADD}
ON CONFLICT (begin_us, user, node, model, band, job_group) WHERE is_sum DO UPDATE SET
    milli_us = milli_us + excluded.milli_us,
    wait_us_min = CASE WHEN starts = 0 THEN excluded.wait_us_min WHEN excluded.starts = 0 THEN wait_us_min
        ELSE min(wait_us_min, excluded.wait_us_min) END,
    wait_us_max = max(wait_us_max, excluded.wait_us_max),
    wait_us = wait_us + excluded.wait_us, starts = starts + excluded.starts,
    jobs = jobs + excluded.jobs, failed = failed + excluded.failed,
    load_milli_us = load_milli_us + excluded.load_milli_us, load = load + excluded.load,
    energy_mj = CASE WHEN energy_mj IS NULL THEN excluded.energy_mj
        ELSE energy_mj + coalesce(excluded.energy_mj, 0) END"""
GROUPS = {"user": "user", "node": "node", "model": "model", "band": "band", "group": "job_group"}
"""By what the rows of an answer stand for: their column."""
# Of what follows ?1 is the begin of the span, ?2 its end, ?3 the length of a step, ?4 the user or ''. Sums of integers
# are taken in two parts, since all of them together may be more than an integer of the database holds.
_IN_SPAN = "FROM held WHERE end_us >= ?1 AND begin_us < ?2 AND (?4 = '' OR user = ?4)"
_OVERLAP = "max(0, min(end_us, ?2) - max(begin_us, ?1))"
_HELD = f"CASE WHEN is_sum THEN milli_us ELSE milli * {_OVERLAP} END"
_PART = f"CASE WHEN is_sum OR end_us = begin_us THEN 1.0 ELSE {_OVERLAP} * 1.0 / (end_us - begin_us) END"
_HAS_ENDED = "is_sum OR (finished_us >= ?1 AND finished_us < ?2)"
_HAS_STARTED = "is_sum OR (started_us >= ?1 AND started_us < ?2)"
_TOTALS = f"""
WITH found AS (
    SELECT *, {_HELD} AS part_us, {_PART} AS part, {_HAS_ENDED} AS has_ended,
        ({_HAS_STARTED}) AND starts > 0 AS has_started {_IN_SPAN}
)
SELECT {{group}}, sum(part_us / 1000000), sum(part_us % 1000000),
    total(CASE WHEN has_ended THEN jobs END), total(CASE WHEN has_ended THEN failed END),
    total(CASE WHEN has_started THEN starts END), total(CASE WHEN has_started THEN wait_us END),
    min(CASE WHEN has_started THEN wait_us_min END), max(CASE WHEN has_started THEN wait_us_max END),
    total(load_milli_us * part), total(load * part), sum(energy_mj * part)
FROM found GROUP BY 1"""
_FIRST_STEP = "(max(begin_us, ?1) - ?1) / ?3"
_LAST_STEP = "CASE WHEN is_sum THEN (begin_us - ?1) / ?3 ELSE (max(begin_us + 1, min(end_us, ?2)) - 1 - ?1) / ?3 END"
_COURSE = f"""
WITH RECURSIVE found AS (SELECT *, {_HELD} AS part_us, {_FIRST_STEP} AS first, {_LAST_STEP} AS last {_IN_SPAN}),
cut(name, milli, begin_us, end_us, step, last) AS (
    SELECT {{group}}, milli, begin_us, end_us, first, last FROM found WHERE first < last
    UNION ALL SELECT name, milli, begin_us, end_us, step + 1, last FROM cut WHERE step < last
),
parts(name, step, part_us) AS (
    SELECT {{group}}, first, part_us FROM found WHERE first >= last
    UNION ALL SELECT name, step,
        milli * (min(end_us, ?2, ?1 + (step + 1) * ?3) - max(begin_us, ?1 + step * ?3)) FROM cut
)
SELECT name, step, sum(part_us / 1000000), sum(part_us % 1000000) FROM parts GROUP BY 1, 2"""


@dataclass(slots=True)
class UsageTotals:
    """What is counted for one row of an answer."""

    totals: Totals = field(default_factory=Totals)
    course: list[int] = field(default_factory=list)

    def add_all(self, other: "UsageTotals") -> None:
        """Count what another row of the same span and steps has counted."""
        self.totals.add_all(other.totals)
        self.course = [own + more for own, more in zip(self.course, other.course, strict=True)]


def bring_up_to_date(connection: sqlite3.Connection) -> None:
    """Make of the table of a file, which may be an older one, the table of now."""
    columns = {name for _, name, *_ in connection.execute("PRAGMA table_info(held)").fetchall()}
    if "job_group" not in columns:
        connection.execute(_ADD_GROUPS)
    for statement in _INDEX_SUMS:
        connection.execute(statement)


def add(connection: sqlite3.Connection, holds: Iterable[AccountedHold]) -> None:
    """Store holds; the caller sees to it that each comes once."""
    short: list[tuple[object, ...]] = []
    long: list[tuple[object, ...]] = []
    for hold in holds:
        (short if is_short(hold) else long).append(_values(hold))
    connection.executemany(_ADD_TO_SUM, short)
    connection.executemany(_ADD, long)


def _values(hold: AccountedHold) -> tuple[object, ...]:
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
        hold.group,
    )


def read(
    connection: sqlite3.Connection, more: Iterable[AccountedHold], span: UsageSpan, group: str, user: str
) -> dict[str, UsageTotals]:
    """What is stored, and `more`, by user, node, model, band or id of a group, as far as it lies in the span."""
    column = GROUPS[group]
    found: dict[str, UsageTotals] = {}

    def of(name: str) -> UsageTotals:
        if name not in found:
            found[name] = UsageTotals(course=[0] * span.steps)
        return found[name]

    bounds = (span.begin, span.end, span.step, user)
    with closing(connection.execute(_TOTALS.format(group=column), bounds)) as rows:
        for value, *sums in rows:
            of(_name(value, group)).totals.add_all(_totals(sums))
    if span.steps:
        with closing(connection.execute(_COURSE.format(group=column), bounds)) as rows:
            for value, step, whole, rest in rows:
                of(_name(value, group)).course[step] += whole * 1_000_000 + rest
    for hold in more:
        if (not user or hold.user == user) and hold.begin < span.end and hold.end >= span.begin:
            each = of(name_in(hold, group))
            each.totals.add(hold, span.begin, span.end)
            spread(hold, span, each.course)
    return found


def _name(value: Any, group: str) -> str:
    return Band(value).name.lower() if group == "band" else str(value)


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
