"""The calls of the protocol: each becomes a request to a program, and its answer the call's."""

from __future__ import annotations

import importlib.metadata
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import Message
from gpufleet.v1 import inference_pb2, sessions_pb2
from gpufleet.v1.open_inference import open_inference_pb2 as pb
from starlette.requests import HTTPConnection

from gpufleet.errors import Code, GpufleetError, Reason, invalid
from gpufleet.net.status import to_status
from gpufleet.telemetry.logs import fields

from ..dashboard.guard import address_of
from ..proxy.access import caller_of
from ..proxy.core.gpu_choice import FELL_BACK_SAID
from ..proxy.listing import programs_for
from ..proxy.service import Busy
from ..proxy.serving import Proxy
from ..proxy.statistics import REPLICAS_SAID
from .answers import answer_of, message_of, metadata_of
from .asking import Exchange, request_for
from .requests import HttpRequest, path_of, request_in, request_of
from .room import Room
from .statuses import OK, PROBLEMS, UNAVAILABLE, ProgramRefused, status_of, status_of_program
from .streaming import Stream

log = logging.getLogger(__name__)

SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]

OPEN = sessions_pb2.MODEL_ACCESS_OPEN
FELL_BACK = "gpufleet_fell_back"
"""The parameter of an answer that is of a model's CPU model, where a GPU was preferred: why."""

NOBODY = ""
"""In place of a login in a browser, which calls have none of."""


class OpenInference:
    """Answers the calls with the programs of a proxy, which is running. `is_ready`: whether the scheduler is heard.

    `host` is where it is reached, HOST:PORT.
    """

    def __init__(self, proxy: Proxy, is_ready: Callable[[], bool], host: str, *, is_secure: bool) -> None:
        self._proxy = proxy
        self._is_ready = is_ready
        self._host = host
        self._is_secure = is_secure
        self.room = Room()

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """What it answers, and behind that the refusal of the protocol's other calls."""
        made: dict[str, Any] = {
            "ModelInfer": grpc.stream_unary_rpc_method_handler(self._infer),
            "ModelStreamInfer": grpc.stream_stream_rpc_method_handler(_answered(self._stream)),
        }
        for method in SERVICE.methods:
            if method.name not in made:
                request: Any = getattr(pb, method.input_type.name)
                answer = _answered(getattr(self, method.name))
                made[method.name] = grpc.unary_unary_rpc_method_handler(answer, request.FromString, _serialized)
        return [grpc.method_handlers_generic_handler(SERVICE.full_name, made), _Others()]

    # --- the server

    async def ServerLive(self, request: pb.ServerLiveRequest, context: Any) -> pb.ServerLiveResponse:
        """It is."""
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(self, request: pb.ServerReadyRequest, context: Any) -> pb.ServerReadyResponse:
        """Whether requests find their programs."""
        return pb.ServerReadyResponse(ready=self._is_ready())

    async def ServerMetadata(self, request: pb.ServerMetadataRequest, context: Any) -> pb.ServerMetadataResponse:
        """What this is."""
        return pb.ServerMetadataResponse(name="gpufleet", version=importlib.metadata.version("gpufleet"))

    async def RepositoryIndex(self, request: pb.RepositoryIndexRequest, context: Any) -> pb.RepositoryIndexResponse:
        """The programs that the caller may use."""
        if request.repository_name:
            raise invalid("repository_name", "must be empty: there is one repository")
        asked = request_for(context, self._host, b"/", is_secure=self._is_secure)
        try:
            programs, _ = await programs_for(self._proxy, asked, NOBODY)
        except GpufleetError as error:
            raise _for_callers(error) from None
        index = pb.RepositoryIndexResponse()
        for each in programs:
            state, reason = _state(each)
            if state == "READY" or not request.ready:
                index.models.add(name=each.name, state=state, reason=reason)
        return index

    # --- models

    async def ModelReady(self, request: pb.ModelReadyRequest, context: Any) -> pb.ModelReadyResponse:
        """Whether a replica says so."""
        path = path_of(request.name, request.version, "/ready")
        try:
            exchange = await self._asked(request.name, context, path)
        except Busy:
            return pb.ModelReadyResponse(ready=False)
        except GpufleetError as error:
            if error.reason is Reason.MODEL_DOWN:
                return pb.ModelReadyResponse(ready=False)
            raise
        if exchange.status not in (OK, UNAVAILABLE):
            raise _refusal(request.name, exchange)
        return pb.ModelReadyResponse(ready=exchange.status == OK)

    async def ModelMetadata(self, request: pb.ModelMetadataRequest, context: Any) -> pb.ModelMetadataResponse:
        """What a replica says that it takes and gives."""
        exchange = await self._answered_at(request.name, context, path_of(request.name, request.version))
        return metadata_of(exchange.answer)

    async def ModelConfig(self, request: pb.ModelConfigRequest, context: Any) -> pb.ModelConfigResponse:
        """How a replica says that it takes requests."""
        path = path_of(request.name, request.version, "/config")
        exchange = await self._answered_at(request.name, context, path)
        return pb.ModelConfigResponse(config=message_of(pb.ModelConfig(), exchange.answer))

    async def ModelStatistics(self, request: pb.ModelStatisticsRequest, context: Any) -> pb.ModelStatisticsResponse:
        """What all ready replicas say that they have computed; trailing metadata say of how many the sum is."""
        exchange = await self._answered_at(request.name, context, path_of(request.name, request.version, "/stats"))
        if of_replicas := exchange.header(REPLICAS_SAID):
            context.set_trailing_metadata(((REPLICAS_SAID.decode(), of_replicas),))
        return message_of(pb.ModelStatisticsResponse(), exchange.answer)

    async def _infer(self, messages: AsyncIterator[bytes], context: Any) -> bytes:
        """ModelInfer, whose one message is read once there is room for it."""
        return _serialized(await _answered(self._answer_infer)(messages, context))

    async def _answer_infer(self, messages: AsyncIterator[bytes], context: Any) -> pb.ModelInferResponse:
        stranger = request_for(context, self._host, b"/", is_secure=self._is_secure)
        with self.room.call(address_of(stranger)):
            return await self._answer_call(stranger, messages, context)

    async def _answer_call(
        self, stranger: HTTPConnection, messages: AsyncIterator[bytes], context: Any
    ) -> pb.ModelInferResponse:
        user = await self._proxy.access.user_of(stranger, OPEN, NOBODY)
        caller, is_known = caller_of(stranger, user), bool(user)
        message = await self.room.read(caller, lambda: _first(messages), is_known=is_known)
        with self.room.hold(caller, len(message), is_known=is_known):
            request = request_in(message)
            name, body = request.model_name, request_of(request)
            # Each is as long as the request.
            del message, request
            return await self._answer_request(name, body, context)

    async def _answer_request(self, name: str, body: HttpRequest, context: Any) -> pb.ModelInferResponse:
        exchange = await self._asked(name, context, body.path, body)
        if exchange.status != OK:
            raise _refusal(name, exchange)
        answer = answer_of(exchange.answer, exchange.head_bytes, is_raw=body.is_raw)
        if why := exchange.header(FELL_BACK_SAID):
            answer.parameters[FELL_BACK].string_param = why
        return answer

    async def _stream(self, messages: AsyncIterator[bytes], context: Any) -> None:
        """ModelStreamInfer: its requests are those of ModelInfer."""
        stranger = request_for(context, self._host, b"/", is_secure=self._is_secure)
        user = await self._proxy.access.user_of(stranger, OPEN, NOBODY)
        caller, address = caller_of(stranger, user), address_of(stranger)
        with self.room.stream(caller, is_known=bool(user)):
            infer = partial(self._answer_request, context=context)
            stream = Stream(self.room, caller, address, infer, is_known=bool(user))
            await stream.answer(messages, context)

    async def _answered_at(self, name: str, context: Any, path: bytes) -> Exchange:
        """What a program answers at a path. Raises ProgramRefused, and what _asked raises."""
        exchange = await self._asked(name, context, path)
        if exchange.status != OK:
            raise _refusal(name, exchange)
        return exchange

    async def _asked(self, name: str, context: Any, path: bytes, body: HttpRequest | None = None) -> Exchange:
        """A request to a program and its answer. Raises Busy, ReplicaFailed, and what the scheduler refuses."""
        request = request_for(context, self._host, path, body, is_secure=self._is_secure)
        async with self._proxy.watching.service(name) as service:
            user = await self._user(request, service.access)
            exchange = Exchange(request, body.release_parts() if body is not None else deque())
            await self._proxy.pass_on(service, request, path, user, exchange)
            return exchange

    async def _user(self, request: HTTPConnection, access: sessions_pb2.ModelAccess.ValueType) -> str:
        try:
            return await self._proxy.access.user_of(request, access, NOBODY)
        except GpufleetError as error:
            raise _for_callers(error) from None


