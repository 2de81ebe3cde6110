"""One name, one thing: classes of a program share no name, and words that said nothing to a stranger stay retired."""

from __future__ import annotations

import ast
import re
from collections import defaultdict

import pytest

from tests.packaging.source_tree import PROGRAMS, modules, statements

SAME_NAME: dict[tuple[str, str], str] = {}
"""Classes of a program, by (program, name), that may stand in several modules, each with its reason. None does."""

RETIRED = ("told", "seen", "reaches", "shot", "taken")
"""As nouns; a statement such as `is_told` or `port_taken` is none."""

RETIRED_MODULES = {"desk", "shelf", "taken", "trial", "known_nodes", "chosen", "leaving", "trails"}

A_WORD_OF_A_CLASS = re.compile(rf"({'|'.join(word.capitalize() for word in RETIRED)})(?![a-z])")
A_FUNCTION_OF_IT = re.compile(rf"({'|'.join(RETIRED)})(_|$)")

STORED: dict[str, str] = {}
"""Names that break the rule but stand in the store's format, which does not change; each with its reason. None does."""

FOLDERS = [*PROGRAMS, "gpufleet"]


@pytest.mark.parametrize("program", FOLDERS)
def test_a_class_name_stands_for_one_thing_in_a_program(program: str) -> None:
    homes = defaultdict(list)
    for module in modules(program):
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(module.at(node.lineno))
    assert homes, "no class is seen"
    twice = {name: places for name, places in homes.items() if len(places) > 1 and (program, name) not in SAME_NAME}
    assert not twice, "give one of the two a name that says what it alone is"


@pytest.mark.parametrize("program", FOLDERS)
def test_no_module_class_or_public_function_has_a_retired_name(program: str) -> None:
    wrong = []
    for module in modules(program):
        if module.name.rpartition(".")[2] in RETIRED_MODULES:
            wrong.append(f"{module.name}: a module")
        for name, line in names_of(module.tree):
            if is_retired(name) and name not in STORED:
                wrong.append(f"{module.at(line)}: {name}")
    assert not wrong, "say what it is in the field's own words:\n" + "\n".join(wrong)


def names_of(tree: ast.Module) -> list[tuple[str, int]]:
    """Classes, other types that are named at the top, and functions, methods too, with their lines."""
    found = [(node.name, node.lineno) for node in statements(tree) if isinstance(node, ast.ClassDef)]
    for node in (each for scope in scopes(tree) for each in scope.body):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.append((name, node.lineno))
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)) if name[
                :1
            ].isupper():
                found.append((name, node.lineno))
    return found


def scopes(tree: ast.Module) -> list[ast.Module | ast.ClassDef]:
    return [tree, *(node for node in statements(tree) if isinstance(node, ast.ClassDef))]


def is_retired(name: str) -> bool:
    """A private class counts, a private function does not: it is read beside its only callers."""
    if name.lstrip("_")[:1].isupper() and not name.isupper():
        return A_WORD_OF_A_CLASS.search(name) is not None
    return A_FUNCTION_OF_IT.match(name) is not None


@pytest.mark.parametrize("name", ["Told", "_Told", "SeenTurn", "NodeSeen", "ReachesNode", "told", "seen_turn", "taken"])
def test_a_retired_name_is_recognised(name: str) -> None:
    assert is_retired(name)


@pytest.mark.parametrize("name", ["BeginReached", "Shots", "Screenshot", "TOLD_MAX", "is_told", "port_taken", "_told"])
def test_a_name_that_only_resembles_one_is_not(name: str) -> None:
    assert not is_retired(name)
