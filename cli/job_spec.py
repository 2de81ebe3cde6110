"""From what was typed to a JobSpec, and back: the command that would submit a job again."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path, PurePosixPath
from typing import TypeVar

from gpufleet.v1 import job_pb2 as pb

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.job_names import name_of_command
from gpufleet.spelling import did_you_mean
from gpufleet.traceparent import inherited_traceparent
from gpufleet.units import exact_duration, exact_size, parse_duration, parse_size

from .job_options import JobOptions
from .labels import names, pairs

PASSED_ON = ("PATH", "LANG", "TERM")
"""The submitter's variables that a job gets without being asked."""

SHELL = "/bin/sh"
BANDS: Mapping[str, pb.Band.ValueType] = {
    "low": pb.BAND_LOW,
    "normal": pb.BAND_NORMAL,
    "high": pb.BAND_HIGH,
    "urgent": pb.BAND_URGENT,
}

T = TypeVar("T")


def spec_of(options: JobOptions, command: Sequence[str], environment: Mapping[str, str], folder: str) -> pb.JobSpec:
    """The spec of a job; `environment` and `folder` are the submitter's. Raises INVALID_ARGUMENT with the option."""
    argv = argv_of(command)
    for what, texts in (("the command", argv), ("--name", [options.name or ""]), ("--cwd", [options.cwd or folder])):
        if not all(map(_is_utf8, texts)):
            raise invalid(what, "it holds bytes that are not UTF-8", next_step="Put them in a file, and pass its path.")
    spec = pb.JobSpec(
        argv=argv,
        name=options.name or "",
        cwd=str(PurePosixPath(folder) / (options.cwd or "")),
        env=variables(options.env or (), environment, pass_all=options.env_all),
        labels=pairs("--label", options.label or ()),
        nodelist=names(options.nodelist),
        exclude=names(options.exclude),
        node_labels=pairs("--node-label", options.node_label or ()),
        is_held=options.hold,
        is_preemptible=options.preemptible,
        no_requeue=not options.requeue,
        no_gpu_selection=options.no_gpu_selection,
        no_warnings=options.no_warnings,
        trace_context=inherited_traceparent(environment),
    )
    if options.band is not None:
        spec.band = band(options.band)
    if options.cpus is not None:
        spec.cpus = _at_least_one("--cpus", options.cpus)
    if options.memory is not None:
        spec.memory_bytes = _read("--memory", parse_size, options.memory)
    if options.retries:
        spec.retries = _at_least_one("--retries", options.retries)
    if options.blame_limit is not None:
        spec.blame_limit = _at_least_one("--blame-limit", options.blame_limit)
    if options.notify is not None:
        spec.notify = _notify(options.notify)
    if options.begin is not None:
        spec.begin_time.FromDatetime(begin_time(options.begin, datetime.now().astimezone()))
    spec.after.extend(dependency(text) for text in names(options.after))
    _add_devices(spec, options)
    _add_durations(spec, options)
    _add_array(spec, options)
    return spec


def _add_array(spec: pb.JobSpec, options: JobOptions) -> None:
    if options.array is None:
        if options.max_fails is not None:
            raise invalid("--max-fails", "it counts the items of an array, and there is none", next_step="Add --array.")
        return
    indices, percent, cap = options.array.partition("%")
    spec.array.indices = indices
    if percent:
        if not (cap.isascii() and cap.isdigit()) or not 1 <= int(cap) <= 2**31 - 1:
            what = f'"%{cap}" is not how many items may run at a time'
            raise invalid("--array", what, next_step=f"Write it as {indices or '1-100'}%10, or leave it out.")
        spec.array.max_active_count = int(cap)
    if options.max_fails is not None:
        spec.array.max_fails = _at_least_one("--max-fails", options.max_fails)


