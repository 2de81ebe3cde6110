"""What is built of the tree, and environments that have it, without a network.

An environment borrows the dependencies of the one that runs the tests: they are on the path behind what is installed,
and their own .pth files are not followed, so that a checkout installed there for development stays unseen.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from building import page
from tests.packaging.source_tree import ROOT, tracked_files

BUILD_SECONDS_MAX = 250
BUILD = (sys.executable, "-m", "build", "--no-isolation")


def run(*command: str | Path, cwd: Path) -> str:
    """Its standard output; fails the test with all it said when it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    result = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=BUILD_SECONDS_MAX
    )
    assert result.returncode == 0, f"{' '.join(map(str, command))}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@dataclass(frozen=True)
class Install:
    """An environment with gpufleet in it, and an empty folder to work in."""

    python: Path
    folder: Path

    def run(self, *command: str) -> str:
        return run(self.python, "-P", *command, cwd=self.folder)

    def gpuctl(self, *arguments: str) -> str:
        return run(self.python.with_name("gpuctl"), *arguments, cwd=self.folder)


def new_environment(folder: Path, *requirement: str) -> Install:
    """An environment in the folder in which that was installed."""
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    purelib = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    borrowed = [entry for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))]
    (purelib / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "--no-index", "--no-deps", "--no-build-isolation", "--ignore-installed", *requirement, cwd=folder)
    work = folder / "work"
    work.mkdir()
    return Install(python, work)


def copy_tree(folder: Path) -> None:
    """Put there what a clone of this tree would hold, and the page that was built in it."""
    page.build()
    for path in [*tracked_files(), *built_files()]:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, folder / path)


def build_wheel(tree: Path, folder: Path) -> Path:
    """The wheel of a tree."""
    run(*BUILD, "--wheel", "--outdir", folder, cwd=tree)
    return next(folder.glob("*.whl"))


def built_files() -> list[Path]:
    """The page as it is served, relative to the root."""
    return [path.relative_to(ROOT) for path in sorted((ROOT / "gateway" / "static").rglob("*")) if path.is_file()]
