"""Who may change what: every call × every role × whose object it is × `[privacy] output`, at one real server.

Whose each call's object is stands here by hand, and a call without a row fails. What calls tell: test_sight_matrix.py.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from gpufleet.v1 import files_pb2, job_pb2, node_agent_pb2, scheduler_pb2, sessions_pb2

from gpufleet.errors import Reason
from gpufleet.jobs.folders import Folder, manifest_of
from tests.api.asking import forget_node
from tests.api.calls import METHODS, Caller
from tests.api.jobs.test_own_job import MINE, started
from tests.api.test_own_node import INFO, agent, announcement, forged, joined
from tests.api.test_privacy import KIND, private
from tests.api.test_roles import ALLOWED
from tests.e2e.client import Client, dial, select
from tests.e2e.files import file, upload
from tests.e2e.fleet import Fleet
from tests.e2e.processes import DEADLINE_SECONDS, until

pb, agent_pb = scheduler_pb2, node_agent_pb2
__all__ = ["private"]

START = "ab" * 8
SECRET, VALUE = "ANNS_SECRET", "of ann alone"
DATA = b"data of the matrix of changes"
REFUSED = {Reason.PERMISSION_DENIED, Reason.NOT_YOUR_JOB}
"""What a call on something of another's is answered with."""
NOT_LET = REFUSED | {Reason.FILE_NOT_UPLOADED, Reason.NODE_ID_TAKEN, Reason.OUTPUT_PRIVATE}
"""The same, where a call has another word for it."""

OWNED = {
    "a job": "Cancel UpdateJob SignalJob RequeueJob AttachJob ForwardPort ExecJob AccessFiles KeepFiles",
    "a model": "ServeModel DrainWorker StopModel",
    "secrets": "SetSecret ListSecrets RemoveSecret",
    "a file": "DownloadBlob",
    "a node": "Register Heartbeat ReportOutput FetchBlob StoreResults",
    "a worker's model": "ConnectWorker",
    # Numbers that nobody can guess stand for what these are about; sessions have tests of their own.
    "a thing with a secret name": "OpenChannel CarryPort CarryExec CarryFiles CloseSession",
    # They make something of the caller's own, or add to what is theirs.
    "the caller's own": "Submit Ingest FindMissingBlobs UploadBlob CheckFiles OpenSession JoinProgram ReportRequests "
    "CountRequests Login Logout",
    "nobody's, or the whole fleet's": "CheckCapacity Estimate GetNodeHistory GetQueueHistory ListUsage GetServerInfo "
    "ListSessionUsage WatchWorkers ListRequestUsage ListNodes UpdateNode ForgetNode ApproveNode RevokeNode "
    "UpdateServer CreateToken ListTokens RevokeToken ListAuditEntries ListGroups SetGroup RenameGroup RemoveGroup "
    "DescribeLogin BeginLogin",
}
WHOSE = {name: whose for whose, names in OWNED.items() for name in names.split()}


@dataclass
class Scene:
    """What is ann's, and of which node her job is."""

    job: int
    model: str
    digest: str
    key: Any = field(default_factory=agent_pb.AttemptKey)


@dataclass(frozen=True)
class Person:
    """Somebody with a token, and what of ann's is theirs."""

    name: str
    role: str
    token: str
    has: frozenset[str] = frozenset()

    def may_make(self, call: str) -> bool:
        """By its role alone."""
        if self.role == "job":
            return call in {*MINE.split(), "GetServerInfo"}
        if self.role == "node":
            return call in ("Register", "GetServerInfo")
        return self.role in ALLOWED[call]

    def is_let(self, call: str) -> bool:
        """Whether it may make this call on what is ann's."""
        return self.may_make(call) and (self.role == "admin" or WHOSE[call] in self.has)


