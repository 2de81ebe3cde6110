"""From requests and reports to the state's values. A wrong field raises with its path and what to type next."""

import re
from collections.abc import Container, Iterable, Mapping, Sequence

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.jobs.files import trouble_with_path
from gpufleet.jobs.names import name_of_command, names_others
from gpufleet.jobs.run_protos import INPUT_MODE_OF
from gpufleet.jobs.runs import FENCE_US_MIN

from ..state.ids import JobId, NodeName
from ..state.shares import WHOLE_MILLI
from ..state.specs import DEFAULT_GRACE, Band, Dependency, EndWanted, JobSpec, NodePins, Resources
from ..state.units import DAY, SECOND, Instant, Span
from .alike_specs import CheckedSpec, Common, Key, KnownSpecs, key_of
from .argv import ARGUMENT_BYTES_MAX, ARGV_BYTES_MAX, check_argv
from .array_spec import items_of
from .container import container_of
from .convert_jobs import CONDITIONS
from .gpu_choice import gpu_choice_of
from .groups.spec_group import group_of_spec
from .input_files import input_files_of
from .input_folder import input_folder_of
from .job_environment import job_environment_of
from .job_inputs import job_inputs_of
from .limit_rules import limit_signal_of, requeue_on_timeout_of
from .notify_targets import notify_of
from .output_file import output_file_of
from .process_settings import process_settings_of
from .results import keep_of, results_of
from .secret_fields import secrets_of

SPECS_MAX = 10_000
PATH_BYTES_MAX = 4_095
"""The longest path that Linux takes (PATH_MAX)."""
GPUS_MAX = 10_000
SAMPLING_MIN, SAMPLING_MAX = Span(SECOND // 5), Span(60 * SECOND)
NODES_MAX = 1_000
"""Nodes of one job."""
CPUS_MAX = 100_000
MEMORY_BYTES_MAX = 2**50
NAME_CHARS_MAX = 200
TRACE_CONTEXT_CHARS_MAX = 256
LABELS_MAX = 64
NAMES_MAX = 1_000
SPAN_MAX = Span(3_650 * DAY)
GRACE_MAX = Span(1 * DAY)
FENCE_MIN = Span(FENCE_US_MIN)
AFTER_MAX = 100
AFTER_IN_ALL_MAX = 10_000
FILES_IN_ALL_MAX = 100_000
"""Files that the specs of one request name."""
RETRIES_MAX = 1_000
BLAME_LIMIT_MAX = 1_000
TIME_SECONDS_MAX = 253_402_300_799  # the end of the year 9999
REQUEST_ID_BYTES_MAX = 128
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""Characters that would break a line, or do worse, in somebody's terminal."""
USER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}")


def wanted_jobs(request: scheduler_pb2.SubmitRequest, lately: KnownSpecs | None = None) -> list[CheckedSpec]:
    """The jobs of a submit. `lately` are the kinds of spec that came before; those of this request are added."""
    if request.rerun_failed_job_id and (request.specs or request.count):
        raise invalid("rerun_failed_job_id", "goes without specs and count", next_step="leave out the command")
    if not request.specs:
        raise invalid("specs", "is empty", next_step="send at least one spec with an argv")
    if len(request.specs) > SPECS_MAX:
        raise invalid("specs", f"holds {len(request.specs):,} specs; at most {SPECS_MAX:,} are taken at once")
    if request.count < 0 or request.count > SPECS_MAX:
        raise invalid("count", f"is {request.count}; it must be 1 to {SPECS_MAX:,}")
    if request.count > 1 and len(request.specs) > 1:
        raise invalid("count", "goes with a single spec only", next_step="repeat the spec, or send one spec")
    check_request_id(request.request_id)
    named = sum(len(spec.after) for spec in request.specs)
    if named > AFTER_IN_ALL_MAX:
        raise invalid("specs", f"name {named:,} jobs to wait for; at most {AFTER_IN_ALL_MAX:,} in one request")
    files = sum(len(spec.files) for spec in request.specs)
    if files > FILES_IN_ALL_MAX:
        raise invalid("specs", f"name {files:,} files; at most {FILES_IN_ALL_MAX:,} in one request")
    here: dict[Key, Common] = {}
    lately = lately or KnownSpecs()
    jobs = [_wanted_like_others(spec, f"specs[{number}]", here, lately) for number, spec in enumerate(request.specs)]
    if len(jobs) * max(request.count, 1) > 1:
        array = next((number for number, job in enumerate(jobs) if job.items is not None), None)
        if array is not None:
            raise invalid(f"specs[{array}].array", "stands alone", next_step="send each array by itself")
    return jobs


