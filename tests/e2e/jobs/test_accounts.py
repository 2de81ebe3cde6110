"""`users = "accounts"`: jobs run as the accounts of their node, which are made here for one agent alone."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from gpufleet.v1 import job_pb2, scheduler_pb2

from tests.e2e.client import Client
from tests.e2e.fleet import Fleet

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only an agent that is root runs jobs as other accounts"),
    pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare (util-linux) is not installed"),
]

ACCOUNTS = {"GPUCTL_AGENT_ISOLATION_USERS": "accounts"}
ANN, TEAM = 41_001, 41_900
MOUNT = 'for name in etc/passwd etc/group home; do mount --bind "$1/$name" "/$name" || exit; done; shift; exec "$@"'
"""In a namespace of mounts of its own, so that nothing else on this machine sees any of it."""


def with_accounts(folder: Path, *users: str) -> list[str]:
    """What starts a program on a machine that has these accounts besides its own, with homes below `folder`/home."""
    for each in ("etc", "home"):
        (folder / each).mkdir(parents=True)
    passwd, group = Path("/etc/passwd").read_text(), Path("/etc/group").read_text()
    for uid, user in enumerate(users, ANN):
        home = folder / "home" / user
        home.mkdir()
        os.chown(home, uid, uid)
        home.chmod(0o700)
        passwd += f"{user}:x:{uid}:{uid}::/home/{user}:/bin/sh\n"
        group += f"{user}:x:{uid}:\n"
    group += f"team:x:{TEAM}:{','.join(users)}\n"
    (folder / "etc" / "passwd").write_text(passwd)
    (folder / "etc" / "group").write_text(group)
    return ["unshare", "--mount", "sh", "-c", MOUNT, "sh", str(folder)]


async def person(fleet: Fleet, admin: Client, user: str) -> str:
    request = scheduler_pb2.CreateTokenRequest(user=user, role=scheduler_pb2.ROLE_USER)
    return str((await admin.stub.CreateToken(request)).secret)


async def test_a_job_is_the_account_of_its_users_name_with_its_groups_and_home(fleet: Fleet, admin: Client) -> None:
    machine = fleet.work / "machine"
    inside = with_accounts(machine, "ann", "eve")
    await fleet.add_node("n1", "--cpus", "2", environment=ACCOUNTS, inside=inside)
    anns, eves = await person(fleet, admin, "ann"), await person(fleet, admin, "eve")
    async with fleet.client(anns) as ann, fleet.client(eves) as eve:
        job = await ann.submit("/bin/sh", "-c", "id -u; id -G; echo $HOME; echo secret > ~/mine; cat ~/mine", cwd="/")
        assert (await ann.wait(job)).state == job_pb2.JOB_STATE_SUCCEEDED
        said = (await ann.stdout(job)).decode().splitlines()
        assert said == [str(ANN), f"{ANN} {TEAM}", "/home/ann", "secret"]
        assert (machine / "home" / "ann" / "mine").stat().st_uid == ANN
        job = await eve.submit("/bin/sh", "-c", "id -u; cat /home/ann/mine", cwd="/")
        assert (await eve.wait(job)).state == job_pb2.JOB_STATE_FAILED
        assert await eve.stdout(job) == f"{ANN + 1}\n".encode()
    root = await person(fleet, admin, "root")
    async with fleet.client(root) as nobody:
        job = await nobody.submit("/usr/bin/id", cwd="/")
        ended = await nobody.wait(job)
        assert (ended.state, ended.exit_reason) == (job_pb2.JOB_STATE_FAILED, "ACCOUNT_UNUSABLE")
        assert "allow_root" in ended.exit_message


async def test_a_job_goes_to_the_node_that_has_its_users_account(fleet: Fleet, admin: Client) -> None:
    for node, user in (("n1", "ann"), ("n2", "bob")):
        machine = fleet.work / f"machine-{node}"
        await fleet.add_node(node, "--cpus", "2", environment=ACCOUNTS, inside=with_accounts(machine, user))
    for user, node in (("ann", "n1"), ("bob", "n2")):
        async with fleet.client(await person(fleet, admin, user)) as client:
            jobs = [await client.submit("/usr/bin/id", "-u", cwd="/") for _ in range(3)]
            for number in jobs:
                job = await client.wait(number)
                assert (job.state, job.attempts[-1].ranks[0].node) == (job_pb2.JOB_STATE_SUCCEEDED, node)
    async with fleet.client(await person(fleet, admin, "carol")) as carol:
        number = await carol.submit("/usr/bin/id", cwd="/")
        job = await carol.wait(number)
        assert (job.state, job.exit_reason) == (job_pb2.JOB_STATE_FAILED, "ACCOUNT_UNUSABLE")
        refused = [line for line in await carol.story(number) if "did not start" in line]
        assert len(refused) == 1 and "no account 'carol'" in refused[0], "the other one ends the job"
