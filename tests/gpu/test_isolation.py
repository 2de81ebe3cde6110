"""Jobs of other accounts on a real GPU: who was given it can use it, and who was not cannot even open it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from gpufleet.v1 import job_pb2

from tests.e2e.client import FINAL, Client
from tests.e2e.fleet import Fleet
from tests.e2e.inside.execution import Execution
from tests.gpu import smi
from tests.gpu.results import Results
from tests.gpu.test_jobs import TAKEN_ON, ending, patiently

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="only an agent that is root runs jobs as other accounts"),
]

RANGE = {"GPUCTL_AGENT_ISOLATION_USERS": "range"}

PROBE = """
import glob, json, os
told = {"uid": os.getuid(), "opened": [], "refused": []}
for path in sorted(glob.glob("/dev/nvidia*")):
    if os.path.isdir(path):
        continue
    try:
        os.close(os.open(path, os.O_RDWR))
        told["opened"].append(path)
    except OSError:
        told["refused"].append(path)
import torch
told["count"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
if told["count"]:
    told["uuid"] = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    told["sum"] = float((torch.ones(64, 64, device="cuda:0") @ torch.ones(64, 64, device="cuda:0")).sum())
print(json.dumps(told), flush=True)
"""


@pytest.fixture
async def admin(gpus: list[smi.Shown], torch_version: str, tmp_path: Path) -> AsyncIterator[Client]:
    """Somebody with a fleet of this machine, whose node runs each user's jobs as that user."""
    async with Fleet(tmp_path / "fleet") as fleet:
        await fleet.add_node("n1", "--cpus", "4", environment=RANGE)
        async with fleet.client() as client:
            yield client


async def probe(admin: Client, gpus: int) -> dict[str, Any]:
    """What a job with so many GPUs finds."""
    env = {name: os.environ[name] for name in TAKEN_ON if name in os.environ}
    job = await ending(admin, await admin.submit(sys.executable, "-c", PROBE, gpus=gpus, env=env, cwd="/"))
    said = await admin.output(job.id, stream=job_pb2.STREAM_STDERR)
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED, (job.exit_reason, job.exit_message, said)
    told: dict[str, Any] = json.loads((await admin.stdout(job.id)).splitlines()[-1])
    return told


async def test_a_job_computes_on_its_gpu_as_its_user_and_one_without_a_gpu_can_open_none(
    admin: Client, gpus: list[smi.Shown], results: Results
) -> None:
    with_one, with_none = await probe(admin, 1), await probe(admin, 0)
    assert with_one["uid"] == with_none["uid"] == 1_900_000_000
    assert (with_one["count"], with_one["sum"]) == (1, 64.0**3)
    assert with_one["uuid"] in {gpu.texts["uuid"] for gpu in gpus}
    assert (with_none["count"], with_none["opened"]) == (0, [])
    results.add("an isolated job with a GPU can open", ", ".join(with_one["opened"]))
    results.add("an isolated job without a GPU can open", "none of them")


async def test_a_command_in_the_world_of_a_job_sees_the_gpu_of_the_job(
    admin: Client, gpus: list[smi.Shown], results: Results
) -> None:
    job_id = await admin.submit("/bin/sleep", "600", gpus=1, cwd="/")

    async def runs() -> bool:
        return (await admin.job(job_id)).state in (job_pb2.JOB_STATE_RUNNING, *FINAL)

    await patiently("it runs", runs)
    (uuid,) = (await admin.job(job_id)).attempts[0].ranks[0].device_uuids
    seen = b""
    async with asyncio.timeout(120), Execution(admin, job_id, "nvidia-smi", "-L") as execution:
        ended = await execution.end()
        seen = execution.stdout + execution.stderr
    await admin.cancel(job_id)
    assert ended is not None and ended.code == 0 and uuid.encode() in seen, (ended, seen)
    results.add("gpuctl exec JOB -- nvidia-smi -L", "the job's GPU")
