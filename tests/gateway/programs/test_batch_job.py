"""`gpuctl batch --job` through everything: a job asks a served class by its own token, is killed, and goes on."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from gpufleet.v1 import job_pb2, scheduler_pb2

from tests.e2e.processes import until
from tests.gateway.programs.test_predict import gpuctl
from tests.gateway.stage import Stage

pytestmark = pytest.mark.slow

ROWS = 300
GATED = 200
"""Rows from this one on are answered once the gate is open."""

CLASS = """
import pathlib, time

class Doubler:
    def load(self, device: str, gate: str):
        self.gate = pathlib.Path(gate)

    def predict(self, items):
        while max(item for item in items if item is not None) >= 200 and not self.gate.exists():
            time.sleep(0.02)
        time.sleep(0.05)
        return [ValueError("nothing") if item == 100 else 2 * item for item in items]
"""


def asking(answers: Path) -> list[int]:
    """Processes of a batch into this file."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"batch" in words and str(answers).encode() in words:
            found.append(int(process.name))
    return found


async def test_a_batch_that_is_a_job_is_killed_and_answers_each_row_once(
    stage: Stage, long_lived: Callable[[str], AbstractContextManager[None]], tmp_path: Path
) -> None:
    with long_lived("a node with its replicas"):
        await stage.fleet.add_node("n1")
    (tmp_path / "doubling.py").write_text(CLASS)
    source, answers, gate = tmp_path / "rows.jsonl", tmp_path / "answers.jsonl", tmp_path / "gate"
    source.write_text("".join(f"{number}\n" for number in range(ROWS)))

    async def typed(*words: str) -> str:
        return await asyncio.to_thread(gpuctl, stage, tmp_path, *words)

    words = ("--model-arg", f"gate={gate}", "--max-batch", "4", "--name", "doubler")
    await typed("serve", "doubling:Doubler", "--predict", *words)
    gateway = ("--gateway", f"http://{stage.gateway}")
    shown = await typed(
        "batch", "rows.jsonl", "-o", "answers.jsonl", "--model", "doubler", "--batch-size", "4", "--job", *gateway
    )
    job_id = int(shown)

    def begun() -> int:
        return answers.read_bytes().count(b"\n") if answers.exists() else 0

    await until("some rows are answered", lambda: begun() >= 4)
    (process,) = asking(answers)
    os.kill(process, signal.SIGKILL)
    kept = answers.read_bytes()
    await until("it is begun again", lambda: bool(asking(answers)) and asking(answers) != [process])
    gate.touch()
    async with stage.fleet.client() as admin:

        async def job() -> job_pb2.Job:
            return (await admin.stub.GetJob(scheduler_pb2.GetJobRequest(job_id=job_id))).job

        async def has_ended() -> bool:
            return (await job()).state in (job_pb2.JOB_STATE_SUCCEEDED, job_pb2.JOB_STATE_FAILED)

        await until("the job ends", has_ended)
        ended = await job()
    # A row has an error of its own, so that the batch fails; it has been begun again, and found nothing to ask.
    assert ended.state == job_pb2.JOB_STATE_FAILED and ended.exit.code == 1
    found = [json.loads(line) for line in answers.read_text().splitlines()]
    assert sorted(row["index"] for row in found) == list(range(ROWS))
    assert all(row["output"] == 2 * row["index"] for row in found if row["index"] != 100)
    assert answers.read_bytes().startswith(kept[: kept.rindex(b"\n") + 1])
    assert ended.spec.name == "batch-doubler" and not any("TOKEN" in name for name in ended.spec.env)
    await typed("serve", "doubler", "--stop")
