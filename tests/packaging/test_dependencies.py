"""What the package asks for it also uses, and whose internals it uses it holds to a version that was tried."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import packages_distributions

from tests.packaging.source_tree import PROGRAMS, ROOT, modules


def distributions_imported() -> set[str]:
    """The distributions that the product's modules and the generated code import from, in normal form."""
    owners = packages_distributions()
    found = [each.module for module in modules(*PROGRAMS, "gpufleet", "gen") for each in module.imports]
    # Of a namespace such as `google` or `opentelemetry` the owner shows only below its first name.
    tops = {name.partition(".")[0] for name in found}
    return {normal(owner) for top in tops for owner in owners.get(top, [])}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_each_dependency_of_a_bare_install_is_imported_by_the_product() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {normal(re.split(r"[<>=!~\[; ]", line)[0]) for line in project["dependencies"]}
    assert declared - distributions_imported() == set()


BUILD_ON_INTERNALS = {"gpufleet.net.http_server", "gateway.sockets"}
"""The modules that subclass uvicorn's protocols: what bounds a connection is no setting of it."""


def test_only_two_modules_build_on_the_internals_of_uvicorn() -> None:
    found = {
        module.name
        for module in modules(*PROGRAMS, "gpufleet")
        for each in module.imports
        if each.module.startswith("uvicorn.")
    }
    assert found - BUILD_ON_INTERNALS == set()
    assert BUILD_ON_INTERNALS - found == set(), "the pin of uvicorn has lost its reason"


def test_uvicorn_is_held_to_the_minor_version_that_was_tried() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = {line for lines in extras.values() for line in lines if line.startswith("uvicorn")}
    tried = re.search(r"^uvicorn==0\.(\d+)\.", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert tried is not None
    minor = int(tried[1])
    assert asked == {f"uvicorn>=0.{minor},<0.{minor + 1}"}
