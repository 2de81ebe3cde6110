"""Naming jobs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.errors import GpufleetError, Reason
from gpufleet.fleet.named_jobs import Selection, read_selection


@pytest.mark.parametrize(
    ("words", "selection"),
    [
        (["41"], Selection(job_ids=(41,))),
        (["40-43"], Selection(job_ids=(40, 41, 42, 43))),
        (["7", "5", "7", "4-5"], Selection(job_ids=(7, 5, 4))),
        (["1,3", "2"], Selection(job_ids=(1, 3, 2))),
        (["last"], Selection(last=True)),
        (["all"], Selection(all_mine=True)),
        (["train", "4", "last"], Selection(job_ids=(4,), last=True, names=("train",))),
        (["eval-2"], Selection(names=("eval-2",))),
        (["2-b"], Selection(names=("2-b",))),
    ],
)
def test_words_are_read(words: list[str], selection: Selection) -> None:
    assert read_selection(words) == selection


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("0", "ids begin with 1"),
        ("0-3", "ids begin with 1"),
        ("9223372036854775808", "is not a job id"),
        ("45-40", "ends before it begins"),
        ("1-10001", "more than 10,000"),
        ("", "is empty"),
        ("1,", "is empty"),
        ("-3", "is not a job id"),
    ],
)
def test_what_names_no_job_is_refused_with_the_reason(word: str, why: str) -> None:
    with pytest.raises(GpufleetError, match=why) as caught:
        read_selection([word])
    assert caught.value.reason is Reason.INVALID_ARGUMENT


@given(st.lists(st.text(min_size=1, max_size=12), max_size=5))
def test_any_words_are_read_or_refused_as_such(words: list[str]) -> None:
    try:
        read_selection(words)
    except GpufleetError as problem:
        assert problem.next_step
