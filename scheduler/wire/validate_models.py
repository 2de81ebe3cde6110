"""From a model as it was sent to one of the state. Refusals name the field."""

import re
from dataclasses import replace
from typing import Any

from google.protobuf.duration_pb2 import Duration
from gpufleet.v1 import job_pb2, sessions_pb2

from gpufleet.errors import invalid
from gpufleet.security.pass_phrases import is_hash

from ..state.ids import ModelName
from ..state.sessions.session import Access, HttpService, SessionLimits
from ..state.specs import Band, GpuMode, JobSpec
from ..state.units import DAY, SECOND, Span
from .convert_sessions import ACCESS
from .gpu_choice import MODE_OF
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

ARGV_MAX = 1_000
CONCURRENCY_MAX = 10_000
PORT_MAX = 65_535
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
OWN_VARIABLES = ("GPUFLEET_", "GPUCTL_")
READY_PATH = re.compile(r"/[!-~]{0,999}")
HTTP_SPANS = ("target_wait", "idle")

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
    ("limit_signal", "a worker has no time limit"),
    ("requeue_on_timeout", "a worker has no time limit"),
    ("blame_limit", "a worker is started again as the model's restart policy says"),
    ("node_count", "a worker has one node"),
    ("input", "a worker reads nothing"),
    ("gpu_mode", "a worker is loaded on the GPUs that it asks for"),
    ("content_type", "a worker serves its model, whatever that works on"),
    ("cpu_argv", "a worker is loaded on the GPUs that it asks for"),
    ("group", "a worker is of the first group of its model's owner"),
    ("folder", "a worker is started again for as long as its model is served; put it on its nodes"),
    ("environment", "a worker is started again for as long as its model is served; install what it needs on its nodes"),
    ("inputs", "a worker is started again for as long as its model is served, when what jobs left may be gone"),
    ("results", "a worker is started again for as long as its model is served, and leaves nothing"),
    ("keep", "a worker is started again for as long as its model is served, and keeps nothing for that"),
    ("files", "a worker is started again for as long as its model is served; put them on its nodes"),
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


def group_of(model: sessions_pb2.Model) -> str:
    """The group of its owner's programs with which it shares GPUs; empty for none."""
    group = model.exclusive_group
    if group and not MODEL_NAME.fullmatch(group):
        raise invalid(
            "model.exclusive_group",
            f"{group[:80]!r} is not a group's name",
            next_step="use 1 to 63 letters, digits, '.', '-' or '_', beginning with a letter or digit",
        )
    return group


WORKER_BAND = Band.HIGH
"""The band of workers for which none is named: people wait for them. It needs no right of who serves."""


def worker_of(model: sessions_pb2.Model, name: ModelName, http: HttpService | None = None) -> tuple[JobSpec, Band]:
    """The job of each of a model's workers, and its band. `http`: they are replicas of this program."""
    spec = job_pb2.JobSpec()
    spec.CopyFrom(model.worker)
    default = job_pb2.JobSpec()
    for field, why in UNFIT:
        has_presence = job_pb2.JobSpec.DESCRIPTOR.fields_by_name[field].has_presence
        is_named = has_presence and spec.HasField(field)  # type: ignore[arg-type]
        is_set = is_named or (not has_presence and getattr(spec, field) != getattr(default, field))
        if is_set and not (field == "node_count" and spec.node_count == 1):
            raise invalid(f"model.worker.{field}", f"does not fit a worker: {why}", next_step="leave it out")
    if spec.HasField("container"):
        _refuse_beside_container(spec, http)
    if http is None:
        arguments = (word for key, value in arguments_of(model) for word in ("--model-arg", f"{key}={value}"))
        served = [entry_point_of(model.entry_point), "--name", name, *arguments]
    else:
        served = of_program(name, http)
    argv = [*(spec.argv or PROGRAM), *served]
    del spec.argv[:]
    spec.argv.extend(argv)
    # One that no single node holds would be spread, and a worker is one process.
    spec.no_span = True
    spec.name = name
    wanted = wanted_job(spec, "model.worker")
    band = band_of(model.worker.band, "model.worker.band") if model.worker.band else WORKER_BAND
    # None are named: as many as its GPUs need, see policy/sessions/serving.py.
    resources = replace(wanted.spec.resources, cpus=model.worker.cpus)
    return replace(wanted.spec, resources=resources, serves=name, trace_context=""), band


