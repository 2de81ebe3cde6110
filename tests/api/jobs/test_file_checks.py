"""CheckFiles: who asks wrongly is told which field, and no check is a way to what its caller has not."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import grpc.aio
import pytest
from gpufleet.v1 import files_pb2, node_agent_pb2, scheduler_pb2

from gpufleet.errors import Reason
from gpufleet.net.status import from_rpc_error
from node_agent.credential import CREDENTIAL_FILE
from node_agent.identity import IDENTITY_FILE
from tests.api.test_own_node import agent, why
from tests.e2e.client import Client, refusal
from tests.e2e.files import file, upload
from tests.e2e.fleet import Fleet
from tests.e2e.processes import DEADLINE_SECONDS

DATA = b"what is uploaded"
DIGEST = hashlib.sha256(DATA).hexdigest()
ROOT, PROBE = "ab" * 16, f".gpufleet-probe-{'cd' * 16}"
RIGHT: dict[str, Any] = {"root": ROOT, "probe": PROBE, "digest": DIGEST, "size_bytes": len(DATA)}

WRONG: dict[str, dict[str, Any]] = {
    "root": {"root": "../etc"},
    "probe": {"probe": "data/a.txt"},
    "digest": {"digest": "abc"},
    "size_bytes": {"size_bytes": 64 * 2**20 + 1},
    "paths": {"paths": ["a"] * 1_001},
    "paths[1]": {"paths": ["a", "../b"]},
    "nodes[0]": {"nodes": ["\n"]},
    "nodes": {"nodes": ["elsewhere"]},
}


@pytest.mark.parametrize("field", WRONG)
async def test_what_is_wrong_is_told_by_its_field(fleet: Fleet, admin: Client, field: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await admin.stub.CheckFiles(files_pb2.CheckFilesRequest(**RIGHT | WRONG[field]), timeout=DEADLINE_SECONDS)
    error = from_rpc_error(caught.value)
    assert error.violations[0].field.startswith(field) and error.next_step, str(error)


async def test_nodes_fetch_for_a_check_what_its_caller_has_uploaded_and_only_while_it_is_open(
    fleet: Fleet, admin: Client
) -> None:
    own = fleet.agents["n1"]
    by_wire = files_pb2.CheckFilesRequest(digest=DIGEST, size_bytes=len(DATA), by_wire=True)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await admin.stub.CheckFiles(by_wire, timeout=DEADLINE_SECONDS)
    assert from_rpc_error(caught.value).reason is Reason.FILE_NOT_UPLOADED
    await upload(admin, DATA)
    (found,) = (await admin.stub.CheckFiles(by_wire, timeout=DEADLINE_SECONDS)).nodes
    assert (found.node, found.wire_problem, found.root_problem) == ("n1", "", "")
    assert found.HasField("wire_duration") and not found.is_same_root
    (found,) = (await admin.stub.CheckFiles(files_pb2.CheckFilesRequest(**RIGHT), timeout=DEADLINE_SECONDS)).nodes
    assert (found.is_same_root, found.root_problem) == (False, "its agent has no --shared-root")

    incarnation = int(json.loads((own.data / IDENTITY_FILE).read_text())["incarnation"])
    async with agent(fleet, (own.data / CREDENTIAL_FILE).read_text().strip()) as stub:
        for request in range(1, 4):
            asked = node_agent_pb2.FetchBlobRequest(
                node="n1", incarnation=incarnation, digest=DIGEST, check_request=request
            )
            assert await why(stub.FetchBlob(asked, timeout=DEADLINE_SECONDS)) is Reason.PERMISSION_DENIED


async def test_a_check_is_of_its_callers_own_files_and_of_nobody_elses(fleet: Fleet, admin: Client) -> None:
    async def token(user: str) -> str:
        request = scheduler_pb2.CreateTokenRequest(user=user, role=scheduler_pb2.ROLE_USER)
        return str((await admin.stub.CreateToken(request, timeout=DEADLINE_SECONDS)).secret)

    blobs = fleet.scheduler.data / "blobs"
    async with fleet.client(await token("owner")) as owner, fleet.client(await token("other")) as other:
        data = b"of the owner alone"
        await upload(owner, data)
        digest = hashlib.sha256(data).hexdigest()
        before = (blobs / "owner" / digest).stat()
        of_owner = files_pb2.CheckFilesRequest(digest=digest, size_bytes=len(data), by_wire=True)
        for size in (len(data), 0):  # nor is it told whether it is there with another size
            of_owner.size_bytes = size
            error = await refusal(other.stub.CheckFiles(of_owner, timeout=DEADLINE_SECONDS))
            assert error.reason is Reason.FILE_NOT_UPLOADED and "owner" not in str(error), error
        by_store = files_pb2.CheckFilesRequest(by_store=True, size_bytes=1_000)
        found = await other.stub.CheckFiles(by_store, timeout=DEADLINE_SECONDS)
        assert (found.store_problem, list(found.nodes)) == ("", [])
        assert not any((blobs / "other").iterdir()), "what was measured is gone"
        after = (blobs / "owner" / digest).stat()
        assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns), "not even used"


async def test_a_job_may_name_only_a_folder_that_some_node_sees(fleet: Fleet, admin: Client) -> None:
    named = file("a", b"in no folder of a node")
    named.shared_root, named.shared_path = ROOT, "a"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await admin.submit("true", cwd="", files=[named])
    error = from_rpc_error(caught.value)
    assert (error.reason, error.violations[0].field) == (Reason.FILE_NOT_UPLOADED, "specs[0].files[0]")
    assert f"no node was found to see the shared folder {ROOT}" in error.message
    for field, value in (("shared_path", "../a"), ("shared_root", "a")):
        wrong = file("a", b"")
        wrong.shared_root, wrong.shared_path = ROOT, "a"
        setattr(wrong, field, value)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await admin.submit("true", cwd="", files=[wrong])
        assert from_rpc_error(caught.value).violations[0].field == f"specs[0].files[0].{field}"


async def test_how_fast_the_place_of_files_is_is_told_and_nothing_stays_there(fleet: Fleet, admin: Client) -> None:
    blobs = fleet.scheduler.data / "blobs"
    before = sorted(blobs.rglob("*"))
    asked = files_pb2.CheckFilesRequest(by_store=True, size_bytes=1_000_000)
    found = await admin.stub.CheckFiles(asked, timeout=DEADLINE_SECONDS)
    assert (found.store, found.store_problem, list(found.nodes)) == (str(blobs), "", [])
    assert found.store_write_duration.ToMicroseconds() > 0 and found.HasField("store_read_duration")
    left = [each for each in blobs.rglob("*") if each not in before and each.is_file()]
    assert not left
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        too_large = files_pb2.CheckFilesRequest(by_store=True, size_bytes=64 * 2**20 + 1)
        await admin.stub.CheckFiles(too_large, timeout=DEADLINE_SECONDS)
    assert from_rpc_error(caught.value).violations[0].field == "size_bytes"