def _wanted_like_others(spec: job_pb2.JobSpec, path: str, here: dict[Key, Common], lately: KnownSpecs) -> CheckedSpec:
    """One checked spec. What it has in common with others of the request, or of those before, is checked once."""
    key = key_of(spec)
    known = here.get(key) or lately.get(key)
    if known is None:
        first = wanted_job(spec, path)
        here[key] = Common.of(first)
        lately.keep(key, here[key])
        return first
    here[key] = known
    check_argv(spec.argv, f"{path}.argv")
    return known.with_own(tuple(spec.argv), _checked_name(spec, path), _trace_context(spec))


def check_request_id(request_id: str) -> None:
    """Refuse an id that is too long to keep."""
    if len(request_id.encode()) > REQUEST_ID_BYTES_MAX:
        raise invalid("request_id", f"is longer than {REQUEST_ID_BYTES_MAX} bytes")


def wanted_job(spec: job_pb2.JobSpec, path: str) -> CheckedSpec:
    """One checked spec; `path` is its place in the request."""
    _refuse_what_is_not_built(spec, path)
    check_argv(spec.argv, f"{path}.argv")
    _check_environment(spec.env, f"{path}.env")
    band = band_of(spec.band, f"{path}.band") if spec.band else Band.NORMAL
    name = _checked_name(spec, path)
    files, folder = input_files_of(spec, path), input_folder_of(spec, path)
    results, container = results_of(spec, path), container_of(spec, path)
    inputs, keep = job_inputs_of(spec, path), keep_of(spec, path)
    if spec.cwd or not (files or folder or results or keep or inputs or container):
        _check_cwd(spec, f"{path}.cwd")
    time_limit = optional_span(spec, "time_limit", path, least=1)
    grace = optional_span(spec, "grace", path)
    if grace is not None and grace > GRACE_MAX:
        why = f"is {grace // SECOND:,} s; between SIGTERM and SIGKILL there are at most {GRACE_MAX // SECOND:,} s"
        raise invalid(
            f"{path}.grace", why, next_step="give a shorter --grace; how long the job may run is --time-limit"
        )
    fence = optional_span(spec, "requeue_fence", path, least=FENCE_MIN)
    chosen_grace = DEFAULT_GRACE if grace is None else grace
    if fence is not None and grace is None and chosen_grace > fence // 2:
        raise invalid(
            f"{path}.requeue_fence",
            f"must be at least twice the grace, {chosen_grace // SECOND} s by default, so that a cut-off job has ended "
            "before it is replaced",
            next_step="give a longer --requeue-fence or a shorter --grace",
        )
    if fence is not None and chosen_grace > fence // 2:
        raise invalid(
            f"{path}.grace",
            "must be at most half of requeue_fence, so that a cut-off job has ended before it is replaced",
            next_step="give a shorter --grace or a longer --requeue-fence",
        )
    if spec.retries and spec.input:
        raise invalid(
            f"{path}.retries",
            "does not go with an input: what was typed or piped to the first attempt is gone with it",
            next_step="leave out --retries, or give the command its input as a file, with --file",
        )
    if spec.is_preemptible and spec.no_requeue:
        raise invalid(
            f"{path}.is_preemptible",
            "does not go with no_requeue: a job whose place is taken is queued again",
            next_step="leave out --preemptible (what is typed to is never run again, either), or --no-requeue",
        )
    return CheckedSpec(
        spec=JobSpec(
            argv=tuple(spec.argv),
            name=name,
            cwd=spec.cwd,
            resources=_resources(spec, path),
            env=tuple(sorted(spec.env.items())),
            time_limit=time_limit,
            limit_signal=limit_signal_of(spec, path, time_limit),
            is_requeued_on_timeout=requeue_on_timeout_of(spec, path, time_limit),
            output_file=output_file_of(spec.output_file, f"{path}.output_file", is_array=spec.HasField("array")),
            grace=chosen_grace,
            is_requeueable=not spec.no_requeue,
            requeue_fence=fence,
            labels=labels_of(spec.labels, f"{path}.labels"),
            trace_context=_trace_context(spec),
            input=INPUT_MODE_OF[spec.input],
            begin_at=_begin_at(spec, path),
            after=_after(spec, path),
            queue_timeout=optional_span(spec, "queue_timeout", path, least=1),
            sampling=_sampling(spec, path),
            retries=_in_range(spec.retries, 0, RETRIES_MAX, f"{path}.retries"),
            is_preemptible=spec.is_preemptible,
            blame_limit=_in_range(spec.blame_limit, 0, BLAME_LIMIT_MAX, f"{path}.blame_limit") or None,
            notify=notify_of(spec.notify, f"{path}.notify"),
            no_warnings=spec.no_warnings,
            submit_cwd=_submit_cwd(spec, path),
            process=process_settings_of(spec, path),
            gpu_choice=gpu_choice_of(spec, path),
            files=files,
            folder=folder,
            results=results,
            keep=keep,
            environment=job_environment_of(spec, path),
            secrets=secrets_of(spec, path),
            container=container,
            inputs=inputs,
        ),
        band=band,
        is_held=spec.is_held,
        items=items_of(spec, path),
        group=group_of_spec(spec, path),
    )