def _add_devices(spec: pb.JobSpec, options: JobOptions) -> None:
    if options.node_gpu_ids is not None:
        spec.pins.extend(pins(options.node_gpu_ids))
    if options.nodes is not None:
        spec.node_count = _at_least_one("--nodes", options.nodes)
    if options.gpus_per_node is not None and options.nodes is None and options.gpus is None:
        raise invalid("--gpus-per-node", "it does not say on how many nodes", next_step="Add --nodes N, or --gpus N.")
    spec.no_span = options.no_span
    count = options.gpus
    if count is None and spec.pins:
        count = sum(len(pin.device_indices) for pin in spec.pins)
    if count is None and options.gpu_share is not None and options.gpus_per_node is None:
        count = 1
    if count is None and options.gpus_per_node is None:
        for option, given in (
            ("--min-memory", options.min_memory),
            ("--gpu-model", options.gpu_model),
            ("--allow-busy", options.allow_busy),
        ):
            if given:
                raise invalid(option, "it says which GPUs, but no GPUs are asked for", next_step="Add --gpus N.")
        return
    request = spec.devices.add(allow_busy=options.allow_busy)
    if count is not None:
        request.count = _at_least_one("--gpus", count)
    if options.gpus_per_node is not None:
        request.per_node_count = _at_least_one("--gpus-per-node", options.gpus_per_node)
    request.models.extend(options.gpu_model or ())
    if options.min_memory is not None:
        request.min_memory_bytes = _read("--min-memory", parse_size, options.min_memory)
    if options.gpu_share is not None and (milli := share_milli(options.gpu_share)) < WHOLE_MILLI:
        request.share.milli = milli


WHOLE_MILLI = 1000


def share_milli(text: str) -> int:
    """Thousandths of a GPU: `0.5` is 500. Raises INVALID_ARGUMENT for what is no part of one."""
    how = "Write a part of one GPU such as 0.5 or 0.125; for whole GPUs: --gpus N."
    try:
        part = Decimal(text.strip())
    except InvalidOperation:
        raise invalid("--gpu-share", f'"{text}" is not a number', next_step=how) from None
    if not part.is_finite() or not 0 < part <= 1:
        raise invalid("--gpu-share", f"{text} is not a part of a GPU: more than 0, and 1 at most", next_step=how)
    milli = part * WHOLE_MILLI
    if milli != milli.to_integral_value():
        raise invalid("--gpu-share", f"{text} has more than three decimals", next_step=how)
    return int(milli)


def _add_durations(spec: pb.JobSpec, options: JobOptions) -> None:
    if options.time_limit is not None:
        spec.time_limit.FromTimedelta(_read("--time-limit", parse_duration, options.time_limit))
    if options.grace is not None:
        spec.grace.FromTimedelta(_read("--grace", parse_duration, options.grace))
    if options.queue_timeout is not None:
        spec.queue_timeout.FromTimedelta(_read("--queue-timeout", parse_duration, options.queue_timeout))
    if options.sample_every is not None:
        spec.sampling_interval.FromTimedelta(_read("--sample-every", parse_duration, options.sample_every))
    if options.requeue_fence is not None:
        spec.requeue_fence.FromTimedelta(_read("--requeue-fence", parse_duration, options.requeue_fence))


def begin_time(text: str, now: datetime) -> datetime:
    """The moment that `18:30` (the next one), `2026-01-31T18:30` or `2h` (from now) means, in UTC. `now` is aware.

    A time without a zone is of this machine's. Raises INVALID_ARGUMENT, also for a time that is over.
    """
    how = "Write a time such as 18:30 or 2026-01-31T18:30, or a span such as 2h."
    try:
        moment = _moment(text.strip(), now)
    except OverflowError:
        raise invalid("--begin", f'"{text}" is beyond the years 1 to 9999', next_step=how) from None
    except GpufleetError as problem:
        raise invalid("--begin", problem.message, next_step=how) from None
    if moment < now:
        raise invalid("--begin", f'"{text}" is over', next_step=how)
    return moment.astimezone(UTC)


def _moment(text: str, now: datetime) -> datetime:
    if TIME_OF_DAY.fullmatch(text):
        today = datetime.combine(now.date(), time.fromisoformat(text)).astimezone()
        return today if today >= now else (today.replace(tzinfo=None) + timedelta(days=1)).astimezone()
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        return now + parse_duration(text)


TIME_OF_DAY = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9])?")


