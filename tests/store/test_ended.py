"""What has ended, asked of the store: by every filter, page by page, on every database, and decided in an index."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import NullPool, create_engine, text

from scheduler.ports import Commit, EndedQuery
from scheduler.state.attempts import EndedAttempt, Placement, Rank
from scheduler.state.ids import JobId, NodeName, UserName
from scheduler.state.jobs import Job
from scheduler.state.specs import Outcome
from scheduler.store.queries import ended_jobs
from scheduler.store.store import SqlStore
from tests.store.samples import at, finish, finished, job
from tests.store.test_arrays import A, array, item

MANY = 30_000
COMMITTED_AT_ONCE = 5_000


def ran_on(ended: Job, node: str) -> Job:
    rank = Rank(placement=Placement(node=NodeName(node), agent_id="a1", boot_id="b1"))
    attempt = EndedAttempt(number=1, placed_at=at(0), ended_at=at(1), ranks=(rank,), reason="EXITED")
    return replace(ended, past=(attempt,))


def found(store: SqlStore, **fields: object) -> list[int]:
    return [each.id for each in store.ended_jobs(EndedQuery(**fields))]  # type: ignore[arg-type]


def test_what_has_ended_is_found_by_each_filter_and_by_several(store: SqlStore) -> None:
    store.commit(
        finish(
            1,
            ran_on(finished(job(1, user="alice", name="a"), 1, Outcome.FAILED), "n1"),
            ran_on(finished(job(2, user="bob", name="a"), 2), "n10"),
            finished(job(3, user="alice", name="b"), 3, Outcome.CANCELLED),
            finished(item(1), 4),
            finished(array(), 5),
            second=5,
        )
    )
    assert found(store) == [A, 3, 2, 1]
    assert found(store, has_items=True) == [A, A + 1, 3, 2, 1]
    assert found(store, since=at(2), until=at(5)) == [3, 2]
    assert found(store, user=UserName("alice"), name="a") == [1]
    assert found(store, outcomes=(Outcome.FAILED, Outcome.CANCELLED)) == [3, 1]
    assert found(store, node=NodeName("n1")) == [1]
    assert found(store, node=NodeName("n%")) == []
    assert found(store, limit=2) == [A, 3]
    assert found(store, limit=2, before=(at(3), JobId(3))) == [2, 1]


def test_thirty_thousand_ended_jobs_are_read_page_by_page_from_the_index(store: SqlStore, url: str) -> None:
    for number, first in enumerate(range(1, MANY + 1, COMMITTED_AT_ONCE), start=1):
        jobs = [
            finished(
                job(each, user="rare" if each % 10_000 == 0 else "alice", name=f"sweep-{each % 7}"),
                each // 3,
                Outcome.FAILED if each % 1_000 == 0 else Outcome.SUCCEEDED,
            )
            for each in range(first, first + COMMITTED_AT_ONCE)
        ]
        store.commit(Commit(number=number, at=at(first), finished=tuple(jobs)))
    query, ids = EndedQuery(limit=1_000), list[int]()
    for _ in range(3):
        page = store.ended_jobs(query)
        ids += [each.id for each in page]
        last = page[-1]
        query = replace(query, before=(last.state.at, last.id))  # type: ignore[union-attr]
    assert ids == list(range(MANY, MANY - 3_000, -1))
    assert found(store, user=UserName("rare")) == list(range(MANY, 0, -10_000))
    assert len(found(store, outcomes=(Outcome.FAILED,), since=at(6_000), limit=1_000)) == 13
    # The table itself is read for the rows of a page alone; what is passed over is passed over in an index.
    alice = UserName("alice")
    plain = (EndedQuery(), EndedQuery(user=alice, outcomes=(Outcome.SUCCEEDED,), since=at(10)))
    # PostgreSQL may well read all of a small table for what is rare in it.
    rare = (EndedQuery(name="sweep-3", since=at(10)), EndedQuery(outcomes=(Outcome.FAILED,), has_items=True))
    for wanted in plain if store.kind == "postgresql" else plain + rare:
        plan = plan_of(store, wanted, url)
        assert "Seq Scan" not in plan and "SCAN finished_job'" not in plan, plan
        assert "ix_finished_job_" in plan, plan


def plan_of(store: SqlStore, query: EndedQuery, url: str) -> str:
    """How the database goes about it."""
    engine = store._database.engine
    statement = str(ended_jobs(query).compile(engine, compile_kwargs={"literal_binds": True}))
    is_sqlite = store.kind == "sqlite"
    own = engine if is_sqlite else create_engine(engine.url, poolclass=NullPool)
    with own.connect() as connection:
        if not is_sqlite:
            connection.execute(text("ANALYZE finished_job"))
        rows = connection.execute(text(("EXPLAIN QUERY PLAN " if is_sqlite else "EXPLAIN ") + statement))
        return "\n".join(str(row) for row in rows)
