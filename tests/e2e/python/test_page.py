"""The examples of docs/python.md run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.fleet import Fleet

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = re.findall(r"```python\n(.*?)```", (ROOT / "docs/python.md").read_text(), re.DOTALL)
PRINTS = [
    "epoch 1\n[PosixPath('results/out/loss')]\n",
    "queued\nServing HTTP on 127.0.0.1 port 27182 (http://127.0.0.1:27182/) ...\n\n200\nb'hello'\n",
    "done\ndone\nfailed\n0.0\n",
    "[1, 2, 4]\n",
    "hello\n0\n[1, 2]\n",
    "INVALID_ARGUMENT time_limit Write it as 30s, 5m, 2h or 1h30m.\n",
]


def test_every_example_of_the_page_is_tried() -> None:
    assert len(EXAMPLES) == len(PRINTS)


@pytest.mark.parametrize("number", range(len(PRINTS)))
def test_an_example_prints_what_it_says(number: int, shared_fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import pathlib\nprint('epoch 1')\npathlib.Path('out').mkdir()\npathlib.Path('out/loss').write_text('0.25')\n"
    )
    (tmp_path / "example.py").write_text(EXAMPLES[number])
    done = subprocess.run(
        [sys.executable, "-W", "error", "example.py"],
        cwd=tmp_path,
        env={
            **os.environ,
            "HOME": str(tmp_path),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "gen")]),
            "GPUCTL_SCHEDULER": shared_fleet.scheduler.address,
            "GPUCTL_TOKEN": shared_fleet.scheduler.token("admin"),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    # Those that come as they come are put in order.
    lines = (
        sorted(done.stdout.splitlines(keepends=True), key=lambda line: line[0].isdigit())
        if number == 2
        else [done.stdout]
    )
    assert "".join(sorted(lines[:-1]) + lines[-1:]) == PRINTS[number]
