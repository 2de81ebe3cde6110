"""Output in bulk: the spool by itself, and a job that writes 40 MB/s beside others that want to start."""

import asyncio
import hashlib
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpufleet.v1 import scheduler_pb2, scheduler_pb2_grpc

from gpufleet.net.addresses import Address
from gpufleet.net.channel import Target, connect_async
from node_agent.core.offsets import CHUNK_BYTES, SPOOL_BYTES
from node_agent.core.outcome import Offsets, Stream
from node_agent.keeper.descriptors import Ends, actions_of, open_ends
from node_agent.keeper.output import Output
from node_agent.keeper.reactor import Reactor
from node_agent.spool import SpoolWriter

from . import measures
from .fleet import Fleet
from .path import build_stamp
from .rows import Row, Run, middle

MB = 1_000_000
SPOOLED_BYTES = 512 * MB
RATE_BYTES = 40 * MB
"""What the loud job writes in a second."""
PIECE_BYTES = 64 * 1024
LOUD_SECONDS_MIN = 10.0
LOUD_SECONDS_PER_START = 0.1
"""The loud job goes on for as long as the other jobs, one after the other, may need to start."""
FOLLOW_SECONDS_MAX = 120.0
FLOOD = f"head -c {SPOOLED_BYTES} /dev/zero"


def measure(run: Run) -> list[Row]:
    """The rows of the group `output`."""
    return [middle([_spool(run.folder) for _ in range(run.repeats)]), *_loud(run)]


def _spool(folder: Path) -> Row:
    """A pipe through the keeper's own code into the spool, what is spooled deleted as if it were synced at once."""
    return Row(
        "spool alone", SPOOLED_BYTES / MB / _spool_seconds(folder), "MB/s", _copy_rate(folder), "pipe to one file"
    )


def _spool_seconds(folder: Path) -> float:
    reactor = Reactor()
    spool = folder / "spool"
    spool.mkdir()

    def changed() -> None:
        if not output.is_open:
            reactor.stop()

    output = Output(reactor, SpoolWriter(spool, SPOOL_BYTES, bytearray(CHUNK_BYTES)), changed)

    def synced(ends: Offsets, is_final: bool) -> None:
        output.synced(ends)
        if not is_final:
            output.wait(ends, synced)

    try:
        with _flood() as pipes:
            begin = time.perf_counter()
            output.open(pipes)
            output.wait(Offsets(), synced)
            reactor.run()
            seconds = time.perf_counter() - begin
        output.end()
        assert output.ends.of(Stream.STDOUT) == SPOOLED_BYTES
        return seconds
    finally:
        reactor.close()
        for segment in spool.iterdir():
            segment.unlink()
        spool.rmdir()


def _copy_rate(folder: Path) -> float:
    """The floor: the same pipe, read and written by a bare loop, in MB/s."""
    file = folder / "copy"
    with _flood() as pipes, file.open("wb", buffering=0) as out:
        os.set_blocking(pipes[Stream.STDOUT], True)
        begin = time.perf_counter()
        while data := os.read(pipes[Stream.STDOUT], CHUNK_BYTES):
            out.write(data)
        seconds = time.perf_counter() - begin
        for fd in pipes.values():
            os.close(fd)
    file.unlink()
    return SPOOLED_BYTES / MB / seconds


@contextmanager
def _flood() -> Iterator[dict[Stream, int]]:
    """A process that writes as fast as it is read, and the pipes of its output, which are the caller's to close."""
    ends = Ends()
    open_ends(ends, None)
    actions = actions_of(ends.theirs, None)
    argv = ["/bin/sh", "-c", f"exec {FLOOD}"]
    pid = os.posix_spawn(argv[0], argv, measures.PATH_ENV, file_actions=actions)
    ends.close_theirs()
    try:
        yield ends.outputs
    finally:
        os.waitpid(pid, 0)


def _loud(run: Run) -> list[Row]:
    """Whether a job that writes much, and somebody who reads all of it, keep others from starting."""
    stamp = build_stamp(run.folder)
    quiet_ms = statistics.median(asyncio.run(measures.first_instruction_ms(run.fleet, stamp, run.rounds)))
    seconds = max(LOUD_SECONDS_MIN, run.rounds * LOUD_SECONDS_PER_START)
    pieces = round(RATE_BYTES * seconds / PIECE_BYTES)
    loud_ms, rate = asyncio.run(_beside_the_loud(run.fleet, stamp, run.rounds, pieces))
    return [
        Row("submit to first instruction p50, idle", quiet_ms, "ms"),
        Row("same, beside 40 MB/s with a follower", statistics.median(loud_ms), "ms", quiet_ms, "idle"),
        Row("what the follower of 40 MB/s gets, byte-exact", rate / MB, "MB/s", RATE_BYTES / MB, "40 MB/s"),
    ]


async def _beside_the_loud(fleet: Fleet, stamp: Path, rounds: int, pieces: int) -> tuple[list[float], float]:
    """Start latencies in ms while the loud job writes, and the bytes per second that its follower gets."""
    script = (
        "import sys, time\n"
        "begin = time.monotonic()\n"
        f"for number in range({pieces}):\n"
        f" sys.stdout.buffer.write(b'%015d\\n' % number * {PIECE_BYTES // 16})\n"
        f" time.sleep(max(0.0, begin + (number + 1) * {PIECE_BYTES / RATE_BYTES} - time.monotonic()))"
    )
    async with fleet.connect() as channel:
        stub: Any = scheduler_pb2_grpc.SchedulerStub(channel)
        answer = await stub.Submit(measures.submit([sys.executable, "-S", "-c", script]))
    # A process of its own, as people's are: what it costs to follow is not to look like what it costs to start.
    follower = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.output", fleet.address, fleet.token, str(answer.first_job_id),
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert follower.stdout is not None
    await follower.stdout.readline()  # it has the first bytes
    starts = await measures.first_instruction_ms(fleet, stamp, rounds)
    assert follower.returncode is None, "the loud job ended before the measurement did"
    async with asyncio.timeout(FOLLOW_SECONDS_MAX):
        digest, seconds = (await follower.stdout.read()).decode().split()
        await follower.wait()
    expected = hashlib.sha256()
    for number in range(pieces):
        expected.update(b"%015d\n" % number * (PIECE_BYTES // 16))
    if digest != expected.hexdigest():
        raise AssertionError("the follower of the loud job did not get what it wrote")
    return starts, pieces * PIECE_BYTES / float(seconds)


async def _follow(address: str, token: str, job_id: int) -> None:
    """Read all output of a job; prints a line with the first of it, then its SHA-256 and how long it took."""
    digest = hashlib.sha256()
    begin = 0.0
    host, _, port = address.rpartition(":")
    async with connect_async(Target(address=Address(host, int(port)), token=token)) as channel:
        stub: Any = scheduler_pb2_grpc.SchedulerStub(channel)
        async for message in stub.StreamOutput(scheduler_pb2.StreamOutputRequest(job_id=job_id, follow=True)):
            if message.data and not begin:
                begin = time.monotonic()
                print("begins", flush=True)
            digest.update(message.data)
    print(digest.hexdigest(), time.monotonic() - begin, flush=True)


if __name__ == "__main__":
    asyncio.run(_follow(sys.argv[1], sys.argv[2], int(sys.argv[3])))
