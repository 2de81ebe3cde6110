"""Calls of the scheduler with a token of somebody's, in the JSON of `gpufleet/net/json_messages.py`."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import grpc.aio
from google.protobuf.message import Message
from gpufleet.v1 import job_pb2, scheduler_pb2, scheduler_pb2_grpc

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.channel import Target, bearer, connect_async, token_now
from gpufleet.net.json_messages import message_object, message_of
from gpufleet.net.passed_on import passed_on
from gpufleet.net.status import from_rpc_error

from ..api.table import kinds_of
from ..client_address import CLIENT_ADDRESS
from .guard import on_a_thread_if_long

CALL_S_MAX = 20.0
"""How long the scheduler may take to answer."""

CALLS, STREAMS = kinds_of(is_stream=False), kinds_of(is_stream=True)
"""What a page may ask for by a call's name: what the API has, but for what wants the token itself."""


class Scheduler:
    """The way to the scheduler for calls that bring a token of their own. Made inside the running loop.

    The scheduler is told from which address a call was asked for, by the gateway's own token, and believes nobody else.
    """

    def __init__(self, target: Target) -> None:
        self._own = target
        self._channel = connect_async(replace(target, token=None))
        self._stub: Any = scheduler_pb2_grpc.SchedulerStub(self._channel)

    async def close(self) -> None:
        """End the connection."""
        await self._channel.close()

    def method(self, name: str) -> Any:
        """A call or stream of the scheduler by its name, which is on one of the lists."""
        return getattr(self._stub, name)

    def metadata(self, token: str) -> tuple[tuple[str, str], ...]:
        """What a call brings: the token of whom it is made for, and where the request that is answered came from."""
        return (*bearer(token), *passed_on(CLIENT_ADDRESS.get(), token_now(self._own)))

    async def call(self, name: str, request: Message, token: str, *, wait_s: float = CALL_S_MAX) -> Message:
        """The answer. Raises what the scheduler refuses, and DEADLINE."""
        try:
            answer: Message = await self.method(name)(request, metadata=self.metadata(token), timeout=wait_s)
        except grpc.aio.AioRpcError as problem:
            raise from_rpc_error(problem) from None
        return answer

    async def call_as_gateway(self, name: str, request: Message) -> Message:
        """The same for somebody who has no token yet, with the gateway's own: of a login it says from where it is."""
        return await self.call(name, request, token_now(self._own))


def request_of(kinds: dict[str, type[Message]], name: str, said: dict[str, Any]) -> Message:
    """The request of a call by its name. Raises METHOD_UNKNOWN, INVALID_ARGUMENT."""
    kind = kinds.get(name)
    if kind is None:
        raise GpufleetError(
            Reason.METHOD_UNKNOWN,
            f"the dashboard makes no call {name[:64]!r} of this kind",
            next_step=f"It makes {', '.join(kinds)}; docs/http-api.md has a path for each of the others.",
        )
    return message_of(kind, said)


async def json_text(message: Message) -> bytes:
    """A message as JSON, fields without a value included."""
    return await on_a_thread_if_long(message.ByteSize(), lambda: _json_text(message))


def _json_text(message: Message) -> bytes:
    return json.dumps(message_object(message), ensure_ascii=False, separators=(",", ":")).encode()


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
