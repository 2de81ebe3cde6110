"""A file that comes by ingest: what it is taken for, which handler takes it, and what follows from that."""

import mimetypes
from collections.abc import Sequence
from datetime import timedelta

from google.protobuf.duration_pb2 import Duration
from gpufleet.v1 import ingest_pb2, job_pb2, scheduler_pb2

from gpufleet.config.handler_settings import FILE_WORD, Handlers, HandlerSettings
from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.jobs.files import is_digest, trouble_with_path

from ..policy.routing import longest_pattern, pattern_for
from ..state.limits import GpuRouting
from ..state.sessions.session import Model
from ..state.specs import GpuMode
from .gpu_choice import CONTENT_TYPE, CONTENT_TYPE_CHARS_MAX, MODES
from .input_files import HOW

UNKNOWN = "application/octet-stream"
"""What programs say of a file that they know nothing of: as good as nothing."""

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where a handler's program is looked for, unless its `env` says so: nobody's shell stands behind it."""

PATTERNS_SHOWN = 20
"""So many patterns stand in a refusal."""

_BY_NAME = mimetypes.MimeTypes(filenames=())
"""The table of the interpreter itself, so that no file of the machine changes what a name means."""


def content_type_of(request: ingest_pb2.IngestRequest) -> str:
    """What the file is taken for: as was said, or else by its name. Errors: INVALID_ARGUMENT."""
    if why := trouble_with_path(request.file.path):
        raise invalid("file.path", why, next_step=HOW)
    said = request.content_type.strip()
    if said and (len(said) > CONTENT_TYPE_CHARS_MAX or not CONTENT_TYPE.fullmatch(said)):
        raise invalid(
            "content_type",
            f"{said[:80]!r} is not a content type",
            next_step="write a type and a subtype, such as audio/mpeg or text/plain",
        )
    if said and said.partition(";")[0].strip().lower() != UNKNOWN:
        return said
    # guess_type takes a URL: what looks like one in a name must not be read as such.
    found, encoding = _BY_NAME.guess_type("x" + request.file.path.rpartition("/")[2].replace(":", "_"), strict=False)
    return found if found and not encoding else UNKNOWN


def check_file(request: ingest_pb2.IngestRequest) -> None:
    """The file must be named, but for a dry run. Errors: INVALID_ARGUMENT."""
    if request.dry_run and not request.file.digest:
        return
    if not is_digest(request.file.digest):
        why = "is not a SHA-256 in lower-case hexadecimal"
        raise invalid("file.digest", why, next_step="give the 64 digits that sha256sum prints")


def handler_for(handlers: Handlers, content_type: str) -> tuple[str, HandlerSettings]:
    """The pattern that matches, and its handler: the longest decides. Errors: CONTENT_TYPE_UNHANDLED."""
    by_pattern = dict(handlers)
    pattern = longest_pattern(by_pattern, content_type)
    if pattern is not None:
        return pattern, by_pattern[pattern]
    shown = ", ".join(list(by_pattern)[:PATTERNS_SHOWN])
    more = f" and {len(by_pattern) - PATTERNS_SHOWN:,} more" if len(by_pattern) > PATTERNS_SHOWN else ""
    raise GpufleetError(
        Reason.CONTENT_TYPE_UNHANDLED,
        f"nothing takes {content_type}; "
        + (f"what is taken is {shown}{more}" if by_pattern else "[handlers] of scheduler.toml is empty"),
        next_step="Say another content type, or have an admin add it to [handlers] of scheduler.toml.",
        metadata={"content_type": content_type, "handled": ", ".join(by_pattern)[:1_000]},
    )


def submit_of(
    request: ingest_pb2.IngestRequest, content_type: str, handler: HandlerSettings
) -> scheduler_pb2.SubmitRequest:
    """The job that a handler's command is for this file."""
    spec = job_pb2.JobSpec(
        argv=words_of(handler.command, request.file.path),
        devices=[job_pb2.DeviceRequest(count=handler.gpus)],
        cpus=handler.cpus,
        memory_bytes=handler.memory_bytes,
        time_limit=_duration(handler.time_limit),
        env={"PATH": PATH, **dict(handler.env)},
        content_type=content_type,
        gpu_mode=job_pb2.GPU_MODE_AUTO if request.gpu else job_pb2.GPU_MODE_NEVER,
        cpu_argv=words_of(handler.cpu_command, request.file.path),
        # A dry run needs no bytes, and so no digest of them.
        files=[request.file] if request.file.digest else [],
        cwd="" if request.file.digest else "/",
    )
    return scheduler_pb2.SubmitRequest(specs=[spec], request_id=request.request_id, dry_run=request.dry_run)


def words_of(command: Sequence[str], path: str) -> list[str]:
    """A command about a file, which lies in its working directory. What a name begins with is never an option."""
    return [word.replace(FILE_WORD, f"./{path}") for word in command]


def model_mode(model: Model, content_type: str, routing: GpuRouting, *, gpu: bool) -> job_pb2.GpuMode.ValueType:
    """How a model's request takes GPUs; unspecified where there is nothing to choose. Errors: INVALID_ARGUMENT."""
    http = model.http
    assert http is not None
    has_gpus = model.worker is not None and model.worker.resources.gpus > 0
    if not http.cpu_model and not has_gpus:
        return job_pb2.GPU_MODE_UNSPECIFIED
    mode = pattern_for(routing, content_type)[1] if gpu else GpuMode.NEVER
    if mode is GpuMode.NEVER and not http.cpu_model:
        raise invalid(
            "gpu",
            f"is not said, or {content_type} is for a CPU, and model {model.name} has no CPU model",
            next_step=f"say gpu=true, or serve one: gpuctl serve {model.name} --update --cpu-model NAME",
        )
    return MODES[mode]


def served(handler: HandlerSettings, model: Model | None) -> Model:
    """The model that a handler names. Errors: MODEL_NOT_FOUND."""
    if model is None or model.http is None:
        what = "takes no requests" if model is not None else "is not served"
        raise GpufleetError(
            Reason.MODEL_NOT_FOUND,
            f"[handlers] names the model {handler.model!r}, which {what}",
            next_step="See what is served with: gpuctl models",
        )
    return model


def _duration(span: timedelta | None) -> Duration | None:
    if span is None:
        return None
    message = Duration()
    message.FromTimedelta(span)
    return message
