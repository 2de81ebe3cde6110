"""The rows of a seed have every combination that may be, and none that may not."""

from __future__ import annotations

import pytest

from tests.pairs.combinations import forbidden, is_allowed
from tests.pairs.covering import covered, covering_rows, is_possible, wanted
from tests.pairs.features import FEATURES, row_of


def test_the_rows_of_a_seed_have_every_pair_that_an_allowed_row_has() -> None:
    rows = covering_rows(7)
    assert all(map(is_allowed, rows))
    assert {each for row in rows for each in covered(row, 2)} == set(wanted(2))
    assert covering_rows(7) == rows and covering_rows(8) != rows


@pytest.mark.parametrize("strength", [1, 3])
def test_the_rows_of_some_features_have_every_combination_of_theirs(strength: int) -> None:
    names = {"typed", "retries", "array", "image", "environment"}
    plain = {name: levels[0] for name, levels in FEATURES.items() if name not in names}
    found = {each for row in covering_rows(7, strength=strength, only=names) for each in covered(row, strength)}
    of_theirs = {each for each in wanted(strength) if dict(each).keys() <= names}
    assert {each for each in found if dict(each).keys() <= names} == {
        each for each in of_theirs if is_possible({**plain, **dict(each)})
    }


def test_what_is_forbidden_names_features_and_levels_that_there_are() -> None:
    for levels in forbidden():
        assert len(levels) > 1
        assert not is_allowed(row_of(dict(levels)))
