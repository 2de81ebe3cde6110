"""`gpuctl ssh` into a container whose image knows nothing of ssh."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e.client import Client
from tests.e2e.containers.test_running import has_written, in_container
from tests.e2e.fleet import Fleet
from tests.e2e.inside.test_ssh import GPUCTL, Laptop

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not (shutil.which("ssh") and shutil.which("ssh-keygen")), reason="needs openssh-client"),
]


async def test_a_container_without_sshd_is_entered_by_ssh_as_the_job_is(
    container_fleet: Fleet, person: Client, tmp_path: Path
) -> None:
    job = await person.submit("/bin/sh", "-c", "echo ready; while true; do sleep 0.05; done", **in_container())
    await has_written(person, job, b"ready")
    laptop = Laptop(container_fleet, tmp_path)
    line = "echo $FROM_IMAGE $GPUFLEET_JOB_ID; grep CapEff /proc/self/status; pwd; exit 3"
    code, said = await laptop.types(*GPUCTL, "ssh", str(job), "--", line)
    assert (code, said.split()) == (3, ["yes", str(job), "CapEff:", "0" * 16, "/work"]), laptop.said
    assert (await laptop.types(*GPUCTL, "ssh-config", "--install", str(job)))[0] == 0, laptop.said
    host = f"job-{job}"
    assert (await laptop.ssh(host, "-tt", "tty; stty size"))[1].startswith("/dev/pts/"), laptop.said
    assert await laptop.ssh(host, data=b"cd /tmp; pwd; exit 4\n") == (4, "/tmp\n"), laptop.said
    data = b"x" * 300_000
    assert await laptop.ssh(host, "cat > /tmp/there; wc -c < /tmp/there", data=data) == (0, "300000\n"), laptop.said
    (laptop.home / "file").write_text("words")
    assert (await laptop.types("scp", "-F", str(laptop.config), "file", f"{host}:/tmp/"))[0] != 0
    assert "there is no sftp-server in the job's image" in laptop.said
    await person.cancel(job)
    await person.wait(job)
    assert (await laptop.ssh(host, "true"))[0] == 255
    assert f"job {job} has ended" in laptop.said
