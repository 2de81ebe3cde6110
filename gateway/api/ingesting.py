"""POST /ingest/file: a file becomes a job, or a served model is asked about it, as [handlers] says of its type.

The file comes with the request, as a part of a form, or lies at the scheduler already and is named by its digest. A
model's answer is passed on as it comes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Any

from google.protobuf.message import Message
from gpufleet.v1 import ingest_pb2, job_pb2, scheduler_pb2
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.types import Message as AsgiMessage

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.net.json_messages import json_object, message_object, message_of

from ..dashboard.guard import NOT_KEPT
from ..dashboard.serving import Dashboard
from ..proxy.serving import PREFIX as MODELS
from .forms import FormFile, FormReader, ReadForm
from .uploads import Uploads, chunks_of

INGEST_FIELDS = ("gpu", "content_type", "dry_run")
SUBMIT_FIELDS = ("spec", "gpu", "dry_run")
FILE_PART = "file"

TENSOR_BYTES_MAX = 2**32 - 1
"""A BYTES element of the Open Inference Protocol is no longer: its length has four bytes."""

PASSED = frozenset({b"authorization", b"traceparent", b"tracestate", b"x-request-id", b"host", b"gpufleet-session"})
"""Headers of the request that a model's request has, too."""

MODES = {
    job_pb2.GPU_MODE_REQUIRED: b"required",
    job_pb2.GPU_MODE_PREFERRED: b"preferred",
    job_pb2.GPU_MODE_NEVER: b"never",
}


class Ingesting:
    """What is done with files that come. `models` answers what lies under /m."""

    def __init__(self, dashboard: Dashboard, uploads: Uploads, models: ASGIApp) -> None:
        self._dashboard = dashboard
        self._uploads = uploads
        self._models = models

    async def submit(self, request: Request, key: str | None) -> Response:
        """A job whose files come with it. Raises what is wrong with the form, and what the scheduler refuses."""
        token = await self._uploads.token_of(request)
        with self._uploads.one_of(token), self._uploads.spool() as spool:
            form = await _form(request, FormReader(spool, SUBMIT_FIELDS))
            asked = _submit_of(form, key)
            if not asked.dry_run:
                await self._uploads.store_missing(token, spool, form.files)
            return await self._dashboard.answer(request, "Submit", asked, token)

    async def ingest(self, request: Request, key: str | None) -> Response:
        """A file that comes with the request. Raises the same."""
        token = await self._uploads.token_of(request)
        async with AsyncExitStack() as held:
            held.enter_context(self._uploads.one_of(token))
            spool = held.enter_context(self._uploads.spool())
            form = await _form(request, FormReader(spool, INGEST_FIELDS, FILE_PART))
            if not form.files:
                raise invalid(FILE_PART, "is not there", next_step="Send the file as a part with a filename.")
            asked, (file,) = _ingest_of(form, key), form.files
            look = ingest_pb2.IngestRequest()
            look.CopyFrom(asked)
            look.dry_run = True
            found: Any = await self._dashboard.scheduler.call("Ingest", look, token)
            if asked.dry_run or found.HasField("model"):
                if asked.dry_run:
                    return _answer(found, 200)
                body = spool.pieces(file.spooled)
                return FromModel(self._models, request, found, file.spooled.size_bytes, body, held.pop_all())
            await self._uploads.store_missing(token, spool, form.files)
            return _answer(await self._dashboard.scheduler.call("Ingest", asked, token), 202)

    async def ingest_stored(self, request: Request, asked: Any, token: str) -> Response:
        """A file that was uploaded before. Raises what the scheduler refuses."""
        found: Any = await self._dashboard.asked(
            request, lambda: self._dashboard.scheduler.call("Ingest", asked, token)
        )
        if asked.dry_run or not found.HasField("model"):
            return _answer(found, 200 if asked.dry_run else 202)
        async with AsyncExitStack() as held:
            held.enter_context(self._uploads.one_of(token))
            size, body = await held.enter_async_context(self._uploads.download(token, asked.file.digest))
            return FromModel(self._models, request, found, size, body, held.pop_all())