def dependency(text: str) -> pb.Dependency:
    """Read `41`, `41:ok`, `41:any` or `41:fail`."""
    job, colon, word = text.partition(":")
    condition = CONDITIONS.get(word.lower() if colon else "ok")
    if not (job.isascii() and job.isdigit()) or int(job) not in range(1, 2**63):
        raise invalid("--after", f'"{text}" does not begin with a job id', next_step="Write it as 41, or 41:any.")
    if condition is None:
        what = f'"{word}" is not ok, any or fail{did_you_mean(word, CONDITIONS)}'
        raise invalid("--after", what, next_step=f"Write it as {job}:any, for instance.")
    return pb.Dependency(job_id=int(job), condition=condition)


CONDITIONS: Mapping[str, pb.DependencyCondition.ValueType] = {
    "ok": pb.DEPENDENCY_CONDITION_OK,
    "any": pb.DEPENDENCY_CONDITION_ANY,
    "fail": pb.DEPENDENCY_CONDITION_FAIL,
}


def argv_of(command: Sequence[str]) -> list[str]:
    """The program and its arguments; one word that is more than a word is a line for the shell."""
    if not command or not command[0]:
        raise GpufleetError(Reason.COMMAND_EMPTY)
    if len(command) == 1 and shlex.quote(command[0]) != command[0] and not _is_program(command[0]):
        return [SHELL, "-c", command[0]]
    return list(command)


def _is_program(word: str) -> bool:
    return os.access(word, os.X_OK) and not Path(word).is_dir()


KEPT_HERE = frozenset({"HOME", "USER", "LOGNAME", "GPUCTL_TOKEN"})
"""What --env-all leaves out: the account is that of the node, and a token is nobody else's to see."""


def variables(given: Sequence[str], environment: Mapping[str, str], *, pass_all: bool) -> dict[str, str]:
    """The job's variables: PATH, LANG and TERM of the submitter, or all, then each NAME=VALUE or NAME."""
    passed = environment.keys() - KEPT_HERE if pass_all else environment.keys() & set(PASSED_ON)
    found = {name: environment[name] for name in sorted(passed)}
    for text in given:
        name, equals, value = text.partition("=")
        if not name:
            raise invalid("--env", f'"{text}" has no name', reason=Reason.ENV_NAME_INVALID)
        if not equals:
            if name not in environment:
                raise invalid(
                    "--env",
                    f"{name} is not set here, so it cannot be passed on",
                    next_step=f"Set it: export {name}=…, or give the value: --env {name}=VALUE",
                )
            value = environment[name]
        found[name] = value
    for name, value in found.items():
        if not _is_utf8(name + value):
            raise invalid("--env", f"the value of {name!a} is not UTF-8 text")
    return found


def pins(text: str) -> list[pb.NodePins]:
    """Read `node001:0,1;node002:0,1`."""
    found: list[pb.NodePins] = []
    for part in text.split(";"):
        node, colon, indices = (piece.strip() for piece in part.rpartition(":"))
        numbers = [number.strip() for number in indices.split(",")]
        if not colon or not node or not all(number.isascii() and number.isdigit() for number in numbers):
            raise invalid(
                "--node-gpu-ids", f'"{part.strip()}" is not NODE:GPU,GPU', next_step='Write it as "node001:0,1".'
            )
        found.append(pb.NodePins(node=node, device_indices=map(int, numbers)))
    return found


def band(word: str, given_as: str = "--band") -> pb.Band.ValueType:
    """The band by its word."""
    if word.lower() not in BANDS:
        raise invalid(
            given_as,
            f'"{word}" is not low, normal, high or urgent{did_you_mean(word, BANDS)}',
            next_step="Write one of the four.",
        )
    return BANDS[word.lower()]


def command_line_of(spec: pb.JobSpec) -> str:
    """The command that would submit the job again, quoted for a shell.

    The variables that go by themselves are left out; so are defaults that the server filled in.
    """
    words = ["gpuctl", "run", "-i"] if spec.input else ["gpuctl", "submit"]
    for option, value in _options_of(spec):
        words += [option] if value is None else [option, value]
    return shlex.join([*words, "--", *spec.argv])


