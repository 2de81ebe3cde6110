"""The scheduler's methods, made one by one when they are called.

A generated stub makes all of its forty methods at once, and its module brings the servers' side along; together that
is a tenth of the time of `gpuctl queue`. The descriptor of the service says all that one method needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import grpc
import grpc.aio
from google.protobuf.message_factory import GetMessageClass
from gpufleet.v1 import scheduler_pb2

if TYPE_CHECKING:
    from gpufleet.v1.scheduler_pb2_grpc import SchedulerAsyncStub, SchedulerStub

_SERVICE = scheduler_pb2.DESCRIPTOR.services_by_name["Scheduler"]


def scheduler_of(channel: grpc.Channel) -> SchedulerStub:
    """The methods on a channel of threads."""
    return cast("SchedulerStub", _Methods(channel))


def async_scheduler_of(channel: grpc.aio.Channel) -> SchedulerAsyncStub:
    """The methods on a channel of asyncio."""
    return cast("SchedulerAsyncStub", _Methods(channel))


class _Methods:
    """Looks like the generated stub."""

    def __init__(self, channel: grpc.Channel | grpc.aio.Channel) -> None:
        self._channel: Any = channel

    def __getattr__(self, name: str) -> Any:
        method = _SERVICE.methods_by_name.get(name)
        if method is None:
            raise AttributeError(f"{_SERVICE.full_name} has no method {name}")
        sides = ("stream" if method.client_streaming else "unary", "stream" if method.server_streaming else "unary")
        request, answer = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        made = getattr(self._channel, "_".join(sides))(
            f"/{_SERVICE.full_name}/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=answer.FromString,
        )
        setattr(self, name, made)
        return made
