"""No modules of a program import each other in a circle, not even for their types or inside functions."""

from __future__ import annotations

from collections.abc import Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import pytest

from tests.packaging.source_tree import PROGRAMS, modules


def imports_within(folder: str) -> dict[str, set[str]]:
    """Each module below a top-level folder, with those below it that it imports anywhere in its text."""
    found = modules(folder)
    names = {module.name for module in found}
    imported: dict[str, set[str]] = {}
    for module in found:
        # `from a import b` is the module a.b where there is one, and else something of a.
        targets = {each.module if each.module in names else each.module.rpartition(".")[0] for each in module.imports}
        imported[module.name] = (targets & names) - {module.name}
    return imported


def circle_in(imports: Mapping[str, set[str]]) -> list[str]:
    """One circle, its first module again at its end; empty where there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle[::-1]  # each imports the next
    return []


@pytest.mark.parametrize("folder", [*PROGRAMS, "gpufleet"])
def test_no_modules_import_each_other_in_a_circle(folder: str) -> None:
    imports = imports_within(folder)
    assert any(imports.values()), "no imports are seen"
    circle = circle_in(imports)
    assert not circle, f"move what two of them need into a module of its own: {' -> '.join(circle)}"


def test_a_circle_is_found_and_named_in_the_order_of_its_imports() -> None:
    circle = circle_in({"a": {"b", "d"}, "b": {"c"}, "c": {"a"}, "d": set()})
    assert sorted(circle[1:]) == ["a", "b", "c"] and circle[0] == circle[-1]
    assert all((one, other) in {("a", "b"), ("b", "c"), ("c", "a")} for one, other in pairwise(circle))
