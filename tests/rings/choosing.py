"""Selects the tests of a ring, and puts the long files first."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings

FAST, TEST, NIGHTLY, ALL = "fast", "test", "nightly", "all"
PARTS = 4
"""Into so many parts `make nightly PART=…` divides its ring, by file."""

EXAMPLES = {FAST: 20, TEST: 50, NIGHTLY: 400, ALL: 100}
"""How many examples of hypothesis a test runs in each ring, unless it says otherwise with `examples`."""

T = TypeVar("T")


def add_options(parser: pytest.Parser) -> None:
    """The options by which the Makefile chooses."""
    group = parser.getgroup("rings")
    group.addoption("--ring", choices=(FAST, TEST, NIGHTLY, ALL), default=ALL, help="fast, test, nightly or all")
    group.addoption("--within-budget", action="store_true", help="fail where an area costs more than its budget")
    group.addoption("--part", type=int, default=None, help=f"a part of the nightly ring, 0 to {PARTS - 1}")


def load_profile(ring: str) -> None:
    """Set hypothesis to the ring's number of examples.

    No example has a deadline: how long one takes says how busy the machine is, and nothing about the code.
    """
    for name, count in EXAMPLES.items():
        settings.register_profile(name, max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile(ring)


def examples(count: int) -> int:
    """That many examples in a run of all tests; fewer or more in a ring, in proportion."""
    return max(1, count * settings().max_examples // EXAMPLES[ALL])


def nightly_beyond(count: int, values: Iterable[T]) -> list[T]:
    """Parameters of which `make test` runs the first `count`, and `make nightly` the others."""
    marks = pytest.mark.nightly
    return [value if place < count else pytest.param(value, marks=marks) for place, value in enumerate(values)]  # type: ignore[misc]


def part_of(file: str) -> int:
    """The part of the nightly ring that a file belongs to, by its path from the root."""
    return zlib.crc32(file.encode()) % PARTS


def file_of(item: pytest.Item) -> str:
    """The path of an item's file from the root."""
    return item.nodeid.partition("::")[0]


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the ring's items in `items`; one whose file was named on the command line stays."""
    ring, part = config.getoption("ring"), config.getoption("part")
    named = {Path(argument.partition("::")[0]).resolve() for argument in config.args}
    kept: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    for item in items:
        is_nightly = item.get_closest_marker("nightly") is not None
        if ring == NIGHTLY:
            stays = is_nightly and part in (None, part_of(file_of(item)))
        else:
            stays = ring == ALL or not is_nightly or item.path in named
        (kept if stays else dropped).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def order(items: list[pytest.Item]) -> None:
    """Files with the most slow tests first, so that a run does not end with one process in a long file.

    The order of files is the order in which idle processes take them (`--dist loadfile --no-loadscope-reorder`).
    """
    slow = Counter(file_of(item) for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[file_of(item)])


def is_in(item: pytest.Item, folders: Sequence[str]) -> bool:
    """Whether the item's file is one of these, or below one of these folders."""
    return any(item.nodeid.startswith((f"{folder}/", f"{folder}::")) for folder in folders)
