"""Output arrives byte for byte, live, from any offset."""

from __future__ import annotations

import asyncio
import hashlib
import sys

from gpufleet.v1 import job_pb2, scheduler_pb2

from tests.e2e.client import Client, joined, select, span
from tests.e2e.fleet import Fleet

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


async def test_one_stream_alone_can_be_read(person: Client) -> None:
    job = await person.run("sh", "-c", "echo out; echo err >&2")
    assert await person.output(job.id, stream=STDERR) == {(1, 0, STDERR): b"err\n"}
    assert await person.output(job.id, rank=0) == {(1, 0, STDERR): b"err\n", (1, 0, STDOUT): b"out\n"}
    assert await person.output(job.id, rank=1) == {}


async def test_each_attempt_keeps_its_own_output(fleet: Fleet, admin: Client) -> None:
    await fleet.add_node()
    script = 'echo attempt $GPUFLEET_ATTEMPT; test -e "go on" || exec sleep 600'
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
