"""What comes too often is counted: nothing is lost of how often, and no flood hides what others do."""

from __future__ import annotations

from dataclasses import replace

from scheduler.audit.limits import (
    ALIKE_MAX,
    COUNTED_SECONDS,
    REFUSALS_AT_ONCE,
    REFUSALS_PER_SECOND,
    REFUSED_MAX,
    SEVERAL,
    STRANGERS_AT_ONCE,
    Thinning,
    network_of,
)
from scheduler.state.audited import AuditedCall
from tests.store.samples import at

DONE = AuditedCall(at=at(0), call="ForwardPort", user="ann", peer="10.0.0.1", jobs="41", first_job=41, last_job=41)
WRONG = AuditedCall(at=at(0), call="Queue", peer="10.0.0.9", code="UNAUTHENTICATED", reason="TOKEN_INVALID")


def test_what_was_done_is_written_each_time() -> None:
    thinning = Thinning(0.0)
    assert all(thinning.is_written(DONE, 0.0, counts_alike=False) for _ in range(10_000))
    assert list(thinning.due(1e9)) == []


def test_alike_calls_are_counted_for_a_minute_and_then_one_row() -> None:
    thinning = Thinning(0.0)
    assert [thinning.is_written(DONE, 1.0, counts_alike=True) for _ in range(5)] == [True] + [False] * 4
    other = replace(DONE, peer="10.0.0.2")
    assert thinning.is_written(other, 2.0, counts_alike=True), "it comes from elsewhere"
    assert list(thinning.due(COUNTED_SECONDS)) == []
    assert list(thinning.due(1.0 + COUNTED_SECONDS)) == [replace(DONE, count=4)]
    assert list(thinning.due(2.0 + COUNTED_SECONDS)) == [], "what came once has its row"
    assert thinning.is_written(DONE, 3.0 + COUNTED_SECONDS, counts_alike=True)


def test_kinds_beyond_the_bound_are_written_each_time() -> None:
    thinning = Thinning(0.0)
    for number in range(ALIKE_MAX):
        thinning.is_written(replace(DONE, detail=f"port {number}"), 0.0, counts_alike=True)
    more = replace(DONE, detail="port 99999")
    assert thinning.is_written(more, 0.0, counts_alike=True) and thinning.is_written(more, 0.0, counts_alike=True)


def test_a_flood_of_wrong_tokens_is_some_rows_and_a_count() -> None:
    thinning = Thinning(0.0)
    kept = sum(thinning.is_written(WRONG, each / 1_000, counts_alike=False) for each in range(10_000))
    assert REFUSALS_AT_ONCE <= kept <= REFUSALS_AT_ONCE + 10 * REFUSALS_PER_SECOND + 1
    (row,) = thinning.due(1e9)
    assert kept + row.count == 10_000
    assert (row.peer, row.call, row.reason) == ("10.0.0.9", "Queue", "TOKEN_INVALID")


def test_a_row_of_counted_calls_says_only_what_they_have_in_common() -> None:
    thinning = Thinning(0.0)
    for _ in range(1_000):
        thinning.is_written(WRONG, 0.0, counts_alike=False)
    thinning.is_written(replace(WRONG, call="Cancel", reason="TOKEN_MISSING"), 0.0, counts_alike=False)
    (row,) = thinning.due(0.0, is_over=True)
    assert (row.call, row.reason, row.peer, row.code) == (SEVERAL, "", "10.0.0.9", "UNAUTHENTICATED")


def test_a_flood_from_one_address_hides_no_refusal_of_another_or_of_a_user() -> None:
    thinning = Thinning(0.0)
    for _ in range(10_000):
        thinning.is_written(WRONG, 0.0, counts_alike=False)
    assert thinning.is_written(replace(WRONG, peer="10.0.0.8"), 0.0, counts_alike=False)
    assert thinning.is_written(replace(WRONG, user="bob"), 0.0, counts_alike=False)


def test_a_flood_from_very_many_addresses_is_bounded_as_a_whole_and_users_are_still_told() -> None:
    thinning = Thinning(0.0)
    calls = [replace(WRONG, peer=f"10.{each >> 8 & 255}.{each & 255}.1") for each in range(5_000)]
    kept = sum(thinning.is_written(call, 0.0, counts_alike=False) for call in calls)
    assert kept == STRANGERS_AT_ONCE
    (row,) = thinning.due(1e9)
    assert (row.peer, row.count) == (SEVERAL, 5_000 - STRANGERS_AT_ONCE)
    assert thinning.is_written(replace(WRONG, user="bob"), 0.0, counts_alike=False)


def test_all_addresses_of_a_machine_with_ipv6_count_as_one() -> None:
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:1") != network_of("2001:db8:0:1::1")
    assert network_of("unix:") == "unix:"
    thinning = Thinning(0.0)
    kept = sum(
        thinning.is_written(replace(WRONG, peer=f"2001:db8::{each:x}"), 0.0, counts_alike=False) for each in range(500)
    )
    assert kept == REFUSALS_AT_ONCE


def test_so_many_users_are_counted_each_by_itself_and_the_rest_together() -> None:
    thinning = Thinning(0.0)
    users = REFUSED_MAX + 5
    for number in range(users):
        for _ in range(int(REFUSALS_AT_ONCE) + 2):
            thinning.is_written(replace(WRONG, user=f"user{number}"), 0.0, counts_alike=False)
    rows = list(thinning.due(1e9))
    assert sum(row.count for row in rows) == users * 2
    assert len(rows) == REFUSED_MAX + 1
    assert rows[-1].user == SEVERAL
