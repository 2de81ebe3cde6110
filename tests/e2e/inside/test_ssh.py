"""`gpuctl ssh` and `ssh-config`, with the real ssh, scp, rsync and sshd."""

from __future__ import annotations

import asyncio
import getpass
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from gpufleet.v1 import job_pb2

from cli.inside.ssh_server import NO_ACCOUNT, SCRIPT
from gpufleet.config.agent_settings import IsolationSettings
from tests.e2e.client import Client
from tests.e2e.fleet import Fleet
from tests.e2e.inside.caller import until_listens
from tests.e2e.processes import DEADLINE_SECONDS, clean_environment
from tests.ports import kept_port

PROGRAMS = ("ssh", "scp", "rsync", "ssh-keygen", "/usr/sbin/sshd")
pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, PROGRAMS)), reason="needs openssh-client, openssh-server and rsync"
)
SERVER = Path(__file__).with_name("server.py")
RANGE = {"GPUCTL_AGENT_ISOLATION_USERS": "range"}
FIRST_UID = IsolationSettings().uid_first
GPUCTL = (sys.executable, "-P", "-m", "gpufleet.cli")


class Laptop:
    """Where people type: a home folder of its own, and the programs there. `said` is what the last one said."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self.home = folder / "home"
        self.home.mkdir()
        named = {"GPUCTL_SCHEDULER": fleet.scheduler.address, "GPUCTL_TOKEN": fleet.scheduler.token("admin")}
        self._environment: Mapping[str, str] = {
            **clean_environment(fleet.folder, named),
            "HOME": str(self.home),
            "XDG_STATE_HOME": str(self.home / "state"),
        }
        self.config = self.home / ".ssh" / "config"
        self.said = ""

    def blocks(self) -> list[str]:
        """The lines that ssh-config wrote."""
        return (self.home / "state/gpufleet/gpuctl/ssh/config").read_text().splitlines()

    def answer_here(self) -> None:
        """Have ssh do without sshd, as ssh-config has it where there is none."""
        file = self.home / "state/gpufleet/gpuctl/ssh/config"
        file.write_text(file.read_text().replace(" --sshd ", " --no-sshd "))

    async def types(self, *words: str, data: bytes = b"") -> tuple[int, str]:
        """Type this; answers the exit code, and what came on standard output."""
        process = await asyncio.create_subprocess_exec(
            *words,
            env=self._environment,
            cwd=self.home,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                stdout, stderr = await process.communicate(data)
        except TimeoutError:
            process.kill()
            await process.wait()
            raise
        self.said = stderr.decode()
        return process.returncode or 0, stdout.decode()

    async def ssh(self, host: str, *words: str, data: bytes = b"") -> tuple[int, str]:
        """Type `ssh HOST WORDS`. The file is named: ssh asks the system, and not HOME, where the home folder is."""
        return await self.types("ssh", "-F", str(self.config), host, *words, data=data)


async def running(person: Client, **fields: object) -> int:
    """A job that does nothing for a while."""
    job = await person.submit("/bin/sleep", "1000", **fields)
    await person.wait(job, job_pb2.JOB_STATE_RUNNING)
    return job


async def test_ssh_scp_and_rsync_work_in_a_job_by_its_name(person: Client, shared_fleet: Fleet, tmp_path: Path) -> None:
    laptop = Laptop(shared_fleet, tmp_path)
    (temporary := tmp_path / "tmp").mkdir()
    job = await running(person, env={"TMPDIR": str(temporary)})
    assert await laptop.types(*GPUCTL, "ssh", str(job), "--", "echo $GPUFLEET_JOB_ID; pwd; exit 3") == (
        3,
        f"{job}\n{person.cwd}\n",
    ), laptop.said
    for _ in range(2):
        assert (await laptop.types(*GPUCTL, "ssh-config", "--install", str(job)))[0] == 0, laptop.said
    assert "ssh needs GPUCTL_TOKEN wherever it is typed" in laptop.said
    assert laptop.config.read_text().count("Include") == 1
    host, there = f"job-{job}", person.cwd
    assert await laptop.ssh(host, "wc -c", data=b"x" * 1_000_000) == (0, "1000000\n"), laptop.said
    assert (await laptop.ssh(host, "-tt", "tty"))[1].startswith("/dev/pts/"), laptop.said
    (laptop.home / "model.bin").write_bytes(os.urandom(3_000_000))
    (laptop.home / "data").mkdir()
    (laptop.home / "data" / "a b.txt").write_text("words\n")
    assert (await laptop.types("scp", "-F", str(laptop.config), "model.bin", f"{host}:"))[0] == 0, laptop.said
    assert (there / "model.bin").read_bytes() == (laptop.home / "model.bin").read_bytes()
    synced = await laptop.types("rsync", "-a", "-e", f"ssh -F {laptop.config}", "data/", f"{host}:data/")
    assert synced[0] == 0, laptop.said
    assert (there / "data" / "a b.txt").read_text() == "words\n"
    ran = [line for line in await person.story(job) if "gpuctl ssh" in line]
    assert len(ran) == 5
    await person.cancel(job)
    await person.wait(job)
    assert (await laptop.ssh(host, "true"))[0] == 255
    assert f"job {job} has ended" in laptop.said


async def test_another_key_is_not_let_in_and_a_host_key_of_another_job_is_not_taken(
    person: Client, shared_fleet: Fleet, tmp_path: Path
) -> None:
    laptop = Laptop(shared_fleet, tmp_path)
    job, other = await running(person), await running(person)
    assert (await laptop.types(*GPUCTL, "ssh-config", "--install", str(job), str(other)))[0] == 0, laptop.said
    await laptop.types("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(laptop.home / "another"))
    proxy = next(line.strip().partition(" ")[2] for line in laptop.blocks() if "ProxyCommand" in line)
    careless = ("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR")
    as_another = ("-o", f"ProxyCommand={proxy}", "-i", "another", "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes")
    code, _ = await laptop.types("ssh", "-F", "none", *careless, *as_another, f"{getpass.getuser()}@any", "true")
    assert code == 255
    assert "Permission denied" in laptop.said
    (folder,) = (each for each in (laptop.home / "state/gpufleet/gpuctl/ssh").iterdir() if each.is_dir())
    known = (folder / f"job-{other}.known").read_text().replace(f"job-{other} ", f"job-{job} ")
    (laptop.home / "known").write_text(known)
    code, _ = await laptop.ssh(f"job-{job}", "-o", f"UserKnownHostsFile={laptop.home}/known", "true")
    assert code == 255
    assert "Host key verification failed" in laptop.said
    assert {each.stat().st_mode & 0o77 for each in folder.iterdir() if not each.suffix} == {0}
    await person.cancel(job, other)


async def test_where_no_sshd_is_to_be_had_ssh_is_answered_here_and_scp_rsync_and_ports_work_as_well(
    person: Client, shared_fleet: Fleet, tmp_path: Path
) -> None:
    laptop = Laptop(shared_fleet, tmp_path)
    port = kept_port()
    job = await person.submit(sys.executable, str(SERVER), str(port))
    await until_listens(person, job)
    here = (*GPUCTL, "ssh", "--no-sshd", str(job), "--")
    line = "echo $GPUFLEET_JOB_ID; pwd; echo oh >&2; exit 3"
    assert await laptop.types(*here, line) == (3, f"{job}\n{person.cwd}\n"), laptop.said
    assert laptop.said == "oh\n"
    assert (await laptop.types(*here, "kill -9 $$"))[0] == 255
    assert (await laptop.types(*GPUCTL, "ssh-config", "--install", str(job)))[0] == 0, laptop.said
    laptop.answer_here()
    host, there = f"job-{job}", person.cwd
    assert await laptop.ssh(host, "wc -c", data=b"x" * 1_000_000) == (0, "1000000\n"), laptop.said
    assert (await laptop.ssh(host, "-tt", "tty"))[1].startswith("/dev/pts/"), laptop.said
    assert await laptop.ssh(host, data=b"echo $(( 6 * 7 ))\n") == (0, "42\n"), laptop.said
    (laptop.home / "model.bin").write_bytes(os.urandom(3_000_000))
    (laptop.home / "data").mkdir()
    (laptop.home / "data" / "c d.txt").write_text("words\n")
    assert (await laptop.types("scp", "-F", str(laptop.config), "model.bin", f"{host}:model-2.bin"))[0] == 0, (
        laptop.said
    )
    assert (there / "model-2.bin").read_bytes() == (laptop.home / "model.bin").read_bytes()
    synced = await laptop.types("rsync", "-a", "-e", f"ssh -F {laptop.config}", "data/", f"{host}:data-2/")
    assert synced[0] == 0, laptop.said
    assert (there / "data-2" / "c d.txt").read_text() == "words\n"
    assert await laptop.ssh("-W", f"localhost:{port}", host, data=b"echo\nhello\n") == (0, "hello\nbye"), laptop.said
    assert (await laptop.ssh("-W", "localhost:1", host))[0] == 255
    assert "no process of the job listens on port 1" in laptop.said
    assert (await laptop.ssh("-W", "10.0.0.1:22", host))[0] == 255
    assert "only the job's own ports are reached" in laptop.said
    ran = [each for each in await person.story(job) if "exit 3" in each]
    assert len(ran) == 1, ran
    await person.cancel(job)
    await person.wait(job)


async def test_another_key_is_not_let_in_where_ssh_is_answered_here(
    person: Client, shared_fleet: Fleet, tmp_path: Path
) -> None:
    laptop = Laptop(shared_fleet, tmp_path)
    job = await running(person)
    assert (await laptop.types(*GPUCTL, "ssh-config", "--install", str(job)))[0] == 0, laptop.said
    laptop.answer_here()
    await laptop.types("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(laptop.home / "another"))
    as_another = ("-o", "IdentityFile=none", "-i", str(laptop.home / "another"), "-o", "BatchMode=yes")
    proxy = next(line.strip().partition(" ")[2] for line in laptop.blocks() if "ProxyCommand" in line)
    careless = ("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", f"ProxyCommand={proxy}")
    code, _ = await laptop.types("ssh", "-F", "none", *careless, *as_another, "anybody@any", "true")
    assert code == 255
    assert "Permission denied" in laptop.said
    await person.cancel(job)


@pytest.mark.skipif(os.geteuid() != 0, reason="only an agent that is root runs jobs as other accounts")
async def test_a_job_whose_user_has_a_number_alone_is_entered_by_its_name(
    fleet: Fleet, admin: Client, tmp_path: Path
) -> None:
    await fleet.add_node("n1", environment=RANGE)
    job = await running(admin, cwd="/")
    laptop = Laptop(fleet, tmp_path)
    code, said = await laptop.types(*GPUCTL, "ssh", str(job), "--", "id -u; echo $GPUFLEET_JOB_ID; ls -d /proc/1")
    assert (code, said.split()[1:]) == (0, [str(job), "/proc/1"]), laptop.said
    assert int(said.split()[0]) >= FIRST_UID
    await admin.cancel(job)
    await admin.wait(job)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv")
async def test_where_an_account_has_no_name_that_is_said(tmp_path: Path) -> None:
    number = 1_987_654_321
    as_nobody = ("setpriv", f"--reuid={number}", f"--regid={number}", "--clear-groups", "env", "-C", "/")
    done = await asyncio.create_subprocess_exec(*as_nobody, "sh", "-c", SCRIPT, stderr=asyncio.subprocess.PIPE)
    _, said = await done.communicate()
    assert (done.returncode, said.decode().strip()) == (126, NO_ACCOUNT)
