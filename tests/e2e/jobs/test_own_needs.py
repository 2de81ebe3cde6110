"""Jobs whose files do not fit a node's disk, with real programs and a disk that is full."""

from __future__ import annotations

from pathlib import Path

from gpufleet.v1 import job_pb2

from tests.e2e.client import Client
from tests.e2e.disks import small_disk
from tests.e2e.fleet import Fleet
from tests.e2e.jobs.test_folders import gpuctl
from tests.e2e.processes import until

DISK_BYTES = 64 * 2**20
FOLDER_BYTES = 100_000_000


async def test_a_folder_that_does_not_fit_the_disk_keeps_only_its_own_job_from_the_node(
    fleet: Fleet, admin: Client, tmp_path: Path
) -> None:
    (folder := tmp_path / "project").mkdir()
    with (folder / "data").open("wb") as file:
        file.truncate(FOLDER_BYTES)
    with small_disk(DISK_BYTES) as disk:
        await fleet.add_node("n1", data=disk.path / "agent")
        try:
            asked = await gpuctl(fleet, folder, "submit", "-o", "name", "--upload", ".", "--gpus", "1", "--", "true")
            assert asked.returncode == 0, asked.stderr
            job_id = int(asked.stdout)

            async def is_explained() -> bool:
                return (await admin.job(job_id)).wait_reason.reason == "DISK_IN_USE"

            await until("it waits for room on the disk", is_explained)
            why = (await admin.job(job_id)).wait_reason
            assert "and the job's files need 100 MB" in why.sentence, why.sentence
            assert why.summary == "waits for room on the disk of n1"
            bystander = await admin.wait(await admin.submit("true", gpus=2))
            assert (bystander.state, bystander.attempt_count) == (job_pb2.JOB_STATE_SUCCEEDED, 1)
            assert (await admin.job(job_id)).attempt_count == 0
            await fleet.add_node("n2")
            ended = await admin.wait(job_id)
            assert (ended.state, ended.attempts[0].ranks[0].node) == (job_pb2.JOB_STATE_SUCCEEDED, "n2")
        finally:
            await fleet.end()
