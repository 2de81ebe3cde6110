"""pyproject.toml names every package of the tree, and none that is not there."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

from tests.packaging.source_tree import PROGRAMS, ROOT, tracked_files

FOLDERS = {"gpufleet": "gpufleet", "gpufleet.v1": "gen/gpufleet/v1"} | {f"gpufleet.{name}": name for name in PROGRAMS}


def packages_in_tree() -> set[str]:
    """The installed name of every folder that holds Python files."""
    folders = {path.parent for path in tracked_files() if path.suffix == ".py"}
    return {
        ".".join([package, *folder.relative_to(root).parts])
        for package, root in FOLDERS.items()
        for folder in folders
        if folder.is_relative_to(root)
    }


def setuptools_settings() -> dict[str, object]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert isinstance(settings, dict)
    return settings


def test_every_package_of_the_tree_is_installed() -> None:
    listed = setuptools_settings()["packages"]
    assert isinstance(listed, list)
    assert len(set(listed)) == len(listed), "a package is listed twice"
    missing = packages_in_tree() - set(listed)
    assert not missing, f"add to packages in pyproject.toml: {sorted(missing)}"
    gone = set(listed) - packages_in_tree()
    assert not gone, f"remove from packages in pyproject.toml, no such folder: {sorted(gone)}"


def test_every_folder_lies_under_the_one_name_when_installed() -> None:
    assert setuptools_settings()["package-dir"] == FOLDERS


def test_every_package_has_a_map() -> None:
    """What is generated has none: in a checkout gpufleet/__init__.py looks there, and must be the one that is found."""
    assert not (ROOT / "gen" / "gpufleet" / "__init__.py").exists()
    folders = {path.parent for path in tracked_files() if path.suffix == ".py" and path.parts[0] in PROGRAMS}
    empty = [str(folder) for folder in sorted(folders) if len(map_of(folder)) < 80]
    assert not empty, f"no map (what lives here, what it must never do, what to read first) in __init__.py of {empty}"


def map_of(folder: Path) -> str:
    source = ROOT / folder / "__init__.py"
    return (ast.get_docstring(ast.parse(source.read_text())) or "") if source.exists() else ""
