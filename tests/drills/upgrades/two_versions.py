"""The two versions of an upgrade drill, each laid out in a folder as an install is: the kept release, and this tree.

`PYTHONPATH=FOLDER` before a program makes it one of that version: the folder holds what a wheel would, and says a
version of its own, so that a keeper of the one is none of the other's.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
OLDER, NEWER = "0.1.0", "0.2.0"
"""What the programs say of themselves: the release, and the next one, which this tree will be."""

PROGRAMS = ("scheduler", "node_agent", "inference", "gateway", "cli")
CONTRACTS = "gen/gpufleet/v1"
LEFT_OUT = shutil.ignore_patterns("__pycache__", "web")


@dataclass(frozen=True, slots=True)
class Version:
    """One version: its name, and the folder that holds it."""

    name: str
    site: Path

    @property
    def environment(self) -> dict[str, str]:
        """What makes a program one of this version."""
        return {"PYTHONPATH": str(self.site)}


def newer(folder: Path) -> Version:
    """This tree as it is now."""
    return _laid_out(ROOT, folder, NEWER)


def older(folder: Path) -> Version | str:
    """The kept release by its commit; where the history does not reach so far back, a sentence that says so."""
    commit = (ROOT / "tests" / "releases" / OLDER / "commit").read_text().strip()
    if shutil.which("git") is None:
        return f"git is missing, whose history has the programs of {OLDER}"
    # A clone that is not whole lacks the commit, or what is in it.
    git = ("git", "-C", str(ROOT), "-c", f"safe.directory={ROOT}", "archive", commit, "gpufleet", "gen", *PROGRAMS)
    packed = subprocess.run(git, capture_output=True, check=False)
    if packed.returncode != 0:
        return f"the history here does not reach back to {OLDER} ({commit[:8]}): clone all of it"
    tree = folder / "tree"
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(tree, filter="data")
    made = _laid_out(tree, folder, OLDER)
    shutil.rmtree(tree)
    return made


def _laid_out(tree: Path, folder: Path, name: str) -> Version:
    site = folder / "site"
    package = site / "gpufleet"
    shutil.copytree(tree / "gpufleet", package, ignore=LEFT_OUT)
    shutil.copytree(tree / CONTRACTS, package / "v1", ignore=LEFT_OUT)
    for program in PROGRAMS:
        shutil.copytree(tree / program, package / program, ignore=LEFT_OUT)
    facts = site / f"gpufleet-{name}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: gpufleet\nVersion: {name}\n")
    return Version(name, site)