def requests(scene: Scene) -> dict[str, Callable[[], Any]]:
    """Each call on what is ann's; of one that is let through nothing changes but what it says."""
    jobs, job, mask = select(scene.job), scene.job, FieldMask(paths=["band"])
    model = sessions_pb2.Model(name=scene.model, entry_point="a:C", worker=job_pb2.JobSpec(argv=["x"]), max_workers=1)
    n1: dict[str, Any] = {"node": "n1", "incarnation": 1}
    return {
        "ForwardPort": lambda: pb.ForwardPortRequest(target=pb.ForwardedPort(job_id=job, port=9)),
        "ExecJob": lambda: pb.ExecJobRequest(start=job_pb2.ExecStart(job_id=job, argv=["true"])),
        "KeepFiles": lambda: files_pb2.KeepFilesRequest(job_id=job),
        "AccessFiles": lambda: files_pb2.AccessFilesRequest(target=files_pb2.AccessedFiles(job_id=job)),
        "AttachJob": lambda: pb.AttachJobRequest(job_id=job),
        "SignalJob": lambda: pb.SignalJobRequest(jobs=jobs, signal=28),
        "UpdateJob": lambda: pb.UpdateJobRequest(jobs=jobs, update_mask=mask, band=job_pb2.BAND_LOW),
        "RequeueJob": lambda: pb.RequeueJobRequest(jobs=jobs),
        "Cancel": lambda: pb.CancelRequest(jobs=jobs),
        "ServeModel": lambda: sessions_pb2.ServeModelRequest(model=model),
        "DrainWorker": lambda: sessions_pb2.DrainWorkerRequest(model=scene.model, worker_start=START),
        "StopModel": lambda: sessions_pb2.StopModelRequest(name=scene.model),
        "SetSecret": lambda: pb.SetSecretRequest(name=SECRET, value="forged", user="ann"),
        "ListSecrets": lambda: pb.ListSecretsRequest(user="ann"),
        "RemoveSecret": lambda: pb.RemoveSecretRequest(name=SECRET, user="ann"),
        "DownloadBlob": lambda: files_pb2.DownloadBlobRequest(digest=scene.digest),
        "Register": lambda: announcement("n1"),
        "Heartbeat": lambda: agent_pb.HeartbeatRequest(
            **n1, sequence=1, inventory=agent_pb.Inventory(boot_id="b", info=INFO)
        ),
        "ReportOutput": lambda: agent_pb.ReportOutputRequest(**n1, chunks=[forged(job, b"forged\n")]),
        "FetchBlob": lambda: agent_pb.FetchBlobRequest(**n1, key=scene.key, digest=scene.digest),
        "StoreResults": lambda: agent_pb.StoreResultsRequest(**n1, key=scene.key, manifest=b"{}"),
        "ConnectWorker": lambda: sessions_pb2.ConnectWorkerRequest(
            hello=sessions_pb2.WorkerHello(
                model=scene.model, endpoint="127.0.0.1:9", worker_start=token_hex(8), ticket_secret=b"s" * 32
            )
        ),
    }


def test_every_call_that_may_change_something_says_once_whose_that_is() -> None:
    tells = {name for name, kind in KIND.items() if kind.startswith(("what a job does", "that there is a job"))}
    assert tells - WHOSE.keys() | WHOSE.keys() == {name.partition("/")[2] for name in METHODS}
    assert sum(len(names.split()) for names in OWNED.values()) == len(WHOSE)


@asynccontextmanager
async def everybody(fleet: Fleet, name: str) -> AsyncIterator[tuple[list[Person], Scene]]:
    """One of each role, of ann's and of others'; ann's job runs on n1, and her model has this name."""
    async with fleet.client() as admin:

        async def token(user: str, role: str) -> str:
            request = pb.CreateTokenRequest(user=user, role=pb.Role.Value(f"ROLE_{role.upper()}"))
            return str((await admin.stub.CreateToken(request, timeout=DEADLINE_SECONDS)).secret)

        anns, bobs = await token("ann", "user"), await token("bob", "user")
        found = [Person("bob", "user", bobs)]
        for role in ("viewer", "node", "agent", "gateway", "worker"):
            found.append(Person(f"a {role}", role, await token("somebody", role)))
        found += [Person(f"a {role} of ann's", role, await token("ann", role)) for role in ("viewer", "gateway")]
        other = await joined(fleet, "other", fleet.scheduler.token("agent"))
        found.append(Person("the credential of another node", "agent", other))
        async with fleet.client(anns) as ann, fleet.client(bobs) as bob:
            await upload(ann, DATA)
            await ann.stub.SetSecret(pb.SetSecretRequest(name=SECRET, value=VALUE))
            model = sessions_pb2.Model(name=name, entry_point="a:B", worker=ann.spec("sleep", "9"), max_workers=1)
            await ann.stub.ServeModel(sessions_pb2.ServeModelRequest(model=model))
            its, another = await started(ann), await started(bob)
            found.append(Person("a job of bob's", "job", another.token))
            worker = await token("ann", "worker")
            found.append(Person("ann's worker", "worker", worker, frozenset({"a worker's model"})))
            found.append(Person("ann's job", "job", its.token, frozenset({"a job"})))
            has = frozenset({"a job", "a model", "secrets", "a file", "a worker's model"})
            found.append(Person("ann", "user", anns, has))
            found.append(Person("the admin", "admin", fleet.scheduler.token("admin")))
            running = await ann.job(its.job)
            key = agent_pb.AttemptKey(job_id=its.job, attempt=1, lineage=running.attempts[-1].lineage)
            yield found, Scene(its.job, name, file("x", DATA).digest, key)
            await admin.cancel(another.job)
            await forget_node(admin, "other")


async def as_it_was(admin: Client, scene: Scene) -> list[str]:
    """All that is ann's, as the admin sees it."""
    job = await admin.job(scene.job)
    models = (await admin.stub.ListModels(sessions_pb2.ListModelsRequest())).models
    secrets = await admin.stub.ListSecrets(pb.ListSecretsRequest(user="ann"))
    node = await admin.node("n1")
    its_model = [f"{each.name} {each.owner} {each.entry_point} {each.max_workers}" for each in models]
    output = await admin.stdout(scene.job, follow=False)
    its_job = f"{job.state} {job.spec.band} {job.attempt_count} {output!r}"
    return [its_job, *its_model, str(secrets), str(node.is_connected)]