def _check_cwd(spec: job_pb2.JobSpec, path: str) -> None:
    """Where a folder goes with the job, a relative path lies in that."""
    if not spec.HasField("folder") or spec.cwd.startswith("/"):
        _check_folder(spec.cwd, path, "give --cwd an absolute path")
    elif why := trouble_with_path(spec.cwd):
        raise invalid(path, why, next_step="give --cwd a path inside the folder of --upload, or an absolute one")


def _check_folder(folder: str, path: str, next_step: str) -> None:
    if not folder.startswith("/"):
        raise invalid(path, f"{folder!r} is not an absolute path", next_step=next_step)
    if "\0" in folder:
        raise invalid(path, "holds a NUL byte")
    if len(folder.encode()) > PATH_BYTES_MAX:
        raise invalid(path, f"is longer than {PATH_BYTES_MAX:,} bytes")


def _submit_cwd(spec: job_pb2.JobSpec, path: str) -> str:
    """The folder that it was submitted from; it need not be there on any node."""
    if spec.submit_cwd:
        _check_folder(spec.submit_cwd, f"{path}.submit_cwd", "send an absolute path, or leave it out")
    return spec.submit_cwd


def _begin_at(spec: job_pb2.JobSpec, path: str) -> Instant | None:
    if not spec.HasField("begin_time"):
        return None
    if (begin := instant_of(spec.begin_time, 1)) is None:
        raise invalid(f"{path}.begin_time", "is no time that can come", next_step="give --begin a time such as 18:30")
    return begin


def _after(spec: job_pb2.JobSpec, path: str) -> tuple[Dependency, ...]:
    if len(spec.after) > AFTER_MAX:
        raise invalid(f"{path}.after", f"names {len(spec.after):,} jobs; at most {AFTER_MAX:,}")
    found: dict[JobId, Dependency] = {}
    for number, each in enumerate(spec.after):
        field = f"{path}.after[{number}]"
        wanted = WANTED.get(each.condition)
        if wanted is None:
            raise invalid(f"{field}.condition", f"is {each.condition}", next_step="choose OK, ANY or FAIL")
        if each.job_id < 1:
            raise invalid(f"{field}.job_id", f"is {each.job_id}", next_step="give a job's id, such as 41")
        if JobId(each.job_id) in found:
            raise invalid(f"{field}.job_id", f"names job {each.job_id} a second time")
        found[JobId(each.job_id)] = Dependency(job=JobId(each.job_id), wanted=wanted)
    return tuple(found.values())


WANTED = {number: wanted for wanted, number in CONDITIONS.items()} | {
    job_pb2.DEPENDENCY_CONDITION_UNSPECIFIED: EndWanted.OK,
}


def _checked_name(spec: job_pb2.JobSpec, path: str) -> str:
    # The name of its own program is taken, whatever it is: it is given where a job is submitted again as it was.
    if not spec.name or spec.name == name_of_command(spec.argv):
        return _fit_for_a_line(spec.name or _name_of(spec.argv), f"{path}.name")
    return checked_name(spec.name, f"{path}.name")


