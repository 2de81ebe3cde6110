"""What `submit` takes: every option of a job by the word that gpuctl has for it, in Python's values.

The words and what they set are those of gpufleet/fleet/submitting/job_options.py; a test holds this list to that table.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, TypedDict, get_type_hints

from gpufleet.errors import FieldViolation, GpufleetError, invalid
from gpufleet.fleet.submitting.job_options import JobOption, JobOptions, OptionKind, option_table
from gpufleet.text.spelling import did_you_mean
from gpufleet.text.units import exact_duration


class HasId(Protocol):
    """A job."""

    @property
    def id(self) -> int: ...


Size = int | str
"""Bytes, or a text such as 8GB."""
Span = timedelta | float | str
"""A timedelta, seconds, or a text such as 90m."""
Words = str | Sequence[str]
"""One, or several."""
Pairs = Mapping[str, str] | Words
"""A mapping, or texts NAME=VALUE."""
Place = str | Path

CONFIG = "config"
"""The one option that sets no field by itself."""


class SubmitOptions(TypedDict, total=False):
    """Options of a job, as `gpuctl submit --help` tells them: `time_limit` is `--time-limit`. None is not said."""

    gpus: int | None
    gpu_mode: str | None
    content_type: str | None
    cpu_command: Words | None
    gpu_share: float | str | None
    min_memory: Size | None
    config: Place | None
    gpu_model: Words | None
    nodes: int | None
    gpus_per_node: int | None
    no_span: bool
    node_gpu_ids: str | None
    allow_busy: bool
    no_gpu_selection: bool
    cpus: int | None
    memory: Size | None
    nodelist: Words | None
    exclude: Words | None
    node_label: Pairs | None
    name: str | None
    env: Pairs | None
    env_all: bool
    secret: Words | None
    cwd: Place | None
    file: Place | Sequence[Place] | None
    upload: Place | None
    requirements: Place | None
    uv: bool
    conda: Place | None
    setup: str | None
    image: str | None
    mount: Words | None
    image_secret: str | None
    download: Words | None
    keep: Words | None
    input: Words | None
    output_file: Place | None
    nice: int
    rlimit: Pairs | None
    label: Pairs | None
    band: str | None
    group: str | None
    hold: bool
    time_limit: Span | None
    grace: Span | None
    signal: str | None
    requeue_on_timeout: bool
    requeue: bool
    requeue_fence: Span | None
    after: int | str | HasId | Sequence[int | str | HasId] | None
    array: str | range | Sequence[int] | None
    max_fails: int | None
    begin: datetime | Span | None
    queue_timeout: Span | None
    retries: int
    sample_every: Span | None
    preemptible: bool
    blame_limit: int | None
    notify: str | None
    no_warnings: bool


def job_options(given: Mapping[str, Any]) -> JobOptions:
    """The options as they would be typed. Raises INVALID_ARGUMENT with the option's word and what to write."""
    table = {each.name: each for each in option_table()}
    for name in given.keys() - table.keys() - {CONFIG}:
        why = f"there is no such option of a job{did_you_mean(name, [*table, CONFIG])}"
        raise invalid(name, why, next_step="See them with: gpuctl submit --help; --time-limit is time_limit here.")
    hints = get_type_hints(JobOptions)
    typed = {
        name: _typed(table[name], hints[name], value)
        for name, value in given.items()
        if value is not None and name != CONFIG
    }
    return JobOptions(**typed, config=_config(given.get(CONFIG)))


def _config(value: object) -> str | None:
    """The file of a model's configuration, which sets no field: others are filled by it."""
    if value is None or isinstance(value, (str, Path)):
        return None if value is None else str(value)
    how = "See what it means: gpuctl submit --help, --config"
    raise invalid(CONFIG, f"{value!r:.80} is not a file", next_step=how)


def _typed(option: JobOption, hint: Any, value: Any) -> Any:
    """The value as gpuctl reads it from a command line."""
    is_list = "list[" in str(hint)
    if "bool" in str(hint):
        if isinstance(value, bool):
            return value
        raise _wrong(option, value, "True or False")
    if "int" in str(hint):
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise _wrong(option, value, "a whole number")
    if option.name == "array":
        return _indices(option, value)
    if option.name == "gpu_share" and isinstance(value, float):
        return f"{value:f}".rstrip("0")
    if option.sets.kind is OptionKind.COMMAND and not isinstance(value, str):
        return shlex.join(value)
    if not is_list:
        return _text(option, value)
    if isinstance(value, Mapping):
        return [f"{_text(option, key)}={_text(option, each)}" for key, each in value.items()]
    several = [value] if isinstance(value, (str, int, Path)) or hasattr(value, "id") else value
    try:
        return [_text(option, each) for each in several]
    except TypeError:
        raise _wrong(option, value, "a text, or several") from None


def _text(option: JobOption, value: Any) -> str:
    match value:
        case str():
            return value
        case Path():
            return str(value)
        case timedelta():
            return _span(option, value)
        case datetime():
            return value.astimezone().isoformat()
        case bool():
            pass
        case int() | float() if option.sets.kind in (OptionKind.SPAN, OptionKind.TIME):
            try:
                return _span(option, timedelta(seconds=value))
            except (OverflowError, ValueError):  # inf, nan
                raise _wrong(option, value, "a span of time") from None
        case int():
            return str(value)
        case _ if isinstance(getattr(value, "id", None), int):
            return str(value.id)
    raise _wrong(option, value, "a text")


def _span(option: JobOption, value: timedelta) -> str:
    if value < timedelta(0):
        raise _wrong(option, value, "a span of time, which is not less than nothing")
    return exact_duration(value)


def _indices(option: JobOption, value: Any) -> str:
    match value:
        case str():
            return value
        case range() if len(value) and value.step > 0:
            return f"{value.start}-{value[-1]}" + (f":{value.step}" if value.step > 1 else "")
        case Sequence() if value and all(isinstance(each, int) for each in value):
            return ",".join(map(str, value))
    raise _wrong(option, value, "indices: a range, numbers, or a text such as 1-100%10")


def _wrong(option: JobOption, value: object, wanted: str) -> GpufleetError:
    said = f"{value!r:.80} is not {wanted}"
    return invalid(option.name, said, next_step=f"See what it means: gpuctl submit --help, {option.flag}")


_FLAG = re.compile(r"--[a-z][a-z-]*")


def in_words(problem: GpufleetError) -> GpufleetError:
    """The refusal with each option as it is called here: `--time-limit` is `time_limit`."""
    words = {each.flag: each.name for each in option_table()} | {f"--{CONFIG}": CONFIG}

    def said(text: str) -> str:
        return text if "gpuctl " in text else _FLAG.sub(lambda found: words.get(found[0], found[0]), text)

    return GpufleetError(
        problem.reason,
        said(problem.message),
        violations=[FieldViolation(words.get(each.field, each.field), said(each.why)) for each in problem.violations],
        next_step=said(problem.next_step),
        retry_after_s=problem.retry_after_s,
        metadata=problem.metadata,
    )
