"""What a person does with a scheduler, through the public contract: submit, wait, read, change."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from google.protobuf.duration_pb2 import Duration
from gpufleet.v1 import job_pb2, scheduler_pb2, scheduler_pb2_grpc

from gpufleet.errors import GpufleetError
from gpufleet.net.addresses import parse_address
from gpufleet.net.channel import Target, connect_async
from gpufleet.net.status import from_rpc_error
from tests.e2e.processes import DEADLINE_SECONDS, until

FINAL = frozenset(
    {
        job_pb2.JOB_STATE_SUCCEEDED,
        job_pb2.JOB_STATE_FAILED,
        job_pb2.JOB_STATE_CANCELLED,
        job_pb2.JOB_STATE_TIMED_OUT,
    }
)
StreamName = tuple[int, int, int]
"""(attempt, rank, stream)."""


class Client:
    """One person, by one token. Jobs get `cwd` and this process's PATH unless they say otherwise."""

    def __init__(self, channel: grpc.aio.Channel, cwd: Path, seen: set[int]) -> None:
        self.stub = scheduler_pb2_grpc.SchedulerStub(channel)
        self.cwd = cwd
        self._seen = seen

    def forget(self) -> None:
        """Let go of the channel: pytest keeps a fixture's value longer than gRPC's threads may live."""
        del self.stub

    def spec(self, *argv: str, gpus: int = 0, min_memory_bytes: int = 0, seconds: float = 0, **fields: Any) -> Any:
        """A job's spec; `seconds` is its time limit, `grace` its grace in seconds."""
        if "grace" in fields:
            fields["grace"] = span(fields["grace"])
        spec = job_pb2.JobSpec(**{"argv": argv, "cwd": str(self.cwd), **fields})
        if "PATH" not in spec.env:
            spec.env["PATH"] = os.environ["PATH"]
        if gpus or min_memory_bytes:
            spec.devices.add(count=gpus, min_memory_bytes=min_memory_bytes)
        if seconds:
            spec.time_limit.CopyFrom(span(seconds))
        return spec

    async def submit(self, *argv: str, **fields: Any) -> int:
        """Submit one job; its id."""
        return (await self.submit_specs([self.spec(*argv, **fields)])).first_job_id

    async def submit_specs(self, specs: Sequence[Any], **fields: Any) -> scheduler_pb2.SubmitResponse:
        """Submit these specs."""
        request = scheduler_pb2.SubmitRequest(specs=specs, **fields)
        answer = await self.stub.Submit(request, timeout=DEADLINE_SECONDS)
        self._seen.update(range(answer.first_job_id, answer.first_job_id + min(answer.count, 10)))
        return answer

    async def job(self, job_id: int) -> job_pb2.Job:
        """The job now."""
        request = scheduler_pb2.GetJobRequest(job_id=job_id)
        return (await self.stub.GetJob(request, timeout=DEADLINE_SECONDS)).job

    async def wait(self, job_id: int, *states: job_pb2.JobState.ValueType) -> job_pb2.Job:
        """The job once it is in one of these states, or, without any, once it has ended."""
        wanted = frozenset(states) or FINAL
        job = job_pb2.Job()

        async def has_come() -> bool:
            nonlocal job
            job = await self.job(job_id)
            return job.state in wanted

        names = ", ".join(job_pb2.JobState.Name(state)[10:] for state in wanted)
        await until(f"job {job_id} is {names}", has_come)
        return job

    async def run(self, *argv: str, **fields: Any) -> job_pb2.Job:
        """Submit one job and wait for its end."""
        return await self.wait(await self.submit(*argv, **fields))

    async def messages(self, job_id: int, **fields: Any) -> list[scheduler_pb2.StreamOutputResponse]:
        """Everything that StreamOutput answers."""
        request = scheduler_pb2.StreamOutputRequest(job_id=job_id, **fields)
        return [message async for message in self.stub.StreamOutput(request, timeout=2 * DEADLINE_SECONDS)]

    async def output(self, job_id: int, **fields: Any) -> dict[StreamName, bytes]:
        """The bytes of each stream, checked to be without holes; follows to the end unless told otherwise."""
        fields.setdefault("follow", True)
        return joined(await self.messages(job_id, **fields))

    async def stdout(self, job_id: int, **fields: Any) -> bytes:
        """What the newest attempt's rank 0 wrote to its standard output, once the job has ended."""
        fields.setdefault("follow", True)
        streams = await self.output(job_id, stream=job_pb2.STREAM_STDOUT, **fields)
        return streams[max(streams)] if streams else b""

    async def story(self, job_id: int) -> list[str]:
        """What happened to the job, a sentence each."""
        request = scheduler_pb2.GetStoryRequest(job_id=job_id, page_size=1000)
        return [line.sentence for line in (await self.stub.GetStory(request, timeout=DEADLINE_SECONDS)).lines]

    async def kinds(self, job_id: int) -> list[str]:
        """The kinds of the records of the job's story, oldest first."""
        request = scheduler_pb2.GetStoryRequest(job_id=job_id, page_size=1000)
        return [line.kind for line in (await self.stub.GetStory(request, timeout=DEADLINE_SECONDS)).lines]

    async def cancel(self, *job_ids: int, **fields: Any) -> list[scheduler_pb2.JobChange]:
        """Cancel these jobs."""
        request = scheduler_pb2.CancelRequest(jobs=select(*job_ids), **fields)
        return list((await self.stub.Cancel(request, timeout=DEADLINE_SECONDS)).changes)

    async def queue(self, **fields: Any) -> scheduler_pb2.QueueResponse:
        """A page of the queue."""
        return await self.stub.Queue(scheduler_pb2.QueueRequest(**fields), timeout=DEADLINE_SECONDS)

    async def node(self, name: str) -> Any:
        """A node as it is now."""
        request = scheduler_pb2.ListNodesRequest(names=[name])
        return (await self.stub.ListNodes(request, timeout=DEADLINE_SECONDS)).nodes[0]


