"""`make demo` with a gpuctl that only notes what it is asked: what is left behind, and what is said of it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

DEMO = Path(__file__).resolve().parents[2] / "docs" / "examples" / "demo.sh"
SHOWN = ["up", "nodes", "run", "queue", "job", "serve", "models", "session.py", "serve", "down"]
STAND_IN = """#!/bin/sh
echo "$1" >> "$CALLS"
mkdir -p "$XDG_STATE_HOME/gpufleet/agent/logs" "$XDG_STATE_HOME/gpufleet/gateway"
echo localhost:7860 > "$XDG_STATE_HOME/gpufleet/gateway/listening"
test "$1" != "$FAILS"
"""
PYTHON = """#!/bin/sh
basename "$1" >> "$CALLS"
test "$2 $3" = "localhost:7860 canvas"
"""


def demo(tmp_path: Path, *, fails: str) -> tuple[subprocess.CompletedProcess[str], list[str], Path]:
    """Run the demo; the answer, the commands that it gave, and where it may leave files."""
    room, calls = tmp_path / "room", tmp_path / "calls"
    for name, script in (("gpuctl", STAND_IN), ("python", PYTHON)):
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    room.mkdir()
    variables = os.environ | {"BIN": str(tmp_path), "TMPDIR": str(room), "CALLS": str(calls), "FAILS": fails}
    done = subprocess.run(["bash", str(DEMO)], env=variables, capture_output=True, text=True, check=False)
    return done, calls.read_text().split(), room


def test_a_demo_that_works_leaves_nothing_behind(tmp_path: Path) -> None:
    done, calls, room = demo(tmp_path, fails="")
    assert (done.returncode, calls) == (0, SHOWN)
    assert not list(room.iterdir())


def test_a_demo_that_fails_stops_all_and_keeps_its_logs_and_says_where(tmp_path: Path) -> None:
    done, calls, room = demo(tmp_path, fails="run")
    assert (done.returncode, calls) == (1, ["up", "nodes", "run", "down"])
    (home,) = room.iterdir()
    assert done.stderr.splitlines()[-1].endswith(f"Its logs are kept: {home}/state/gpufleet/agent/logs")


def test_a_demo_whose_programs_do_not_stop_keeps_their_logs(tmp_path: Path) -> None:
    done, _, room = demo(tmp_path, fails="down")
    assert done.returncode == 1 and list(room.iterdir())
