"""The README's commands in a clone whose path has a space, with programs that only note how they are called."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("Makefile", "pyproject.toml", "constraints.txt", "docs/examples/demo.sh")
PROGRAMS = ("python", "gpuctl", "ruff", "mypy", "pyright", "lint-imports", "buf")
STAND_IN = """#!/bin/sh
echo "$(basename "$0") $*" >> "$CALLS"
mkdir -p "$XDG_STATE_HOME/gpufleet/gateway" && echo localhost:7860 > "$XDG_STATE_HOME/gpufleet/gateway/listening"
"""
MAKES_ENVIRONMENTS = """#!/bin/sh
echo "python3 $*" >> "$CALLS"
test "$2" != venv || { mkdir -p "$3/bin" && cp "$PROGRAMS"/* "$3/bin"; }
"""


class Clone:
    """What make needs of a clone, in a folder with a space."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "any folder" / "gpufleet"
        self.python = folder / "some python" / "python3"
        self._calls = folder / "calls"
        self._programs = folder / "programs"
        for name in COPIED:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.folder / name)
        for program, text in [
            *((self._programs / name, STAND_IN) for name in PROGRAMS),
            (self.python, MAKES_ENVIRONMENTS),
        ]:
            program.parent.mkdir(exist_ok=True)
            program.write_text(text)
            program.chmod(0o755)

    def make(self, *words: str) -> list[str]:
        """The calls that `make WORDS` made; it must succeed."""
        # Nothing else is inherited: the make that runs this test has variables of the same names.
        environment = {
            "PATH": os.environ["PATH"],
            "CALLS": str(self._calls),
            "PROGRAMS": str(self._programs),
            "TMPDIR": str(self._programs.parent),
            "XDG_STATE_HOME": str(self._programs.parent / "state"),
        }
        self._calls.write_text("")
        done = subprocess.run(
            ["make", *words], cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return self._calls.read_text().splitlines()


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    """One that was never set up."""
    return Clone(tmp_path)


def test_make_setup_makes_the_environment_with_an_interpreter_whose_path_has_a_space(clone: Clone) -> None:
    calls = clone.make("setup", f"PYTHON={clone.python}")
    assert "python3 -m venv .venv" in calls
    assert any(call.startswith("python -m pip install") for call in calls)
    assert not any("venv" in call for call in clone.make("setup")), "it is set up already"


@pytest.mark.parametrize(
    ("target", "call"),
    [
        ("test", "python -m pytest"),
        ("nightly", "python -m pytest"),
        ("test-fast", "python -m pytest"),
        ("up", "gpuctl up"),
        ("check", "buf lint"),
        ("sim", "python -m tests.simulation"),
        ("clean", ""),
    ],
)
def test_a_target_calls_the_programs_of_the_environment(clone: Clone, target: str, call: str) -> None:
    clone.make("setup", f"PYTHON={clone.python}")
    calls = clone.make(target)
    assert not call or any(each.startswith(call) for each in calls), calls


def test_the_demo_runs_the_example_with_the_python_of_the_environment(clone: Clone) -> None:
    clone.make("setup", f"PYTHON={clone.python}")
    calls = clone.make("demo")
    python, example = clone.folder / ".venv" / "bin" / "python", clone.folder / "docs" / "examples" / "train.py"
    assert f"gpuctl run --gpus 1 --name demo -- {python} {example}" in calls


def test_the_gpu_tests_take_an_interpreter_whose_path_has_a_space(clone: Clone) -> None:
    calls = clone.make("gpu-test", f"GPU_PYTHON={clone.python}")
    assert any(call.startswith("python3 -m pytest tests/gpu") for call in calls)
