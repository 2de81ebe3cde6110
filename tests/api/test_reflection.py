"""Reflection tells what errors carry, so that a client without any file of ours can show one whole."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict
from google.protobuf.message_factory import GetMessageClass
from google.rpc import status_pb2
from gpufleet.v1 import job_pb2, scheduler_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.api.calls import Caller
from tests.e2e.client import Client
from tests.e2e.fleet import Fleet
from tests.inference.serving import serving

PAGE = Path(__file__).parents[2] / "docs" / "grpcurl.md"
DETAILS = ("google.rpc.ErrorInfo", "google.rpc.BadRequest", "google.rpc.RetryInfo", "google.rpc.Help")


async def told_of(channel: Any, names: tuple[str, ...]) -> DescriptorPool:
    """What a server tells of these messages, and nothing that is known here."""
    stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
    requests = [reflection_pb2.ServerReflectionRequest(file_containing_symbol=name) for name in names]
    files: dict[str, FileDescriptorProto] = {}
    async for answer in stub.ServerReflectionInfo(iter(requests)):
        assert answer.WhichOneof("message_response") == "file_descriptor_response", answer
        for text in answer.file_descriptor_response.file_descriptor_proto:
            file = FileDescriptorProto.FromString(text)
            files[file.name] = file
    pool = DescriptorPool()

    def add(name: str) -> None:
        file = files.pop(name, None)
        if file is not None:
            for dependency in file.dependency:
                add(dependency)
            pool.Add(file)

    for name in tuple(files):
        add(name)
    return pool


async def test_the_details_of_a_refusal_can_be_read_with_what_reflection_tells_alone(
    admin: Client, caller: Caller
) -> None:
    request = scheduler_pb2.SubmitRequest(specs=[job_pb2.JobSpec(argv=["true"], cwd="relative")])
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await admin.stub.Submit(request)
    trailers = dict(refused.value.trailing_metadata() or ())
    packed = trailers["grpc-status-details-bin"]
    assert isinstance(packed, bytes)
    status = status_pb2.Status.FromString(packed)
    names = tuple(each.type_url.rpartition("/")[2] for each in status.details)
    pool = await told_of(caller.channel, names)
    shown: dict[str, Any] = {}
    for name, each in zip(names, status.details, strict=True):
        made = GetMessageClass(pool.FindMessageTypeByName(name)).FromString(each.value)
        shown[name] = MessageToDict(made)
    assert shown["google.rpc.ErrorInfo"]["reason"] == "INVALID_ARGUMENT"
    assert shown["google.rpc.BadRequest"]["fieldViolations"][0]["field"] == "specs[0].cwd"
    assert shown["google.rpc.Help"]["links"][0]["description"] == "give --cwd an absolute path"


async def test_scheduler_and_worker_tell_of_every_message_that_an_error_may_carry(caller: Caller) -> None:
    async with serving() as running:
        for channel in (caller.channel, running.stub_channel):
            pool = await told_of(channel, DETAILS)
            for name in DETAILS:
                pool.FindMessageTypeByName(name)


async def test_the_line_for_buf_shows_reason_and_next_step(fleet: Fleet) -> None:
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed: the line of the page needs it")
    (line,) = (line for line in PAGE.read_text().splitlines() if line.startswith("buf curl "))
    ran = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", line.replace("localhost:50051", fleet.scheduler.address)),
        env={
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TOKEN": fleet.scheduler.token("admin"),
            "HOME": str(fleet.work),
        },
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await ran.communicate()
    shown = printed.decode()
    assert "there is no job 4000000" in shown and "google.rpc.ErrorInfo\n JOB_NOT_FOUND" in shown, shown
    assert "gpuctl queue -a" in shown, shown
