"""A file that a served model takes: it is asked here, through the gateway, and its answer printed."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpufleet.v1 import ingest_pb2, job_pb2

from gpufleet.client.routes import Route, routes_of
from gpufleet.client.settings import GivenSettings, load_settings
from gpufleet.errors import GpufleetError, Reason
from gpufleet.fleet.settings import Settings

from ..batch.given import GpuChoice, settings_given
from ..errors import FAILED

MODES = {
    job_pb2.GPU_MODE_REQUIRED: "required",
    job_pb2.GPU_MODE_PREFERRED: "preferred",
    job_pb2.GPU_MODE_NEVER: "never",
}
"""As a request says it; a model that has nothing to choose is asked without."""

REFUSAL_BYTES_MAX = 65_536
CHUNK_BYTES = 262_144


def ask_model(settings: Settings, found: ingest_pb2.IngestResponse, file: Path) -> int:
    """Ask the model that takes a file, and print what it says; gives the exit code.

    As an input of the Open Inference Protocol the file is asked about as `gpuctl infer` does; else it is posted as it
    lies on the disk, and the answer goes to stdout as it comes.
    """
    choice = GpuChoice(MODES.get(found.gpu_mode), found.content_type)
    given = settings_given(settings, found.model.name, [], None, None, choice=choice)
    if found.model.input:
        from ..asking.items import items_of
        from ..asking.program import run_infer

        return run_infer(items_of([file], [], [], "bytes"), given, settings.format)
    return _post(given, found, file)


def _post(given: GivenSettings, found: ingest_pb2.IngestResponse, file: Path) -> int:
    known = load_settings(given)
    (route,) = routes_of(known, has_callable=False)
    with _connection(route, known.timeout_s) as connection, file.open("rb") as body:
        headers = dict(route.headers) | {
            "Content-Type": found.content_type,
            "Content-Length": str(os.fstat(body.fileno()).st_size),
            "Accept": "*/*",
        }
        if route.origin.token:
            headers["Authorization"] = f"Bearer {route.origin.token}"
        connection.request("POST", f"{route.origin.prefix}{found.model.path or '/'}", body, headers)
        answer = connection.getresponse()
        if answer.status < 400:
            while data := answer.read(CHUNK_BYTES):
                sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
            return 0
        said = answer.read(REFUSAL_BYTES_MAX)
    if (refusal := _refusal(said)) is not None:
        raise refusal
    sys.stderr.buffer.write(said.rstrip() + b"\n")
    print(f"gpuctl: model {found.model.name} answered with status {answer.status}", file=sys.stderr)
    return FAILED


@contextmanager
def _connection(route: Route, timeout_s: float) -> Iterator[http.client.HTTPConnection]:
    """A connection to the gateway, and words for what breaks it."""
    origin = route.origin
    if origin.is_tls:
        context = ssl.create_default_context(cafile=origin.ca_file)
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            origin.host, origin.port, timeout=timeout_s, context=context
        )
    else:
        connection = http.client.HTTPConnection(origin.host, origin.port, timeout=timeout_s)
    url = origin.url.removesuffix(origin.prefix)
    try:
        connection.connect()
    except OSError as problem:
        step = "Start one with gpuctl up or gpuctl gateway, or say where it is: GPUCTL_GATEWAY=https://HOST:7860"
        why = f"no gateway answers at {url}: {problem.strerror or problem}"
        raise GpufleetError(Reason.WORKER_NOT_READY, why, next_step=step) from None
    try:
        yield connection
    except TimeoutError:
        why = f"nothing came of the answer for {timeout_s:g} s"
        raise GpufleetError(
            Reason.DEADLINE, why, next_step="Wait for longer with: GPUFLEET_INFERENCE_TIMEOUT_S=600"
        ) from None
    except (http.client.HTTPException, ConnectionError, ssl.SSLError) as problem:
        why = f"the connection to {url} broke before all of the answer was there: {problem}"
        raise GpufleetError(Reason.REPLICA_FAILED, why) from None
    finally:
        connection.close()


def _refusal(said: bytes) -> GpufleetError | None:
    """The gateway's own words; None where the model itself has answered so."""
    try:
        error = json.loads(said)["error"]
        reason = Reason.__members__[str(error["reason"])]
        return GpufleetError(reason, str(error["message"]), next_step=str(error.get("next_step") or ""))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