def _options_of(spec: pb.JobSpec) -> list[tuple[str, str | None]]:
    options: list[tuple[str, str | None]] = []
    for request in spec.devices[:1]:
        if request.count > 1 or not request.share.milli:
            options.append(("--gpus", str(request.count)))
        if request.share.milli:
            options.append(("--gpu-share", f"{request.share.milli / WHOLE_MILLI:g}"))
        if memory_bytes := request.min_memory_bytes or request.share.memory_bytes:
            options.append(("--min-memory", exact_size(memory_bytes)))
        options += [("--gpu-model", model) for model in request.models]
        if request.allow_busy:
            options.append(("--allow-busy", None))
    if spec.node_count and not spec.pins:
        options.append(("--nodes", str(spec.node_count)))
    if spec.no_span:
        options.append(("--no-span", None))
    if spec.pins:
        text = ";".join(f"{pin.node}:{','.join(map(str, pin.device_indices))}" for pin in spec.pins)
        options.append(("--node-gpu-ids", text))
    if spec.no_gpu_selection:
        options.append(("--no-gpu-selection", None))
    if spec.cpus > 1:
        options.append(("--cpus", str(spec.cpus)))
    if spec.memory_bytes:
        options.append(("--memory", exact_size(spec.memory_bytes)))
    if spec.nodelist:
        options.append(("--nodelist", ",".join(spec.nodelist)))
    if spec.exclude:
        options.append(("--exclude", ",".join(spec.exclude)))
    options += [("--node-label", f"{name}={spec.node_labels[name]}") for name in sorted(spec.node_labels)]
    if spec.name and spec.name != name_of_command(spec.argv):
        options.append(("--name", spec.name))
    options += [("--env", f"{name}={spec.env[name]}") for name in sorted(spec.env) if name not in PASSED_ON]
    if spec.cwd:
        options.append(("--cwd", spec.cwd))
    options += [("--label", f"{name}={spec.labels[name]}") for name in sorted(spec.labels)]
    options += [("--band", word) for word, number in BANDS.items() if number == spec.band and word != "normal"]
    if spec.HasField("time_limit"):
        options.append(("--time-limit", exact_duration(spec.time_limit.ToTimedelta())))
    if spec.HasField("grace") and spec.grace.ToTimedelta() != timedelta(seconds=30):
        options.append(("--grace", exact_duration(spec.grace.ToTimedelta())))
    if spec.no_requeue and not spec.input:  # run -i says so by itself
        options.append(("--no-requeue", None))
    if spec.HasField("sampling_interval"):
        options.append(("--sample-every", exact_duration(spec.sampling_interval.ToTimedelta())))
    if spec.HasField("queue_timeout"):
        options.append(("--queue-timeout", exact_duration(spec.queue_timeout.ToTimedelta())))
    if spec.retries:
        options.append(("--retries", str(spec.retries)))
    if spec.is_preemptible:
        options.append(("--preemptible", None))
    if spec.blame_limit:
        options.append(("--blame-limit", str(spec.blame_limit)))
    if spec.notify:
        options.append(("--notify", spec.notify))
    if spec.no_warnings:
        options.append(("--no-warnings", None))
    if spec.HasField("array"):
        cap = f"%{spec.array.max_active_count}" if spec.array.max_active_count else ""
        options.append(("--array", f"{spec.array.indices}{cap}"))
        if spec.array.max_fails:
            options.append(("--max-fails", str(spec.array.max_fails)))
    for each in spec.after:
        word = next(word for word, condition in CONDITIONS.items() if condition == each.condition)
        options.append(("--after", str(each.job_id) if word == "ok" else f"{each.job_id}:{word}"))
    if spec.HasField("requeue_fence"):
        options.append(("--requeue-fence", exact_duration(spec.requeue_fence.ToTimedelta())))
    return options


def _read(option: str, parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text)
    except GpufleetError as problem:
        raise invalid(option, problem.message, next_step=problem.next_step) from None


def _notify(text: str) -> str:
    if not _is_utf8(text):
        raise invalid("--notify", "it holds bytes that are not UTF-8", next_step="Put the command into a file.")
    if not text.strip():
        raise invalid("--notify", "it is empty", next_step="Give a command or a URL, or leave it out.")
    return text


def _at_least_one(option: str, number: int) -> int:
    if number < 1:
        raise invalid(option, f"{number} is less than 1", next_step=f"Leave {option} out, or ask for at least 1.")
    return _fits(option, number)


def _fits(option: str, number: int) -> int:
    if number > 2**31 - 1:
        raise invalid(option, f"{number} is more than any fleet has")
    return number


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
