"""Ports of running jobs through real processes: bytes both ways, ends and resets, whose a port is, and who may."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.carrying import PIECE_BYTES_MAX
from scheduler.api.inside.entering import CONNECTIONS_OF_USER_MAX
from tests.e2e.client import Client
from tests.e2e.fleet import Fleet
from tests.e2e.inside.caller import Caller, until_listens
from tests.e2e.processes import until

SERVER = str(Path(__file__).with_name("server.py"))
RUNNING = job_pb2.JOB_STATE_RUNNING
MB = 1024 * 1024
GROWN_BYTES_MAX = 48 * MB
"""What a program may grow by while 512 MB pass it, or wait before it: some times what its buffers may hold."""


@pytest.fixture
async def job(person: Client) -> AsyncIterator[tuple[int, int]]:
    """A job that listens, and its port."""
    job_id = await person.submit(sys.executable, SERVER)
    yield job_id, await until_listens(person, job_id)
    await person.cancel(job_id)
    await person.wait(job_id)


async def test_bytes_go_both_ways_and_each_direction_has_an_end_of_its_own(
    person: Client, job: tuple[int, int]
) -> None:
    async with Caller(person, *job) as caller, Caller(person, *job) as another:
        assert caller.attempt == 1
        await caller.send(b"echo\nhello\n")
        assert await caller.read() == b"hello\n"
        await another.send(b"echo\nI am another\n")
        assert await another.read() == b"I am another\n"
        await caller.end()
        assert await caller.rest() == b"bye"
        await another.send(b"still here\n")
        assert await another.read() == b"still here\n"
    entered = [line for line in await person.story(job[0]) if "connected" in line]
    assert entered == [f"root connected to port {job[1]} of attempt {job[0]}/1."], "told once, and not each time"


async def test_a_reset_of_either_side_is_a_reset_at_the_other(person: Client, job: tuple[int, int]) -> None:
    async with Caller(person, *job) as caller:
        await caller.send(b"reset\n")
        assert await caller.read() is None
    async with Caller(person, *job) as caller:
        await caller.send(b"ended\nno end behind this")
    # The job's process meets an error where it would have read an end: it does not say what it had read.
    async with Caller(person, *job) as caller:
        await caller.send(b"ended\nan end behind this", is_end=True)
        assert await caller.rest() == b""
    await until("it was ended once", lambda: _said(person, job[0], b"ended b'an end behind this'"))
    assert not await _said(person, job[0], b"no end")


async def test_one_that_takes_nothing_stops_itself_alone_and_leaves_at_once(
    person: Client, job: tuple[int, int], shared_fleet: Fleet
) -> None:
    async with Caller(person, *job) as stalled:
        await stalled.send(b"stall\n")
        sending = asyncio.create_task(_send_without_end(stalled))
        await until("it is not taken any more", lambda: _stands_still(stalled))
        async with Caller(person, *job) as caller:
            await caller.send(b"echo\nstill\n")
            assert await caller.read() == b"still\n"
        assert stalled.sent_bytes < 32 * MB, "what waits on the way is bounded"
        await until("it alone is open", lambda: _connections_to(shared_fleet, job[1]) == 1)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    await until("the agent has let go of it", lambda: _connections_to(shared_fleet, job[1]) == 0)


async def test_a_flood_both_ways_arrives_whole_and_memory_stays_flat(
    person: Client, job: tuple[int, int], shared_fleet: Fleet
) -> None:
    programs = [psutil.Process(shared_fleet.scheduler.pid), psutil.Process(shared_fleet.agents["n1"].pid)]
    async with Caller(person, *job) as warm:
        await warm.send(b"flood 64\n", is_end=True)
        assert len(await warm.rest()) == 64 * 65_536
    before = [program.memory_info().rss for program in programs]
    count = 4_096
    async with Caller(person, *job) as caller:
        await caller.send(f"flood {count}\n".encode())

        async def send() -> None:
            for _ in range(count // 4):
                await caller.send(b"z" * PIECE_BYTES_MAX)
            await caller.end()

        sending = asyncio.create_task(send())
        received = 0
        while data := await caller.read():
            received += len(data)
        await sending
        assert (received, data) == (count * 65_536, b"")
    for program, rss in zip(programs, before, strict=True):
        assert program.memory_info().rss - rss < GROWN_BYTES_MAX, program.cmdline()


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "::1", "child"])
async def test_whatever_process_of_the_job_listens_at_whatever_address_is_reached(person: Client, address: str) -> None:
    job_id = await person.submit(sys.executable, SERVER, address)
    async with Caller(person, job_id, await until_listens(person, job_id)) as caller:
        await caller.send(b"echo\nhello\n")
        assert await caller.read() == b"hello\n"
    await person.cancel(job_id)


async def test_ports_of_other_jobs_of_the_node_and_of_nobody_are_not_reached(
    person: Client, job: tuple[int, int], shared_fleet: Fleet
) -> None:
    other = await person.submit("sleep", "600")
    await person.wait(other, RUNNING)
    scheduler_port = int(shared_fleet.scheduler.address.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", 0)) as of_the_node:
        of_the_node.setblocking(False)
        for port in (job[1], scheduler_port, of_the_node.getsockname()[1]):
            with pytest.raises(GpufleetError, match="what listens on it there is no process of the job") as caught:
                async with Caller(person, other, port):
                    pass
            assert caught.value.reason is Reason.PORT_NOT_OPEN
        with pytest.raises(BlockingIOError):
            of_the_node.accept()
        free = of_the_node.getsockname()[1]
    with pytest.raises(GpufleetError, match="nothing does on its node") as caught:
        async with Caller(person, other, free):
            pass
    assert "gpuctl logs" in caught.value.next_step
    assert "JobEntered" not in await person.kinds(other)
    await person.cancel(other)


async def test_a_port_that_others_share_is_not_reached(person: Client) -> None:
    """With SO_REUSEPORT the kernel would give them some of the connections."""
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as rival:
        port = rival.getsockname()[1]
        shared = f"s = socket.create_server(('', {port}), reuse_port=True); print('listening', {port}, flush=True)"
        script = f"import socket, time; {shared}; time.sleep(600)"
        job_id = await person.submit(sys.executable, "-c", script)
        await until_listens(person, job_id)
        with pytest.raises(GpufleetError, match="others listen on port") as caught:
            async with Caller(person, job_id, port):
                pass
        assert caught.value.reason is Reason.PORT_NOT_OPEN
    await person.cancel(job_id)


async def test_only_the_owner_and_admins_reach_a_port(
    person: Client, job: tuple[int, int], shared_fleet: Fleet
) -> None:
    request = scheduler_pb2.CreateTokenRequest(user="mallory", role=scheduler_pb2.ROLE_USER)
    made = await person.stub.CreateToken(request)
    async with shared_fleet.client(made.secret) as mallory:
        with pytest.raises(GpufleetError) as caught:
            async with Caller(mallory, *job):
                pass
        assert caught.value.reason is Reason.NOT_YOUR_JOB
        own = await mallory.submit(sys.executable, SERVER)
        port = await until_listens(mallory, own)
        async with Caller(mallory, own, port) as caller, Caller(person, own, port) as admin:
            await caller.send(b"echo\nmine\n")
            assert await caller.read() == b"mine\n"
            await admin.send(b"echo\nand mine\n")
            assert await admin.read() == b"and mine\n"
        entered = [line for line in await mallory.story(own) if "connected" in line]
        assert [line.split()[0] for line in entered] == ["mallory", "root"]
        # A token that is revoked reaches nothing more, by what is open neither.
        async with Caller(mallory, own, port) as caller:
            await caller.send(b"echo\n")
            await person.stub.RevokeToken(scheduler_pb2.RevokeTokenRequest(id=made.token.id))
            assert await caller.read() is None
    await person.cancel(own)


async def test_what_cannot_be_meant_is_refused_by_name(person: Client) -> None:
    held = await person.submit("true", is_held=True)
    ended = (await person.run("true")).id
    for job_id, port, rank, reason, said in (
        (0, 80, 0, Reason.INVALID_ARGUMENT, "target.job_id"),
        (held, 0, 0, Reason.INVALID_ARGUMENT, "target.port: is 0"),
        (held, 65_536, 0, Reason.INVALID_ARGUMENT, "target.port"),
        (10**9, 80, 0, Reason.JOB_NOT_FOUND, "no job"),
        (held, 80, 0, Reason.JOB_NOT_RUNNING, "no running process"),
        (ended, 80, 0, Reason.JOB_FINISHED, "has ended"),
    ):
        with pytest.raises(GpufleetError, match=said) as caught:
            async with Caller(person, job_id, port, rank):
                pass
        assert caught.value.reason is reason
    running = await person.submit("sleep", "600")
    await person.wait(running, RUNNING)
    for rank in (-1, 1):
        with pytest.raises(GpufleetError, match=r"target\.rank"):
            async with Caller(person, running, 80, rank):
                pass
    await person.cancel(held, running)


async def test_one_person_opens_no_more_than_so_many(person: Client, job: tuple[int, int]) -> None:
    callers = [Caller(person, *job) for _ in range(CONNECTIONS_OF_USER_MAX)]
    try:
        await asyncio.gather(*(each.__aenter__() for each in callers))
        with pytest.raises(GpufleetError) as caught:
            async with Caller(person, *job):
                pass
        assert caught.value.reason is Reason.TOO_MANY_STREAMS
    finally:
        for each in callers:
            await each.__aexit__()

    async def is_let_in() -> bool:
        try:
            async with Caller(person, *job):
                return True
        except GpufleetError as problem:
            assert problem.reason is Reason.TOO_MANY_STREAMS
            return False

    await until("there is room again", is_let_in)


async def _said(person: Client, job_id: int, words: bytes) -> bool:
    return words in await person.stdout(job_id, follow=False)


async def _send_without_end(caller: Caller) -> None:
    while True:
        await caller.send(b"s" * PIECE_BYTES_MAX)


async def _stands_still(caller: Caller) -> bool:
    """Whether nothing was taken for a hundred looks."""
    before = caller.sent_bytes
    for _ in range(100):
        await asyncio.sleep(0.01)
        if caller.sent_bytes != before:
            return False
    return before > 0


def _connections_to(fleet: Fleet, port: int) -> int:
    connections = psutil.Process(fleet.agents["n1"].pid).net_connections("tcp")
    return sum(1 for each in connections if each.raddr and each.raddr.port == port)