def select(*job_ids: int) -> scheduler_pb2.JobSelector:
    """A selector of these jobs."""
    return scheduler_pb2.JobSelector(job_ids=job_ids)


def span(seconds: float) -> Duration:
    """So many seconds."""
    duration = Duration()
    duration.FromNanoseconds(round(seconds * 1e9))
    return duration


def joined(messages: Sequence[scheduler_pb2.StreamOutputResponse]) -> dict[StreamName, bytes]:
    """The bytes of each stream; a hole, a repetition or a gap fails."""
    streams: dict[StreamName, bytearray] = {}
    for message in messages:
        if not message.data and not message.HasField("gap"):
            continue
        assert not message.HasField("gap"), f"a gap: {message.gap}"
        data = streams.setdefault((message.attempt, message.rank, message.stream), bytearray())
        assert message.offset == len(data), f"offset {message.offset} behind {len(data)} bytes"
        data += message.data
    return {name: bytes(data) for name, data in streams.items()}


async def refusal(call: Any) -> GpufleetError:
    """The error that a call is refused with; a call that succeeds fails the test."""
    try:
        if hasattr(call, "__aiter__"):
            answer: Any = [message async for message in call]
        else:
            answer = await call
    except grpc.aio.AioRpcError as problem:
        return from_rpc_error(problem)
    raise AssertionError(f"it was not refused: {str(answer)[:500]}")


@asynccontextmanager
async def dial(
    address: str, token: str | None, ca_file: Path | None = None, client_cert_file: Path | None = None
) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a scheduler for as long as the block lasts."""
    target = Target(address=parse_address(address), token=token, ca_file=ca_file, client_cert_file=client_cert_file)
    channel = connect_async(target)
    try:
        yield channel
    finally:
        await channel.close()
