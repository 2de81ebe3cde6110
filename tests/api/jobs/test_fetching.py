"""Files of jobs: a node has those of its own attempts, a user their own, and nobody anything else."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from gpufleet.v1 import files_pb2, job_pb2, node_agent_pb2, scheduler_pb2

from gpufleet.errors import Reason
from node_agent.credential import CREDENTIAL_FILE
from node_agent.identity import IDENTITY_FILE
from tests.api.asking import forget_node
from tests.api.test_own_node import agent, joined, why
from tests.e2e.client import Client, refusal
from tests.e2e.files import file, upload
from tests.e2e.fleet import Fleet
from tests.e2e.processes import DEADLINE_SECONDS

OWN, OTHERS, NEVER = b"what the job reads", b"what another job reads", b"what nobody has"


@pytest.fixture
async def jobs(admin: Client) -> AsyncIterator[tuple[int, int]]:
    """Two jobs that run on n1, each with a file."""
    made = []
    for data in (OWN, OTHERS):
        await upload(admin, data)
        made.append(await admin.submit("sleep", "600", files=[file("data", data)]))
    for job in made:
        await admin.wait(job, job_pb2.JOB_STATE_RUNNING)
    yield made[0], made[1]
    await admin.cancel(*made)
    for job in made:
        await admin.wait(job)


async def test_a_node_fetches_the_files_of_its_own_attempts_and_nothing_else(
    fleet: Fleet, admin: Client, jobs: tuple[int, int]
) -> None:
    data = fleet.agents["n1"].data
    own = (data / CREDENTIAL_FILE).read_text().strip()
    incarnation = int(json.loads((data / IDENTITY_FILE).read_text())["incarnation"])
    lineages = [(await admin.job(job)).attempts[-1].lineage for job in jobs]

    def key_of(which: int, attempt: int = 1) -> node_agent_pb2.AttemptKey:
        return node_agent_pb2.AttemptKey(job_id=jobs[which], attempt=attempt, lineage=lineages[which])

    def wanted(**changed: Any) -> node_agent_pb2.FetchBlobRequest:
        usual: dict[str, Any] = {
            "node": "n1",
            "incarnation": incarnation,
            "key": key_of(0),
            "digest": file("data", OWN).digest,
        }
        return node_agent_pb2.FetchBlobRequest(**(usual | changed))

    refused: dict[str, dict[str, Any]] = {
        "an attempt that there is not": {"key": key_of(0, attempt=2)},
        "an attempt that does not name it": {"key": key_of(1)},
        "a file of another job": {"digest": file("data", OTHERS).digest},
        "a file that is not there": {"digest": file("data", NEVER).digest},
        "another start of the agent": {"incarnation": incarnation + 1},
        "another node": {"node": "elsewhere"},
    }
    async with agent(fleet, own) as stub:
        pieces = [each.data async for each in stub.FetchBlob(wanted(offset=5), timeout=DEADLINE_SECONDS)]
        assert b"".join(pieces) == OWN[5:]
        for what, changed in refused.items():
            call = stub.FetchBlob(wanted(**changed), timeout=DEADLINE_SECONDS)
            assert await why(call) is Reason.PERMISSION_DENIED, what
        for offset in (-1, len(OWN) + 1):
            call = stub.FetchBlob(wanted(offset=offset), timeout=DEADLINE_SECONDS)
            assert await why(call) is Reason.OFFSET_OUT_OF_RANGE
    try:
        for token in (
            fleet.scheduler.token("agent"),
            await joined(fleet, "elsewhere", fleet.scheduler.token("agent")),
            fleet.scheduler.token("admin"),
        ):
            async with agent(fleet, token) as stub:
                assert await why(stub.FetchBlob(wanted(), timeout=DEADLINE_SECONDS)) is Reason.PERMISSION_DENIED
                itself = wanted(node="elsewhere", incarnation=1)
                assert await why(stub.FetchBlob(itself, timeout=DEADLINE_SECONDS)) is Reason.PERMISSION_DENIED
    finally:
        await forget_node(admin, "elsewhere")


async def test_what_another_user_uploaded_counts_as_missing(fleet: Fleet, admin: Client) -> None:
    request = scheduler_pb2.CreateTokenRequest(user="bob-files", role=scheduler_pb2.ROLE_USER)
    secret = (await admin.stub.CreateToken(request, timeout=DEADLINE_SECONDS)).secret
    theirs = file("data", OWN)
    await upload(admin, OWN)
    async with fleet.client(secret) as bob:
        found = await bob.stub.FindMissingBlobs(files_pb2.FindMissingBlobsRequest(digests=[theirs.digest]))
        assert (list(found.missing_digests), list(found.stored_bytes)) == ([theirs.digest], [0])
        error = await refusal(bob.stub.Submit(scheduler_pb2.SubmitRequest(specs=[bob.spec("true", files=[theirs])])))
    assert error.reason is Reason.FILE_NOT_UPLOADED
    assert error.violations[0].field == "specs[0].files[0]"