def _refuse_beside_container(worker: job_pb2.JobSpec, http: HttpService | None) -> None:
    if http is None:
        raise invalid(
            "model.worker.container",
            "does not fit a class, which runs by an interpreter of its nodes",
            next_step="leave it out, or serve a program from the image: gpuctl serve NAME --image IMAGE --port 8000",
        )
    if worker.argv:
        why = "does not go with a container: its node's own gpufleet is run beside that"
        raise invalid("model.worker.argv", why, next_step="leave it out; what the image is run with is http.argv")


def http_of(http: sessions_pb2.HttpService, *, in_container: bool = False) -> HttpService:
    """The program that is served, with its defaults. `in_container`: it may be what its image runs by itself."""
    argv = tuple(http.argv)
    if (not argv and not in_container) or len(argv) > ARGV_MAX or (argv and not argv[0]):
        raise invalid("model.http.argv", f"must be a program and its arguments, {ARGV_MAX:,} at most")
    for word in argv:
        if len(word) > ARGUMENT_CHARS_MAX or "\0" in word:
            raise invalid("model.http.argv", f"each must be at most {ARGUMENT_CHARS_MAX:,} characters, no NUL")
    default = HttpService(argv=argv)
    port_env = http.port_env or default.port_env
    if not VARIABLE.fullmatch(port_env) or port_env.startswith(OWN_VARIABLES):
        step = "use letters, digits and '_', such as PORT"
        raise invalid("model.http.port_env", f"{port_env[:80]!r} is not a variable's name", next_step=step)
    if http.ready_path and not READY_PATH.fullmatch(http.ready_path):
        step = "begin it with '/', without spaces: /health"
        raise invalid("model.http.ready_path", f"{http.ready_path[:80]!r} is not a path", next_step=step)
    if not 0 <= http.port <= PORT_MAX:
        raise invalid("model.http.port", f"is {http.port:,}; it must be 1 to {PORT_MAX:,}, or 0 for the one it is told")
    if http.port and not in_container:
        step = 'leave it out, and let the program listen on "$PORT"; or run it in a container'
        raise invalid("model.http.port", "is a port in a container, and the worker has none", next_step=step)
    concurrency = _counted(http.concurrency, default.concurrency, CONCURRENCY_MAX, "concurrency")
    usual = min(default.target_concurrency, concurrency)
    target = _counted(http.target_concurrency, usual, concurrency, "target_concurrency")
    mode = MODE_OF.get(http.gpu_mode)
    if mode is None:
        step = "choose REQUIRED, PREFERRED, NEVER or AUTO"
        raise invalid("model.http.gpu_mode", f"is {http.gpu_mode}", next_step=step)
    if http.cpu_model:
        model_name(http.cpu_model, "model.http.cpu_model")
    elif mode is not GpuMode.REQUIRED:
        step = "name the program that does the same on CPUs, or leave the mode out"
        raise invalid("model.http.cpu_model", f"is missing, and gpu_mode is {mode.name}", next_step=step)
    spans = {field: getattr(default, field) for field in HTTP_SPANS}
    for field in spans:
        if http.HasField(field):  # type: ignore[arg-type]
            spans[field] = span_of(getattr(http, field))
            if not 0 <= spans[field] <= LIMIT_SPAN_MAX:
                raise invalid(f"model.http.{field}", f"must be 0 to {LIMIT_SPAN_MAX // SECOND:,} s")
    return replace(
        default,
        port_env=port_env,
        ready_path=http.ready_path,
        concurrency=concurrency,
        target_concurrency=target,
        cpu_model=http.cpu_model,
        gpu_mode=mode,
        port=http.port,
        **spans,
    )


