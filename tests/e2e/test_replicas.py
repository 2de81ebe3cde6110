"""A program that is served: its replicas are jobs of the fleet, reached with the key that gateways are told."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import pytest
from gpufleet.v1 import inference_pb2, job_pb2, scheduler_pb2, sessions_pb2

from gpufleet.net.addresses import parse_address
from gpufleet.security.tickets import connect_line
from tests.e2e.client import Client
from tests.e2e.fleet import Fleet
from tests.e2e.processes import DEADLINE_SECONDS, until
from tests.inference.http_service.test_child import is_alive
from tests.inference.http_service.test_shim import PROGRAM

pytestmark = pytest.mark.slow


def chat(admin: Client) -> sessions_pb2.ServeModelRequest:
    (admin.cwd / "program.py").write_text(PROGRAM.replace("self.path} of", "self.path} from {os.getpid()} of"))
    worker = admin.spec(sys.executable, "-P", "-m", "gpufleet.inference", gpus=1)
    http = sessions_pb2.HttpService(
        argv=[sys.executable, "program.py", "$LISTEN"], port_env="LISTEN", ready_path="/health"
    )
    model = sessions_pb2.Model(name="chat", worker=worker, http=http, min_workers=1, max_workers=1)
    return sessions_pb2.ServeModelRequest(model=model)


async def ready_replica(fleet: Fleet, *, but: str = "") -> sessions_pb2.WorkerInfo:
    """A replica that is ready, with its key, as a gateway is told it."""
    async with fleet.client(fleet.scheduler.token("gateway")) as gateway:
        async with asyncio.timeout(DEADLINE_SECONDS):
            async for answer in gateway.stub.WatchWorkers(sessions_pb2.WatchWorkersRequest(model="chat")):
                for each in answer.workers:
                    if each.state == inference_pb2.WORKER_STATE_READY and each.worker_start != but:
                        return each
    raise AssertionError("the stream has ended")


async def pid_behind(replica: sessions_pb2.WorkerInfo) -> int:
    """What a request is answered by."""
    at = parse_address(replica.endpoint)
    async with asyncio.timeout(DEADLINE_SECONDS):
        reader, writer = await asyncio.open_connection(at.host, at.port)
        try:
            writer.write(connect_line(replica.connect_key) + b"GET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
            answer = await reader.read()
        finally:
            writer.close()
    assert answer.startswith(b"HTTP/1.1 200 ")
    return int(answer.rpartition(b" from ")[2].split()[0])


async def test_a_replica_is_a_job_that_is_reached_replaced_and_ended_with_its_program(
    fleet: Fleet, admin: Client
) -> None:
    await fleet.add_node("n1")
    await admin.stub.ServeModel(chat(admin))
    first = await ready_replica(fleet)
    assert (first.seats, len(first.connect_key)) == (64, 32)
    pid = await pid_behind(first)

    # The program dies: the replica ends with it, and another attempt takes over.
    os.kill(pid, signal.SIGKILL)
    second = await ready_replica(fleet, but=first.worker_start)
    assert second.job_id == first.job_id
    job = await admin.job(first.job_id)
    assert (job.attempt_count, job.attempts[0].exit.code) == (2, 137)
    pid = await pid_behind(second)

    # The shim dies without a word, and the program with it.
    jobs = scheduler_pb2.JobSelector(job_ids=[first.job_id])
    await admin.stub.SignalJob(scheduler_pb2.SignalJobRequest(jobs=jobs, signal=signal.SIGKILL))
    third = await ready_replica(fleet, but=second.worker_start)
    await until("the program has ended with its shim", lambda: not is_alive(pid))
    pid = await pid_behind(third)

    # It is stopped: the program ends, and that is no failure.
    await admin.stub.StopModel(sessions_pb2.StopModelRequest(name="chat"))
    job = await admin.wait(first.job_id, job_pb2.JOB_STATE_CANCELLED, job_pb2.JOB_STATE_SUCCEEDED)
    assert not is_alive(pid)
    assert job.attempts[-1].exit.code == 0


async def test_a_program_that_is_not_there_fails_the_model_at_once_and_says_why(fleet: Fleet, admin: Client) -> None:
    await fleet.add_node("n1")
    request = chat(admin)
    request.model.http.argv[0] = "no-such-program"
    await admin.stub.ServeModel(request)

    async def has_failed() -> bool:
        (model,) = (await admin.stub.ListModels(sessions_pb2.ListModelsRequest())).models
        return "there is no program no-such-program in PATH" in model.failure.message

    await until("the model has failed", has_failed)
    # Gateways are told, so that nobody waits there.
    async with fleet.client(fleet.scheduler.token("gateway")) as gateway, asyncio.timeout(DEADLINE_SECONDS):
        watching: Any = gateway.stub.WatchWorkers(sessions_pb2.WatchWorkersRequest(model="chat"))
        told = await watching.read()
        assert "there is no program no-such-program in PATH" in told.failure.message and not told.failure.last_lines
        # Served again, it is tried anew.
        await admin.stub.ServeModel(chat(admin))
        while (await watching.read()).HasField("failure"):
            pass
        watching.cancel()
