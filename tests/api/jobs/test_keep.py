"""What jobs keep for their next attempt at a real scheduler: without room, after the end, and by a job's own token."""

from __future__ import annotations

from pathlib import Path

from gpufleet.v1 import files_pb2, job_pb2

from gpufleet.errors import Reason
from tests.api.test_own_node import why
from tests.e2e.client import Client
from tests.e2e.fleet import Fleet
from tests.e2e.jobs.test_keep import GPUCTL
from tests.e2e.processes import until

KEEPS = f"""
if [ ! -e again ]; then
    touch again; mkdir -p out; echo first >out/result; echo small >ckpt; {GPUCTL} keep || exit 3
    head -c 3000000 /dev/urandom >ckpt; {GPUCTL} keep && exit 4
    exit 1
fi
cat ckpt; echo $GPUFLEET_JOB_TOKEN; exec sleep 600
"""


async def test_without_room_the_copy_before_counts_and_a_job_reads_what_its_earlier_attempts_left(
    tmp_path: Path,
) -> None:
    settings = tmp_path / "scheduler.toml"
    settings.write_text("[files]\nuser_bytes_max = '1MB'\n")
    async with Fleet(tmp_path / "fleet", "--config", str(settings)) as fleet, fleet.client() as admin:
        await fleet.add_node("n1")
        keep, results = ["ckpt", "again"], ["out/**"]
        job = await admin.submit("/bin/sh", "-c", KEEPS, cwd="", keep=keep, results=results, retries=1)
        token = await second_attempt(admin, job)
        story = "\n".join(await admin.story(job))
        assert "nothing is kept of this attempt, as " in story and "over 1,000,000" in story, story
        async with fleet.client(token) as itself:
            listed = await itself.stub.ListFiles(files_pb2.ListFilesRequest(job_id=job))
            assert [each.path for each in listed.ranks[0].files] == ["out/result"]
            pieces = itself.stub.DownloadFile(files_pb2.DownloadFileRequest(job_id=job, path="out/result"))
            assert b"".join([piece.data async for piece in pieces]) == b"first\n"
            await itself.stub.KeepFiles(files_pb2.KeepFilesRequest(job_id=job))
            assert await why(itself.stub.ListFiles(files_pb2.ListFilesRequest(job_id=job + 1))) is not None
        await admin.cancel(job)
        await admin.wait(job)
        assert await why(admin.stub.KeepFiles(files_pb2.KeepFilesRequest(job_id=job))) is Reason.JOB_FINISHED


async def second_attempt(admin: Client, job: int) -> str:
    """The token that the second attempt says, behind the file that it finds."""
    said: list[str] = []

    async def has_told() -> bool:
        found = await admin.job(job)
        if found.attempt_count < 2 or found.state != job_pb2.JOB_STATE_RUNNING:
            assert found.exit.code in (0, 1), await admin.story(job)
            return False
        said[:] = (await admin.stdout(job, follow=False)).decode().split()
        return len(said) == 2

    await until("the second attempt runs", has_told)
    assert said[0] == "small", "half of a copy is none: the one before it counts"
    return said[1]