class FromModel(Response):
    """A model's answer about a file, which it is sent as it reads it. Closes `held` at its end."""

    def __init__(
        self,
        models: ASGIApp,
        request: Request,
        found: ingest_pb2.IngestResponse,
        size: int,
        body: AsyncIterator[bytes],
        held: AsyncExitStack,
    ) -> None:
        self._models, self._request, self._body, self._held = models, request, body, held
        self._scope = _scope_for(request, found, size)
        self._head = _tensor_head(found.model.input, size) if found.model.input else b""
        self._is_over = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Ask it, and pass on what it says."""

        async def body() -> AsgiMessage:
            if self._is_over:
                return await receive()
            data = self._head or await anext(self._body, b"")
            self._head, self._is_over = b"", not data
            return {"type": "http.request", "body": data, "more_body": not self._is_over}

        async with self._held:
            await self._models(self._scope, body, send)


def _scope_for(request: Request, found: ingest_pb2.IngestResponse, size: int) -> dict[str, Any]:
    """The request that the model gets, as if its client had made it."""
    model = found.model
    path = f"/v2/models/{model.name}/infer" if model.input else model.path
    path, _, query = path.partition("?")
    headers = [each for each in request.headers.raw if each[0] in PASSED]
    if model.input:
        if size + 4 > TENSOR_BYTES_MAX:
            raise GpufleetError(Reason.MESSAGE_TOO_LARGE, f"an input is at most {TENSOR_BYTES_MAX - 4:,} bytes long")
        head = _tensor_head(model.input, size)
        json_bytes, size = len(head) - 4, len(head) + size
        headers.append((b"content-type", b"application/octet-stream"))
        headers.append((b"inference-header-content-length", b"%d" % json_bytes))
    else:
        headers.append((b"content-type", found.content_type.encode("latin-1", "replace")))
    headers.append((b"content-length", b"%d" % size))
    headers.append((b"gpufleet-content-type", found.content_type.encode("latin-1", "replace")))
    if found.gpu_mode in MODES:
        headers.append((b"gpufleet-gpu-mode", MODES[found.gpu_mode]))
    raw_path = f"{MODELS}/{model.name}{path}"
    kept = ("type", "asgi", "http_version", "scheme", "client", "server", "state", "extensions")
    return {key: request.scope[key] for key in kept if key in request.scope} | {
        "method": "POST",
        "path": raw_path,
        "raw_path": raw_path.encode(),
        "root_path": MODELS,
        "query_string": query.encode(),
        "headers": headers,
    }


def _tensor_head(name: str, size: int) -> bytes:
    """What stands before the file in a request of the Open Inference Protocol: JSON, and the element's length."""
    tensor = {"name": name, "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": size + 4}}
    return json.dumps({"inputs": [tensor]}, separators=(",", ":")).encode() + struct.pack("<I", size)


async def _form(request: Request, reader: FormReader) -> ReadForm:
    return await reader.read(request.headers["content-type"], chunks_of(request))


def _submit_of(form: ReadForm, key: str | None) -> Any:
    """The submit that a form says. Raises INVALID_ARGUMENT."""
    if "spec" not in form.fields:
        raise invalid("spec", "is not there", next_step='Send the job as JSON: spec={"argv": ["python", "train.py"]}')
    spec = json_object("spec", form.fields["spec"])
    said: dict[str, Any] = {"specs": [spec]} | _flags(form)
    if key is not None:
        said["request_id"] = key
    asked: Any = message_of(scheduler_pb2.SubmitRequest, said)
    of_spec = asked.specs[0]
    if of_spec.files and form.files:
        raise invalid("spec.files", "are said beside files that come with the request", next_step="leave one out")
    of_spec.files.extend(_input_file(each) for each in form.files)
    if asked.gpu and not of_spec.content_type:
        # AUTO decides by what the job works on: its first file, where nothing else is said.
        of_spec.content_type = next((each.content_type for each in form.files if each.content_type), "")
    return asked


def _ingest_of(form: ReadForm, key: str | None) -> ingest_pb2.IngestRequest:
    file = form.files[0]
    said: dict[str, Any] = _flags(form)
    return ingest_pb2.IngestRequest(
        file=_input_file(file),
        content_type=form.fields.get("content_type", "") or file.content_type,
        request_id=key or "",
        **said,
    )


def _flags(form: ReadForm) -> dict[str, bool]:
    flags = {name: form.flag(name) for name in ("gpu", "dry_run")}
    return {name: value for name, value in flags.items() if value is not None}


def _input_file(file: FormFile) -> job_pb2.InputFile:
    return job_pb2.InputFile(path=file.path, digest=file.spooled.digest, size_bytes=file.spooled.size_bytes)


def _answer(found: Message, status: int) -> Response:
    told: Mapping[str, Any] = message_object(found)
    headers = dict(NOT_KEPT)
    if status == 202:
        headers["Location"] = f"/api/v1/jobs/{told['job_id']}"
    return JSONResponse(told, status, headers)
