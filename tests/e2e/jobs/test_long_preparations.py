"""Gangs whose environment takes long, with real programs: prepared once, and nobody else waits for that."""

from __future__ import annotations

from pathlib import Path

from gpufleet.v1 import job_pb2

from tests.e2e.client import Client
from tests.e2e.fleet import Fleet
from tests.e2e.jobs.test_folders import gpuctl
from tests.e2e.processes import until


async def test_a_gang_that_makes_its_environment_is_one_attempt_and_keeps_nobody_from_free_nodes(
    fleet: Fleet, admin: Client, tmp_path: Path
) -> None:
    for name in ("n1", "n2", "n3"):
        await fleet.add_node(name)
    (folder := tmp_path / "project").mkdir()
    (folder / "data").write_bytes(b"x" * 100_000)
    gate = tmp_path / "gate"
    setup = f"until [ -e {gate} ]; do sleep 0.1; done"
    options = ("--upload", ".", "--nodes", "2", "--gpus-per-node", "2", "--setup", setup)
    asked = await gpuctl(fleet, folder, "submit", "-o", "name", *options, "--", "echo attempt $GPUFLEET_ATTEMPT")
    assert asked.returncode == 0, asked.stderr
    job_id = int(asked.stdout)

    async def is_shown() -> bool:
        return (await admin.job(job_id)).setting_up.count(setup) == 2

    await until("both nodes say what they make", is_shown)
    job = await admin.job(job_id)
    assert (job.state, job.setting_up) == (job_pb2.JOB_STATE_STARTING, f"n1: {setup}; n2: {setup}")
    assert "setting up" in (await gpuctl(fleet, folder, "queue")).stdout
    explained = (await gpuctl(fleet, folder, "explain", str(job_id))).stdout
    assert "nodes n1 and n2 prepare it" in " ".join(explained.split()), explained
    bystander = await admin.wait(await admin.submit("true", gpus=2))
    assert bystander.attempts[0].ranks[0].node == "n3"
    gate.touch()
    ended = await admin.wait(job_id)
    assert (ended.state, ended.attempt_count, ended.run_count) == (job_pb2.JOB_STATE_SUCCEEDED, 1, 1)
    assert await admin.stdout(job_id) == b"attempt 1\n"
