"""Tests that were started where signals are ignored, as by `nohup make test &`."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ignored_signals import MAY_COME_IGNORED

ROOT = Path(__file__).parents[2]
SCRIPT = """
import os, signal, subprocess, sys
from tests.ignored_signals import reset_ignored_signals
number = int(sys.argv[1])
signal.signal(number, signal.SIG_IGN)
reset_ignored_signals()
os.kill(os.getpid(), number)
print(subprocess.run(["/bin/sh", "-c", f"kill -{number} $$"]).returncode)
"""


@pytest.mark.parametrize("number", MAY_COME_IGNORED)
def test_a_signal_that_came_ignored_ends_no_test_and_reaches_the_programs_of_tests(number: signal.Signals) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(int(number))],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{-number}\n", "")
