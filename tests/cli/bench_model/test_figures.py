"""What a load of known requests comes to: throughput, percentiles, and an open loop that nobody can slow down."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

import pytest

from cli.bench_model.device_sums import DeviceReading, DeviceSums
from cli.bench_model.histogram import RELATIVE_ERROR, Histogram
from cli.bench_model.pacing import UNDER_WAY_MAX, Pacer, Send, Shape, Wait
from cli.bench_model.sums import EndedRequest, Figures, RowSums
from gpufleet.client.core.sums import percentile

ServedAt = Callable[[float, int], float]
"""When a request that is sent at a time, as the so manieth, has its answer."""


def ran(shape: Shape, server: ServedAt, *, items: int = 1) -> Figures:
    """The row's figures on a clock of its own, from 100 s on."""
    now_s, sent, sums = 100.0, 0, RowSums()
    pacer = Pacer(shape, now_s)
    ends: list[tuple[float, int, float, float]] = []
    while True:
        step = pacer.step(now_s)
        if isinstance(step, Send):
            heapq.heappush(ends, (server(now_s, sent), sent, step.due_s, now_s))
            sent += 1
            continue
        if not isinstance(step, Wait):
            sums.add_unsent(step.unsent, items)
            return sums.figures()
        if ends and (step.until_s is None or ends[0][0] <= step.until_s):
            end_s, _, due_s, sent_s = heapq.heappop(ends)
            now_s = max(now_s, end_s)
            sums.add(EndedRequest(due_s, sent_s, end_s, items, {}, is_answered=True))
            pacer.ended()
        else:
            assert step.until_s is not None
            now_s = step.until_s


def one_at_a_time(each_s: float) -> ServedAt:
    """A server that computes one request after the other."""
    free_s = 0.0

    def served(sent_s: float, _: int) -> float:
        nonlocal free_s
        free_s = max(free_s, sent_s) + each_s
        return free_s

    return served


@pytest.mark.parametrize("concurrency", [1, 4, 64])
def test_a_closed_loop_gets_what_the_server_gives(concurrency: int) -> None:
    """20 ms each, all at once: throughput is concurrency / 20 ms."""
    told = ran(Shape(concurrency=concurrency, duration_s=10.0), lambda sent_s, _: sent_s + 0.02, items=8)
    assert told.requests == told.answered == pytest.approx(500 * concurrency, abs=concurrency)
    assert told.requests_per_s == pytest.approx(concurrency / 0.02)
    assert told.items_per_s == pytest.approx(8 * concurrency / 0.02) and told.success_rate == 1.0
    for value in (told.latency_ms.mean, told.latency_ms.max):
        assert value == pytest.approx(20.0)
    for value in (told.latency_ms.p50, told.latency_ms.p95, told.latency_ms.p99):
        assert value == pytest.approx(20.0, rel=RELATIVE_ERROR)


def test_a_server_of_one_place_gives_no_more_to_many() -> None:
    told = ran(Shape(concurrency=16, requests=1_000), one_at_a_time(0.01))
    assert told.requests == 1_000 and told.requests_per_s == pytest.approx(100.0)
    assert told.latency_ms.p50 == pytest.approx(160.0, rel=RELATIVE_ERROR)


def test_an_open_loop_counts_from_when_a_request_was_due() -> None:
    """100 a second for 10 s; the server stands still from second 2 to second 4, and answers at once else.

    Due in the first half second of that are 200 requests, whose latencies are 2,000, 1,990 … 10 ms.
    """

    def served(sent_s: float, _: int) -> float:
        return 104.0 if 102.0 <= sent_s < 104.0 else sent_s + 0.001

    told = ran(Shape(rate=100.0, duration_s=10.0), served)
    assert told.requests == told.answered == 1_000
    waits = sorted([2_000.0 - 10.0 * number for number in range(200)] + [1.0] * 800)
    assert told.latency_ms.max == pytest.approx(2_000.0) and told.latency_ms.mean == pytest.approx(sum(waits) / 1_000)
    for share, value in ((0.5, told.latency_ms.p50), (0.95, told.latency_ms.p95), (0.99, told.latency_ms.p99)):
        assert value == pytest.approx(percentile(waits, share), rel=RELATIVE_ERROR)
    # A closed loop of one does not see it: it asked once in these two seconds.
    hidden = ran(Shape(concurrency=1, duration_s=10.0), served)
    assert hidden.latency_ms.p99 == pytest.approx(1.0, rel=RELATIVE_ERROR)


