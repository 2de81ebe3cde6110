"""Requests are counted once, however often a batch comes, and what they come to is exact."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

from gpufleet.errors import GpufleetError, Reason
from scheduler.series import requests as requests_module
from scheduler.series.accounts import BUCKET_SPAN, bucket_of
from scheduler.series.requests import FILE, Batch, RequestLog, RequestSums
from scheduler.state.ids import ModelName, UserName
from scheduler.state.units import DAY, SECOND, Instant, Span, after
from tests.engine.fakes import BEGIN as ANY_TIME

BEGIN = bucket_of(ANY_TIME)


class Clock:
    def __init__(self) -> None:
        self.now = BEGIN


def sums(user: str = "ann", model: str = "chat", requests: int = 1, tokens: int = 0) -> RequestSums:
    return RequestSums(
        model=ModelName(model),
        user=UserName(user),
        requests=requests,
        failed=1,
        prompt_tokens=tokens,
        completion_tokens=2 * tokens,
        unknown=0,
        duration=Span(3 * SECOND),
    )


def batch(sequence: int, *rows: RequestSums, start: str = "gateway-1") -> Batch:
    return Batch(gateway_start=start, sequence=sequence, rows=rows or (sums(),))


async def counted(log: RequestLog, user: str = "", model: str = "", end: Instant | None = None) -> list[RequestSums]:
    found, _ = await log.read(Instant(0), end or after(BEGIN, 90 * DAY), user, model)
    return list(found)


async def test_a_batch_is_counted_once_also_by_the_scheduler_that_starts_next(tmp_path: Path) -> None:
    clock = Clock()
    with closing(RequestLog(lambda: clock.now, tmp_path)) as log:
        first = batch(1, sums(tokens=5), sums("bob", requests=3))
        assert [await log.count(each) for each in (first, first, batch(2), first)] == [True, False, True, False]
        assert await log.count(batch(1, start="gateway-2")), "of another start"
    with closing(RequestLog(lambda: clock.now, tmp_path)) as log:
        assert not await log.count(batch(2)) and await log.count(batch(3))
        ann, bob = await counted(log)
        assert (ann.user, ann.requests, ann.failed, ann.prompt_tokens, ann.completion_tokens) == ("ann", 4, 4, 5, 10)
        assert (ann.duration, bob.requests) == (12 * SECOND, 3)


async def test_what_fell_back_is_counted_beside_the_requests_and_dropped_with_them(tmp_path: Path) -> None:
    clock = Clock()
    fell_back = RequestSums(model=ModelName("chat"), user=UserName("ann"), fallbacks=2)
    with closing(RequestLog(lambda: clock.now, tmp_path)) as log:
        for number, rows in enumerate(((fell_back,), (sums(), fell_back), (fell_back,)), 1):
            assert await log.count(batch(number, *rows))
        assert not await log.count(batch(3, fell_back))
        (found,) = await counted(log)
        assert (found.requests, found.failed, found.fallbacks) == (1, 1, 6)
        assert not await counted(log, user="bob")
        await log.prune(after(BEGIN, DAY))
        assert not await counted(log)


async def test_batches_that_come_at_once_are_counted_one_after_the_other(tmp_path: Path) -> None:
    with closing(RequestLog(lambda: BEGIN, tmp_path)) as log:
        found = await asyncio.gather(*(log.count(batch(1)) for _ in range(10)))
        assert sorted(found) == [False] * 9 + [True]


async def test_what_is_asked_for_is_by_span_user_and_program_the_most_first(tmp_path: Path) -> None:
    clock = Clock()
    with closing(RequestLog(lambda: clock.now, tmp_path)) as log:
        await log.count(batch(1, sums("few", tokens=1), sums("many", tokens=9), sums("none", "other", requests=7)))
        assert [each.user for each in await counted(log)] == ["many", "few", "none"]
        assert [each.user for each in await counted(log, model="other")] == ["none"]
        assert [each.user for each in await counted(log, user="few")] == ["few"]
        clock.now = after(BEGIN, DAY)
        await log.count(batch(2, sums("few", tokens=1)))
        assert [each.prompt_tokens for each in await counted(log, user="few")] == [2]
        assert [each.prompt_tokens for each in await counted(log, user="few", end=clock.now)] == [1]
        (later,), known_since = await log.read(clock.now, after(clock.now, SECOND), "", "")
        assert (later.prompt_tokens, known_since) == (1, BEGIN)


async def test_what_is_old_or_too_much_is_dropped_and_it_is_said_since_when_all_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    with closing(RequestLog(lambda: clock.now, tmp_path)) as log:
        for number in range(4):
            clock.now = after(BEGIN, number * BUCKET_SPAN)
            await log.count(batch(number + 1, sums(requests=10**number)))
        assert await log.prune(after(BEGIN, BUCKET_SPAN)) == 1
        assert [each.requests for each in await counted(log)] == [1110]
        monkeypatch.setattr(requests_module, "ROWS_MAX", 1)
        assert await log.prune(Instant(0)) == 2
        assert [each.requests for each in await counted(log)] == [1000]
        _, known_since = await log.read(Instant(0), clock.now, "", "")
        assert after(BEGIN, BUCKET_SPAN) < known_since <= clock.now
        assert await log.prune(Instant(0)) == 0


async def test_starts_that_are_remembered_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_module, "STARTS_MAX", 2)
    clock = Clock()
    with closing(RequestLog(lambda: clock.now, tmp_path)) as log:
        for number in range(3):
            clock.now = after(BEGIN, number * SECOND)
            await log.count(batch(1, start=f"gateway-{number}"))
        assert not await log.count(batch(1, start="gateway-2"))
        assert not await log.count(batch(1, start="gateway-1"))


async def test_a_file_that_cannot_be_written_is_told_and_one_that_is_broken_begun_anew(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    with closing(RequestLog(lambda: BEGIN, folder)) as log:
        with pytest.raises(GpufleetError) as caught:
            await log.count(batch(1))
        assert caught.value.reason is Reason.HISTORY_UNAVAILABLE
        folder.mkdir()
        assert await log.count(batch(1)), "the same again"
    (folder / FILE).write_bytes(b"no database at all" * 100)
    with closing(RequestLog(lambda: BEGIN, folder)) as log:
        assert await log.count(batch(2))
        assert [each.requests for each in await counted(log)] == [1]


async def test_calls_that_wait_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_module, "CALLS_MAX", 0)
    with closing(RequestLog(lambda: BEGIN, tmp_path)) as log:
        with pytest.raises(GpufleetError) as caught:
            await log.count(batch(1))
        assert caught.value.reason is Reason.HISTORY_UNAVAILABLE
