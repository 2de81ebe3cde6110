"""Secrets reach the processes of their owner's jobs, and stand nowhere else: no file, no answer, no command line."""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import Reason
from tests.e2e.client import Client, refusal, select
from tests.e2e.fleet import Fleet
from tests.e2e.processes import DEADLINE_SECONDS, until

pb = scheduler_pb2
RUNNING, FAILED, SUCCEEDED = job_pb2.JOB_STATE_RUNNING, job_pb2.JOB_STATE_FAILED, job_pb2.JOB_STATE_SUCCEEDED
NOTED = 'echo "$GPUFLEET_NOTICE ${TOKEN:-without it}" >> notices'


def digest(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()


SAYS = 'printf %s "$TOKEN" | sha256sum | cut -c1-64'
"""What a job says of what it was given; the value itself would be in its output."""


@asynccontextmanager
async def user(fleet: Fleet, admin: Client, name: str) -> AsyncIterator[Client]:
    made = await admin.stub.CreateToken(pb.CreateTokenRequest(user=name, role=pb.ROLE_USER), timeout=DEADLINE_SECONDS)
    async with fleet.client(made.secret) as person:
        yield person


async def put(person: Client, name: str, value: str, **fields: Any) -> scheduler_pb2.SetSecretResponse:
    request = pb.SetSecretRequest(name=name, value=value, **fields)
    return await person.stub.SetSecret(request, timeout=DEADLINE_SECONDS)


async def remove(person: Client, name: str, **fields: Any) -> None:
    await person.stub.RemoveSecret(pb.RemoveSecretRequest(name=name, **fields), timeout=DEADLINE_SECONDS)


async def said(person: Client, job: int) -> str:
    return (await person.stdout(job)).decode().strip()


def where_it_stands(folder: Path, value: str) -> list[str]:
    """Files below a folder, and command lines of this machine, in which a value can be read."""
    forms = (value.encode(), base64.b64encode(value.encode()), value.encode().hex().encode())
    found = []
    for file in [*folder.rglob("*"), *Path("/proc").glob("[0-9]*/cmdline")]:
        try:
            content = file.read_bytes() if file.is_file() else b""
        except OSError:
            continue  # a process, or a file, that has gone
        found += [str(file)] * any(form in content for form in forms)
    return found


async def test_a_secret_is_in_its_process_and_nowhere_else_and_changes_for_later_attempts(
    fleet: Fleet, admin: Client
) -> None:
    await fleet.add_node("n1")
    old, new = (f"hf_{secrets.token_hex(12)}" for _ in range(2))
    async with user(fleet, admin, "ann") as ann:
        assert (await put(ann, "hub", old)).is_new
        line = f"{SAYS}; until test -e {fleet.work}/go; do sleep 0.05; done; {SAYS}"
        job = await ann.submit("sh", "-c", line, secrets={"TOKEN": "hub", "AGAIN": "hub"}, notify=NOTED)
        await ann.wait(job, RUNNING)

        async def has_spoken() -> bool:
            return bool(await ann.output(job, follow=False))

        await until("the job has what it was given", has_spoken)
        await until("its start was told", (notices := fleet.work / "notices").exists)
        assert where_it_stands(fleet.folder, old) == []
        assert not (await put(ann, "hub", new)).is_new
        assert (await ann.submit("true", secrets={"TOKEN": "hub"})) > job
        answers: list[Any] = [
            await ann.stub.GetJob(pb.GetJobRequest(job_id=job)),
            await ann.stub.Queue(pb.QueueRequest()),
            await ann.stub.GetStory(pb.GetStoryRequest(job_id=job)),
            await ann.stub.Submit(pb.SubmitRequest(specs=[ann.spec("true", secrets={"T": "hub"})], dry_run=True)),
            await ann.stub.ListSecrets(pb.ListSecretsRequest()),
            await admin.stub.ListAuditEntries(pb.ListAuditEntriesRequest()),
        ]
        assert not [answer for answer in answers if old in str(answer) or new in str(answer)]
        assert dict(answers[0].job.spec.secrets) == {"TOKEN": "hub", "AGAIN": "hub"}
        # The launch is told once more when the agent comes back: what runs goes on with what it has.
        fleet.agents["n1"].kill()
        fleet.agents["n1"].spawn()
        await fleet.node_is_ready("n1")
        (fleet.work / "go").touch()
        assert (await ann.wait(job)).state == SUCCEEDED
        assert await said(ann, job) == f"{digest(old)}\n{digest(old)}"
        later = await ann.run("sh", "-c", SAYS, secrets={"TOKEN": "hub"})
        assert await said(ann, later.id) == digest(new)
        await until("its end was told", lambda: "end" in notices.read_text())
        assert "start without it\n" in notices.read_text()
        assert where_it_stands(fleet.folder, old) == where_it_stands(fleet.folder, new) == []


async def test_a_job_is_given_its_owners_secrets_and_ends_where_one_is_gone(fleet: Fleet, admin: Client) -> None:
    for node in ("n1", "n2"):
        await fleet.add_node(node, "--virtual-gpus", "1")
    async with user(fleet, admin, "ann") as ann, user(fleet, admin, "bob") as bob:
        await put(ann, "hub", "anns")
        for other in (bob, admin):
            error = await refusal(other.stub.Submit(pb.SubmitRequest(specs=[other.spec("true", secrets={"T": "hub"})])))
            assert error.reason is Reason.SECRET_NOT_FOUND
            assert "specs[0].secrets['T']" in error.message and "gpuctl secret set hub" in error.next_step
        for call in (
            bob.stub.ListSecrets(pb.ListSecretsRequest(user="ann")),
            bob.stub.SetSecret(pb.SetSecretRequest(user="ann", name="hub", value="bobs")),
            bob.stub.RemoveSecret(pb.RemoveSecretRequest(user="ann", name="hub")),
        ):
            assert (await refusal(call)).reason is Reason.PERMISSION_DENIED
        job = await ann.submit("sh", "-c", SAYS, secrets={"TOKEN": "hub"}, is_held=True)
        assert (await bob.job(job)).spec.secrets["TOKEN"] == "<hidden>"
        await put(admin, "hub", "of an admin", user="ann")
        who = (await admin.stub.GetServerInfo(pb.GetServerInfoRequest())).user
        (listed,) = (await admin.stub.ListSecrets(pb.ListSecretsRequest(user="ann"))).secrets
        assert (listed.name, listed.user, listed.set_by) == ("hub", "ann", who)
        gang = await ann.submit("sh", "-c", SAYS, gpus=2, node_count=2, secrets={"TOKEN": "hub"}, is_held=True)
        await remove(ann, "hub")
        for each in (job, gang):
            mask = {"paths": ["is_held"]}
            await ann.stub.UpdateJob(pb.UpdateJobRequest(jobs=select(each), update_mask=mask))  # type: ignore[arg-type]
            ended = await ann.wait(each)
            assert (ended.state, ended.attempts[-1].exit_reason) == (FAILED, "SECRET_NOT_FOUND")
            assert "ann has no secret 'hub' any more" in "".join(await ann.story(each))
        told = (await admin.stub.ListAuditEntries(pb.ListAuditEntriesRequest())).entries
        assert {(each.user, each.action, each.target, each.code) for each in told} >= {
            ("ann", "SetSecret", "secret hub of ann", "OK"),
            (who, "SetSecret", "secret hub of ann", "OK"),
            ("ann", "RemoveSecret", "secret hub of ann", "OK"),
            ("bob", "RemoveSecret", "secret hub of ann", "PERMISSION_DENIED"),
        }


async def test_a_restart_knows_them_and_without_its_key_refuses_them_alone(fleet: Fleet, admin: Client) -> None:
    await fleet.add_node("n1")
    await put(admin, "hub", "before")
    await fleet.scheduler.stop()
    await fleet.scheduler.start()
    job = await admin.run("sh", "-c", SAYS, secrets={"TOKEN": "hub"})
    assert await said(admin, job.id) == digest("before")
    await fleet.scheduler.stop()
    key = fleet.scheduler.data / "secrets.key"
    key.rename(kept := key.with_suffix(".kept"))
    await fleet.scheduler.start()
    assert "jobs that name secrets will fail" in fleet.scheduler.tail()
    assert (await admin.run("true")).state == SUCCEEDED
    lost = await admin.run("true", secrets={"TOKEN": "hub"})
    assert (lost.state, lost.attempts[-1].exit_reason) == (FAILED, "SECRETS_UNAVAILABLE")
    error = await refusal(admin.stub.SetSecret(pb.SetSecretRequest(name="other", value="x")))
    assert error.reason is Reason.SECRETS_UNAVAILABLE and str(key) in error.message
    assert not key.exists()
    kept.rename(key)
    assert await said(admin, (await admin.run("sh", "-c", SAYS, secrets={"TOKEN": "hub"})).id) == digest("before")
