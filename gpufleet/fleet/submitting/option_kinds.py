"""What an option of a job reads and shows, by its kind: from what was typed to a field's value, and back."""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, time, timedelta
from typing import Any

from google.protobuf.message import Message

from gpufleet.errors import GpufleetError, invalid
from gpufleet.jobs.runs import RLIMITS, SIGNAL_MAX, UNLIMITED
from gpufleet.text.cleaning import is_utf8
from gpufleet.text.spelling import did_you_mean
from gpufleet.text.units import exact_duration, exact_size, parse_duration, parse_size
from gpufleet.v1 import job_pb2 as pb

from ..reading import check_known, names, pairs, read
from .input_files import input_file_text, input_files
from .input_folder import input_folder, input_folder_text
from .job_inputs import job_input, job_input_text
from .job_options import JobOption, OptionKind
from .mounts import mount, mount_text

COUNTED = "NOFILE"
"""The one that counts descriptors; the others are in bytes."""
UNLIMITED_WORDS = ("unlimited", "infinity")

LIMIT_HOW = "Write it as NOFILE=4096, with a higher hard limit as NOFILE=4096:8192, or as CORE=unlimited."


def resource_limit(option: str, text: str) -> pb.ResourceLimit:
    """Read `NOFILE=4096`, `AS=8GB:16GB` or `core=unlimited`; without a hard limit it is the soft one, too."""
    word, equals, values = text.partition("=")
    name = word.strip().upper().removeprefix("RLIMIT_")
    if not equals:
        raise invalid(option, f'"{text}" is not NAME=VALUE', next_step=LIMIT_HOW)
    if name not in RLIMITS:
        what = f'"{word}" is not one of {", ".join(RLIMITS)}{did_you_mean(name, RLIMITS)}'
        raise invalid(option, what, next_step=LIMIT_HOW)
    soft, colon, hard = values.partition(":")
    found = pb.ResourceLimit(name=name, soft=_limit_value(option, name, soft))
    if colon:
        found.hard = _limit_value(option, name, hard)
    return found


def resource_limit_text(limit: pb.ResourceLimit) -> str:
    """The option's value that says the same."""
    has_own_hard = limit.HasField("hard") and limit.hard != limit.soft
    return f"{limit.name}={_limit_text(limit.soft)}{f':{_limit_text(limit.hard)}' if has_own_hard else ''}"


def _limit_value(option: str, name: str, text: str) -> int:
    text = text.strip()
    if text.lower() in UNLIMITED_WORDS:
        return UNLIMITED
    if text.isascii() and text.isdigit() and len(text) < 19:
        return int(text)
    if name == COUNTED:
        raise invalid(option, f'{name}: "{text}" is not a number of descriptors', next_step=LIMIT_HOW)
    try:
        return parse_size(text)
    except GpufleetError as problem:
        raise invalid(option, f"{name}: {problem.message}", next_step=LIMIT_HOW) from None


def _limit_text(value: int) -> str:
    return UNLIMITED_WORDS[0] if value == UNLIMITED else str(value)


LEADER = "B"
"""Slurm's letter for the batch shell alone; R, its other one, is of reservations."""

SIGNAL_HOW = "Write it as USR1@5m, or B:USR1@5m for the process alone that was started."


def limit_signal(text: str) -> pb.LimitSignal:
    """Read `USR1@5m`, `10@300` (seconds), `USR1` (60 s before) or `B:USR1@5m`. Raises INVALID_ARGUMENT."""
    letter, colon, rest = text.strip().rpartition(":")
    if colon and letter.upper() != LEADER:
        raise invalid(
            "--signal", f'"{letter}:" is not B:, for the process alone that was started', next_step=SIGNAL_HOW
        )
    word, at, span = rest.partition("@")
    found = pb.LimitSignal(signal=_signal_number(word), leader_only=bool(colon))
    if at:
        seconds = span.strip()
        text = f"{seconds}s" if seconds.isascii() and seconds.isdigit() else seconds
        found.before.FromTimedelta(read("--signal", parse_duration, text, SIGNAL_HOW))
    return found


