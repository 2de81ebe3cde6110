"""The fields that the page takes for granted are in every answer that has their message."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from google.protobuf.message import Message
from gpufleet.v1 import job_pb2, scheduler_pb2

from protos.page_types import ALWAYS_SET
from tests.e2e.client import Client


def messages_in(message: Message) -> Iterator[Message]:
    """The message, and all that it holds."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for each in value if field.is_repeated else (value,):
            yield from messages_in(each)


async def answers(admin: Client) -> AsyncIterator[Message]:
    """What the page asks for, of a job that waits and of one that has ended."""
    stub, spec = admin.stub, admin.spec("true", is_held=True)
    yield await stub.Submit(scheduler_pb2.SubmitRequest(specs=[spec], dry_run=True))
    submitted = await admin.submit_specs([spec])
    yield submitted
    held = submitted.first_job_id
    for job_id in (1, held):
        yield await stub.GetJob(scheduler_pb2.GetJobRequest(job_id=job_id))
        yield await stub.Explain(scheduler_pb2.ExplainRequest(job_id=job_id))
    yield await stub.Queue(scheduler_pb2.QueueRequest(include_finished=True))
    yield await stub.Queue(scheduler_pb2.QueueRequest(name="nobody's", states=[job_pb2.JOB_STATE_HELD]))
    yield await stub.ListNodes(scheduler_pb2.ListNodesRequest())
    yield await stub.ListDevices(scheduler_pb2.ListDevicesRequest())
    async for devices in stub.WatchDevices(scheduler_pb2.WatchDevicesRequest()):
        yield devices
        break
    async for change in stub.Watch(scheduler_pb2.WatchRequest(job_ids=[1, held], include_nodes=True)):
        yield change
        if change.event == scheduler_pb2.WATCH_EVENT_SYNCED:
            break
    async for piece in stub.StreamOutput(scheduler_pb2.StreamOutputRequest(job_id=1)):
        yield piece
    await admin.cancel(held)


async def test_what_the_page_takes_for_granted_is_always_told(admin: Client) -> None:
    seen = set()
    async for answer in answers(admin):
        for message in messages_in(answer):
            for field in message.DESCRIPTOR.fields:
                name = f"{message.DESCRIPTOR.name}.{field.name}"
                if name in ALWAYS_SET:
                    seen.add(name)
                    assert message.HasField(field.name), f"an answer lacks {name}: {message}"
    assert seen == ALWAYS_SET
