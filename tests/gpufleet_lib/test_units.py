"""Durations and sizes: what is read, what is refused and with which words, what people see."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.errors import GpufleetError, Reason
from gpufleet.text.units import (
    DURATION_MAX,
    SIZE_BYTES_MAX,
    exact_duration,
    exact_size,
    format_duration,
    format_megabytes,
    format_size,
    parse_duration,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("5m", 300),
        ("5min", 300),
        ("2h", 7200),
        ("1h30m", 5400),
        (" 1h 30m ", 5400),
        ("1.5h", 5400),
        ("250ms", 0.25),
        ("2d", 172800),
        ("0s", 0),
        ("1:30:00", 5400),
        ("2-01:30:00", 178200),
        ("100:00:00", 360000),
    ],
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("300", "has no unit"),
        ("1.5", "has no unit"),
        ("", "is not a duration"),
        ("-5s", "is not a duration"),
        ("5 parsecs", "is not a unit of time"),
        ("5H", "is not a duration"),
        ("5m5m", "twice"),
        ("5m5min", "twice"),
        ("1h30", "is not a duration"),
        ("1:30", "is not a duration"),
        ("1:99:00", "is not a duration"),
        ("999999d", "more than ten years"),
        ("99999-00:00:00", "more than ten years"),
        ("٣s", "is not a duration"),
        ("1e9s", "unit of time"),
    ],
)
def test_what_is_no_duration_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(GpufleetError, match=why) as caught:
        parse_duration(text)
    assert caught.value.reason is Reason.INVALID_ARGUMENT
    assert caught.value.next_step != Reason.INVALID_ARGUMENT.next_step, "a better next step than the usual one"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.0004, "0s"),
        (0.25, "250ms"),
        (59.9, "59s"),
        (60, "1m"),
        (65, "1m05s"),
        (3599, "59m59s"),
        (3900, "1h05m"),
        (86400, "1d"),
        (90000, "1d01h"),
        (-65, "-1m05s"),
    ],
)
def test_people_read_the_two_largest_units(seconds: float, text: str) -> None:
    assert format_duration(timedelta(seconds=seconds)) == text


@given(st.timedeltas(timedelta(0), DURATION_MAX))
def test_an_exact_duration_reads_back_as_itself(duration: timedelta) -> None:
    assert parse_duration(exact_duration(duration)) == duration


@given(st.timedeltas(timedelta(0), DURATION_MAX))
def test_a_shown_duration_is_read_and_never_too_long(duration: timedelta) -> None:
    assert parse_duration(format_duration(duration)) <= duration


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("8GB", 8_000_000_000),
        ("8GiB", 8 * 2**30),
        ("1.5 TB", 1_500_000_000_000),
        ("512b", 512),
        ("16kb", 16_000),
        ("0B", 0),
        ("0.1GB", 100_000_000),
        ("81559MiB", 81559 * 2**20),
    ],
)
def test_a_size_is_read(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("8", "has no unit"),
        ("8G", "two meanings"),
        ("8k", "two meanings"),
        ("", "is not a size"),
        ("-8GB", "is not a size"),
        ("8 bananas", "is not a unit of size"),
        ("0.5B", "not a whole number of bytes"),
        ("9000000000000TB", "not a whole number of bytes below"),
    ],
)
def test_what_is_no_size_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(GpufleetError, match=why):
        parse_size(text)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0B"),
        (999, "999B"),
        (1_000, "1kB"),
        (1_234, "1.23kB"),
        (15_835_660_288, "15.8GB"),
        (80_000_000_000, "80GB"),
        (85_520_809_984, "85.5GB"),
        (999_960_000, "1GB"),
        (999_400_000, "999MB"),
        (-1_500, "-1.5kB"),
    ],
)
def test_people_read_three_digits_that_count(size_bytes: int, text: str) -> None:
    assert format_size(size_bytes) == text


@given(st.integers(0, SIZE_BYTES_MAX))
def test_an_exact_size_reads_back_as_itself(size_bytes: int) -> None:
    assert parse_size(exact_size(size_bytes)) == size_bytes


@given(st.integers(0, 10**15))
def test_a_shown_size_is_read_and_near(size_bytes: int) -> None:
    assert abs(parse_size(format_size(size_bytes)) - size_bytes) <= size_bytes * 0.0051


def test_memory_of_devices_is_in_whole_mb() -> None:
    assert format_megabytes(85_520_809_984) == "85,521 MB"


@given(st.text(max_size=20))
def test_any_text_is_read_or_refused_and_nothing_else(text: str) -> None:
    for parse in (parse_duration, parse_size):
        try:
            parse(text)
        except GpufleetError as error:
            assert error.reason is Reason.INVALID_ARGUMENT
