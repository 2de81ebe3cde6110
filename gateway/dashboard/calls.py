"""Calls of the scheduler that a page may make, in proto JSON with the protos' own field names."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from typing import Any

import grpc.aio
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import Message
from gpufleet.v1 import capacity_pb2, job_pb2, scheduler_pb2, scheduler_pb2_grpc, sessions_pb2

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.net.channel import Target, bearer, connect_async
from gpufleet.net.status import from_rpc_error

CALL_S_MAX = 20.0
"""How long the scheduler may take to answer."""

AT_ONCE_BYTES_MAX = 16_000
"""A longer message becomes JSON on a thread, so that nobody's frames wait for it."""

CALLS: dict[str, type[Message]] = {
    "Queue": scheduler_pb2.QueueRequest,
    "GetJob": scheduler_pb2.GetJobRequest,
    "GetStory": scheduler_pb2.GetStoryRequest,
    "Explain": scheduler_pb2.ExplainRequest,
    "ListArrayItems": scheduler_pb2.ListArrayItemsRequest,
    "ListNodes": scheduler_pb2.ListNodesRequest,
    "ListDevices": scheduler_pb2.ListDevicesRequest,
    "ListModels": sessions_pb2.ListModelsRequest,
    "ListSessions": sessions_pb2.ListSessionsRequest,
    "ListSessionUsage": sessions_pb2.ListSessionUsageRequest,
    "CloseSession": sessions_pb2.CloseSessionRequest,
    "DrainWorker": sessions_pb2.DrainWorkerRequest,
    "Estimate": capacity_pb2.EstimateRequest,
    "GetJobStats": capacity_pb2.GetJobStatsRequest,
    "GetNodeHistory": capacity_pb2.GetNodeHistoryRequest,
    "GetQueueHistory": capacity_pb2.GetQueueHistoryRequest,
    "ListUsage": capacity_pb2.ListUsageRequest,
    "GetServerInfo": scheduler_pb2.GetServerInfoRequest,
    "Submit": scheduler_pb2.SubmitRequest,
    "Cancel": scheduler_pb2.CancelRequest,
    "UpdateJob": scheduler_pb2.UpdateJobRequest,
    "SignalJob": scheduler_pb2.SignalJobRequest,
    "RequeueJob": scheduler_pb2.RequeueJobRequest,
    "UpdateNode": scheduler_pb2.UpdateNodeRequest,
}
"""What a page needs; tokens, settings and files are no matter of a browser."""

STREAMS: dict[str, type[Message]] = {
    "Watch": scheduler_pb2.WatchRequest,
    "WatchDevices": scheduler_pb2.WatchDevicesRequest,
    "StreamOutput": scheduler_pb2.StreamOutputRequest,
    "CheckCapacity": capacity_pb2.CheckCapacityRequest,
}


class Scheduler:
    """The way to the scheduler for calls that bring a token of their own. Made inside the running loop.

    Of several addresses the one that answered last is asked; when it is not reached, the next call tries the next one.
    """

    def __init__(self, targets: list[Target]) -> None:
        self._channels = [connect_async(replace(each, token=None)) for each in targets]
        self._used = 0

    async def close(self) -> None:
        """End all connections."""
        for channel in self._channels:
            await channel.close()

    def method(self, name: str) -> Any:
        """A call or stream of the scheduler by its name, which is on one of the lists."""
        return getattr(scheduler_pb2_grpc.SchedulerStub(self._channels[self._used]), name)

    def error(self, problem: grpc.aio.AioRpcError) -> GpufleetError:
        """What a failed call says."""
        error = from_rpc_error(problem)
        if error.reason is Reason.SCHEDULER_UNREACHABLE:
            self._used = (self._used + 1) % len(self._channels)
        return error

    async def call(self, name: str, request: Message, token: str) -> Message:
        """The answer. Raises what the scheduler refuses, and DEADLINE."""
        try:
            answer: Message = await self.method(name)(request, metadata=bearer(token), timeout=CALL_S_MAX)
        except grpc.aio.AioRpcError as problem:
            raise self.error(problem) from None
        return answer


def request_of(kinds: dict[str, type[Message]], name: str, said: dict[str, Any]) -> Message:
    """The request of a call by its name. Raises METHOD_UNKNOWN, INVALID_ARGUMENT."""
    kind = kinds.get(name)
    if kind is None:
        raise GpufleetError(
            Reason.METHOD_UNKNOWN,
            f"the dashboard makes no call {name[:64]!r} of this kind",
            next_step=f"It makes {', '.join(kinds)}; all others are made with grpcurl or gpuctl.",
        )
    try:
        return ParseDict(said, kind())
    except (ParseError, RecursionError) as problem:
        raise invalid("request", (str(problem).splitlines() or ["is nested too deeply"])[0]) from None


async def json_text(message: Message) -> bytes:
    """A message as JSON, fields without a value included."""
    if message.ByteSize() > AT_ONCE_BYTES_MAX:
        return await asyncio.to_thread(_json_text, message)
    return _json_text(message)


def _json_text(message: Message) -> bytes:
    value = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Who:
    """A person, as the scheduler knows the token, and the names of the bands that they may ask for, lowest first."""

    user: str
    role: str
    version: str
    bands: tuple[str, ...]


PEOPLE = ("admin", "user", "viewer")
"""Roles of people; the other ones are a program's."""

JOB = "job"
"""The role of a running job, whose user is the job's owner."""


async def who_is(scheduler: Scheduler, token: str, *, allows_job: bool = False) -> Who:
    """Who has this token. Raises what the scheduler refuses, and PERMISSION_DENIED for a program's token; that of a
    running job is its owner's where `allows_job`."""
    info: Any = await scheduler.call("GetServerInfo", scheduler_pb2.GetServerInfoRequest(), token)
    if info.role not in PEOPLE and not (allows_job and info.role == JOB):
        raise GpufleetError(
            Reason.PERMISSION_DENIED,
            f"this token is that of a program (role {info.role})",
            next_step="Log in with a person's token: gpuctl token create NAME",
        )
    # A scheduler of before tells of none, and refuses none.
    bands = info.bands or job_pb2.Band.values()[1:]
    return Who(info.user, info.role, info.version, tuple(job_pb2.Band.Name(band) for band in bands))
