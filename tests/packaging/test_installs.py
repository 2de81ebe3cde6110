"""Wheel, sdist → wheel and editable installs, each tried in an environment of its own, without a network."""

from __future__ import annotations

import re
import shutil
import zipfile
from pathlib import Path

import pytest

from tests.packaging.installing import BUILD, Install, build_wheel, built_files, copy_tree, new_environment, run
from tests.packaging.source_tree import PROGRAMS, ROOT, tracked_files
from tests.packaging.test_package_list import FOLDERS

pytestmark = [pytest.mark.nightly, pytest.mark.slow]

# gpuctl leaves by os._exit to save time; here it must come back and tell what it loaded.
RUN_PROGRAM = """
import os, runpy, sys
os._exit = sys.exit
sys.argv = sys.argv[1:]
try:
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
except SystemExit as end:
    assert not end.code, end.code
"""
IMPORT_EACH = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
"""
# Every module of the process that came from a file: `loaded<TAB>name<TAB>file`.
PRINT_LOADED = """
import os, sys
for name, module in sorted(sys.modules.items()):
    if getattr(module, "__file__", None):
        print("loaded", name, os.path.realpath(module.__file__), sep="\\t")
"""


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a clone of this tree would hold, and the page that was built in it."""
    folder = tmp_path_factory.mktemp("clone")
    copy_tree(folder)
    return folder


@pytest.fixture(scope="module")
def wheels(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel of the tree, and the wheel of the sdist of the tree."""
    direct, through_sdist = tmp_path_factory.mktemp("direct"), tmp_path_factory.mktemp("through-sdist")
    # The sdist first: in a tree where a wheel was built before, its build/ could hide a file the sdist lacks.
    run(*BUILD, "--outdir", through_sdist, cwd=clone)
    wheel = build_wheel(clone, direct)
    shutil.rmtree(clone / "build", ignore_errors=True)
    return {"wheel": wheel, "sdist to wheel": next(through_sdist.glob("*.whl"))}


@pytest.fixture(scope="module", params=["wheel", "sdist to wheel", "editable"])
def install(
    request: pytest.FixtureRequest, clone: Path, wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Install:
    folder = tmp_path_factory.mktemp(request.param.replace(" ", "-"))
    if request.param == "editable":
        return new_environment(folder, "--editable", str(clone))
    return new_environment(folder, str(wheels[request.param]))


def expected_files() -> set[str]:
    """Every tracked file below a package, under its installed name; of the page what was built, not its sources."""
    return {
        "/".join([*package.split("."), *path.relative_to(root).parts])
        for package, root in FOLDERS.items()
        for path in [*tracked_files(), *built_files()]
        if path.is_relative_to(root) and not path.is_relative_to("gateway/web")
    }


@pytest.mark.parametrize("way", ["wheel", "sdist to wheel"])
def test_a_wheel_holds_every_file_of_the_packages_and_nothing_outside_the_one_name(
    way: str, wheels: dict[str, Path]
) -> None:
    with zipfile.ZipFile(wheels[way]) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    held = {name for name in names if not name.startswith("gpufleet-0")}
    assert expected_files() - held == set(), "missing: is it in MANIFEST.in, its package in pyproject.toml?"
    assert held - expected_files() == set(), "in the wheel but not in the tree"
    metadata = {name.partition("/")[0] for name in names - held}
    assert len(metadata) == 1 and metadata.pop().endswith(".dist-info")


def test_both_ways_to_a_wheel_give_the_same_files(wheels: dict[str, Path]) -> None:
    contents = [
        {name: archive.read(name) for name in archive.namelist() if not name.endswith("/RECORD")}
        for archive in map(zipfile.ZipFile, wheels.values())
    ]
    assert contents[0] == contents[1]


def test_every_module_of_an_install_can_be_imported_under_one_name(install: Install) -> None:
    files = (Path(name) for name in expected_files())
    modules = {".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in files if file.suffix == ".py"}
    names = sorted(name for name in modules if not name.endswith(".__main__"))
    of_each = {"gpufleet.scheduler", "gpufleet.cli", "gpufleet.net.channel", "gpufleet.v1.scheduler_pb2_grpc"}
    assert of_each <= set(names)
    assert_one_name_per_module(install.run("-c", IMPORT_EACH + PRINT_LOADED, *names))


def test_gpuctl_starts_as_installed(install: Install) -> None:
    assert "Usage: gpuctl" in install.gpuctl("--help")


@pytest.mark.parametrize("program", [name for name in PROGRAMS if (ROOT / name / "__main__.py").exists()])
def test_a_program_loads_no_module_under_two_names(program: str, install: Install) -> None:
    assert_one_name_per_module(install.run("-c", RUN_PROGRAM + PRINT_LOADED, f"gpufleet.{program}", "--help"))


def assert_one_name_per_module(output: str) -> None:
    names_by_file: dict[str, list[str]] = {}
    for line in output.splitlines():
        if line.startswith("loaded\t"):
            _, name, file = line.split("\t")
            names_by_file.setdefault(file, []).append(name)
    own = {file: names for file, names in names_by_file.items() if any(n.startswith("gpufleet.") for n in names)}
    assert own, f"no module of gpufleet was loaded:\n{output}"
    twice = {file: names for file, names in own.items() if len(names) > 1}
    assert not twice, f"loaded under two names: {twice}"
    outside = [name for names in names_by_file.values() for name in names if name.partition(".")[0] in PROGRAMS]
    assert not outside, f"loaded under the name they have in a checkout: {outside}"


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from gpufleet.inference import worker
from gpufleet.inference.loading import NotLoaded, Wanted, load
print(load(Wanted(entry_point="test-pattern", arguments={}), lambda *_: None).traits.seats > 0)
try:
    load(Wanted(entry_point="canvas", arguments={}), lambda *_: None)
except NotLoaded as problem:
    print(problem)
"""


def test_a_worker_needs_no_torch_and_a_model_that_does_says_how_to_get_it(install: Install) -> None:
    works, lacks = install.run("-c", WITHOUT_TORCH).splitlines()
    assert works == "True"
    assert lacks.startswith("the model needs torch, which is not installed in ")
    assert lacks.endswith(": pip install 'gpufleet[torch]'")


WITHOUT_PSYCOPG = """
import sys
sys.modules["psycopg"] = None
from gpufleet.scheduler.__main__ import main
from gpufleet.scheduler.leading import standing_by, starting
print("imported")
"""


def test_a_scheduler_on_sqlite_needs_no_client_of_postgresql(install: Install) -> None:
    assert install.run("-c", WITHOUT_PSYCOPG) == "imported\n"


def test_torch_comes_with_its_own_extra_and_with_all(install: Install) -> None:
    code = "import importlib.metadata as m; print(*m.requires('gpufleet'), sep='\\n')"
    wanted = [line.replace(" ", "").replace('"', "'") for line in install.run("-c", code).splitlines()]
    of_extra = {
        extra: {re.split(r"[^a-zA-Z0-9_-]", line)[0] for line in wanted if line.endswith(f"extra=='{extra}'")}
        for extra in ("inference", "torch", "predict")
    }
    assert of_extra["inference"] == {"cryptography", "numpy", "pillow", "simplejpeg"}
    assert of_extra["torch"] == {"numpy", "torch"}
    assert of_extra["predict"] == {"httptools", "numpy", "starlette", "uvicorn"}
    (everything,) = (line for line in wanted if line.endswith("extra=='all'"))
    assert {"inference", "torch", "predict"} <= set(
        everything[everything.index("[") + 1 : everything.index("]")].split(",")
    )