def limit_signal_text(asked: pb.LimitSignal) -> str:
    """The option's value that says the same."""
    before = f"@{exact_duration(asked.before.ToTimedelta())}" if asked.HasField("before") else ""
    return f"{f'{LEADER}:' if asked.leader_only else ''}{signal_name(asked.signal)}{before}"


def signal_name(number: int) -> str:
    """`USR1`, or the number where it has no name."""
    try:
        return signal.Signals(number).name.removeprefix("SIG")
    except ValueError:
        return str(number)


def _signal_number(word: str) -> int:
    if word.isascii() and word.isdigit():
        if 1 <= int(word) <= SIGNAL_MAX:
            return int(word)
        raise invalid("--signal", f"{word} is not from 1 to {SIGNAL_MAX}", next_step="See the numbers with: kill -l")
    known = {each.name.removeprefix("SIG"): each.value for each in signal.Signals}
    name = word.upper().removeprefix("SIG")
    if name not in known:
        what = f'"{word}" is no signal{did_you_mean(name, known)}' if word else "it names no signal"
        raise invalid("--signal", what, next_step=SIGNAL_HOW)
    return known[name]


VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def named_secrets(texts: Sequence[str]) -> dict[str, str]:
    """Read `HF_TOKEN` and `hf.token=HF_TOKEN`: the name of the secret by the variable that is given it."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, variable = text.partition("=")
        variable = variable if equals else name
        if not name or not VARIABLE.fullmatch(variable):
            step = (
                f"Write it as {name or 'NAME'}=VARIABLE, the variable that is to hold it. The value is not said here."
            )
            raise invalid("--secret", f'"{variable[:80]}" is not a variable\'s name', next_step=step)
        if variable in found:
            raise invalid("--secret", f"{variable} is given two secrets", next_step=f"Write {name}=OTHER_VARIABLE.")
        found[variable] = name
    return found


def secret_text(variable: str, name: str) -> str:
    """The option's value that says the same."""
    return name if name == variable else f"{name}={variable}"


BANDS: Mapping[str, pb.Band.ValueType] = {
    "low": pb.BAND_LOW,
    "normal": pb.BAND_NORMAL,
    "high": pb.BAND_HIGH,
    "urgent": pb.BAND_URGENT,
}

GPU_MODES: Mapping[str, pb.GpuMode.ValueType] = {
    "required": pb.GPU_MODE_REQUIRED,
    "preferred": pb.GPU_MODE_PREFERRED,
    "never": pb.GPU_MODE_NEVER,
    "auto": pb.GPU_MODE_AUTO,
}

Values = Sequence[str | None]
"""What an option shows: a value for each time that it is given, None for one that takes none."""


def is_said(option: JobOption, typed: object) -> bool:
    """Whether something was typed that the option's kind reads; what is read together with others is not."""
    return option.sets.kind is not OptionKind.OWN and typed != option.default and typed not in ([], ())


def add_typed(spec: pb.JobSpec, option: JobOption, typed: Any) -> None:
    """Put what was typed into the option's field. Raises INVALID_ARGUMENT with the option."""
    value = READ[option.sets.kind](option, typed)
    holder, field = _holder(spec, option)
    match value:
        case timedelta():
            getattr(holder, field).FromTimedelta(value)
        case datetime():
            getattr(holder, field).FromDatetime(value)
        case list():
            getattr(holder, field).extend(value)
        case dict():
            getattr(holder, field).update(value)
        case Message():
            getattr(holder, field).CopyFrom(value)
        case _:
            setattr(holder, field, value)


def shown(spec: pb.JobSpec, option: JobOption) -> Values:
    """What the option would be given to say what the spec says; nothing where it says what is usual.

    A field that may be absent says something by being there, also 0.
    """
    sets = option.sets
    holder, field = _holder(spec, option)
    value = getattr(holder, field)
    is_there = holder.HasField(field) if holder.DESCRIPTOR.fields_by_name[field].has_presence else bool(value)
    return SHOW[sets.kind](value, sets.usual) if is_there else ()


