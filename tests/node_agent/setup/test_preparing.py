"""What a node says of ranks that it prepares, under a clock of the test's."""

from __future__ import annotations

from gpufleet.jobs.runs import JobId, RankKey
from node_agent.setup.preparing import TOLD_MAX, Preparations

FIRST, SECOND = RankKey(JobId(1), 1, 0), RankKey(JobId(2), 1, 0)


class Clock:
    """Microseconds that the test lets pass."""

    def __init__(self) -> None:
        self.now_us = 1_000_000

    def __call__(self) -> int:
        return self.now_us


def told(preparations: Preparations) -> dict[int, tuple[str, int]]:
    return {each.key.job_id: (each.message, each.still.ToMicroseconds()) for each in preparations.as_protos()}


def test_files_that_come_are_told_with_how_many_bytes_came_and_for_how_long_none_did() -> None:
    clock = Clock()
    preparations = Preparations(clock)
    preparations.begin(FIRST)
    preparations.fetches(FIRST, 4_000_000)
    clock.now_us += 5_000_000
    assert told(preparations) == {1: ("its files come: 0B of 4MB", 5_000_000)}
    preparations.came(FIRST, 1_000_000)
    clock.now_us += 2_000_000
    assert told(preparations) == {1: ("its files come: 1MB of 4MB", 2_000_000)}
    preparations.end(FIRST)
    assert not preparations.as_protos()


def test_ranks_wait_for_each_others_files_so_that_all_move_while_bytes_come() -> None:
    clock = Clock()
    preparations = Preparations(clock)
    for key in (FIRST, SECOND):
        preparations.begin(key)
        preparations.fetches(key, 1_000_000)
    clock.now_us += 60_000_000
    preparations.came(FIRST, 1)
    assert [still for _, still in told(preparations).values()] == [0, 0]


def test_what_has_a_time_limit_of_its_own_moves_until_it_is_over() -> None:
    clock = Clock()
    preparations = Preparations(clock)
    preparations.begin(FIRST)
    preparations.does(FIRST, "its environment is made ready", has_limit=True)
    clock.now_us += 900_000_000
    assert told(preparations) == {1: ("its environment is made ready", 0)}
    preparations.does(FIRST, "its devices are checked")
    clock.now_us += 7_000_000
    assert told(preparations) == {1: ("its devices are checked", 7_000_000)}


def test_a_beat_tells_of_so_many_ranks_the_oldest_first() -> None:
    preparations = Preparations(Clock())
    for job in range(1, TOLD_MAX + 2):
        preparations.begin(RankKey(JobId(job), 1, 0))
    assert list(told(preparations)) == list(range(1, TOLD_MAX + 1))
