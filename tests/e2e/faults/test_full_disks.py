"""Disks fill up: what cannot be stored is refused or waits, what runs goes on, and room heals everything."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import Reason
from tests.e2e.client import Client, refusal
from tests.e2e.disks import Disk, small_disk
from tests.e2e.fleet import Fleet
from tests.e2e.processes import until

RUNNING, SUCCEEDED = job_pb2.JOB_STATE_RUNNING, job_pb2.JOB_STATE_SUCCEEDED
STDOUT = job_pb2.STREAM_STDOUT

DISK_BYTES = 16_000_000

PRINT_WHEN_TOLD = """
import os, pathlib, sys, time
def wait_for(name):
    while not pathlib.Path(name).exists():
        time.sleep(0.01)
print("begun", flush=True)
for step in range(1, int(sys.argv[1]) + 1):
    wait_for(f"step {step}")
    for number in range(int(sys.argv[2])):
        print("step", step, "line", number)
    sys.stdout.flush()
    pathlib.Path(f"done {step}").touch()
"""


def printed(steps: int, count: int) -> bytes:
    text = ["begun\n"]
    text += [f"step {step} line {number}\n" for step in range(1, steps + 1) for number in range(count)]
    return "".join(text).encode()


@pytest.fixture
def disk() -> Iterator[Disk]:
    with small_disk(DISK_BYTES) as mounted:
        yield mounted


async def begun(client: Client, job_id: int) -> None:
    async def has_begun() -> bool:
        return bool(await client.output(job_id, follow=False))

    await until(f"job {job_id} has begun", has_begun)


async def info(client: Client) -> scheduler_pb2.GetServerInfoResponse:
    return await client.stub.GetServerInfo(scheduler_pb2.GetServerInfoRequest())


async def refused_for_want_of_room(client: Client) -> None:
    """Submit until the store says that it takes nothing; each refusal is clear."""

    async def is_refused() -> bool:
        request = scheduler_pb2.SubmitRequest(specs=[client.spec("true", "x" * 50_000, is_held=True)])
        error = await refusal(client.stub.Submit(request, timeout=30))
        assert error.reason in (Reason.STORE_UNAVAILABLE, Reason.OUTCOME_UNKNOWN), error
        assert error.next_step and error.retry_after_s is not None
        return error.reason is Reason.STORE_UNAVAILABLE

    await until("submits are refused", is_refused)


async def test_a_full_store_refuses_submits_harms_no_job_and_recovers(tmp_path: Path, disk: Disk) -> None:
    store = f"sqlite:///{disk.path / 'scheduler.db'}"
    async with Fleet(tmp_path / "fleet", "--store", store) as fleet, fleet.client() as admin:
        await fleet.add_node("n1", "--cpus", "4")
        lasting = await admin.submit(sys.executable, "-c", PRINT_WHEN_TOLD, "2", "1000")
        ending = await admin.submit(sys.executable, "-c", PRINT_WHEN_TOLD, "1", "100", cwd=str(second(fleet)))
        await begun(admin, lasting)
        await begun(admin, ending)
        disk.fill()
        lost = scheduler_pb2.SubmitRequest(specs=[admin.spec("true", is_held=True)], request_id="asked while full")
        first = await refusal(admin.stub.Submit(lost))
        assert first.reason in (Reason.STORE_UNAVAILABLE, Reason.OUTCOME_UNKNOWN)
        await refused_for_want_of_room(admin)
        told = await info(admin)
        assert not told.store_is_healthy and "full" in told.store_error, told.store_error
        # What runs prints on and is followed; what ends is known to end once that can be stored.
        (fleet.work / "step 1").touch()
        (second(fleet) / "step 1").touch()

        async def is_all_there(job_id: int, expected: bytes) -> bool:
            return (await admin.output(job_id, follow=False))[1, 0, STDOUT] == expected

        await until("output arrives", lambda: is_all_there(lasting, printed(1, 1000)))
        await until("output arrives", lambda: is_all_there(ending, printed(1, 100)))
        assert (await admin.job(ending)).state == RUNNING
        assert (await admin.queue()).jobs, "reads go on"

        disk.make_room()
        assert (await admin.wait(ending)).state == SUCCEEDED
        (fleet.work / "step 2").touch()
        job = await admin.wait(lasting)
        assert (job.state, job.attempt_count, job.output_is_complete) == (SUCCEEDED, 1, True)
        assert await admin.stdout(lasting) == printed(2, 1000)
        answer = await admin.stub.Submit(lost)
        again = await admin.stub.Submit(lost)
        assert answer.first_job_id == again.first_job_id
        assert (await info(admin)).store_is_healthy
        held = (await admin.queue(states=[job_pb2.JOB_STATE_HELD])).jobs
        assert [job.id for job in held].count(answer.first_job_id) == 1
        assert (await admin.run("true")).state == SUCCEEDED


async def test_a_job_is_signalled_and_stopped_while_the_store_is_full_and_known_as_cancelled_once_there_is_room(
    tmp_path: Path, disk: Disk
) -> None:
    store = f"sqlite:///{disk.path / 'scheduler.db'}"
    async with Fleet(tmp_path / "fleet", "--store", store) as fleet, fleet.client() as admin:
        await fleet.add_node("n1", "--cpus", "4")
        stops = (
            "import pathlib, signal, sys; signal.signal(15, lambda *_: (pathlib.Path('stopped').touch(), sys.exit(3)))"
        )
        notes = "signal.signal(10, lambda *_: open('signals', 'a').write('10 '))"
        waits = "print('begun', flush=True)\nwhile True: signal.pause()"
        job_id = await admin.submit(sys.executable, "-c", f"{stops}; {notes}; {waits}")
        await begun(admin, job_id)
        disk.fill()
        await refused_for_want_of_room(admin)
        request = scheduler_pb2.SignalJobRequest(signal=10, request_id="once")
        request.jobs.job_ids.append(job_id)
        (sent,) = (await admin.stub.SignalJob(request)).changes
        assert sent.changed and "not yet stored" in sent.message, sent
        (again,) = (await admin.stub.SignalJob(request)).changes
        assert not again.changed, again
        await until("the process has its signal", (fleet.work / "signals").exists)
        (change,) = await admin.cancel(job_id)
        assert change.changed and f"job {job_id} is told to stop; not yet stored" in change.message, change
        await until("the process has stopped", (fleet.work / "stopped").exists)
        assert (await admin.job(job_id)).state == RUNNING, "what is not stored is not shown as done"
        disk.make_room()
        job = await admin.wait(job_id)
        assert (job.state, job.attempt_count) == (job_pb2.JOB_STATE_CANCELLED, 1)
        assert (fleet.work / "signals").read_text() == "10 ", "sent once"


def second(fleet: Fleet) -> Path:
    folder = fleet.work / "second"
    folder.mkdir(exist_ok=True)
    return folder


async def test_a_scheduler_with_a_full_store_leaves_when_told_and_knows_all_that_was_acknowledged(
    tmp_path: Path, disk: Disk
) -> None:
    store = f"sqlite:///{disk.path / 'scheduler.db'}"
    async with Fleet(tmp_path / "fleet", "--store", store) as fleet:
        async with fleet.client() as admin:
            known = [await admin.submit("true", is_held=True) for _ in range(3)]
            disk.fill()
            await refused_for_want_of_room(admin)
        assert await fleet.scheduler.stop() == 0
        assert "Traceback" not in fleet.scheduler.log_text()
        disk.make_room()
        await fleet.scheduler.start()
        async with fleet.client() as admin:
            assert set(known) <= {job.id for job in (await admin.queue()).jobs}


async def test_a_full_output_disk_holds_the_output_on_the_nodes_until_there_is_room(tmp_path: Path, disk: Disk) -> None:
    environment = {"GPUCTL_AGENT_SPOOL_ATTEMPT_BYTES_MAX": "1MB"}
    fleet = Fleet(tmp_path / "fleet")
    (fleet.scheduler.data).mkdir()
    (fleet.scheduler.data / "output").symlink_to(disk.path, target_is_directory=True)
    async with fleet, fleet.client() as admin:
        await fleet.add_node("n1", "--cpus", "4", environment=environment)
        large = await admin.submit(sys.executable, "-c", PRINT_WHEN_TOLD, "1", "150000")
        small = await admin.submit(sys.executable, "-c", PRINT_WHEN_TOLD, "1", "5000", cwd=str(second(fleet)))
        await begun(admin, large)
        await begun(admin, small)
        disk.fill()
        (fleet.work / "step 1").touch()
        (second(fleet) / "step 1").touch()

        async def waits() -> bool:
            return "SpoolStateChanged" in await admin.kinds(large)

        async def is_told() -> bool:
            return bool((await info(admin)).store_error)

        await until("the large job waits for room", waits)
        await until("the trouble is told", is_told)
        assert not (fleet.work / "done 1").exists(), "the job is held in its write"
        await until("the small job has printed all", (second(fleet) / "done 1").exists)
        assert (await admin.job(small)).state == RUNNING, "finished means stored"
        full = "the scheduler cannot store"
        assert full in (await admin.job(small)).output_blocked
        assert {job.id for job in (await admin.queue()).jobs if full in job.output_blocked} == {large, small}

        async def is_told_of_both() -> bool:
            why = (await admin.job(large)).output_blocked
            return "it is held in its write" in why and "as much output as a node keeps" in why and full in why

        await until("the large job says that it is held, and why", is_told_of_both)
        held = await admin.submit("true", is_held=True)
        assert held, "the store itself has room"

        disk.make_room()
        for job_id, expected in ((large, printed(1, 150_000)), (small, printed(1, 5000))):
            job = await admin.wait(job_id)
            assert (job.state, job.attempt_count, job.output_is_complete) == (SUCCEEDED, 1, True)
            assert not job.output_blocked
            assert await admin.stdout(job_id) == expected
        assert not (await info(admin)).store_error


async def test_a_full_spool_disk_blocks_the_job_says_so_and_it_goes_on_with_every_byte(
    tmp_path: Path, disk: Disk
) -> None:
    async with Fleet(tmp_path / "fleet") as fleet, fleet.client() as admin:
        await fleet.add_node("n1", "--cpus", "4", data=disk.path / "agent")
        job_id = await admin.submit(sys.executable, "-c", PRINT_WHEN_TOLD, "1", "200000")
        await begun(admin, job_id)
        disk.fill()
        (fleet.work / "step 1").touch()

        async def waits() -> bool:
            return "SpoolStateChanged" in await admin.kinds(job_id)

        await until("the job waits for room", waits)
        assert not (fleet.work / "done 1").exists()
        assert any("room" in line for line in await admin.story(job_id)), await admin.story(job_id)
        why = "it is held in its write until there is room on node n1: the disk of the node's spool is full"
        assert (await admin.job(job_id)).output_blocked == why
        await fleet.scheduler.stop()
        await fleet.scheduler.start()

        async def is_told_again() -> bool:
            return (await admin.job(job_id)).output_blocked == why

        await until("a scheduler that starts anew hears it from the node", is_told_again)
        disk.make_room()
        job = await admin.wait(job_id)
        assert (job.state, job.attempt_count, job.output_is_complete) == (SUCCEEDED, 1, True)
        assert await admin.stdout(job_id) == printed(1, 200_000)


async def test_a_node_whose_spool_disk_is_full_is_passed_by_and_takes_work_again(tmp_path: Path, disk: Disk) -> None:
    environment = {"GPUCTL_SCHEDULER_PLACEMENT_DEVICE_PAUSE": "1s"}
    async with Fleet(tmp_path / "fleet", environment=environment) as fleet, fleet.client() as admin:
        await fleet.add_node("n1", "--cpus", "4", data=disk.path / "agent")
        disk.fill()
        job_id = await admin.submit("true")

        async def is_refused() -> bool:
            return "AttemptVoided" in await admin.kinds(job_id)

        await until("the launch is refused", is_refused)
        disk.make_room()
        job = await admin.wait(job_id)
        assert (job.state, len(job.attempts)) == (SUCCEEDED, 1), "a void number is no attempt"