def _holder(spec: pb.JobSpec, option: JobOption) -> tuple[Message, str]:
    """The message that has the option's field, which may be one inside the spec, and the field's name."""
    holder: Message = spec
    *within, field = option.sets.field.split(".")
    for name in within:
        holder = getattr(holder, name)
    return holder, field


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
        ours = begin_of_slurm(text.strip())
        raise invalid(
            "--begin", problem.message, next_step=f"It is Slurm's: here --begin {ours}" if ours else how
        ) from None
    if moment < now:
        raise invalid("--begin", f'"{text}" is over', next_step=how)
    return moment.astimezone(UTC)


def begin_of_slurm(text: str) -> str:
    """What Slurm's `now+2hours` is here: `2h`; empty for what is none."""
    read = re.fullmatch(r"now\+(\d+)\s*(s|m|h|d|w)?\w*", text.lower())
    if read is None:
        return ""
    count, unit = read.groups()
    return f"{int(count) * 7}d" if unit == "w" else f"{count}{unit or 's'}"


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


def dependency_text(after: pb.Dependency) -> str:
    """Write `41` or `41:any`; an end that is not said is `ok`."""
    word = next((word for word, condition in CONDITIONS.items() if condition == after.condition), "ok")
    return str(after.job_id) if word == "ok" else f"{after.job_id}:{word}"


CONDITIONS: Mapping[str, pb.DependencyCondition.ValueType] = {
    "ok": pb.DEPENDENCY_CONDITION_OK,
    "any": pb.DEPENDENCY_CONDITION_ANY,
    "fail": pb.DEPENDENCY_CONDITION_FAIL,
}


def band(word: str, given_as: str = "--band") -> pb.Band.ValueType:
    """The band by its word."""
    if word.lower() not in BANDS:
        check_known(given_as, word, BANDS, "is not low, normal, high or urgent", "Write one of the four.")
    return BANDS[word.lower()]


def gpu_mode_word(mode: pb.GpuMode.ValueType) -> str:
    """The word of a mode; a newer scheduler may have others."""
    return next((word for word, number in GPU_MODES.items() if number == mode), "unknown")


def gpu_mode_of(option: str, word: str) -> pb.GpuMode.ValueType:
    """The mode of a word. Raises INVALID_ARGUMENT with the option."""
    if word.lower() not in GPU_MODES:
        check_known(option, word, GPU_MODES, "is not required, preferred, never or auto", "Write one of the four.")
    return GPU_MODES[word.lower()]


def at_least_one(option: str, number: int) -> int:
    if number < 1:
        raise invalid(option, f"{number} is less than 1", next_step=f"Leave {option} out, or ask for at least 1.")
    return fits(option, number)


def fits(option: str, number: int) -> int:
    if number > 2**31 - 1:
        raise invalid(option, f"{number} is more than any fleet has")
    return number


def _text(option: JobOption, text: str) -> str:
    if not is_utf8(text):
        raise invalid(option.flag, "it holds bytes that are not UTF-8", next_step=option.sets.hint)
    if not text.strip():
        raise invalid(option.flag, "it is empty", next_step=option.sets.hint)
    return text


def _words(option: JobOption, text: str) -> list[str]:
    try:
        return shlex.split(_text(option, text))
    except ValueError:
        raise invalid(option.flag, "a quote in it does not end", next_step=option.sets.hint) from None


def _number(option: JobOption, number: int) -> int:
    if number < 0:
        raise invalid(option.flag, f"{number} is not 0 or more", next_step=f"Leave {option.flag} out for none.")
    return fits(option.flag, number)


def _flag(value: bool, usual: object) -> Values:
    return (None,) if value else ()


def _as_text(value: object, usual: object) -> Values:
    return () if value in ("", usual) else (str(value),)


