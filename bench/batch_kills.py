"""A batch while replicas are killed: `python -m bench.batch_kills --rows 1000000 --period 30`.

Rows go through a real class by `gpuctl batch`, scheduler, gateway and replicas as a user starts them: once in peace and
once with a replica killed every few seconds. One row of a hundred is bad. Each row must have exactly one answer or
error, whichever run it was, and every good row its answer; the figure is the rate with kills as a part of that without.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from .serving import House, environment, house

NAME = "bench-batch"
READY_S_MAX = 120.0
BAD_EVERY = 100
"""One row of so many is bad."""

CLASS = """
import time

class Doubled:
    def load(self, device):
        pass

    def predict(self, items):
        time.sleep({batch_s})
        return [ValueError("a bad row") if item < 0 else 2 * item for item in items]
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run: how long it took, how many good rows have an error all the same, and how many replicas were killed."""

    seconds: float
    failed: int
    kills: int


def main() -> None:
    """Measure both runs, and fail where a row has not exactly one answer or error."""
    flags = argparse.ArgumentParser(prog="python -m bench.batch_kills", description=__doc__)
    flags.add_argument("--rows", type=int, default=100_000, help="rows of each run (default 100,000)")
    flags.add_argument(
        "--period",
        type=float,
        default=30.0,
        help="seconds from one kill to the next (default 30; below 10 a model fails)",
    )
    flags.add_argument("--replicas", type=int, default=3, help="replicas, of which one is killed at a time (default 3)")
    flags.add_argument("--concurrency", type=int, default=8, help="requests under way (default 8)")
    flags.add_argument("--batch-size", type=int, default=32, help="rows of a request (default 32)")
    flags.add_argument("--batch-ms", type=float, default=20.0, help="time that a batch takes in a replica (default 20)")
    given = flags.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpufleet-bench-") as name:
        folder = Path(name)
        (folder / "doubled.py").write_text(CLASS.format(batch_s=given.batch_ms / 1e3))
        with (folder / "rows.jsonl").open("w") as rows:
            rows.writelines(f"{_row(number)}\n" for number in range(given.rows))
        with house(folder) as running:
            options = ("--gpus", "1", "--min", str(given.replicas), "--max", str(given.replicas))
            running.gpuctl("serve", "doubled:Doubled", "--predict", "--name", NAME, *options)
            peace = _measured(running, given, 0.0)
            kills = _measured(running, given, given.period)
            running.gpuctl("serve", NAME, "--stop")
    for what, outcome in (("in peace", peace), (f"a kill every {given.period:g} s", kills)):
        rate = given.rows / outcome.seconds
        print(f"{what:<24}{rate:>10,.0f} rows/s{outcome.kills:>6} kills{outcome.failed:>8,} good rows with an error")
    print(
        f"ratio {peace.seconds / kills.seconds:.2f} (goal 0.9); each of 2 × {given.rows:,} rows has one answer or error"
    )


def _row(number: int) -> int:
    return -number if number % BAD_EVERY == BAD_EVERY - 1 else number


def _measured(running: House, given: argparse.Namespace, period_s: float) -> Outcome:
    """One run to its end; a replica is killed every `period_s`, none at 0."""
    _wait_for_replicas(given.replicas)
    answers = running.folder / f"answers-{period_s:g}.jsonl"
    command = [sys.executable, "-m", "gpufleet.cli", "batch", "rows.jsonl", "-o", str(answers), "--model", NAME]
    command += ["--gateway", f"http://127.0.0.1:{running.port}", "--batch-size", str(given.batch_size)]
    said = {**environment(running.folder), "GPUFLEET_INFERENCE_CONCURRENCY": str(given.concurrency)}
    chance, kills = random.Random(1), 0
    begun_s = killed_s = time.monotonic()
    batch = subprocess.Popen(command, cwd=running.folder, env=said, stderr=subprocess.DEVNULL)
    while batch.poll() is None:
        if period_s and time.monotonic() - killed_s >= period_s and (pids := _replicas()):
            killed_s, kills = time.monotonic(), kills + 1
            with suppress(ProcessLookupError):
                os.kill(chance.choice(pids), signal.SIGKILL)
        time.sleep(0.01)
    seconds = time.monotonic() - begun_s
    if batch.returncode != 1:  # rows have errors, as they should
        raise RuntimeError(f"gpuctl batch ended with {batch.returncode}")
    return Outcome(seconds, _checked(answers, given.rows), kills)


def _checked(answers: Path, rows: int) -> int:
    """How many good rows have an error. Raises where a row has no line, two, or a wrong one."""
    seen, failed = bytearray(rows), 0
    with answers.open() as lines:
        for line in lines:
            said = json.loads(line)
            number = said["index"]
            if seen[number]:
                raise RuntimeError(f"row {number} has two lines")
            seen[number] = 1
            is_bad = _row(number) < 0
            if is_bad and "error" not in said:
                raise RuntimeError(f"the bad row {number} has an answer: {line}")
            if not is_bad and "output" in said and said["output"] != 2 * number:
                raise RuntimeError(f"row {number} has another's answer: {line}")
            failed += not is_bad and "error" in said
    if missing := rows - sum(seen):
        raise RuntimeError(f"{missing} rows have no line")
    return failed


def _wait_for_replicas(count: int) -> None:
    until_s = time.monotonic() + READY_S_MAX
    while len(_replicas()) < count:
        if time.monotonic() > until_s:
            raise TimeoutError(f"{count} replicas did not start")
        time.sleep(0.1)
    time.sleep(2.0)  # until the last of them is ready, more or less: it counts against the run in peace


def _replicas() -> list[int]:
    """The processes that compute, not those that hold them."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if words[1:4] == [b"-P", b"-m", b"gpufleet.inference.predict"] and NAME.encode() in words:
                found.append(int(process.name))
    return found


if __name__ == "__main__":
    main()
