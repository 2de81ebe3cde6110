"""The files that are begun first are there: one that was renamed would be begun late, and all wait for it."""

from __future__ import annotations

import pytest

from tests.conftest import LONG_FILES
from tests.rules.texts import ROOT


@pytest.mark.parametrize("name", LONG_FILES)
def test_a_file_that_is_begun_first_exists(name: str) -> None:
    assert (ROOT / name).is_file()
