"""Sessions over machines: workers that the fleet starts, a gateway on a machine of its own, and TLS on every way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from gpufleet.v1 import inference_pb2, inference_pb2_grpc, sessions_pb2

from gpufleet.net.addresses import parse_address
from gpufleet.net.certificates import make_certificates
from gpufleet.net.channel import Target, connect_async
from gpufleet.net.tls import OWN_NAME
from tests.e2e.client import Client
from tests.e2e.processes import DEADLINE_SECONDS
from tests.gateway.stage import Browser, Side, browser_at
from tests.several_nodes.door import Door
from tests.several_nodes.fleet import SpreadFleet
from tests.several_nodes.network import Machine, Network

pytestmark = pytest.mark.nightly

MODEL = "drawn"


@dataclass
class Studio:
    """A scheduler with TLS on `head`, a node with one GPU on each of two machines, and a gateway on `edge`."""

    fleet: SpreadFleet
    head: Machine
    edge: Machine
    gateway: Side
    door: Door

    def browser(self) -> AbstractAsyncContextManager[Browser]:
        """Somebody's page on the gateway."""
        return browser_at(self.door.address)

    async def serve(self, workers: int) -> None:
        """Have the model served as anybody would, with nothing said of TLS."""
        words = ("serve", "test-pattern", "--name", MODEL, "--gpus", "1", "--min", str(workers))
        home = self.fleet.work
        environment = {**self.fleet.as_admin(), "GPUCTL_CA_FILE": str(self.fleet.ca_file)}
        del environment["GPUCTL_INSECURE"]
        done = await self.head.gpuctl(*words, "--model-arg", "seats=1", home=home, **environment)
        assert done.code == 0, done.err

    async def workers(self, admin: Client, count: int) -> list[sessions_pb2.WorkerInfo]:
        """So many workers that take turns, as those learn of them who open turns there."""
        watched: Any = admin.stub.WatchWorkers(sessions_pb2.WatchWorkersRequest(model=MODEL), timeout=DEADLINE_SECONDS)
        try:
            async for each in watched:
                ready = [one for one in each.workers if one.state == inference_pb2.WORKER_STATE_READY]
                if len(ready) == count:
                    return ready
        finally:
            watched.cancel()
        raise AssertionError("the scheduler ended the stream")


@pytest.fixture
async def studio(network: Network, head: Machine, tmp_path: Path) -> AsyncIterator[Studio]:
    tls = make_certificates(tmp_path / "tls", [head.address, "127.0.0.1"])
    flags = ("--host", head.address, "--tls-cert", str(tls.cert_file), "--tls-key", str(tls.key_file))
    fleet = SpreadFleet(tmp_path / "fleet", head, *flags)
    fleet.ca_file = tls.ca_file
    edge = network.machine("edge")
    async with fleet:
        for name in ("node1", "node2"):
            machine = network.machine(name)
            known = ("--ca-file", str(tls.ca_file), "--virtual-gpus", "1")
            await fleet.add_node(name, *known, inside=machine.inside)
        token = str(fleet.scheduler.data / "gateway.token")
        own = ("--port", "0", "--data", str(tmp_path / "gateway"), "--token-file", token, "--ca-file", str(tls.ca_file))
        gateway = Side(fleet.folder, "gateway", "gpufleet.gateway", *own, "--scheduler", fleet.scheduler.address)
        gateway.inside = edge.inside
        gateway.start()
        door = Door(edge, await gateway.address())
        await door.open()
        try:
            yield Studio(fleet, head, edge, gateway, door)
        finally:
            await door.close()
            gateway.end()


async def info(machine: Machine, endpoint: str, certificate: str = "", *, in_clear: bool = False) -> str:
    """What a worker says that it serves, to somebody on that machine."""
    door = Door(machine, endpoint)
    await door.open()
    try:
        target = Target(address=parse_address(door.address), certificate=certificate.encode(), is_insecure=in_clear)
        async with connect_async(target) as channel:
            stub: Any = inference_pb2_grpc.InferenceStub(channel)
            answer = await stub.GetModelInfo(inference_pb2.GetModelInfoRequest(), timeout=DEADLINE_SECONDS)
            return str(answer.model)
    finally:
        await door.close()


async def draws(page: Browser) -> None:
    """A click of theirs is shown."""
    clicked = await page.click(0.5, 0.5)
    while (await page.frame())[1] < clicked:
        pass


async def test_a_session_from_a_gateway_on_one_machine_to_a_launched_worker_on_another_is_encrypted(
    studio: Studio,
) -> None:
    await studio.serve(workers=1)
    async with studio.fleet.client() as admin:
        (worker,) = await studio.workers(admin, 1)
        listed = (await admin.stub.ListModels(sessions_pb2.ListModelsRequest(), timeout=DEADLINE_SECONDS)).models
    assert not worker.endpoint.startswith("127."), "a worker on another machine than its scheduler"
    assert "BEGIN CERTIFICATE" in worker.certificate
    assert [each.certificate for each in listed[0].workers] == [""], "what only those want who open turns"

    async with studio.browser() as ann:
        await ann.hello(MODEL)
        turn = await ann.text("turn")
        await draws(ann)
        assert turn["worker"] == f"worker {worker.job_id}" == worker.name
        await ann.say(type="leave")
        await ann.text("end")

    # Who trusts its certificate is answered; nobody is in clear text; and the key is nowhere but in the worker.
    assert await info(studio.edge, worker.endpoint, worker.certificate) == MODEL
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await info(studio.edge, worker.endpoint, in_clear=True)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    files = [file for file in studio.fleet.folder.rglob("*") if file.is_file()]
    assert not [file for file in files if b"PRIVATE KEY" in file.read_bytes()]


async def test_another_certificate_than_the_workers_is_refused_and_the_person_gets_another_seat(
    studio: Studio, network: Network, tmp_path: Path
) -> None:
    await studio.serve(workers=2)
    async with studio.fleet.client() as admin:
        first, second = await studio.workers(admin, 2)
    impostor = network.machine("impostor")
    tls = make_certificates(tmp_path / "impostor", [OWN_NAME])
    flags = ("test-pattern", "--name", MODEL, "--standalone", "--host", impostor.address, "--port", "0")
    files = ("--tls-cert", str(tls.cert_file), "--tls-key", str(tls.key_file))
    false = Side(studio.fleet.folder, "impostor", "gpufleet.inference", *flags, *files, "--device", "cpu")
    false.inside = impostor.inside
    false.start()
    there = await false.address()
    host, _, port = first.endpoint.rpartition(":")
    to_first = ("-p", "tcp", "-d", host, "--dport", port)
    studio.edge.iptables("-t", "nat", "-A", "OUTPUT", *to_first, "-j", "DNAT", "--to-destination", there)
    try:
        async with studio.browser() as ann:
            # Both seats are free: the first one is offered first.
            await ann.hello(MODEL)
            assert (await ann.text("turn"))["worker"] == second.name
            await draws(ann)
    finally:
        false.end()
    log = studio.gateway.log.read_text()
    refused = f"worker {first.endpoint} of session s1: what answers there holds another certificate"
    assert refused in log, log