def checked_name(name: str, path: str) -> str:
    """A job's name that somebody chose, if it may be one."""
    if names_others(name):
        why = f"{name!r} names other jobs in every command: all, last, an id, a range or items of an array"
        raise invalid(path, why, next_step="choose another name, with a letter in it")
    return _fit_for_a_line(name, path)


def _fit_for_a_line(name: str, path: str) -> str:
    if len(name) > NAME_CHARS_MAX or CONTROL.search(name):
        raise invalid(path, f"must be at most {NAME_CHARS_MAX} characters without control characters")
    return name


def _trace_context(spec: job_pb2.JobSpec) -> str:
    return spec.trace_context[:TRACE_CONTEXT_CHARS_MAX]


def _name_of(argv: Sequence[str]) -> str:
    """A job's name where it was given none, fit for one line."""
    return CONTROL.sub("?", name_of_command(argv)[:NAME_CHARS_MAX]) or "job"


def band_of(number: int, path: str) -> Band:
    """A band by its number on the wire."""
    try:
        return Band(number)
    except ValueError:
        raise invalid(
            path, "is not set" if not number else f"is {number}", next_step="choose low, normal, high or urgent"
        ) from None


def _refuse_what_is_not_built(spec: job_pb2.JobSpec, path: str) -> None:
    if spec.kind not in job_pb2.JobKind.values():
        raise invalid(f"{path}.kind", f"is {spec.kind}; only BATCH is taken")
    if spec.kind == job_pb2.JOB_KIND_SERVICE or spec.serves:
        field = "kind" if spec.kind == job_pb2.JOB_KIND_SERVICE else "serves"
        raise invalid(
            f"{path}.{field}",
            "is set by the scheduler: it starts the workers of a model itself",
            next_step="serve a model with: gpuctl serve package.module:Class",
        )
    if spec.hidden_fields:
        hidden = ", ".join(spec.hidden_fields)
        why = f"names {hidden}: it is somebody else's job, of which these were not shown"
        raise invalid(f"{path}.hidden_fields", why, next_step="fill them in, and leave hidden_fields empty")
    if spec.input not in INPUT_MODE_OF:
        raise invalid(f"{path}.input", f"is {spec.input}; it must be PIPE or TERMINAL, or not set")
    later = {
        "devices[1]": len(spec.devices) > 1,
        "devices[0].share.profile": bool(spec.devices) and spec.devices[0].share.profile != "",
    }
    for field, is_asked in later.items():
        if is_asked:
            raise invalid(f"{path}.{field}", "is not built yet", reason=Reason.NOT_BUILT, next_step="submit without it")


def _check_environment(env: Mapping[str, str], path: str) -> None:
    total = 0
    for name, value in env.items():
        if not name or "=" in name or "\0" in name:
            raise invalid(f"{path}[{name!r}]", "is not a variable's name", reason=Reason.ENV_NAME_INVALID)
        if "\0" in value:
            raise invalid(f"{path}[{name!r}]", "holds a NUL byte")
        size = len(name.encode()) + len(value.encode()) + 2
        total += size
        if size > ARGUMENT_BYTES_MAX or total > ARGV_BYTES_MAX:
            raise invalid(f"{path}[{name!r}]", "is too long", reason=Reason.ARGV_TOO_LONG)


def _resources(spec: job_pb2.JobSpec, path: str) -> Resources:
    request = spec.devices[0] if spec.devices else job_pb2.DeviceRequest()
    pins = tuple(_pins(pins, f"{path}.pins[{number}]") for number, pins in enumerate(spec.pins))
    pinned = sum(len(each.indices) for each in pins)
    node_count, gpus = _nodes_and_gpus(spec, request, path)
    if spec.devices and not gpus and not pins:
        raise invalid(f"{path}.devices[0].count", "is 0", next_step="leave --gpus out for a job that needs no GPU")
    share_milli, min_memory = _share(request, f"{path}.devices[0]")
    return Resources(
        gpus=gpus or pinned,
        min_memory_bytes=min_memory or None,
        models=tuple(_names(request.models, f"{path}.devices[0].models")),
        allow_busy=request.allow_busy,
        pins=pins,
        cpus=_in_range(spec.cpus, 0, CPUS_MAX, f"{path}.cpus") or 1,
        memory_bytes=_in_range(spec.memory_bytes, 0, MEMORY_BYTES_MAX, f"{path}.memory_bytes"),
        nodelist=tuple(map(NodeName, _names(spec.nodelist, f"{path}.nodelist"))),
        exclude=tuple(map(NodeName, _names(spec.exclude, f"{path}.exclude"))),
        node_labels=labels_of(spec.node_labels, f"{path}.node_labels"),
        ignores_telemetry=spec.no_gpu_selection,
        share_milli=share_milli if gpus or pinned else 0,
        node_count=node_count,
        no_span=spec.no_span,
        in_container=spec.HasField("container"),
        disk_bytes=sum(each.size_bytes for each in spec.files) + spec.folder.content_bytes,
    )


