"""Output arrives byte for byte, live, from any offset."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from gpufleet.v1 import job_pb2, scheduler_pb2

from tests.e2e.client import Client, joined, select, span
from tests.e2e.fleet import Fleet
from tests.e2e.processes import DEADLINE_SECONDS, clean_environment, until

STDOUT, STDERR = job_pb2.STREAM_STDOUT, job_pb2.STREAM_STDERR

WRITE_NUMBERED = """
import os, pathlib, sys, time
for number in range(int(sys.argv[1])):
    print("line", number)
pathlib.Path("half").touch()
while not pathlib.Path("go on").exists():
    time.sleep(0.005)
for number in range(int(sys.argv[1]), 2 * int(sys.argv[1])):
    print("line", number)
"""


def lines(count: int, start: int = 0) -> bytes:
    return b"".join(b"line %d\n" % number for number in range(start, count))


async def test_both_streams_arrive_byte_for_byte(person: Client) -> None:
    script = "import os; os.write(1, bytes(range(256)) * 10); os.write(2, b'\\xff\\xfe\\x00\\r\\n' * 7)"
    job = await person.run(sys.executable, "-c", script)
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED, job
    assert job.output_is_complete
    assert await person.output(job.id) == {
        (1, 0, STDOUT): bytes(range(256)) * 10,
        (1, 0, STDERR): b"\xff\xfe\x00\r\n" * 7,
    }


async def test_twenty_megabytes_at_once_arrive_byte_for_byte_on_each_stream(person: Client) -> None:
    script = """
import os, random
for descriptor in (1, 2):
    data = random.Random(descriptor).randbytes(20_000_000)
    while data:
        data = data[os.write(descriptor, data):]
"""
    import random

    job_id = await person.submit(sys.executable, "-c", script)
    streams = await person.output(job_id)
    for descriptor, stream in ((1, STDOUT), (2, STDERR)):
        expected = random.Random(descriptor).randbytes(20_000_000)
        assert len(streams[1, 0, stream]) == len(expected)
        assert hashlib.sha256(streams[1, 0, stream]).digest() == hashlib.sha256(expected).digest()
    assert (await person.job(job_id)).output_is_complete
    assert joined(await person.messages(job_id)) == streams


async def test_a_job_without_output_ends_with_complete_output(person: Client) -> None:
    job = await person.run("true")
    assert job.output_is_complete
    assert await person.output(job.id) == {}
    assert {end.end_offset for end in job.attempts[-1].output_ends} == {0}


async def test_lines_are_seen_while_the_job_runs(person: Client) -> None:
    script = "import sys; print('before'); sys.stdout.flush(); import time; time.sleep(600)"
    job_id = await person.submit(sys.executable, "-c", script, grace=0.1)
    call = person.stub.StreamOutput(scheduler_pb2.StreamOutputRequest(job_id=job_id, follow=True))
    data = b""
    async for message in call:
        data += message.data
        if data == b"before\n":
            break
    assert (await person.job(job_id)).state == job_pb2.JOB_STATE_RUNNING
    await person.cancel(job_id)
    messages = [message async for message in call]
    assert messages[-1].is_end
    assert messages[-1].job.state == job_pb2.JOB_STATE_CANCELLED


async def test_a_follower_that_lost_its_connection_goes_on_at_its_offset(fleet: Fleet, admin: Client) -> None:
    await fleet.add_node()
    job_id = await admin.submit(sys.executable, "-c", WRITE_NUMBERED, "500")
    have = 0
    call = admin.stub.StreamOutput(scheduler_pb2.StreamOutputRequest(job_id=job_id, follow=True))
    async for message in call:
        have += len(message.data)
        if have >= 100:
            break
    call.cancel()
    (fleet.work / "go on").touch()
    position = scheduler_pb2.StreamPosition(attempt=1, rank=0, stream=STDOUT, offset=have)
    rest = b""
    async for message in admin.stub.StreamOutput(
        scheduler_pb2.StreamOutputRequest(job_id=job_id, follow=True, positions=[position])
    ):
        if message.data:
            assert message.offset == have + len(rest)
            rest += message.data
    assert rest == lines(1000)[have:]


async def test_many_followers_see_the_same_bytes(person: Client) -> None:
    script = "import time\nfor number in range(300): print('line', number, flush=True); time.sleep(0.001)"
    job_id = await person.submit(sys.executable, "-c", script)
    outputs = await asyncio.gather(*(person.stdout(job_id) for _ in range(20)))
    assert set(outputs) == {lines(300)}


async def test_the_newest_lines_come_first_when_they_are_asked_for(person: Client) -> None:
    job = await person.run(sys.executable, "-c", "for number in range(100): print('line', number)")
    for count, expected in ((0, b""), (1, lines(100, 99)), (7, lines(100, 93)), (1000, lines(100))):
        answered = await person.messages(job.id, tail_lines=count)
        assert b"".join(message.data for message in answered) == expected
    unfinished = await person.run("printf", "one\\ntwo\\nthree")
    answered = await person.messages(unfinished.id, tail_lines=2)
    assert b"".join(message.data for message in answered) == b"two\nthree"


WRITE_IN_PARTS = """
import os, pathlib, sys, time
for number in (1, 2, 3):
    os.write(1, b"part %d\\nand its end, out of " % number)
    os.write(2, b"error %d\\n" % number)
    while number < 3 and not pathlib.Path(f"after {number}").exists():
        time.sleep(0.005)