async def test_a_nodes_own_credential_does_for_its_node_all_that_no_other_may(fleet: Fleet, admin: Client) -> None:
    """The other half of the row of nodes: each of its calls passes, of the node itself and of what is placed on it."""
    own = await joined(fleet, "its-own", fleet.scheduler.token("agent"))
    node: dict[str, Any] = {"node": "its-own", "incarnation": 2}
    await upload(admin, DATA)
    async with dial(fleet.scheduler.address, None) as channel, agent(fleet, own) as stub:
        caller = Caller(channel)
        job = await admin.submit(
            "x", files=[file("x", DATA)], results=["*"], nodelist=["its-own"], cwd="", no_requeue=True
        )
        made: dict[str, bool] = {}

        async def passes(call: str, request: Any) -> None:
            full = next(each for each in METHODS if each.endswith(f"/{call}"))
            made[call] = await caller.reason(full, request, token=own) is None
            assert made[call], call

        await passes("Register", announcement("its-own", incarnation=2))
        stream: Any = stub.Heartbeat(timeout=2 * DEADLINE_SECONDS)
        inventory = agent_pb.Inventory(boot_id="b", info=INFO)
        await stream.write(agent_pb.HeartbeatRequest(**node, sequence=1, inventory=inventory))
        made["Heartbeat"] = bool((await stream.read()).term)
        running = await admin.wait(job, job_pb2.JOB_STATE_STARTING)
        key = agent_pb.AttemptKey(job_id=job, attempt=1, lineage=running.attempts[-1].lineage)
        await passes("FetchBlob", agent_pb.FetchBlobRequest(**node, key=key, digest=file("x", DATA).digest))
        await stream.write(
            agent_pb.HeartbeatRequest(**node, sequence=2, attempt_started=agent_pb.AttemptStarted(key=key))
        )
        chunk = agent_pb.OutputChunk(key=key, stream=job_pb2.STREAM_STDOUT, data=b"its own\n", is_end=True)
        await passes("ReportOutput", agent_pb.ReportOutputRequest(**node, chunks=[chunk]))
        end = agent_pb.AttemptExited(
            key=key,
            exit=job_pb2.ExitStatus(code=0),
            reason="EXITED",
            output_ends=[job_pb2.OutputEnd(stream=job_pb2.STREAM_STDOUT, end_offset=len(chunk.data))],
            output_is_complete=True,
        )
        await stream.write(agent_pb.HeartbeatRequest(**node, sequence=3, attempt_exited=end))
        assert (await admin.wait(job)).state == job_pb2.JOB_STATE_SUCCEEDED
        manifest = manifest_of(Folder((), ()))
        await passes("StoreResults", agent_pb.StoreResultsRequest(**node, key=key, manifest=manifest))
        assert made == dict.fromkeys(OWNED["a node"].split(), True)
        assert await admin.stdout(job) == chunk.data
        stream.cancel()
        del stream
    await forget_node(admin, "its-own")


@pytest.mark.parametrize("output", ["owner", "team"])
async def test_what_is_anothers_is_changed_by_its_owner_and_admins_alone(
    private: tuple[Fleet, Path], output: str
) -> None:
    fleet, settings = private
    settings.write_text(f'[privacy]\noutput = "{output}"\n')
    fleet.scheduler.signal(signal.SIGHUP)
    async with (
        everybody(fleet, f"anns-model-{output}") as (people, scene),
        dial(fleet.scheduler.address, None) as channel,
    ):
        caller, calls = Caller(channel), requests(scene)
        named = {name for name, whose in WHOSE.items() if not whose.startswith(("a thing", "the caller", "nobody"))}
        assert calls.keys() == named
        async with fleet.client() as admin:
            before = await as_it_was(admin, scene)
            for who in people:
                for name, make in calls.items():
                    if who.is_let(name):
                        continue
                    full = next(each for each in METHODS if each.endswith(f"/{name}"))
                    reason = await caller.reason(full, make(), token=who.token)
                    where = f"{name} of ann's by {who.name}, output = {output}: {reason}"
                    assert reason in (NOT_LET if who.may_make(name) else {Reason.PERMISSION_DENIED}), where
            assert await as_it_was(admin, scene) == before, "a call that is refused changes nothing"
            # Those whose it is are let through: last, for these calls end it all.
            for who in people:
                for name, make in calls.items():
                    if who.is_let(name) and WHOSE[name] != "a node":
                        full = next(each for each in METHODS if each.endswith(f"/{name}"))
                        reason = await caller.reason(full, make(), token=who.token)
                        assert reason not in REFUSED, f"{name} of ann's by {who.name}, output = {output}: {reason}"

            async def is_over() -> bool:
                return (await admin.job(scene.job)).state == job_pb2.JOB_STATE_CANCELLED

            await until("ann's job is cancelled", is_over)