READ: Mapping[OptionKind, Callable[[JobOption, Any], object]] = {
    OptionKind.FLAG: lambda option, typed: typed,
    OptionKind.NO_FLAG: lambda option, typed: not typed,
    OptionKind.TEXT: _text,
    OptionKind.NUMBER: _number,
    OptionKind.COUNT: lambda option, typed: at_least_one(option.flag, typed),
    OptionKind.SIZE: lambda option, typed: read(option.flag, parse_size, typed),
    OptionKind.SPAN: lambda option, typed: read(option.flag, parse_duration, typed, option.sets.hint),
    OptionKind.TIME: lambda option, typed: begin_time(typed, datetime.now().astimezone()),
    OptionKind.NAMES: lambda option, typed: names(typed),
    OptionKind.PAIRS: lambda option, typed: pairs(option.flag, typed),
    OptionKind.BAND: lambda option, typed: band(typed, option.flag),
    OptionKind.GPU_MODE: lambda option, typed: gpu_mode_of(option.flag, typed),
    OptionKind.COMMAND: _words,
    OptionKind.SIGNAL: lambda option, typed: limit_signal(typed),
    OptionKind.AFTER: lambda option, typed: [dependency(text) for text in names(typed)],
    OptionKind.FILES: lambda option, typed: input_files(typed),
    OptionKind.FOLDER: lambda option, typed: input_folder(typed),
    OptionKind.INPUTS: lambda option, typed: [job_input(option.flag, text) for text in typed],
    OptionKind.LINES: lambda option, typed: [_text(option, text) for text in typed],
    OptionKind.MOUNTS: lambda option, typed: [mount(option.flag, text) for text in typed],
    OptionKind.SECRETS: lambda option, typed: named_secrets(typed),
    OptionKind.RLIMITS: lambda option, typed: [resource_limit(option.flag, text) for text in typed],
}
"""From what was typed to the value of the field. Raises INVALID_ARGUMENT with the option."""

SHOW: Mapping[OptionKind, Callable[[Any, Any], Values]] = {
    OptionKind.FLAG: _flag,
    OptionKind.NO_FLAG: _flag,
    OptionKind.TEXT: _as_text,
    OptionKind.NUMBER: _as_text,
    OptionKind.COUNT: _as_text,
    OptionKind.SIZE: lambda value, usual: (exact_size(value),),
    OptionKind.SPAN: lambda value, usual: (
        () if value.ToTimedelta() == usual else (exact_duration(value.ToTimedelta()),)
    ),
    OptionKind.TIME: lambda value, usual: (value.ToDatetime(UTC).isoformat(),),
    OptionKind.NAMES: lambda value, usual: (",".join(value),),
    OptionKind.PAIRS: lambda value, usual: [f"{name}={value[name]}" for name in sorted(value)],
    OptionKind.BAND: lambda value, usual: [word for word, number in BANDS.items() if number == value != pb.BAND_NORMAL],
    OptionKind.GPU_MODE: lambda value, usual: [
        word for word, number in GPU_MODES.items() if number == value and word != usual
    ],
    OptionKind.COMMAND: lambda value, usual: (shlex.join(value),),
    OptionKind.SIGNAL: lambda value, usual: (limit_signal_text(value),),
    OptionKind.AFTER: lambda value, usual: [dependency_text(each) for each in value],
    OptionKind.FILES: lambda value, usual: [input_file_text(each) for each in value],
    OptionKind.FOLDER: lambda value, usual: (input_folder_text(value),),
    OptionKind.INPUTS: lambda value, usual: [job_input_text(each) for each in value],
    OptionKind.LINES: lambda value, usual: list(value),
    OptionKind.MOUNTS: lambda value, usual: [mount_text(each) for each in value],
    OptionKind.SECRETS: lambda value, usual: [secret_text(variable, value[variable]) for variable in sorted(value)],
    OptionKind.RLIMITS: lambda value, usual: [resource_limit_text(each) for each in value],
}
"""From the value of the field, which says something, to what the option is given."""
