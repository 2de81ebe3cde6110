"""Rows on their way into the store: a second behind, in order, within a bound, and never in anybody's way."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pytest

from scheduler.audit import log as log_module
from scheduler.audit.log import LOST, ROWS_AT_ONCE, ROWS_WAITING_MAX, AuditLog
from scheduler.state.audited import AuditedCall, AuditQuery, AuditRow
from scheduler.state.units import Instant
from scheduler.store.errors import StoreCorrupt, StoreUnavailable, TermSuperseded
from tests.e2e.processes import until
from tests.store.samples import at

T = TypeVar("T")
CALL = AuditedCall(at=at(0), call="Submit", user="ann")


@dataclass
class FakeAuditStore:
    """Rows in memory; what is in `problem` is raised, and while `gate` is not set, writing blocks."""

    rows: dict[int, AuditRow] = field(default_factory=dict)
    problem: Exception | None = None
    sizes: list[int] = field(default_factory=list)
    bounds: list[tuple[Instant, int]] = field(default_factory=list)
    loses_answers: int = 0
    gate: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.gate.set()

    def newest_audit_sequence(self) -> int:
        return max(self.rows, default=0)

    def write_audit(self, rows: list[AuditRow]) -> None:
        assert self.gate.wait(60.0)
        if self.problem is not None:
            raise self.problem
        self.sizes.append(len(rows))
        self.rows |= {row.sequence: row for row in rows}
        if self.loses_answers:
            self.loses_answers -= 1
            raise StoreUnavailable("the answer was lost")

    def audit_rows(self, query: AuditQuery) -> list[AuditRow]:
        return sorted(self.rows.values(), key=lambda row: -row.sequence)[: query.limit]

    def prune_audit(self, before: Instant, rows_max: int) -> int:
        self.bounds.append((before, rows_max))
        return 0


async def plainly(read: Awaitable[T]) -> T:
    return await read


def made(store: FakeAuditStore) -> AuditLog:
    return AuditLog(store, lambda: at(7), lambda: (at(1), 1_000), plainly)


@asynccontextmanager
async def running(store: FakeAuditStore) -> AsyncIterator[AuditLog]:
    audit = made(store)
    task = asyncio.create_task(audit.run())
    try:
        yield audit
    finally:
        store.gate.set()
        task.cancel()
        with suppress(asyncio.CancelledError, StoreCorrupt):
            await task
        audit.close()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "WRITE_SECONDS", 0.01)
    monkeypatch.setattr(log_module, "PAUSE_SECONDS_MAX", 0.02)


async def test_rows_are_written_in_order_and_numbered_on_from_those_that_are_there() -> None:
    store = FakeAuditStore(rows={7: AuditRow(sequence=7, call=CALL)})
    async with running(store) as audit:
        for user in ("ann", "bob", "eve"):
            audit.add(replace(CALL, user=user))
        page = await audit.page(AuditQuery(), 60.0)
        assert [(row.sequence, row.call.user) for row in page] == [(10, "eve"), (9, "bob"), (8, "ann"), (7, "ann")]
        await until("old rows were looked for", lambda: store.bounds == [(at(1), 1_000)])


async def test_many_rows_go_in_transactions_of_a_bounded_size() -> None:
    store = FakeAuditStore()
    async with running(store) as audit:
        for _ in range(3 * ROWS_AT_ONCE + 1):
            audit.add(CALL)
        await until("all are written", lambda: len(store.rows) == 3 * ROWS_AT_ONCE + 1)
    assert max(store.sizes) <= ROWS_AT_ONCE


async def test_a_row_whose_answer_was_lost_is_there_once() -> None:
    store = FakeAuditStore(loses_answers=2)
    async with running(store) as audit:
        audit.add(CALL)
        audit.add(CALL)
        await until("nothing waits", lambda: audit.waiting == 0)
    assert sorted(store.rows) == [1, 2]


async def test_while_the_store_is_away_rows_wait_within_a_bound_and_what_found_no_room_is_counted() -> None:
    store = FakeAuditStore(problem=StoreUnavailable("gone"))
    async with running(store) as audit:
        for _ in range(ROWS_WAITING_MAX + 10):
            audit.add(CALL)
        assert (audit.waiting, audit.lost) == (ROWS_WAITING_MAX, 10)
        page = await audit.page(AuditQuery(), 0.0)
        assert page == [], "who asks gets what is stored"
        store.problem = None
        await until("all is written", lambda: len(store.rows) == ROWS_WAITING_MAX + 1)
    told = [row.call for row in store.rows.values() if row.call.call == LOST]
    assert [(call.count, call.code, call.is_refused, call.at) for call in told] == [(10, "DATA_LOSS", True, at(7))]


async def test_a_call_is_taken_down_while_the_store_blocks() -> None:
    store = FakeAuditStore()
    store.gate.clear()
    async with running(store) as audit:
        audit.add(CALL)
        await until("the writer is at it", lambda: audit.waiting == 1)
        audit.add(CALL)
        assert await audit.page(AuditQuery(), 0.0) == []
        store.gate.set()
        await until("both are written", lambda: len(store.rows) == 2)


async def test_all_that_waits_is_written_at_the_end_also_what_was_only_counted() -> None:
    store = FakeAuditStore()
    audit = made(store)
    for _ in range(5):
        audit.add(CALL, counts_alike=True)
    audit.close()
    assert [row.call.count for row in store.rows.values()] == [1, 4]
    audit.add(CALL)
    assert (audit.waiting, audit.lost) == (0, 1), "behind the end there is no room"


async def test_an_end_without_a_store_says_how_much_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    audit = made(FakeAuditStore(problem=StoreUnavailable("gone")))
    audit.add(CALL)
    audit.close()
    assert "the end of the audit is lost" in caplog.text


async def test_a_superseded_scheduler_writes_nothing_more_counts_what_is_lost_and_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = FakeAuditStore(problem=TermSuperseded("another one"))
    async with running(store) as audit:
        audit.add(CALL)
        await until("it has noticed", lambda: audit.is_superseded)
        assert (audit.lost, audit.waiting) == (CALL.count, 0)
        store.problem = None
        audit.add(CALL)
        assert await audit.page(AuditQuery(), 60.0) == []
        assert audit.lost == 2 * CALL.count
    assert store.rows == {}
    assert [each.message for each in caplog.records if each.levelno >= logging.ERROR] == [
        "another scheduler leads: the end of the audit is lost"
    ]


async def test_damage_ends_the_writer() -> None:
    store = FakeAuditStore(problem=StoreCorrupt("broken"))
    audit = made(store)
    task = asyncio.create_task(audit.run())
    audit.add(CALL)
    with pytest.raises(StoreCorrupt):
        await task
    audit.close()
