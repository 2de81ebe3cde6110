"""What `ingest` asks and shows: first who takes the file, so that nothing is uploaded for nothing."""

from __future__ import annotations

import shlex
import sys
import uuid
from pathlib import Path

from gpufleet.v1 import ingest_pb2, job_pb2

from gpufleet.errors import GpufleetError, invalid

from ..client import connected
from ..printing import print_message
from ..reading import wrong
from ..render.table import clean
from ..settings import Settings
from .input_files import input_files, local_files
from .submission import in_options, outcome_unknown
from .uploading import upload_missing

OPTIONS = {"file.path": "FILE", "file.digest": "FILE", "content_type": "--content-type", "gpu": "--gpu"}
MODES = {job_pb2.GPU_MODE_PREFERRED: "a GPU, or else a CPU", job_pb2.GPU_MODE_REQUIRED: "a GPU"}


def ingest_file(
    settings: Settings,
    text: str,
    content_type: str,
    request_id: str | None,
    shared_root: Path | None,
    *,
    gpu: bool,
    dry_run: bool,
) -> None:
    """Make a job of the file, and print its id alone on stdout. Errors: CONTENT_TYPE_UNHANDLED, those of UploadBlob,
    INVALID_ARGUMENT where it is no single file, or a served model takes it."""
    files = input_files([text])
    if len(files) != 1:
        raise invalid("FILE", f"{text} has {len(files):,} files", next_step="Send each of them, or an archive of all.")
    request = ingest_pb2.IngestRequest(file=files[0], content_type=content_type, gpu=gpu, dry_run=True)
    found = _asked(settings, request)
    if not dry_run:
        if found.HasField("model"):
            raise _for_a_model(found, _path(text))
        spec = job_pb2.JobSpec(files=files)
        upload_missing(settings, [text], spec, shared_root or settings.config.settings.shared_root)
        request.file.CopyFrom(spec.files[0])
        request.dry_run, request.request_id = False, request_id or uuid.uuid4().hex
        found = _asked(settings, request)
    if settings.format in ("json", "jsonl"):
        print_message(found, settings.format)
        return
    if dry_run:
        _tell_dry_run(found, _path(text))
        return
    print(found.job_id, flush=True)
    for note in found.notes:
        print(f"gpuctl: {clean(note)}", file=sys.stderr)
    if sys.stderr.isatty():
        print(f"Next: gpuctl logs -f {found.job_id} · gpuctl wait {found.job_id}", file=sys.stderr)


def _path(text: str) -> str:
    """Where the file is, without the name that was given to it."""
    return next((str(path) for path in local_files([text]).values()), text)


def _asked(settings: Settings, request: ingest_pb2.IngestRequest) -> ingest_pb2.IngestResponse:
    with connected(settings) as client:
        try:
            return client.call_again(client.scheduler.Ingest, request)
        except GpufleetError as problem:
            told = problem if request.dry_run else outcome_unknown(problem, request.request_id)
            raise in_options(told, lambda field: OPTIONS.get(field, field)) from None


def _how_for_a_model(found: ingest_pb2.IngestResponse, text: str) -> str:
    if found.model.input:
        return f"gpuctl infer {found.model.name} {shlex.quote(text)} --as bytes"
    form = shlex.quote(f"file=@{text};type={found.content_type}")
    return f'curl -H "authorization: Bearer $TOKEN" -F {form} GATEWAY/api/v1/ingest/file'


def _for_a_model(found: ingest_pb2.IngestResponse, text: str) -> GpufleetError:
    what = f"{found.content_type} is for the model {found.model.name}, which the gateway asks; nothing was uploaded"
    return wrong(what, f"Ask it with: {_how_for_a_model(found, text)}")


def _tell_dry_run(found: ingest_pb2.IngestResponse, text: str) -> None:
    where = MODES.get(found.gpu_mode, "a CPU")
    print(f"Nothing was changed. {clean(found.content_type)} matches {clean(found.pattern)!r} of [handlers].")
    if found.HasField("model"):
        print(f"The model {found.model.name} takes it. Ask it with: {_how_for_a_model(found, text)}")
    else:
        print(f"It would become a job, on {where}: {clean(shlex.join(found.job.spec.argv))}")
    for note in found.notes:
        print(f"Note: {clean(note)}")
