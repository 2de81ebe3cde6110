"""From a model as it was sent to one of the state. Refusals name the field."""

import re
from dataclasses import replace

from google.protobuf.duration_pb2 import Duration
from gpufleet.v1 import job_pb2, sessions_pb2

from gpufleet.errors import invalid

from ..state.ids import ModelName
from ..state.sessions import SessionLimits
from ..state.specs import Band, JobSpec
from ..state.units import DAY, SECOND, Span
from .validate import band_of, span_of, wanted_job

MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
ENTRY_POINT = re.compile(r"[A-Za-z_][\w.-]*(:[A-Za-z_][\w.]*)?")
ENTRY_POINT_CHARS_MAX = 500
ARGUMENTS_MAX = 100
ARGUMENT_CHARS_MAX = 10_000
LINE_LENGTH_MAX = 1_000_000
LIMIT_SPAN_MAX = Span(1 * DAY)
WORKERS_MAX = 1_000
"""Workers that one model may have."""

PROGRAM = ("gpuctl", "worker")
"""What is run as a worker where nothing else is said."""

UNFIT = (
    ("array", "a worker is one job"),
    ("after", "a worker waits for no other job"),
    ("begin_time", "a worker is started when it is needed"),
    ("is_held", "a worker is started when it is needed"),
    ("time_limit", "a worker runs until it is stopped"),
    ("queue_timeout", "a worker waits as long as it is needed"),
    ("retries", "a worker is started again as the model's restart policy says"),
    ("no_requeue", "a worker is started again wherever there is room"),
    ("requeue_fence", "a worker is fenced by the epochs of its sessions"),
    ("blame_limit", "a worker is started again as the model's restart policy says"),
    ("node_count", "a worker has one node"),
    ("input", "a worker reads nothing"),
)
"""Fields of a job that say nothing for a worker, and why."""


def model_name(name: str, path: str) -> ModelName:
    """A model's name, checked."""
    if not MODEL_NAME.fullmatch(name):
        raise invalid(
            path,
            f"{name!r} is not a model's name",
            next_step="use 1 to 63 letters, digits, '.', '-' or '_', beginning with a letter or digit",
        )
    return ModelName(name)


def entry_point_of(text: str) -> str:
    """What implements a model, checked for its form only: whether it is there, its worker will say."""
    if len(text) > ENTRY_POINT_CHARS_MAX or not ENTRY_POINT.fullmatch(text):
        raise invalid(
            "model.entry_point",
            f"{text[:80]!r} is neither package.module:Class nor a model that comes with gpufleet",
            next_step="see docs/write-a-model.md, or try one that comes with gpufleet: test-pattern, canvas",
        )
    return text


def arguments_of(model: sessions_pb2.Model) -> tuple[tuple[str, str], ...]:
    """The arguments of a model, by name."""
    if len(model.arguments) > ARGUMENTS_MAX:
        raise invalid("model.arguments", f"holds {len(model.arguments):,}; at most {ARGUMENTS_MAX} are taken")
    for name, value in model.arguments.items():
        if not name.isidentifier():
            raise invalid(f"model.arguments[{name!r}]", "is not the name of an argument")
        if len(value) > ARGUMENT_CHARS_MAX or "\0" in value:
            raise invalid(f"model.arguments[{name!r}]", f"must be at most {ARGUMENT_CHARS_MAX:,} characters, no NUL")
    return tuple(sorted(model.arguments.items()))


def workers_of(model: sessions_pb2.Model) -> tuple[int, int]:
    """The fewest and the most workers."""
    least, most = model.min_workers, model.max_workers or max(1, model.min_workers)
    if not 0 <= least <= WORKERS_MAX:
        raise invalid("model.min_workers", f"is {least:,}; it must be 0 to {WORKERS_MAX:,}")
    if not least <= most <= WORKERS_MAX:
        raise invalid("model.max_workers", f"is {most:,}; it must be {max(1, least)} to {WORKERS_MAX:,}")
    return least, most


def worker_of(model: sessions_pb2.Model, name: ModelName) -> tuple[JobSpec, Band]:
    """The job of each of a model's workers, and its band."""
    spec = job_pb2.JobSpec()
    spec.CopyFrom(model.worker)
    default = job_pb2.JobSpec()
    for field, why in UNFIT:
        has_presence = job_pb2.JobSpec.DESCRIPTOR.fields_by_name[field].has_presence
        is_named = has_presence and spec.HasField(field)  # type: ignore[arg-type]
        is_set = is_named or (not has_presence and getattr(spec, field) != getattr(default, field))
        if is_set and not (field == "node_count" and spec.node_count == 1):
            raise invalid(f"model.worker.{field}", f"does not fit a worker: {why}", next_step="leave it out")
    arguments = (word for key, value in arguments_of(model) for word in ("--model-arg", f"{key}={value}"))
    argv = [*(spec.argv or PROGRAM), entry_point_of(model.entry_point), "--name", name, *arguments]
    del spec.argv[:]
    spec.argv.extend(argv)
    # One that no single node holds would be spread, and a worker is one process.
    spec.no_span = True
    spec.name = name
    wanted = wanted_job(spec, "model.worker")
    band = band_of(model.worker.band, "model.worker.band") if model.worker.band else Band.HIGH
    return replace(wanted.spec, serves=name, trace_context=""), band


def limits_of(limits: sessions_pb2.SessionLimits) -> tuple[SessionLimits, tuple[str, ...]]:
    """The numbers that are set, and which they are; the others have their defaults here."""
    default = SessionLimits()
    found: dict[str, Span] = {}
    for field, least in LEAST.items():
        if not limits.HasField(field):  # type: ignore[arg-type]
            continue
        value: Duration = getattr(limits, field)
        span = span_of(value)
        if not least <= span <= LIMIT_SPAN_MAX:
            raise invalid(f"model.limits.{field}", f"must be {least // SECOND} s to {LIMIT_SPAN_MAX // SECOND:,} s")
        found[field] = span
    checked = replace(default, **found)
    chosen = [*found]
    if limits.line_length:
        if not 1 <= limits.line_length <= LINE_LENGTH_MAX:
            raise invalid("model.limits.line_length", f"must be 1 to {LINE_LENGTH_MAX:,}")
        checked = replace(checked, line_length=limits.line_length)
        chosen.append("line_length")
    if "idle_warning" in found and checked.idle_warning >= checked.idle:
        raise invalid("model.limits.idle_warning", "must be shorter than idle")
    return checked, tuple(sorted(chosen))


LEAST = {
    "idle": Span(2 * SECOND),
    "idle_warning": Span(0),
    "turn": Span(1 * SECOND),
    "turn_warning": Span(0),
    "grace": Span(0),
}
"""The spans of a model, and the shortest that each may be."""
