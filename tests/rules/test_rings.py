"""Which tests run when: rings, their parts, and the budget of CPU time."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.rings.areas import AREAS
from tests.rings.choosing import PARTS
from tests.rings.cost import area_of
from tests.rules.test_leak_checks import run_inner
from tests.rules.texts import files

pytestmark = pytest.mark.slow

CI = """
import tests.conftest
from tests.conftest import pytest_addoption, pytest_collection_modifyitems, pytest_configure
from tests.rings.cost import Area

tests.conftest.AREAS = (Area("dear", {budget}, ("test_inner.py",)),)
"""

TESTS = """
def test_plain():
    sum(range(20_000_000))

@pytest.mark.nightly
def test_long(): pass

from tests.rings.choosing import nightly_beyond
@pytest.mark.parametrize("seed", nightly_beyond(1, range(3)))
def test_seeds(seed): pass
"""


def test_every_test_file_has_an_area() -> None:
    names = [name for name in files() if re.fullmatch(r"tests/.*/test_\w+\.py", name)]
    assert len(names) > 100
    assert not [name for name in names if area_of(AREAS, f"{name}::test") == "other"], "add its folder to areas.py"


@pytest.mark.parametrize(
    ("ring", "expected"),
    [
        ("all", {"test_plain", "test_long", "test_seeds[0]", "test_seeds[1]", "test_seeds[2]"}),
        ("test", {"test_plain", "test_seeds[0]"}),
        ("nightly", {"test_long", "test_seeds[1]", "test_seeds[2]"}),
    ],
)
def test_a_ring_has_the_tests_that_are_marked_for_it(ring: str, expected: set[str], tmp_path: Path) -> None:
    assert ran(run_inner(tmp_path, TESTS, arguments=("-v", "--ring", ring))) == expected


def test_the_parts_of_the_nightly_ring_are_all_of_it_and_no_test_is_in_two(tmp_path: Path) -> None:
    found: list[str] = []
    for part in range(PARTS):
        (tmp_path / str(part)).mkdir()
        found += ran(run_inner(tmp_path / str(part), TESTS, arguments=("-v", "--ring", "nightly", "--part", str(part))))
    assert sorted(found) == ["test_long", "test_seeds[1]", "test_seeds[2]"]


@pytest.mark.parametrize(("budget", "is_within"), [(0.0001, False), (1_000.0, True)])
def test_a_ring_that_costs_more_than_its_budget_fails(budget: float, is_within: bool, tmp_path: Path) -> None:
    options = ("--ring", "test", "--within-budget")
    printed = run_inner(tmp_path, TESTS, arguments=options, conftest=CI.format(budget=budget))
    assert "2 passed" in printed
    assert ("too much CPU time: dear" in printed, "exit code 0" in printed) == (not is_within, is_within)


def ran(printed: str) -> set[str]:
    """The names of the tests that passed."""
    return set(re.findall(r"::(\S+) PASSED", printed))
