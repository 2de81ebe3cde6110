"""The page is built once for its sources, and nothing is packed without it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from building import page
from tests.packaging.source_tree import ROOT

WEB = ROOT / "gateway" / "web"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The page's sources in a tree of their own, not built."""
    shutil.copytree(WEB, tmp_path / "gateway" / "web", ignore=shutil.ignore_patterns("node_modules"))
    return tmp_path


def test_a_page_is_built_while_its_sources_are_those_it_was_built_from(tree: Path) -> None:
    assert not page.is_built(tree)
    static = tree / "gateway" / "static"
    static.mkdir()
    (static / page.NOTED).write_text(page.hash_of_sources(tree) + "\n")
    assert page.is_built(tree)
    assert not page.build(tree), "there is nothing to do, and no Node is asked for"
    (tree / "gateway" / "web" / "tests" / "more.test.ts").write_text("// no part of the page")
    assert page.is_built(tree)
    source = tree / "gateway" / "web" / "src" / "style.css"
    source.write_text(source.read_text() + "/* more */")
    assert not page.is_built(tree)


def test_without_a_node_it_is_said_what_to_install(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "find_node", lambda: None)
    with pytest.raises(page.PageError, match=f"pip install {page.NODE_PACKAGE}"):
        page.build(tree)


def test_what_npm_says_of_a_failure_is_passed_on(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npm = tree / "npm"
    npm.write_text("#!/bin/sh\necho no such registry; exit 1\n")
    npm.chmod(0o755)
    monkeypatch.setattr(page, "find_node", lambda: page.Node((str(npm),), tree))
    with pytest.raises(page.PageError, match=r"npm ci .*failed in gateway/web:\nno such registry"):
        page.build(tree)
    assert not page.is_built(tree)


@pytest.mark.parametrize(
    ("version", "is_enough"),
    [
        *(("v20.19.0", True), ("v22.12.0", True), ("v24.1.0", True)),
        *(("v18.20.4", False), ("v20.18.1", False), ("v21.7.0", False), ("v22.11.0", False)),
        *(("", False), ("nonsense", False)),
    ],
)
def test_which_nodes_are_new_enough(version: str, is_enough: bool) -> None:
    assert page.is_new_enough(version) is is_enough


def test_a_machine_without_node_uses_that_of_the_development_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    node = page.find_node()
    assert node is not None
    assert all(Path(word).is_file() for word in node.npm)


def test_the_lock_names_no_registry_and_pins_everything() -> None:
    packages = json.loads((WEB / "package-lock.json").read_text())["packages"]
    assert all("resolved" not in package for package in packages.values())
    assert all("integrity" in package for name, package in packages.items() if name)
