"""The audit's table: rows are kept in order, found by what they say, written again without harm, and dropped."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from scheduler.state.audited import AuditedCall, AuditQuery, AuditRow
from scheduler.state.ids import JobId
from scheduler.store.errors import StoreUnavailable, TermSuperseded
from scheduler.store.opening import open_store
from scheduler.store.store import SqlStore
from tests.store.samples import at, behind_its_back, job, submit


def row(sequence: int, call: str = "Submit", second: float = 0, **said: Any) -> AuditRow:
    return AuditRow(sequence=sequence, call=AuditedCall(at=at(second), call=call, **said))


EVERYTHING = AuditedCall(
    at=at(9),
    call="Cancel",
    user="ann",
    role="user",
    token="ab12",
    node="n1",
    peer="10.0.0.7",
    via="gateway gw",
    target="user bob",
    jobs="41-50,60",
    first_job=41,
    last_job=60,
    detail="not needed",
    code="PERMISSION_DENIED",
    reason="PERMISSION_DENIED",
    message="job 41 is of bob",
    count=3,
    is_open=True,
)


def sequences(store: SqlStore, **asked: Any) -> list[int]:
    return [each.sequence for each in store.audit_rows(AuditQuery(**asked))]


def test_a_row_comes_back_as_it_was_written(store: SqlStore) -> None:
    assert store.newest_audit_sequence() == 0
    plain = row(1)
    store.write_audit([plain, AuditRow(sequence=2, call=EVERYTHING)])
    assert store.audit_rows(AuditQuery()) == [AuditRow(sequence=2, call=EVERYTHING), plain]
    assert store.newest_audit_sequence() == 2
    for name in AuditedCall.__slots__:
        assert getattr(EVERYTHING, name) != getattr(plain.call, name), f"{name} is not looked at here"


def test_rows_are_found_by_each_thing_that_can_be_asked_for(store: SqlStore) -> None:
    store.write_audit(
        [
            row(1, "Submit", 1, user="ann", first_job=41, last_job=50, jobs="41-50"),
            row(2, "Cancel", 2, user="bob", first_job=44, last_job=44, jobs="44"),
            row(3, "UpdateNode", 3, user="ann", target="node n1"),
            row(4, "GetJob", 4, user="bob", code="PERMISSION_DENIED", first_job=60, last_job=60, jobs="60"),
        ]
    )
    assert sequences(store) == [4, 3, 2, 1]
    assert sequences(store, user="ann") == [3, 1]
    assert sequences(store, call="Cancel") == [2]
    assert sequences(store, target="node n1") == [3]
    assert sequences(store, job=JobId(44)) == [2, 1]
    assert sequences(store, job=JobId(51)) == []
    assert sequences(store, only_refused=True) == [4]
    assert sequences(store, since=at(3)) == [4, 3]
    assert sequences(store, since=at(5)) == []
    assert sequences(store, before=3, limit=1) == [2]
    assert sequences(store, after=2) == [4, 3]
    assert sequences(store, user="bob", since=at(3), job=JobId(60), only_refused=True) == [4]


def test_rows_that_are_written_again_are_there_once(store: SqlStore) -> None:
    store.write_audit([row(1), row(2)])
    store.write_audit([row(1), row(2), row(3)])
    assert sequences(store) == [3, 2, 1]


def test_a_text_that_a_database_cannot_hold_is_kept_as_far_as_it_can(store: SqlStore) -> None:
    store.write_audit([row(1, user="a\0b\ud800")])
    (found,) = store.audit_rows(AuditQuery())
    assert found.call.user == "a\ufffdb?"
    assert sequences(store, user="a\0b\ud800") == [1], "it is asked for as it was said"


def test_commits_go_on_between_rows_and_a_new_start_finds_both(url: str) -> None:
    with closing(open_store(url)) as store:
        store.commit(submit(1, job(1)))
        store.write_audit([row(1)])
        store.commit(submit(2, job(2)))
        store.write_audit([row(2)])
    with closing(open_store(url)) as store:
        assert list(store.load()) == [job(1), job(2)]
        assert store.newest_audit_sequence() == 2
        assert store.verify() == []


def test_a_superseded_scheduler_writes_and_drops_no_row(url: str) -> None:
    with closing(open_store(url)) as store:
        store.write_audit([row(1)])
        behind_its_back(url, "UPDATE meta SET term = term + 1, commit_number = 0")
        with pytest.raises(TermSuperseded):
            store.write_audit([row(2)])
        with pytest.raises(TermSuperseded):
            store.prune_audit(at(100), 1)
    assert behind_its_back(url, "SELECT seq FROM audit") == [(1,)]


def test_while_a_commit_is_in_doubt_rows_wait(url: str) -> None:
    with closing(open_store(url)) as store:
        # It was stored, and its answer was lost: the next number in the store is not the one that is known here.
        behind_its_back(url, "UPDATE meta SET commit_number = commit_number + 1")
        with pytest.raises(StoreUnavailable):
            store.write_audit([row(1)])
        assert sequences(store) == []


def test_old_rows_go_and_those_beyond_the_bound_each_kind_by_itself(store: SqlStore) -> None:
    def refused(number: int) -> AuditRow:
        made = row(number, second=number)
        return replace(made, call=replace(made.call, code="UNAUTHENTICATED"))

    good = [row(number, second=number) for number in (1, 2, 3, 4)]
    store.write_audit([*good, *(refused(number) for number in range(5, 25))])
    assert store.prune_audit(at(2), 100) == 1
    assert sequences(store)[-1] == 2
    # Whoever is refused often pushes out nothing of what was done.
    assert store.prune_audit(at(0), 10) == 10
    assert sequences(store) == [*range(24, 14, -1), 4, 3, 2]
    assert store.prune_audit(at(0), 2) == 9
    assert sequences(store) == [24, 23, 4, 3]
    assert store.prune_audit(at(0), 2) == 0
