"""A fake scheduler, and gpuctl to run against it in this process or in one of its own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from cli.__main__ import run as run_cli
from tests.cli.fake_scheduler import FakeScheduler, Serving

RUN_S_MAX = 60.0


@dataclass(frozen=True)
class Result:
    """What one command did."""

    code: int
    out: bytes
    err: str

    @property
    def text(self) -> str:
        return self.out.decode()


Gpuctl = Callable[..., Result]


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting of the machine's account reaches a test."""
    for name in [name for name in os.environ if name.startswith("GPUCTL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TZ", "UTC")
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("PWD", str(tmp_path / "project"))


@pytest.fixture
def fake() -> Iterator[FakeScheduler]:
    """A fake scheduler that serves."""
    scheduler = FakeScheduler()  # type: ignore[abstract]  # what the CLI does not call is left out
    serving = Serving(scheduler)
    yield scheduler
    serving.close()


@pytest.fixture
def gpuctl(fake: FakeScheduler, monkeypatch: pytest.MonkeyPatch) -> Gpuctl:
    """Run one command line in this process, against the fake."""
    monkeypatch.setenv("GPUCTL_SCHEDULER", fake.address)
    return run_here


def run_here(*arguments: str) -> Result:
    """Run one command line in this process."""
    out, err = io.BytesIO(), io.BytesIO()
    before = sys.stdout, sys.stderr
    sys.stdout = io.TextIOWrapper(out, encoding="utf-8", write_through=True)
    sys.stderr = io.TextIOWrapper(err, encoding="utf-8", write_through=True)
    try:
        code = run_cli(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
        return Result(code, out.getvalue(), err.getvalue().decode(errors="replace"))
    finally:
        sys.stdout, sys.stderr = before


def start_gpuctl(
    *arguments: str, stdin: int | IO[bytes] = subprocess.DEVNULL, stderr: int | IO[bytes] = subprocess.PIPE
) -> subprocess.Popen[bytes]:
    """Start gpuctl as a process of its own, as a shell would."""
    command = [sys.executable, "-P", "-m", "gpufleet.cli", *arguments]
    return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr)