def _share(request: job_pb2.DeviceRequest, path: str) -> tuple[int, int]:
    """Thousandths of each device, 0 for whole ones, and the memory of each, which two fields may say."""
    min_memory = _in_range(request.min_memory_bytes, 0, MEMORY_BYTES_MAX, f"{path}.min_memory_bytes")
    share = request.share
    if not 0 <= share.milli <= WHOLE_MILLI:
        raise invalid(
            f"{path}.share.milli",
            f"is {share.milli:,}; it must be 1 to {WHOLE_MILLI:,} thousandths",
            next_step="ask for a part of a GPU, such as --gpu-share 0.5, or for whole ones with --gpus alone",
        )
    share_memory = _in_range(share.memory_bytes, 0, MEMORY_BYTES_MAX, f"{path}.share.memory_bytes")
    if share_memory and min_memory and share_memory != min_memory:
        raise invalid(f"{path}.share.memory_bytes", "differs from min_memory_bytes", next_step="say one of the two")
    return share.milli % WHOLE_MILLI, share_memory or min_memory


def _nodes_and_gpus(spec: job_pb2.JobSpec, request: job_pb2.DeviceRequest, path: str) -> tuple[int, int]:
    """On how many nodes (0: not said) and with how many GPUs in all; on several nodes each has as many."""
    nodes = _in_range(spec.node_count, 0, NODES_MAX, f"{path}.node_count")
    gpus = _in_range(request.count, 0, GPUS_MAX, f"{path}.devices[0].count")
    each = _in_range(request.per_node_count, 0, GPUS_MAX, f"{path}.devices[0].per_node_count")
    if each and spec.pins:
        raise invalid(f"{path}.devices[0].per_node_count", "does not go with pins", next_step="leave one of them out")
    if each and not nodes:
        if gpus % each:
            why = f"is {each}, and {gpus} GPUs in all are not a multiple of it"
            raise invalid(f"{path}.devices[0].per_node_count", why, next_step="give --nodes in place of one of them")
        nodes = gpus // each or 1
    if each and gpus and gpus != each * nodes:
        why = f"is {gpus}, and {nodes} nodes with {each} on each have {each * nodes}"
        raise invalid(f"{path}.devices[0].count", why, next_step="leave out --gpus, or --gpus-per-node")
    if each * nodes > GPUS_MAX:
        raise invalid(f"{path}.devices[0].per_node_count", f"makes {each * nodes:,} GPUs; at most {GPUS_MAX:,}")
    if nodes > 1 and gpus % nodes and not spec.pins:
        why = f"is {gpus}, which cannot be divided evenly over {nodes} nodes"
        step = f"ask for {gpus - gpus % nodes or nodes} or {(gpus // nodes + 1) * nodes}, or give --gpus-per-node"
        raise invalid(f"{path}.devices[0].count", why, next_step=step)
    if nodes > 1 and spec.no_span:
        raise invalid(f"{path}.no_span", f"does not go with {nodes} nodes", next_step="leave one of them out")
    return nodes, gpus or each * nodes


def _pins(pins: job_pb2.NodePins, path: str) -> NodePins:
    if not pins.node or not pins.device_indices:
        raise invalid(path, "names no node or no GPU", next_step="write --node-gpu-ids 'node001:0,1'")
    for number, index in enumerate(pins.device_indices):
        _in_range(index, 0, GPUS_MAX, f"{path}.device_indices[{number}]")
    return NodePins(node=NodeName(pins.node), indices=tuple(pins.device_indices))


def _in_range(value: int, least: int, most: int, path: str) -> int:
    if not least <= value <= most:
        raise invalid(path, f"is {value:,}; it must be {least:,} to {most:,}")
    return value


