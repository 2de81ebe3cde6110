"""What `import gpufleet` gives."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import gpufleet

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", gpufleet.__all__)
def test_each_name_is_there_and_says_what_it_is(name: str) -> None:
    assert getattr(gpufleet, name).__doc__
    assert name in dir(gpufleet)


def test_another_name_is_not() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Flet'"):
        gpufleet.Flet  # noqa: B018


def test_type_checkers_are_told_the_same_names_in_a_checkout() -> None:
    text = (ROOT / "gen/gpufleet/__init__.pyi").read_text()
    assert sorted(re.findall(r"as (\w+)", text)) == gpufleet.__all__


def test_to_import_it_loads_nothing_that_a_program_may_not_need() -> None:
    code = "import sys; before = set(sys.modules); import gpufleet; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {name for name in done.stdout.split() if name.startswith(("gpufleet", "grpc", "google"))} <= {"gpufleet"}
