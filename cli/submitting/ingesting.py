"""What `ingest` asks and shows: first who takes the file, so that nothing is uploaded for nothing."""

from __future__ import annotations

import shlex
import sys
import uuid
from pathlib import Path

from gpufleet.v1 import ingest_pb2, job_pb2

from gpufleet.errors import GpufleetError, invalid
from gpufleet.fleet.client import connected
from gpufleet.fleet.settings import Settings
from gpufleet.fleet.submitting.input_files import input_files, local_files
from gpufleet.fleet.submitting.requests import in_options, outcome_unknown
from gpufleet.fleet.submitting.uploading import upload_missing
from gpufleet.text.cleaning import clean

from .. import screen
from ..printing import print_message

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
) -> int:
    """Make a job of the file, and print its id alone on stdout; or ask the model that takes it, and print its answer.

    Gives the exit code. Errors: CONTENT_TYPE_UNHANDLED, those of UploadBlob, INVALID_ARGUMENT where it is no single
    file, and what the gateway refuses.
    """
    files = input_files([text])
    if len(files) != 1:
        raise invalid("FILE", f"{text} has {len(files):,} files", next_step="Send each of them, or an archive of all.")
    request = ingest_pb2.IngestRequest(file=files[0], content_type=content_type, gpu=gpu, dry_run=True)
    found = _asked(settings, request)
    if not dry_run:
        if found.HasField("model"):
            from .asking_model import ask_model

            return ask_model(settings, found, _path(text))
        spec = job_pb2.JobSpec(files=files)
        root = shared_root or settings.config.settings.shared_root
        upload_missing(settings, [text], spec, screen.NOTICES, root)
        request.file.CopyFrom(spec.files[0])
        request.dry_run, request.request_id = False, request_id or uuid.uuid4().hex
        found = _asked(settings, request)
    if settings.format in ("json", "jsonl"):
        print_message(found, settings.format)
        return 0
    if dry_run:
        _tell_dry_run(found)
        return 0
    print(found.job_id, flush=True)
    for note in found.notes:
        print(f"gpuctl: {clean(note)}", file=sys.stderr)
    if sys.stderr.isatty():
        print(f"Next: gpuctl logs -f {found.job_id} · gpuctl wait {found.job_id}", file=sys.stderr)
    return 0


def _path(text: str) -> Path:
    """Where the file is, without the name that was given to it. Errors: INVALID_ARGUMENT where it is not here."""
    for path in local_files([text]).values():
        return path
    raise invalid("FILE", f"{text} is not a file of this machine", next_step="Name one: a model is sent its bytes.")


def _asked(settings: Settings, request: ingest_pb2.IngestRequest) -> ingest_pb2.IngestResponse:
    with connected(settings) as client:
        try:
            return client.call_again(client.scheduler.Ingest, request)
        except GpufleetError as problem:
            told = problem if request.dry_run else outcome_unknown(problem, request.request_id)
            raise in_options(told, lambda field: OPTIONS.get(field, field)) from None


def _tell_dry_run(found: ingest_pb2.IngestResponse) -> None:
    where = MODES.get(found.gpu_mode, "a CPU")
    print(f"Nothing was changed. {clean(found.content_type)} matches {clean(found.pattern)!r} of [handlers].")
    if found.HasField("model"):
        how = (
            f"as its input {clean(found.model.input)}" if found.model.input else f"at {clean(found.model.path or '/')}"
        )
        print(f"The model {found.model.name} would be asked, on {where}, {how}.")
    else:
        print(f"It would become a job, on {where}: {clean(shlex.join(found.job.spec.argv))}")
    for note in found.notes:
        print(f"Note: {clean(note)}")
