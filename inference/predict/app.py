"""The paths of the Open Inference Protocol: what is asked of a model, and callers that go away."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from gpufleet.predict import TensorSpec
from gpufleet.runtimes.facts import as_object

from .describing import PLATFORM, config_of, statistics_of
from .metrics import CONTENT_TYPE, page
from .predictor import Predictor, State
from .requests import RequestError, read
from .results import HEADER_LENGTH, VERSION, Answer, answer_of, error_of

BODY_S_MAX = 60.0
"""How long a body may take to come."""

HELD_BYTES_MAX = 1 << 30
"""Bodies of requests under way, all together; further requests are refused until some are answered."""

TIMEOUT_HEADER = "X-Request-Timeout-Ms"
TIMEOUT_MS_MAX = 24 * 3_600 * 1_000
EXTENSIONS = ("binary_tensor_data", "model_configuration", "statistics")


class PredictService:
    """Answers requests for the model `name`; a body has `body_max` bytes at most."""

    def __init__(self, predictor: Predictor, *, name: str, version: str, body_max: int) -> None:
        self.predictor = predictor
        self.name = name
        self._version = version
        self._body_max = body_max
        self._held = 0

    def app(self) -> Starlette:
        """The application, for a server of ASGI."""
        model = "/v2/models/{name}"
        routes = [
            Route("/v2", self._server),
            Route("/v2/health/live", self._live),
            Route("/v2/health/ready", self._ready),
            Route("/metrics", self._metrics),
            Route("/v2/repository/index", self._index, methods=["POST"]),
            Route("/v2/models/stats", self._statistics),
        ]
        for path in (model, f"{model}/versions/{{version}}"):
            routes += [
                Route(path, self._metadata),
                Route(f"{path}/ready", self._model_ready),
                Route(f"{path}/config", self._config),
                Route(f"{path}/stats", self._statistics),
                Route(f"{path}/infer", _Asgi(self._infer), methods=["POST"]),
            ]
        return Starlette(routes=routes, exception_handlers={HTTPException: _not_here, RequestError: _refused})

    # --- what is told

    async def _server(self, request: Request) -> Response:
        return JSONResponse({"name": "gpufleet", "version": self._version, "extensions": EXTENSIONS})

    async def _live(self, request: Request) -> Response:
        predictor = self.predictor
        is_live = predictor.state not in (State.HUNG, State.FAILED)
        return JSONResponse({"live": is_live} | ({} if is_live else {"error": predictor.why}), 200 if is_live else 503)

    async def _ready(self, request: Request) -> Response:
        is_ready = self.predictor.state is State.READY
        said = {"ready": is_ready} | ({} if is_ready else {"error": self.predictor.why})
        return JSONResponse(said, 200 if is_ready else 503)

    async def _model_ready(self, request: Request) -> Response:
        self._check(request.path_params)
        return await self._ready(request)

    async def _metadata(self, request: Request) -> Response:
        self._check(request.path_params)
        predictor, limits = self.predictor, self.predictor.batcher.limits
        return JSONResponse(
            {
                "name": self.name,
                "versions": [VERSION],
                "platform": PLATFORM,
                "inputs": _described(predictor.traits.inputs),
                "outputs": _described(predictor.traits.outputs),
                "parameters": {
                    "device": predictor.device,
                    "runtimes": [as_object(each) for each in predictor.runtimes],
                    "state": predictor.state.value,
                    "max_batch": predictor.batcher.batch_max,
                    "max_wait_ms": limits.wait_us / 1e3,
                    "max_items": limits.waiting_max,
                },
            }
        )

    async def _config(self, request: Request) -> Response:
        self._check(request.path_params)
        return JSONResponse(config_of(self.name, self.predictor))

    async def _statistics(self, request: Request) -> Response:
        if request.path_params:
            self._check(request.path_params)
        return JSONResponse({"model_stats": [statistics_of(self.name, self.predictor.counts)]})

    async def _index(self, request: Request) -> Response:
        """The one model, whatever the body asks for: it is not read."""
        state, why = self.predictor.state, self.predictor.why
        said = {State.READY: "READY", State.LOADING: "LOADING"}.get(state, "UNAVAILABLE")
        return JSONResponse([{"name": self.name, "version": VERSION, "state": said, "reason": why}])

    async def _metrics(self, request: Request) -> Response:
        predictor = self.predictor
        is_ready = predictor.state is State.READY
        text = page(predictor.counts, predictor.batcher.waiting, is_ready=is_ready, runtimes=predictor.runtimes)
        return Response(text, media_type=CONTENT_TYPE)

    def _check(self, named: dict[str, Any]) -> None:
        """Raises RequestError with status 404 for another model or version."""
        if named["name"] != self.name:
            raise RequestError(404, f'there is no model "{named["name"][:80]}" here, but {self.name}')
        if named.get("version", VERSION) != VERSION:
            raise RequestError(404, f'{self.name} has no version "{named["version"][:80]}", but {VERSION}')

    # --- what is computed

    async def _infer(self, scope: Scope, receive: Receive, send: Send) -> None:
        held = 0
        try:
            try:
                self._check(scope["path_params"])
                headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
                held = self._hold(headers)
                body = await self._body(receive, held)
                self._held += len(body) - held
                held = len(body)
                answer = await self._answer(body, headers, receive)
            except RequestError as problem:
                answer = error_of(problem)
            if answer is not None:
                await _send(answer, send)
        finally:
            self._held -= held

    def _hold(self, headers: dict[bytes, str]) -> int:
        """Make room for a body; answers how many bytes. Raises RequestError."""
        if headers.get(b"content-encoding", "identity") != "identity":
            raise RequestError(415, "Content-Encoding: send the body as it is, not compressed")
        said = headers.get(b"content-length", "")
        size = int(said) if said.isascii() and said.isdigit() and len(said) < 20 else self._body_max
        if said and size > self._body_max:
            raise self._too_large()
        if self._held + size > max(HELD_BYTES_MAX, self._body_max):
            raise RequestError(429, f"requests under way hold {self._held:,} bytes already", 1)
        self._held += size
        return size

    async def _body(self, receive: Receive, held: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_S_MAX):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RequestError(400, "the body: ended before it was whole")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > self._body_max:
                        raise self._too_large()
                    if not message.get("more_body", False):
                        return parts[0] if len(parts) == 1 else b"".join(parts)
        except TimeoutError:
            raise RequestError(408, f"the body: did not come within {BODY_S_MAX:g} s") from None

    def _too_large(self) -> RequestError:
        return RequestError(413, f"the body: has more than {self._body_max:,} bytes; send fewer items at once")

    async def _answer(self, body: bytes, headers: dict[bytes, str], receive: Receive) -> Answer | None:
        """What is answered; None where nobody waits for it any more."""
        predictor = self.predictor
        if predictor.state is not State.READY:
            raise RequestError(503, predictor.why, 1)
        header_length = headers.get(HEADER_LENGTH.lower().encode())
        request = read(
            body,
            header_length,
            predictor.traits.inputs,
            timeout_us=_timeout_us(headers),
            items_max=predictor.batcher.limits.waiting_max,
        )
        found = predictor.infer(request)
        gone = asyncio.ensure_future(_until_gone(receive))
        gone.add_done_callback(lambda _: found.cancel())
        try:
            return answer_of(self.name, request, await found)
        except asyncio.CancelledError:
            if not gone.done():
                raise  # it is this task that is to end
            return None
        finally:
            gone.cancel()


class _Asgi:
    """Makes an application of a function: Starlette takes a plain function for one that is given a Request."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._call(scope, receive, send)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send(answer: Answer, send: Send) -> None:
    kind = b"application/octet-stream" if answer.header_length else b"application/json"
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(answer.body))]
    if answer.header_length:
        headers.append((HEADER_LENGTH.lower().encode(), b"%d" % answer.header_length))
    if answer.retry_s:
        headers.append((b"retry-after", b"%d" % answer.retry_s))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


def _timeout_us(headers: dict[bytes, str]) -> int | None:
    said = headers.get(TIMEOUT_HEADER.lower().encode())
    if said is None:
        return None
    if not (said.isascii() and said.isdigit() and len(said) < 12 and int(said) <= TIMEOUT_MS_MAX):
        raise RequestError(400, f'{TIMEOUT_HEADER}: "{said[:40]}" is no number of whole milliseconds')
    return int(said) * 1_000 or None


def _described(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
    """As the protocol has them: the first number of a shape is how many items there are."""
    return [{"name": spec.name, "datatype": spec.datatype, "shape": [-1, *spec.shape]} for spec in specs]


async def _not_here(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    words = f"{request.method} {request.url.path[:200]}: {problem.detail}; GET /v2 says what is here"
    return JSONResponse({"error": words}, problem.status_code, headers=problem.headers)


async def _refused(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, RequestError)
    return JSONResponse({"error": problem.message}, problem.status)
