"""The rows of a seed have every combination that may be, and none that may not."""

from __future__ import annotations

import pytest

from tests.pairs.combinations import FORBIDDEN, is_allowed
from tests.pairs.covering import covered, covering_rows, is_possible, wanted
from tests.pairs.features import FEATURES, row_of

NAMES = {"typed", "retries", "array", "image", "environment"}


@pytest.mark.nightly
def test_the_rows_of_a_seed_have_every_pair_that_an_allowed_row_has() -> None:
    rows = covering_rows(7)
    assert all(map(is_allowed, rows))
    assert {each for row in rows for each in covered(row, 2)} == set(wanted(2))


def test_a_seed_gives_the_same_rows_each_time_and_another_seed_others() -> None:
    first, again, other = (covering_rows(seed, only=NAMES) for seed in (7, 7, 8))
    assert first == again != other


@pytest.mark.parametrize("strength", [1, 3])
def test_the_rows_of_some_features_have_every_combination_of_theirs(strength: int) -> None:
    plain = {name: levels[0] for name, levels in FEATURES.items() if name not in NAMES}
    rows = covering_rows(7, strength=strength, only=NAMES)
    found = {each for row in rows for each in covered(row, strength) if dict(each).keys() <= NAMES}
    assert found == {each for each in wanted(strength, NAMES) if is_possible({**plain, **dict(each)})}


def test_what_is_forbidden_names_features_and_levels_that_there_are() -> None:
    for levels in FORBIDDEN:
        assert len(levels) > 1
        assert not is_allowed(row_of(dict(levels)))