print("three")
"""


async def test_what_is_newer_than_a_time_is_shown_by_stream_with_follow_and_after_a_restart(
    fleet: Fleet, admin: Client
) -> None:
    await fleet.add_node()
    began = Timestamp()
    began.GetCurrentTime()
    job_id = await admin.submit(sys.executable, "-c", WRITE_IN_PARTS)
    times = []
    for number in (1, 2):

        async def has_come(text: bytes = b"error %d" % number) -> bool:
            streams = await admin.output(job_id, follow=False)
            return text in streams.get((1, 0, STDERR), b"") and b"part" + text[5:] in streams.get((1, 0, STDOUT), b"")

        await until(f"part {number} has come", has_come)
        times.append(await time_after_sync(admin, job_id))
        if number == 1:
            (fleet.work / "after 1").touch()
    request = scheduler_pb2.StreamOutputRequest(job_id=job_id, since_time=times[0], follow=True)
    messages = []
    async for message in admin.stub.StreamOutput(request):
        messages.append(message)
        (fleet.work / "after 2").touch()
    followed = newer(messages)
    await admin.wait(job_id)
    part_2 = b"and its end, out of part 2\n"
    part_3 = b"and its end, out of part 3\nand its end, out of three\n"
    assert followed == {STDOUT: part_2 + part_3, STDERR: b"error 2\nerror 3\n"}
    assert newer(await admin.messages(job_id, since_time=times[1])) == {STDOUT: part_3, STDERR: b"error 3\n"}
    assert newer(await admin.messages(job_id, since_time=times[0], tail_lines=2)) == {
        STDOUT: part_3,
        STDERR: b"error 2\nerror 3\n",
    }
    assert len(newer(await admin.messages(job_id, since_time=began))[STDOUT]) > len(part_2 + part_3)
    later = await time_after_sync(admin, job_id)
    assert newer(await admin.messages(job_id, since_time=later)) == {}
    fleet.scheduler.kill()
    await fleet.scheduler.start()
    async with fleet.client() as again:
        assert newer(await again.messages(job_id, since_time=times[0])) == followed
        assert newer(await again.messages(job_id, since_time=later)) == {}
    shown = await gpuctl(fleet, "logs", str(job_id), "--since", times[0].ToJsonString())
    assert shown == (0, part_2 + part_3, b"error 2\nerror 3\n")
    shown = await gpuctl(fleet, "logs", str(job_id), "--since", "10m", "--tail", "1", "--stdout", "-f")
    assert shown == (0, b"and its end, out of three\n", b"")
    code, _, said = await gpuctl(fleet, "logs", str(job_id), "--since", "9000-01-01")
    assert code == 2 and b"is in the future" in said


async def gpuctl(fleet: Fleet, *arguments: str) -> tuple[int, bytes, bytes]:
    """Run gpuctl as a process of its own; its exit code, what it wrote and what it said."""
    environment = {"GPUCTL_TOKEN": fleet.scheduler.token("admin"), "GPUCTL_SCHEDULER": fleet.scheduler.address}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "gpufleet.cli", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=clean_environment(fleet.folder, environment),
    )
    out, said = await asyncio.wait_for(process.communicate(), DEADLINE_SECONDS)
    assert process.returncode is not None
    return process.returncode, out, said


def newer(messages: Sequence[scheduler_pb2.StreamOutputResponse]) -> dict[int, bytes]:
    """The bytes of each stream, from wherever they begin, without holes."""
    streams: dict[int, bytes] = {}
    ends: dict[int, int] = {}
    for message in messages:
        if message.stream:
            assert message.offset == ends.get(message.stream, message.offset)
            ends[message.stream] = message.offset + len(message.data)
        if message.data:
            streams[message.stream] = streams.get(message.stream, b"") + message.data
    return streams


async def time_after_sync(client: Client, job_id: int) -> Timestamp:
    """A time at which all output that a reader gets now has been synced: then a reader from that time gets nothing."""
    stamp = Timestamp()

    async def is_synced() -> bool:
        stamp.GetCurrentTime()
        return not newer(await client.messages(job_id, since_time=stamp))

    await until("all output has its time", is_synced)
    return stamp


async def test_one_stream_alone_can_be_read(person: Client) -> None:
    job = await person.run("sh", "-c", "echo out; echo err >&2")
    assert await person.output(job.id, stream=STDERR) == {(1, 0, STDERR): b"err\n"}
    assert await person.output(job.id, rank=0) == {(1, 0, STDERR): b"err\n", (1, 0, STDOUT): b"out\n"}
    assert await person.output(job.id, rank=1) == {}


async def test_each_attempt_keeps_its_own_output(fleet: Fleet, admin: Client) -> None:
    await fleet.add_node()
    # It looks before it is seen: what the test does then changes nothing for this attempt.
    script = 'test -e "go on"; goes_on=$?; echo attempt $GPUFLEET_ATTEMPT; test $goes_on = 0 || exec sleep 600'
    job_id = await admin.submit("sh", "-c", script, grace=0.1)
    call = admin.stub.StreamOutput(scheduler_pb2.StreamOutputRequest(job_id=job_id, follow=True))
    async for message in call:
        if message.data:
            break
    (fleet.work / "go on").touch()
    await admin.stub.RequeueJob(scheduler_pb2.RequeueJobRequest(jobs=select(job_id), reason="try again"))
    followed = [message async for message in call]
    assert b"".join(message.data for message in followed) == b"attempt 2\n"
    job = await admin.job(job_id)
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED
    assert [attempt.exit_reason for attempt in job.attempts] == ["REQUEUED", "EXITED"]
    assert await admin.output(job_id) == {(1, 0, STDOUT): b"attempt 1\n", (2, 0, STDOUT): b"attempt 2\n"}
    assert await admin.output(job_id, attempt=1, follow=False) == {(1, 0, STDOUT): b"attempt 1\n"}
    assert await admin.output(job_id, follow=False) == {(2, 0, STDOUT): b"attempt 2\n"}
    both = {(1, 0, STDOUT): b"attempt 1\n", (2, 0, STDOUT): b"attempt 2\n"}
    assert await admin.output(job_id, all_attempts=True, follow=False) == both


async def test_who_follows_an_attempt_that_was_replaced_gets_its_output_and_the_end(
    fleet: Fleet, admin: Client
) -> None:
    await fleet.add_node()
    job_id = await admin.submit("sh", "-c", "echo attempt $GPUFLEET_ATTEMPT; exec sleep 600", grace=0.1)
    call = admin.stub.StreamOutput(scheduler_pb2.StreamOutputRequest(job_id=job_id, follow=True, attempt=1))
    async for message in call:
        if message.data:
            break
    await admin.stub.RequeueJob(scheduler_pb2.RequeueJobRequest(jobs=select(job_id), reason="try again"))
    followed = [message async for message in call]  # it ends by itself, and the job has not
    assert followed[-1].is_end and followed[-1].job.attempt_count == 2
    assert not any(message.data for message in followed)
    assert await admin.output(job_id, attempt=1, follow=True) == {(1, 0, STDOUT): b"attempt 1\n"}
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await admin.output(job_id, attempt=1, all_attempts=True)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT and "all_attempts" in str(refused.value.details())
    await admin.cancel(job_id)


async def test_a_silent_job_is_known_to_live(person: Client) -> None:
    job_id = await person.submit("sleep", "600", grace=0.1)
    request = scheduler_pb2.StreamOutputRequest(job_id=job_id, follow=True, keepalive=span(0.1))
    silent = 0
    call = person.stub.StreamOutput(request)
    async for message in call:
        silent += not message.ByteSize()
        if silent == 3:
            break
    call.cancel()
    await person.cancel(job_id)
    await person.wait(job_id)


async def test_the_end_of_output_does_not_wait_for_a_stray_child_that_holds_the_pipe(person: Client) -> None:
    script = "import os, sys, time\nprint('done', flush=True)\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)"
    job = await person.run(sys.executable, "-c", script)
    assert job.state == job_pb2.JOB_STATE_SUCCEEDED
    assert await person.stdout(job.id) == b"done\n"


async def test_lower_limits_of_kept_output_are_followed_when_they_are_reloaded(tmp_path: Path) -> None:
    settings = tmp_path / "scheduler.toml"
    settings.write_text("")
    async with Fleet(tmp_path / "fleet", "--config", str(settings)) as fleet, fleet.client() as admin:
        await fleet.add_node()
        jobs = [await admin.run("head", "-c", "900000", "/dev/zero") for _ in range(2)]
        assert [len(await admin.stdout(job.id)) for job in jobs] == [900_000] * 2
        settings.write_text("[output]\ntotal_bytes_max = '1MB'\n")
        fleet.scheduler.signal(signal.SIGHUP)
        await until("the older one is dropped", lambda: "old jobs were dropped" in fleet.scheduler.log_text())
        (gap,) = [each.gap for each in await admin.messages(jobs[0].id) if each.HasField("gap")]
        assert (gap.from_offset, gap.to_offset) == (0, 900_000)
        assert len(await admin.stdout(jobs[1].id)) == 900_000


async def test_output_that_a_process_from_outside_held_open_is_said_to_be_cut(person: Client, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    job_id = await person.submit(
        "sh", "-c", "echo $$ > pid.new; mv pid.new pid; read -r line < gate; echo done", cwd=str(tmp_path)
    )
    pid = tmp_path / "pid"
    await until("the job runs", pid.exists)
    foreign = os.open(f"/proc/{pid.read_text().strip()}/fd/1", os.O_WRONLY)
    try:
        (tmp_path / "gate").write_text("go\n")
        job = await person.wait(job_id)
    finally:
        os.close(foreign)
    assert {end.stream: (end.end_offset, end.was_cut) for end in job.attempts[0].output_ends} == {
        STDOUT: (len("done\n"), True),
        STDERR: (0, False),
    }
    assert await person.stdout(job_id) == b"done\n"