def test_an_open_loop_that_is_too_fast_for_the_server_says_so() -> None:
    """50 a second to a server of 25 a second: the last of 500 waits as long again as the row lasted."""
    told = ran(Shape(rate=50.0, duration_s=10.0), one_at_a_time(0.04))
    assert told.requests == told.answered == 500 and told.requests_per_s == pytest.approx(25.0)
    assert told.latency_ms.max == pytest.approx(500 * 40.0 - 499 * 20.0) and told.late_ms_max == 0.0


def test_what_an_open_loop_cannot_send_is_late_and_then_counts_as_failed() -> None:
    shape = Shape(rate=10_000.0, duration_s=1.0, overrun_s=0.5)
    told = ran(shape, one_at_a_time(0.001), items=2)
    sent = UNDER_WAY_MAX + 1_499  # one more with each answer, until half a second after the last was due
    assert told.answered == pytest.approx(sent, abs=2) and told.requests == 10_000
    assert told.errors == {"unsent": 2 * (10_000 - told.answered)} and "due" in told.error_sentence
    assert told.success_rate == pytest.approx(told.answered / 10_000)
    assert told.late_ms_max > 1_000


def test_percentiles_are_within_their_error_in_bounded_memory() -> None:
    chance = random.Random(7)
    durations = [chance.lognormvariate(-3.0, 2.0) for _ in range(20_000)]
    histogram = Histogram()
    for each in durations:
        histogram.add(each)
    ordered = sorted(durations)
    for share in (0.0, 0.01, 0.5, 0.95, 0.99, 0.999, 1.0):
        wanted = percentile(ordered, share)
        assert wanted is not None
        assert histogram.percentile(share) == pytest.approx(wanted, rel=RELATIVE_ERROR * 1.0001)
    assert histogram.max_s == ordered[-1] and histogram.mean_s == pytest.approx(sum(durations) / len(durations))
    for each in (0.0, -1.0, 1e-12, 1e9, 1e12):
        histogram.add(each)
    assert histogram.percentile(1.0) == pytest.approx(1e6, rel=RELATIVE_ERROR) and histogram.max_s == 1e12
    assert len(histogram._buckets) <= 2_800 and Histogram().percentile(0.5) is None


def test_failures_count_by_their_items_and_have_no_latency() -> None:
    sums = RowSums()
    sums.add(EndedRequest(0.0, 0.0, 1.0, 4, {"rejected": 1}, is_answered=True, sentence="bad picture"))
    sums.add(EndedRequest(0.0, 0.0, 9.0, 4, {"timed-out": 4}, is_answered=False, sentence="no answer within 9 s"))
    told = sums.figures()
    assert (told.requests, told.answered, told.items, told.items_answered) == (2, 1, 8, 3)
    assert told.success_rate == 3 / 8 and told.items_per_s == pytest.approx(3 / 9) and told.latency_ms.max == 1_000
    assert told.errors == {"rejected": 1, "timed-out": 4} and told.error_sentence == "bad picture"
    nothing = RowSums().figures()
    assert nothing.success_rate is None and nothing.requests_per_s is None and nothing.latency_ms.p99 is None


def test_devices_have_the_mean_and_the_most_of_each_reading() -> None:
    sums = DeviceSums()
    assert sums.as_dict() is None
    for utilization, power in ((10.0, None), (30.0, None), (80.0, None)):
        values = {"utilization_percent": utilization, "memory_used_bytes": 5.0, "power_w": power}
        sums.add([DeviceReading("GPU-2", "n1", 1, "H200", values), DeviceReading("GPU-1", "n1", 0, "H200", {})])
    told = sums.as_dict()
    assert told is not None
    first, second = told["devices"]
    assert (first["uuid"], first["utilization_percent"], first["looks"]) == ("GPU-1", None, 0)
    assert second["utilization_percent"] == {"mean": 40.0, "max": 80.0} and second["looks"] == 3
    assert second["memory_used_bytes"] == {"mean": 5.0, "max": 5.0}
    assert second["power_w"] is None and second["temperature_c"] is None
