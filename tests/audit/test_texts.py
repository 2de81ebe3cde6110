"""What callers wrote is kept on one line, within a bound and without tokens; numbers of jobs are kept in short."""

from __future__ import annotations

import pytest

from gpufleet.security.tokens import make_token
from scheduler.audit.texts import CUT, JOBS_CHARS_MAX, WORDS_CHARS_MAX, names, spans_of, words, written


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("", ""),
        ("not needed", "not needed"),
        ("two\nlines\tand a tab", "two lines and a tab"),
        ("\x1b[31mred\x07\x9b\0", "�[31mred���"),
        ("x" * 1_000_000, "x" * (WORDS_CHARS_MAX - 1) + CUT),
    ],
)
def test_words_are_one_bounded_line_that_moves_no_cursor(said: str, kept: str) -> None:
    assert words(said) == kept


@pytest.mark.parametrize("place", [0, 3, WORDS_CHARS_MAX - 46, WORDS_CHARS_MAX - 10, WORDS_CHARS_MAX - 1])
def test_no_token_is_kept_wherever_it_stands(place: int) -> None:
    token = make_token()
    kept = words("-" * place + token + " and more" * 100)
    assert token[3:9] not in kept
    assert len(kept) <= WORDS_CHARS_MAX


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([41], "41"),
        ([43, 41, 42, 42], "41-43"),
        ([60, 41, 42, -1, 0], "41-42,60"),
    ],
)
def test_numbers_are_kept_as_spans(numbers: list[int], text: str) -> None:
    assert written(spans_of(numbers)) == text
    for number in range(100):
        assert names(text, number) is (number in numbers and number > 0)


def test_of_very_many_numbers_those_behind_the_cut_may_be_meant() -> None:
    text = written(spans_of(range(1, 10_000, 2)))
    assert len(text) <= JOBS_CHARS_MAX + 2 and text.endswith(f",{CUT}")
    assert names(text, 3) and names(text, 9_999)