class _Others(grpc.GenericRpcHandler):
    """Refuses the calls of the protocol that are not built, in a sentence."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        method: str = handler_call_details.method
        if not method.startswith(f"/{SERVICE.full_name}/"):
            return None

        async def refuse(messages: Any, context: Any) -> AsyncIterator[bytes]:
            known = ", ".join(each.name for each in SERVICE.methods)
            error = GpufleetError(
                Reason.NOT_BUILT,
                f"{method.rpartition('/')[2][:80]} is not answered here",
                next_step=f"These are: {known}. See docs/predict.md.",
            )
            await context.abort_with_status(to_status(error))
            yield b""

        return grpc.stream_stream_rpc_method_handler(refuse)


def _serialized(message: Message) -> bytes:
    return message.SerializeToString()


def _answered(handler: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
    """The same, with what it raises as the call's status."""

    async def answer(request: Any, context: Any) -> Any:
        try:
            return await handler(request, context)
        except PROBLEMS as problem:
            return await context.abort_with_status(status_of(problem))

    return answer


async def _first(messages: AsyncIterator[bytes]) -> bytes:
    """The call's one message. Raises INVALID_ARGUMENT where it ends without."""
    async for message in messages:
        return message
    raise invalid("the message", "is missing")


def _refusal(model: str, exchange: Exchange) -> ProgramRefused:
    """What a program refused, for who called."""
    log.debug("a program has refused", extra=fields(model=model, status=exchange.status))
    status = status_of_program(model, exchange.status, exchange.answer, exchange.header(b"retry-after"))
    return ProgramRefused(status)


def _for_callers(error: GpufleetError) -> GpufleetError:
    """The same for who has no browser."""
    if error.code is Code.UNAUTHENTICATED:
        step = "Send the metadata authorization with: Bearer, a space, and your token."
        return GpufleetError(error.reason, error.message, next_step=step, retry_after_s=error.retry_after_s)
    return error


def _state(model: sessions_pb2.Model) -> tuple[str, str]:
    """The protocol's word for a program's state, and why it is not ready."""
    states = {each.state for each in model.workers}
    if inference_pb2.WORKER_STATE_READY in states:
        return "READY", ""
    if states & {inference_pb2.WORKER_STATE_LOADING, inference_pb2.WORKER_STATE_STARTING}:
        return "LOADING", "a replica is starting"
    if inference_pb2.WORKER_STATE_QUEUED in states:
        return "UNAVAILABLE", "a replica waits for a device"
    if model.HasField("failure"):
        return "UNAVAILABLE", "its replicas fail"
    return "UNAVAILABLE", "asleep: the first request starts a replica"
