"""A worker's circuit, backoff, and figures: small parts that each stand alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.client.core.circuit import Circuit, CircuitState
from gpufleet.client.core.outcomes import Backend, ErrorKind, failure_of_status
from gpufleet.client.core.retrying import backoff_s
from gpufleet.client.core.sums import BATCHES_MAX, Batch, Sums, Thresholds, percentile


def circuit(failures: int = 15, requests_min: int = 10) -> Circuit:
    return Circuit(failures=failures, requests_min=requests_min, window_s=60.0, open_s=20.0, successes=3)


def end(circuit: Circuit, now_s: float, *, is_success: bool | None) -> None:
    was_probe = circuit.sent(now_s)
    circuit.ended(now_s, is_success=is_success, was_probe=was_probe)


def test_it_opens_at_the_fifteenth_failure_within_a_minute() -> None:
    one = circuit()
    for second in range(14):
        end(one, float(second), is_success=False)
    assert one.allows(14.0)
    end(one, 14.0, is_success=False)
    assert one.state(14.0) is CircuitState.OPEN and not one.allows(33.9)
    assert one.probes_at_s(15.0) == 34.0 and one.openings == 1


def test_failures_that_are_older_than_the_window_do_not_count() -> None:
    one = circuit()
    for second in range(100):
        end(one, second * 4.5, is_success=False)  # 14 in any minute
    assert one.state(450.0) is CircuitState.CLOSED


def test_it_stays_closed_while_there_were_fewer_requests_than_the_least() -> None:
    one = circuit(failures=3)
    for _ in range(9):
        end(one, 0.0, is_success=False)
    assert one.allows(0.0)
    end(one, 0.0, is_success=True)
    end(one, 0.0, is_success=False)
    assert not one.allows(0.0)


def test_what_says_nothing_about_the_worker_does_not_count() -> None:
    one = circuit(failures=1, requests_min=1)
    end(one, 0.0, is_success=None)
    assert one.allows(0.0)


def opened() -> Circuit:
    one = circuit(failures=1, requests_min=1)
    end(one, 0.0, is_success=False)
    return one


def test_half_open_it_lets_one_request_through_at_a_time_and_closes_after_three_successes() -> None:
    one = opened()
    for number in range(3):
        assert one.state(20.0) is CircuitState.HALF_OPEN and one.allows(20.0), number
        assert one.sent(20.0)
        assert not one.allows(20.0)
        one.ended(20.0, is_success=True, was_probe=True)
    assert one.state(20.0) is CircuitState.CLOSED and one.allows(20.0)


def test_a_probe_that_fails_opens_it_again_and_the_successes_before_do_not_count() -> None:
    one = opened()
    end(one, 20.0, is_success=True)
    end(one, 20.0, is_success=True)
    end(one, 21.0, is_success=False)
    assert one.state(40.9) is CircuitState.OPEN and one.state(41.0) is CircuitState.HALF_OPEN
    end(one, 41.0, is_success=True)
    assert one.state(41.0) is CircuitState.HALF_OPEN


def test_a_request_of_before_says_nothing_about_an_open_circuit() -> None:
    one = circuit(failures=1, requests_min=1)
    was_probe = one.sent(0.0)
    end(one, 0.0, is_success=False)
    one.ended(1.0, is_success=True, was_probe=was_probe)
    assert one.state(1.0) is CircuitState.OPEN and one.probes_at_s(1.0) == 20.0


def test_a_probe_that_was_given_up_makes_room_for_the_next() -> None:
    one = opened()
    assert one.sent(20.0)
    one.ended(20.0, is_success=None, was_probe=True)
    assert one.allows(20.0)


@given(retries=st.integers(0, 10_000), chance=st.floats(0, 1))
def test_a_pause_doubles_up_to_its_longest_and_chance_takes_half_of_it_at_most(retries: int, chance: float) -> None:
    pause_s = backoff_s(retries, first_s=0.1, longest_s=10.0, chance=chance)
    whole_s = min(10.0, 0.1 * 2 ** min(retries, 20))
    assert whole_s / 2 - 1e-9 <= pause_s <= whole_s


@pytest.mark.parametrize(
    ("status", "kind", "is_transient"),
    [
        (400, ErrorKind.REJECTED, False),
        (401, ErrorKind.DENIED, False),
        (404, ErrorKind.NOT_FOUND, False),
        (413, ErrorKind.REJECTED, False),
        (422, ErrorKind.REJECTED, False),
        (429, ErrorKind.BUSY, True),
        (500, ErrorKind.MODEL_FAILED, False),
        (502, ErrorKind.BROKEN, True),
        (503, ErrorKind.UNAVAILABLE, True),
        (504, ErrorKind.TIMED_OUT, True),
        (302, ErrorKind.BAD_ANSWER, False),
    ],
)
def test_a_status_says_whether_to_ask_again(status: int, kind: ErrorKind, is_transient: bool) -> None:
    failure = failure_of_status(status, "")
    assert (failure.kind, failure.is_transient) == (kind, is_transient)
    assert str(status) in failure.message


def test_percentiles_are_values_that_occurred() -> None:
    values = [float(number) for number in range(1, 101)]
    assert [percentile(values, share) for share in (0.5, 0.95, 0.99)] == [50.0, 95.0, 99.0]
    assert percentile([3.0], 0.99) == 3.0 and percentile([], 0.5) is None
    assert percentile([1.0] * 19 + [2.0], 0.95) == 1.0


def batch(answered: int = 10, failed: int = 0, backend: Backend = Backend.GPU, duration_s: float = 0.1) -> Batch:
    is_fallback = backend is not Backend.GPU
    return Batch(answered, failed, backend, answered if is_fallback else 0, duration_s, answered + failed)


def test_figures_are_of_all_items_and_of_the_newest_batches() -> None:
    sums = Sums()
    for _ in range(3):
        sums.add(batch())
    sums.add(batch(answered=5, failed=5, backend=Backend.CPU, duration_s=0.5))
    sums.add(Batch(answered=0, failed=10))
    figures = sums.figures()
    assert (figures.items, figures.answered, figures.failed, figures.requests) == (50, 35, 15, 4)
    assert figures.success_rate == 0.7 and figures.request_success_rate == 1.0
    assert figures.gpu_share == pytest.approx(30 / 35) and figures.fallback_share == pytest.approx(5 / 35)
    assert figures.mean_s == pytest.approx(0.2) and (figures.p50_s, figures.p99_s) == (0.1, 0.5)
    assert figures.batch_sizes == {16: 4} and figures.batch_size_mean == 10.0
    for _ in range(2 * BATCHES_MAX):
        sums.add(batch())
    assert sums.figures().success_rate == 1.0 and sums.figures().items == 50 + 20 * BATCHES_MAX


def test_a_warning_is_said_once_until_it_passes() -> None:
    sums, thresholds = Sums(), Thresholds()
    sums.add(batch(answered=90, failed=10, backend=Backend.CPU, duration_s=0.6))
    said = sums.new_warnings(thresholds, expects_gpu=True)
    assert [text.split(",")[0] for text in said] == [
        "90.0 % of the items have an answer",
        "a batch takes 600 ms in the mean",
        "GPUs answered 0.0 % of the items",
        "100.0 % of the items were answered by a fall-back",
    ]
    assert sums.new_warnings(thresholds, expects_gpu=True) == ()
    for _ in range(BATCHES_MAX):
        sums.add(batch())
    assert sums.new_warnings(thresholds, expects_gpu=True) == ()
    sums.add(batch(answered=0, failed=100_000))
    assert len(sums.new_warnings(thresholds, expects_gpu=True)) == 1


def test_nothing_is_said_of_a_few_items_and_of_gpus_only_where_they_are_preferred() -> None:
    few = Sums()
    few.add(batch(answered=0, failed=3))
    assert few.new_warnings(Thresholds(), expects_gpu=True) == ()
    cpu = Sums()
    cpu.add(batch(answered=100, backend=Backend.CPU))
    assert cpu.new_warnings(Thresholds(), expects_gpu=False) == ()


def test_exactly_at_a_threshold_nothing_is_said() -> None:
    sums = Sums()
    sums.add(batch(answered=80, duration_s=0.5))
    sums.add(batch(answered=15, backend=Backend.CPU, failed=5, duration_s=0.5))
    thresholds = Thresholds(warn_gpu_share_below=80 / 95, warn_fallback_above=15 / 95)
    assert sums.new_warnings(thresholds, expects_gpu=True) == ()
