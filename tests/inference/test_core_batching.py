"""Dynamic batching: each item is settled once, batches are as large and as soon as they may, and faults cost few."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.core.batch_size import SIZE_FIRST, SIZE_MAX, SizeSearch
from inference.core.batching import (
    ANSWERED,
    EARLIER_US,
    ENDING,
    FAILED,
    OPEN_MAX,
    REFUSED,
    TOO_LATE,
    TOO_MANY,
    Answered,
    Batch,
    Batcher,
    BatchLimits,
    Raised,
    Settled,
)

LIMITS = BatchLimits(batch_max=4, wait_us=5_000, waiting_max=12, hang_us=1_000_000)


def places(batch: Batch | None) -> list[tuple[int, int]]:
    return [(item.request, item.place) for item in batch.items] if batch else []


def answered(batch: Batch) -> Answered:
    return Answered([None] * len(batch.items))


def begun(batcher: Batcher, now_us: int) -> Batch:
    batch = batcher.take(now_us)
    assert batch is not None
    return batch


def statuses(settled: list[Settled]) -> dict[tuple[int, int], int]:
    assert len({(each.request, each.place) for each in settled}) == len(settled)
    return {(each.request, each.place): each.status for each in settled}


def used_by_four(limits: BatchLimits = LIMITS) -> Batcher:
    """One that has just answered four requests at once, and expects as many again."""
    batcher = Batcher(limits)
    for request in range(-4, 0):
        batcher.offer(request, "a", 1, 0)
    batcher.finish(0, answered(begun(batcher, 0)))
    assert len(batcher.settled()) == 4
    return batcher


def test_one_caller_never_waits_for_others() -> None:
    batcher = Batcher(LIMITS)
    for request in range(3):
        batcher.offer(request, "a", 2, 100 * request)
        batch = begun(batcher, 100 * request)
        assert places(batch) == [(request, 0), (request, 1)]
        batcher.finish(100 * request + 50, answered(batch))


def test_a_batch_waits_for_as_many_requests_as_there_were_at_once_of_late() -> None:
    batcher = used_by_four(BatchLimits(batch_max=8, wait_us=5_000))
    for request in range(3):
        batcher.offer(request, "a", 1, request)
        assert batcher.take(request) is None and batcher.due_us() == 5_000
    batcher.offer(3, "a", 1, 3)
    assert len(begun(batcher, 3).items) == 4


def test_callers_that_went_are_waited_for_only_a_few_times() -> None:
    batcher = used_by_four()
    for number in range(OPEN_MAX):
        batcher.offer(number, "a", 1, 10_000 * number)
        assert batcher.due_us() == 10_000 * number + 5_000
        batcher.finish(10_000 * number + 5_000, answered(begun(batcher, 10_000 * number + 5_000)))
    batcher.offer(OPEN_MAX, "a", 1, 1_000_000)
    assert begun(batcher, 1_000_000)


def test_the_first_item_waits_for_others_and_no_longer_than_it_may() -> None:
    batcher = used_by_four()
    assert batcher.take(0) is None and batcher.due_us() is None
    assert batcher.offer(1, "a", 1, 100) is None
    assert batcher.take(100) is None and batcher.due_us() == 5_100
    batcher.offer(2, "a", 2, 3_000)
    assert batcher.take(5_099) is None
    assert places(batcher.take(5_100)) == [(1, 0), (2, 0), (2, 1)]


def test_a_full_batch_begins_at_once_and_the_rest_once_the_model_is_free() -> None:
    batcher = Batcher(LIMITS)
    batcher.offer(1, "a", 6, 0)
    first = begun(batcher, 0)
    assert places(first) == [(1, place) for place in range(4)]
    assert batcher.take(9_000) is None and batcher.waiting == 2 and batcher.open == 6
    batcher.finish(10_000, answered(first))
    assert places(batcher.take(10_000)) == [(1, 4), (1, 5)]


def test_only_items_of_one_key_are_together_and_the_oldest_key_is_first() -> None:
    batcher = used_by_four()
    batcher.offer(1, (3, 224), 1, 0)
    batcher.offer(2, (3, 512), 4, 1)
    assert places(batcher.take(2)) == [(2, 0), (2, 1), (2, 2), (2, 3)], "it is full, and the other may still grow"
    batcher.offer(3, (3, 512), 4, 3)
    batcher.finish(9_000, Answered([None] * 4))
    assert places(batcher.take(9_000)) == [(1, 0)], "it came before the full one"


def test_items_of_the_model_have_a_result_or_an_error_of_their_own() -> None:
    batcher = Batcher(LIMITS)
    batcher.offer(1, "a", 4, 0)
    begun(batcher, 0)
    batcher.finish(1, Answered([None, "no face", None, None]))
    settled = batcher.settled()
    assert statuses(settled) == {(1, 0): ANSWERED, (1, 1): REFUSED, (1, 2): ANSWERED, (1, 3): ANSWERED}
    assert [each.answer for each in settled] == [0, 1, 2, 3] and settled[1].message == "no face"
    assert batcher.settled() == [] and batcher.open == 0


@pytest.mark.parametrize("count", [0, 3, 5])
def test_too_few_or_too_many_answers_are_an_error_of_each_item(count: int) -> None:
    batcher = Batcher(LIMITS)
    batcher.offer(1, "a", 4, 0)
    begun(batcher, 0)
    batcher.finish(1, Answered([None] * count))
    settled = batcher.settled()
    assert set(statuses(settled).values()) == {FAILED} and len(settled) == 4
    assert settled[0].message == f"predict gave {count} answers for 4 items"


def test_a_bad_item_costs_itself_alone() -> None:
    batcher = Batcher(LIMITS)
    batcher.offer(1, "a", 3, 0)
    begun(batcher, 5_000)
    batcher.finish(6_000, Raised("ValueError: bad"))
    batcher.offer(2, "a", 4, 6_000)
    for place in range(3):
        batch = begun(batcher, 6_000)
        assert places(batch) == [(1, place)], "those that are tried again come first"
        batcher.finish(6_000, Raised("ValueError: bad") if place == 1 else answered(batch))
    assert statuses(batcher.settled()) == {(1, 0): ANSWERED, (1, 1): FAILED, (1, 2): ANSWERED}
    assert len(begun(batcher, 6_000).items) == 4


def test_short_memory_halves_the_batch_and_is_remembered_for_items_alike() -> None:
    batcher = Batcher(LIMITS)
    batcher.offer(1, "large", 4, 0)
    begun(batcher, 0)
    batcher.finish(0, Raised("OutOfMemoryError", is_out_of_memory=True))
    for expected in ([(1, 0), (1, 1)], [(1, 2), (1, 3)]):
        batch = begun(batcher, 0)
        assert places(batch) == expected
        batcher.finish(0, answered(batch))
    assert set(statuses(batcher.settled()).values()) == {ANSWERED}
    batcher.offer(2, "large", 4, 1)
    assert len(begun(batcher, 1).items) == 2
    batcher.finish(1, Answered([None, None]))
    batcher.offer(3, "small", 4, 2)
    assert len(begun(batcher, 2).items) == 2, "the rest of the large ones"
    batcher.finish(2, Answered([None, None]))
    assert len(begun(batcher, 2).items) == 4


def test_an_item_that_is_too_large_alone_is_an_error() -> None:
    batcher = Batcher(LIMITS)
    batcher.offer(1, "a", 1, 0)
    begun(batcher, 5_000)
    batcher.finish(5_000, Raised("out of memory", is_out_of_memory=True))
    assert statuses(batcher.settled()) == {(1, 0): FAILED} and batcher.open == 0


def test_a_request_is_taken_in_whole_or_refused_with_when_to_come_again() -> None:
    batcher = Batcher(LIMITS)
    assert batcher.offer(1, "a", 10, 0) is None
    refusal = batcher.offer(2, "a", 3, 0)
    assert refusal is not None and refusal.status == TOO_MANY and refusal.retry_s == 1
    assert batcher.offer(3, "a", 2, 0) is None
    too_large = batcher.offer(4, "a", 13, 0)
    assert too_large is not None and (too_large.status, too_large.retry_s) == (413, 0)
    assert batcher.waiting == 12


def test_when_to_come_again_follows_from_how_long_batches_take() -> None:
    batcher = Batcher(BatchLimits(batch_max=1, waiting_max=8, wait_us=0))
    batcher.offer(1, "a", 8, 0)
    batcher.finish(3_000_000, answered(begun(batcher, 0)))
    begun(batcher, 3_000_000)
    batcher.offer(2, "a", 2, 3_000_000)
    refusal = batcher.offer(3, "a", 1, 3_000_000)
    assert refusal is not None and refusal.retry_s == 24


def test_what_nobody_waits_for_is_not_computed_and_frees_its_place() -> None:
    batcher = Batcher(LIMITS)
    batcher.offer(1, "a", 4, 0)
    running = begun(batcher, 0)
    batcher.offer(2, "a", 8, 0)
    batcher.offer(3, "a", 4, 0)
    batcher.cancel(2)
    batcher.cancel(1)
    assert batcher.waiting == 4 and batcher.offer(4, "a", 8, 0) is None
    batcher.finish(1, answered(running))
    assert batcher.settled() == []
    assert places(batcher.take(1)) == [(3, place) for place in range(4)]


def test_what_was_cancelled_is_not_tried_again() -> None:
    batcher = Batcher(LIMITS)
    batcher.offer(1, "a", 2, 0)
    batcher.offer(2, "a", 2, 0)
    begun(batcher, 0)
    batcher.cancel(1)
    batcher.finish(1, Raised("bad"))
    assert batcher.waiting == 2
    batcher.cancel(2)
    assert batcher.take(1) is None and batcher.waiting == 0 and batcher.due_us() is None


def test_a_deadline_hurries_a_batch_by_what_the_slowest_of_late_took() -> None:
    batcher = used_by_four(BatchLimits(batch_max=4, wait_us=50_000))
    for duration_us in (3_000, 8_000):
        batcher.offer(1, "a", 4, 0)
        batcher.finish(duration_us, answered(begun(batcher, 0)))
    batcher.offer(2, "a", 1, 100_000, deadline_us=130_000)
    due_us = 130_000 - 8_000 - EARLIER_US
    assert batcher.due_us() == due_us and batcher.take(due_us - 1) is None
    assert places(batcher.take(due_us)) == [(2, 0)]


def test_a_deadline_that_was_met_hurries_nobody_else() -> None:
    batcher = Batcher(BatchLimits(batch_max=2, wait_us=50_000))
    batcher.offer(1, "a", 2, 0, deadline_us=10_000)
    batcher.offer(2, "a", 1, 0)
    batcher.finish(1_000, answered(begun(batcher, 0)))
    assert batcher.take(40_000) is None and batcher.due_us() == 50_000


def test_an_item_whose_deadline_passes_is_settled_whether_it_waits_or_is_computed() -> None:
    batcher = Batcher(LIMITS)
    batcher.offer(1, "a", 4, 0, deadline_us=2_000)
    running = begun(batcher, 0)
    batcher.offer(2, "a", 1, 0, deadline_us=1_000)
    assert batcher.due_us() == 1_000
    batcher.expire(1_000)
    assert statuses(batcher.settled()) == {(2, 0): TOO_LATE}
    batcher.expire(2_000)
    assert statuses(batcher.settled()) == {(1, place): TOO_LATE for place in range(4)}
    batcher.finish(2_500, answered(running))
    assert batcher.settled() == []
    late = batcher.offer(3, "a", 1, 2_500, deadline_us=2_500)
    assert late is not None and late.status == TOO_LATE


def test_what_can_no_longer_be_met_is_not_computed_but_not_for_ever_by_one_measurement() -> None:
    batcher = Batcher(BatchLimits(batch_max=1, wait_us=0))
    batcher.offer(1, "a", 1, 0)
    batcher.finish(900_000, answered(begun(batcher, 0)))
    batcher.settled()
    batcher.offer(2, "a", 1, 900_000, deadline_us=1_000_000)
    assert batcher.take(900_000) is None
    assert statuses(settled := batcher.settled()) == {(2, 0): TOO_LATE}
    assert settled[0].message == "its deadline is in 100 ms, and a batch takes 900 ms"
    batcher.offer(3, "a", 1, 900_000, deadline_us=1_000_000)
    assert places(batcher.take(900_000)) == [(3, 0)]


def test_a_model_that_hangs_costs_what_it_computes_and_everything_that_waits() -> None:
    batcher = Batcher(LIMITS)
    batcher.offer(1, "a", 4, 0)
    running = begun(batcher, 0)
    batcher.offer(2, "a", 1, 0)
    assert batcher.due_us() == 1_000_000
    batcher.expire(999_999)
    assert not batcher.is_hung
    batcher.expire(1_000_000)
    assert batcher.is_hung and batcher.due_us() is None
    settled = batcher.settled()
    assert statuses(settled) == {**{(1, place): FAILED for place in range(4)}, (2, 0): ENDING}
    assert settled[0].message == "the model did not answer within 1 s"
    refusal = batcher.offer(3, "a", 1, 1_000_000)
    assert refusal is not None and refusal.status == ENDING and refusal.retry_s
    batcher.finish(1_100_000, answered(running))
    assert batcher.settled() == [] and batcher.take(1_100_000) is None


def test_deadlines_of_requests_that_went_are_not_kept() -> None:
    batcher = Batcher(LIMITS)
    batcher.offer(0, "a", 4, 0)
    begun(batcher, 0)
    for request in range(1, 2_000):
        batcher.offer(request, "a", 1, 0, deadline_us=900_000)
        batcher.cancel(request)
    assert len(batcher._deadlines) < 200


# --- everything at once, by chance


@dataclass
class World:
    """Requests that come and go while a model answers, raises and runs out of memory, under a clock of its own."""

    limits: BatchLimits
    batcher: Batcher = field(init=False)
    now_us: int = 0
    number: int = 0
    open: dict[int, int] = field(default_factory=dict)
    settled: Counter[tuple[int, int]] = field(default_factory=Counter)
    expected: set[tuple[int, int]] = field(default_factory=set)
    cancelled: set[int] = field(default_factory=set)
    came_us: dict[int, int] = field(default_factory=dict)
    largest: dict[str, int] = field(default_factory=dict)
    free_us: int = 0

    def __post_init__(self) -> None:
        self.batcher = Batcher(self.limits)

    def look(self) -> None:
        batcher = self.batcher
        was_running = batcher.running
        batch = batcher.take(self.now_us)
        if batch is not None:
            assert was_running is None and len(batch.items) <= self.limits.batch_max
            assert len({item.key for item in batch.items}) == 1
            assert not {item.request for item in batch.items} & self.cancelled
            assert all(item.deadline_us is None or item.deadline_us > self.now_us for item in batch.items)
        for each in batcher.settled():
            self.settled[(each.request, each.place)] += 1
            assert each.request not in self.cancelled, "nobody asks for it any more"
        assert 0 <= batcher.waiting <= self.limits.waiting_max + self.limits.batch_max
        due_us = batcher.due_us()
        assert due_us is None or due_us > self.now_us
        if batcher.running is None and not batcher.is_hung:
            waits_us = self.now_us - max(self.free_us, min(self.firsts(), default=self.now_us))
            assert waits_us < self.limits.wait_us or not batcher.waiting

    def firsts(self) -> list[int]:
        return [next(iter(group.items)).came_us for group in self.batcher._groups.values()]

    def pass_time(self, duration_us: int) -> None:
        """As the shell does: awake at each due time, and at the end."""
        end_us = self.now_us + duration_us
        while (due_us := self.batcher.due_us()) is not None and due_us <= end_us:
            self.now_us = max(self.now_us, due_us)
            self.look()
        self.now_us = end_us
        self.look()

    def come(self, count: int, key: str, within_us: int | None) -> None:
        self.number += 1
        deadline_us = None if within_us is None else self.now_us + within_us
        if self.batcher.offer(self.number, key, count, self.now_us, deadline_us) is None:
            self.expected |= {(self.number, place) for place in range(count)}
        self.look()

    def go(self, request: int) -> None:
        if request <= self.number:
            self.batcher.cancel(request)
            self.cancelled.add(request)
        self.look()

    def finish(self, how: int) -> None:
        if (batch := self.batcher.running) is not None:
            size = len(batch.items)
            refusals = ["no" if (how + number) % 3 == 0 else None for number in range(size)]
            outcomes: list[Answered | Raised] = [
                Answered(refusals),
                Raised("bad"),
                Raised("memory", is_out_of_memory=True),
                Answered([None] * (size + 1)),
            ]
            self.free_us = self.now_us
            self.batcher.finish(self.now_us, outcomes[how % len(outcomes)])
        self.look()


STEPS = st.one_of(
    st.tuples(st.just("come"), st.integers(1, 5), st.sampled_from("ab"), st.none() | st.integers(0, 20_000)),
    st.tuples(st.just("go"), st.integers(1, 12)),
    st.tuples(st.just("finish"), st.integers(0, 11)),
    st.tuples(st.just("pass_time"), st.integers(0, 9_000)),
)


@given(st.lists(STEPS, max_size=60), st.integers(1, 6), st.sampled_from([0, 1, 5_000]))
def test_each_item_is_settled_once_and_no_batch_is_too_large_or_too_late(
    steps: list[tuple[str, int]], batch_max: int, wait_us: int
) -> None:
    world = World(BatchLimits(batch_max=batch_max, wait_us=wait_us, waiting_max=20, hang_us=10**12))
    for name, *arguments in steps:
        getattr(world, name)(*arguments)
    while world.batcher.open or world.batcher.running:
        world.pass_time(wait_us + 1)
        world.finish(0)
    assert set(world.settled.values()) <= {1}
    asked = {each for each in world.expected if each[0] not in world.cancelled}
    assert asked <= world.settled.keys() <= world.expected
    assert world.batcher.waiting == 0 and not world.batcher._groups and not world.batcher._requests


# --- how large a batch is to be


def found(rates: dict[int, float]) -> SizeSearch:
    search = SizeSearch()
    while search.size is not None:
        if search.size in rates:
            search.measured(rates[search.size])
        else:
            search.out_of_memory()
    return search


def test_the_size_grows_while_that_is_worth_while() -> None:
    assert found({16: 100, 32: 180, 64: 300, 128: 320, 256: 900}).best == 64
    assert found({16: 100, 32: 105}).best == 16
    assert found({SIZE_FIRST << step: 2.0**step for step in range(10)}).best == SIZE_MAX


def test_the_size_falls_where_memory_is_short_and_stays_where_it_was_measured() -> None:
    assert found({16: 100, 32: 180}).best == 32
    assert found({4: 10}).best == 4
    assert found({}).best == 1
