"""Mutual TLS: a certificate and a token of the same, at each call; neither alone is of any use."""

from __future__ import annotations

import asyncio
import getpass
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from gpufleet.v1 import node_agent_pb2_grpc, scheduler_pb2, scheduler_pb2_grpc, sessions_pb2

from gpufleet.errors import Reason
from gpufleet.net.certificates import make_certificates, make_client_certificate
from gpufleet.net.status import from_rpc_error
from tests.api.test_own_node import announcement
from tests.e2e.client import dial, refusal
from tests.e2e.fleet import Fleet
from tests.e2e.processes import DEADLINE_SECONDS

pb = scheduler_pb2
ROOT = Path(__file__).parents[2]


@dataclass
class House:
    """A fleet whose scheduler asks for certificates, and the folder of its authority."""

    fleet: Fleet
    folder: Path
    user: str

    def certificate(self, identity: str) -> Path:
        return make_client_certificate(self.folder, identity)

    def dial(self, token: str, identity: str | None) -> Any:
        file = None if identity is None else self.certificate(identity)
        return dial(self.fleet.scheduler.address, token, self.fleet.ca_file, file)

    async def made(self, role: str, user: str = "ann", **fields: Any) -> str:
        async with self.fleet.client() as admin:
            request = pb.CreateTokenRequest(user=user, role=pb.Role.Value(f"ROLE_{role.upper()}"), **fields)
            return str((await admin.stub.CreateToken(request, timeout=DEADLINE_SECONDS)).secret)

    async def said(self, token: str, identity: str) -> Reason | None:
        """Why a reader's call is refused, if it is."""
        async with self.dial(token, identity) as channel:
            stub = scheduler_pb2_grpc.SchedulerStub(channel)
            try:
                await stub.ListModels(sessions_pb2.ListModelsRequest(), timeout=DEADLINE_SECONDS)
            except grpc.aio.AioRpcError as problem:
                return from_rpc_error(problem).reason
        return None


@pytest.fixture(scope="module")
def house(
    long_lived: Callable[[str], AbstractContextManager[None]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("mutual")
    tls = make_certificates(folder / "tls", ["127.0.0.1"])
    flags = ("--tls-cert", str(tls.cert_file), "--tls-key", str(tls.key_file))
    environment = {"GPUCTL_SCHEDULER_TLS_CLIENT_CA_FILE": str(tls.ca_file)}
    fleet = Fleet(folder / "fleet", *flags, environment=environment)
    fleet.ca_file = tls.ca_file

    async def start() -> str:
        await fleet.scheduler.start()
        user = getpass.getuser()  # the admin of a first start
        fleet.client_cert_file = make_client_certificate(folder / "tls", f"user:{user}")
        ours = make_client_certificate(folder / "tls", "node:n1")
        jobs = make_client_certificate(folder / "tls", "job")
        known = ("--ca-file", str(tls.ca_file), "--client-cert-file", str(ours), "--virtual-gpus", "1")
        await fleet.add_node("n1", *known, environment={"GPUCTL_AGENT_JOB_CERT_FILE": str(jobs)})
        return user

    try:
        with long_lived("the fleet with certificates"):
            user = asyncio.run(start())
        yield House(fleet, folder / "tls", user)
    finally:
        asyncio.run(fleet.end())


async def test_nobody_without_a_certificate_gets_a_connection(house: House, tmp_path: Path) -> None:
    strange = make_client_certificate(tmp_path / "other authority", f"user:{house.user}")
    admin = house.fleet.scheduler.token("admin")
    for file in (None, strange):
        async with dial(house.fleet.scheduler.address, admin, house.fleet.ca_file, file) as channel:
            stub = scheduler_pb2_grpc.SchedulerStub(channel)
            error = await refusal(stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=DEADLINE_SECONDS))
            assert error.reason in (Reason.TLS_FAILED, Reason.SCHEDULER_UNREACHABLE)


async def test_a_certificate_and_a_token_are_of_the_same(house: House) -> None:
    tokens = {
        f"user:{house.user}": house.fleet.scheduler.token("admin"),
        "user:ann": await house.made("user"),
        "gateway:old": house.fleet.scheduler.token("gateway"),
    }
    for whose, token in tokens.items():
        for identity in (*tokens, "node:n1", "worker:w1", "job"):
            wanted = None if identity == whose else Reason.PERMISSION_DENIED
            assert await house.said(token, identity) is wanted, (whose, identity)


async def test_a_node_speaks_for_the_name_in_its_certificate(house: House) -> None:
    joining = await house.made("node", user="nodes")
    for identity, name, is_let_in in (("node:n2", "n3", False), ("gateway:n3", "n3", False), ("node:n3", "n3", True)):
        async with house.dial(joining, identity) as channel:
            stub = node_agent_pb2_grpc.NodeAgentStub(channel)
            call = stub.Register(announcement(name), timeout=DEADLINE_SECONDS)
            if is_let_in:
                credential = (await call).credential
            else:
                assert (await refusal(call)).reason is Reason.PERMISSION_DENIED
    async with house.dial(credential, "node:n1") as channel:
        stub = node_agent_pb2_grpc.NodeAgentStub(channel)
        assert (await refusal(stub.Register(announcement("n3")))).reason is Reason.PERMISSION_DENIED


async def test_a_gateway_joins_under_the_name_in_its_certificate(house: House) -> None:
    joining = await house.made("gateway", uses_max=1)
    request = pb.JoinProgramRequest(name="edge", digest="ab" * 32)
    async with house.dial(joining, "gateway:other") as channel:
        error = await refusal(scheduler_pb2_grpc.SchedulerStub(channel).JoinProgram(request))
        assert error.reason is Reason.PERMISSION_DENIED and "gateway:edge" in str(error)
    async with house.dial(joining, "gateway:edge") as channel:
        answer = await scheduler_pb2_grpc.SchedulerStub(channel).JoinProgram(request)
        assert answer.credential.program == "edge"


async def test_a_job_reaches_its_scheduler_by_the_certificate_of_its_nodes_jobs(house: House) -> None:
    async with house.fleet.client() as admin:
        gpuctl = f"{shlex.quote(sys.executable)} -P -m gpufleet.cli"
        line = f"cd {shlex.quote(str(ROOT))}; {gpuctl} job $GPUFLEET_JOB_ID -o name"
        job = await admin.run("/bin/sh", "-c", line)
        assert (await admin.stdout(job.id)).decode().strip() == str(job.id)