def _names(names: Sequence[str], path: str) -> Sequence[str]:
    if len(names) > NAMES_MAX:
        raise invalid(path, f"holds {len(names):,} names; at most {NAMES_MAX:,}")
    for number, name in enumerate(names):
        if not name or len(name) > NAME_CHARS_MAX:
            raise invalid(f"{path}[{number}]", f"must be 1 to {NAME_CHARS_MAX} characters")
    return names


def labels_of(labels: Mapping[str, str], path: str) -> tuple[tuple[str, str], ...]:
    """Labels as they are kept. Errors: INVALID_ARGUMENT with the path."""
    if len(labels) > LABELS_MAX:
        raise invalid(path, f"holds {len(labels)} labels; at most {LABELS_MAX}")
    for key, value in labels.items():
        if not key or len(key) > NAME_CHARS_MAX or len(value) > NAME_CHARS_MAX:
            raise invalid(f"{path}[{key!r}]", f"key and value must be at most {NAME_CHARS_MAX} characters")
    return tuple(sorted(labels.items()))


def optional_span(
    message: job_pb2.JobSpec | scheduler_pb2.UpdateJobRequest, field: str, path: str, *, least: int = 0
) -> Span | None:
    """A span of a spec, or None where the field is absent."""
    if not message.HasField(field):  # type: ignore[arg-type]
        return None
    span = span_of(getattr(message, field))
    if not least <= span <= SPAN_MAX:
        lowest = f"{least // SECOND:,}" if least >= SECOND else "more than 0" if least else "0"
        where = f"{path}.{field}" if path else field
        raise invalid(where, f"is {span / SECOND:g} s; it must be {lowest} to {SPAN_MAX // SECOND:,} s")
    return span


def _sampling(spec: job_pb2.JobSpec, path: str) -> Span | None:
    """How often what a job uses is read, or None for its node's own."""
    span = span_of(spec.sampling_interval) if spec.HasField("sampling_interval") else None
    if span is not None and not SAMPLING_MIN <= span <= SAMPLING_MAX:
        raise invalid(
            f"{path}.sampling_interval", f"is {span / SECOND:g} s; it must be 0.2 to {SAMPLING_MAX // SECOND} s"
        )
    return span


def span_of(duration: Duration) -> Span:
    """A duration in microseconds."""
    return Span(duration.seconds * SECOND + duration.nanos // 1000)


def instant_of(time: Timestamp, least_seconds: int) -> Instant | None:
    """A time that is not before so many seconds since 1970; None for one that is, or that is none."""
    if not least_seconds <= time.seconds <= TIME_SECONDS_MAX or not 0 <= time.nanos < 1_000_000_000:
        return None
    return Instant(time.seconds * SECOND + time.nanos // 1000)


def check_no_node(program: scheduler_pb2.ProgramSelector) -> None:
    """Raises INVALID_ARGUMENT where a node is named with the scheduler, which is meant to be an agent."""
    if program.node:
        step = 'Leave it out, or say program "agent" for the agent of that node.'
        raise invalid("program.node", "is said of the scheduler, which is no program of a node", next_step=step)


def node_name(name: str, path: str = "node") -> NodeName:
    """A node's name, checked."""
    if not NODE_NAME.fullmatch(name):
        raise invalid(
            path,
            f"{name!r} is not a node's name",
            next_step="use 1 to 63 letters, digits, '.', '-' or '_', beginning with a letter or digit",
        )
    return NodeName(name)


def program_name(name: str, path: str) -> str:
    """The name of a worker or gateway, checked; as a node's is written."""
    if not NODE_NAME.fullmatch(name):
        raise invalid(
            path,
            f"{name[:80]!r} is not a program's name",
            next_step="use 1 to 63 letters, digits, '.', '-' or '_', beginning with a letter or digit",
        )
    return name


def no_such_node(path: str, name: str) -> GpufleetError:
    """The error for a node that nobody knows."""
    return invalid(path, f"no node is called {name!r}", reason=Reason.NODE_NOT_FOUND)


def check_nodes(names: Iterable[str], known: Container[NodeName], path: str) -> None:
    """Refuse a list with a node that nobody knows; `path` is its field."""
    for number, name in enumerate(names):
        if NodeName(name) not in known:
            raise no_such_node(f"{path}[{number}]", name)