def _counted(said: int, otherwise: int, most: int, field: str) -> int:
    if not 0 <= said <= most:
        raise invalid(f"model.http.{field}", f"is {said:,}; it must be 1 to {most:,}")
    return said or otherwise


def of_program(name: ModelName, http: HttpService) -> list[str]:
    """What is run beside a replica's program, to tell the scheduler how far it is and to let gateways reach it."""
    options = ["--name", name, "--port-env", http.port_env, "--concurrency", str(http.concurrency)]
    ready = ["--ready", http.ready_path] if http.ready_path else []
    port = ["--container-port", str(http.port)] if http.port else []
    return ["--http-service", *options, *ready, *port, "--", *http.argv]


def limits_of(limits: sessions_pb2.SessionLimits) -> tuple[SessionLimits, tuple[str, ...]]:
    """The numbers that are set, and which they are; the others have their defaults here."""
    found: dict[str, Any] = {}
    for field, least in LEAST.items():
        if not limits.HasField(field):  # type: ignore[arg-type]
            continue
        value: Duration = getattr(limits, field)
        span = span_of(value)
        if not least <= span <= LIMIT_SPAN_MAX:
            raise invalid(f"model.limits.{field}", f"must be {least // SECOND} s to {LIMIT_SPAN_MAX // SECOND:,} s")
        found[field] = span
    if limits.line_length:
        if not 1 <= limits.line_length <= LINE_LENGTH_MAX:
            raise invalid("model.limits.line_length", f"must be 1 to {LINE_LENGTH_MAX:,}")
        found["line_length"] = limits.line_length
    for field in PER_ADDRESS:
        if limits.HasField(field):  # type: ignore[arg-type]
            people: int = getattr(limits, field)
            if not 0 <= people <= LINE_LENGTH_MAX:
                raise invalid(f"model.limits.{field}", f"must be 0 to {LINE_LENGTH_MAX:,}; 0 is no limit")
            found[field] = people
    access, phrase_hash = _access_of(limits)
    if access is not None:
        found["access"] = access
    if phrase_hash or access is not None:
        # Who says anew who may join says it all: a pass phrase of before stays with --update of other numbers only.
        found["pass_phrase_hash"] = phrase_hash
    checked = SessionLimits(**found)
    if "idle_warning" in found and checked.idle_warning >= checked.idle:
        raise invalid("model.limits.idle_warning", "must be shorter than idle")
    return checked, tuple(sorted(found))


def _access_of(limits: sessions_pb2.SessionLimits) -> tuple[Access | None, str]:
    """Who may join, None where nothing is said of it, and the hash of the pass phrase."""
    hashed = limits.pass_phrase_hash
    if limits.access not in (*ACCESS_OF, sessions_pb2.MODEL_ACCESS_UNSPECIFIED):
        raise invalid("model.limits.access", f"is {limits.access}", next_step="send OPEN, PASS_PHRASE or LOGIN")
    access = ACCESS_OF.get(limits.access, Access.PASS_PHRASE if hashed else None)
    if hashed and access is not Access.PASS_PHRASE:
        raise invalid("model.limits.pass_phrase_hash", "goes with access by pass phrase only", next_step="leave it out")
    if hashed and not is_hash(hashed):
        form = "send what gpufleet.security.pass_phrases.hash_pass_phrase makes: scrypt$16384$8$5$SALT$HASH"
        raise invalid("model.limits.pass_phrase_hash", "is no hash of a pass phrase", next_step=form)
    return access, hashed


ACCESS_OF = {number: access for access, number in ACCESS.items()}

PER_ADDRESS = ("places_per_address", "seats_per_address")

LEAST = {
    "idle": Span(2 * SECOND),
    "idle_warning": Span(0),
    "turn": Span(1 * SECOND),
    "turn_warning": Span(0),
    "grace": Span(0),
}
"""The spans of a model, and the shortest that each may be."""
