"""`make traces` replays through the core what a plain EASY is given, and says what it skips."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from bench.traces.__main__ import LOGS, main


def a_log(path: Path, jobs: int) -> None:
    chance, at = random.Random(1), 0
    lines = ["; MaxProcs: 16"]
    for number in range(jobs):
        at += chance.randint(0, 400)
        run, devices = chance.randint(30, 3_000), chance.randint(1, 16)
        row = [number + 1, at, 0, run, devices, -1, -1, devices, 2 * run, -1, 1, number % 3, 1, -1, 1, -1, -1, -1]
        lines.append(" ".join(map(str, row)))
    path.parent.mkdir()
    path.write_bytes(gzip.compress("\n".join(lines).encode()))


def test_a_log_is_replayed_beside_easy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a_log(tmp_path / "queue" / LOGS["kth"], 60)
    assert main(["--traces", str(tmp_path), "--jobs", "50"]) == 0
    said = capsys.readouterr().out
    assert "kth: 50 jobs on 16 devices" in said and "SKIPPED sdsc: there is no" in said
    lines = [line for line in said.splitlines() if "mean wait" in line]
    easy, core, *_ = [int(line.split("mean wait ")[1].split(" s")[0].replace(",", "")) for line in lines]
    assert core == pytest.approx(easy, rel=0.02), "as one user's, the jobs wait about as long as with EASY"
    assert "upper end" in said


def test_without_the_traces_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--traces", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("SKIPPED") == len(LOGS)
