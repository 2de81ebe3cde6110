"""From what was typed to a JobSpec, and back: the command that would submit a job again."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.jobs.names import name_of_command
from gpufleet.jobs.variables import JOB_TOKEN_VARIABLE
from gpufleet.telemetry.traceparent import inherited_traceparent
from gpufleet.text.cleaning import is_utf8
from gpufleet.text.units import exact_size, parse_size
from gpufleet.v1 import job_pb2 as pb

from ..reading import read
from .job_options import JobOption, JobOptions, OptionKind, option_table
from .option_kinds import Values, add_typed, at_least_one, is_said, shown

PASSED_ON = ("PATH", "LANG", "TERM")
"""The submitter's variables that a job gets without being asked."""

PASSED_INTO_CONTAINERS = ("TERM",)
"""The same of a job in a container, whose image says where its programs are and which languages it has."""

SHELL = "/bin/sh"


def spec_of(options: JobOptions, command: Sequence[str], environment: Mapping[str, str], folder: str) -> pb.JobSpec:
    """The spec of a job; `environment` and `folder` are the submitter's. Raises INVALID_ARGUMENT with the option."""
    argv = argv_of(command)
    for what, texts in (("the command", argv), ("--name", [options.name or ""]), ("--cwd", [options.cwd or folder])):
        if not all(map(is_utf8, texts)):
            raise invalid(what, "it holds bytes that are not UTF-8", next_step="Put them in a file, and pass its path.")
    of_its_own = (options.file, options.upload, options.download, options.keep, options.input, options.image)
    lies_there = any(of_its_own) and not options.cwd
    if options.image is None:
        for flag, given in (("--mount", options.mount), ("--image-secret", options.image_secret)):
            if given:
                raise invalid(flag, "it is for a container, and there is none", next_step="Add --image IMAGE.")
    spec = pb.JobSpec(
        argv=argv,
        name=options.name or "",
        cwd="" if lies_there else _cwd(options, folder),
        env=variables(
            options.env or (),
            environment,
            pass_all=options.env_all,
            passed_on=PASSED_ON if options.image is None else PASSED_INTO_CONTAINERS,
        ),
        submit_cwd=folder,
        trace_context=inherited_traceparent(environment),
    )
    for option in option_table():
        if is_said(option, typed := getattr(options, option.name)):
            add_typed(spec, option, typed)
    _add_devices(spec, options)
    _add_array(spec, options)
    return spec


def _cwd(options: JobOptions, folder: str) -> str:
    """Where it runs: relative to the folder that goes along, and without one to where its submitter stands."""
    inside = PurePosixPath(options.cwd or "")
    if (options.upload or options.image) and not inside.is_absolute():
        return "" if str(inside) == "." else str(inside)
    return str(PurePosixPath(folder) / inside)


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
        spec.array.max_fails = at_least_one("--max-fails", options.max_fails)


def _add_devices(spec: pb.JobSpec, options: JobOptions) -> None:
    if options.gpus == 0:
        for option, asked in (
            ("--gpu-share", options.gpu_share),
            ("--gpus-per-node", options.gpus_per_node),
            ("--node-gpu-ids", options.node_gpu_ids),
        ):
            if asked is not None:
                raise invalid("--gpus", f"0 is none, and {option} asks for some", next_step=f"Leave {option} out.")
    if options.node_gpu_ids is not None:
        spec.pins.extend(pins(options.node_gpu_ids))
    if options.nodes is not None:
        spec.node_count = at_least_one("--nodes", options.nodes)
    if options.gpus_per_node is not None and options.nodes is None and options.gpus is None:
        raise invalid("--gpus-per-node", "it does not say on how many nodes", next_step="Add --nodes N, or --gpus N.")
    count = options.gpus or None
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
        request.count = at_least_one("--gpus", count)
    if options.gpus_per_node is not None:
        request.per_node_count = at_least_one("--gpus-per-node", options.gpus_per_node)
    request.models.extend(options.gpu_model or ())
    if options.min_memory is not None:
        request.min_memory_bytes = read("--min-memory", parse_size, options.min_memory)
    if options.gpu_share is not None and (milli := share_milli(options.gpu_share)) < WHOLE_MILLI:
        request.share.milli = milli


WHOLE_MILLI = 1000


def share_milli(text: str) -> int:
    """Thousandths of a GPU: `0.5` is 500. Raises INVALID_ARGUMENT for what is no part of one."""
    from decimal import Decimal, InvalidOperation

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


def argv_of(command: Sequence[str]) -> list[str]:
    """The program and its arguments; one word that is more than a word is a line for the shell."""
    if not command or not command[0]:
        raise GpufleetError(Reason.COMMAND_EMPTY)
    if len(command) == 1 and shlex.quote(command[0]) != command[0] and not _is_program(command[0]):
        return [SHELL, "-c", command[0]]
    return list(command)


def _is_program(word: str) -> bool:
    return os.access(word, os.X_OK) and not Path(word).is_dir()


KEPT_HERE = frozenset({"HOME", "USER", "LOGNAME", "GPUCTL_TOKEN", JOB_TOKEN_VARIABLE})
"""What --env-all leaves out: the account is that of the node, and a token is nobody else's to see."""


def variables(
    given: Sequence[str],
    environment: Mapping[str, str],
    *,
    pass_all: bool,
    passed_on: Collection[str] = PASSED_ON,
) -> dict[str, str]:
    """The job's variables: PATH, LANG and TERM of the submitter, or all, then each NAME=VALUE or NAME."""
    passed = environment.keys() - KEPT_HERE if pass_all else environment.keys() & set(passed_on)
    found = {name: environment[name] for name in sorted(passed)}
    for text in given:
        name, equals, value = text.partition("=")
        if not name:
            raise invalid("--env", f'"{text}" has no name', reason=Reason.ENV_NAME_INVALID)
        if any(character.isspace() for character in name):
            why = f'the name in "{text}" holds a space, and no shell could read it'
            next_step = "Write one --env NAME=VALUE for each variable."
            raise invalid("--env", why, reason=Reason.ENV_NAME_INVALID, next_step=next_step)
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
        if not is_utf8(name + value):
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


def command_line_of(spec: pb.JobSpec) -> str:
    """The command that would submit the job again, quoted for a shell.

    The variables that go by themselves are left out; so are defaults that the server filled in.
    """
    words = ["gpuctl", "run", "-i"] if spec.input else ["gpuctl", "submit"]
    for option, value in options_of(spec):
        words += [option] if value is None else [option, value]
    return shell_line([*words, "--", *spec.argv])


def hidden_when_repeated(spec: pb.JobSpec) -> list[str]:
    """What its line would have to say and cannot, as the job is somebody else's: options without their dashes."""
    goes_by_itself = set(spec.env) <= set(PASSED_ON)
    return [each for each in spec.hidden_fields if each != "env" or not goes_by_itself]


def options_of(spec: pb.JobSpec) -> list[tuple[str, str | None]]:
    """Each option with its value, None for one that takes none; without what submitting again leaves out."""
    return [
        (option.flag, value)
        for option in option_table()
        if option.sets.is_repeated
        for value in (_shown_together(spec, option) if option.sets.kind is OptionKind.OWN else shown(spec, option))
        if not (option.name == "requeue" and spec.input)  # run -i says so by itself
    ]


def _shown_together(spec: pb.JobSpec, option: JobOption) -> Values:
    """What an option is given that is read together with others."""
    request = spec.devices[0] if spec.devices else pb.DeviceRequest()
    is_by_node = bool(request.per_node_count) and not (
        request.count and spec.node_count
    )  # or else it follows from them
    match option.name:
        case "gpus":
            is_one_by_itself = request.count <= 1 and (request.share.milli or is_by_node)
            return (str(request.count),) if spec.devices and not is_one_by_itself else ()
        case "gpu_share":
            return (f"{request.share.milli / WHOLE_MILLI:g}",) if request.share.milli else ()
        case "min_memory":
            memory_bytes = request.min_memory_bytes or request.share.memory_bytes
            return (exact_size(memory_bytes),) if memory_bytes else ()
        case "gpu_model":
            return request.models
        case "gpus_per_node":
            return (str(request.per_node_count),) if is_by_node else ()
        case "allow_busy":
            return (None,) if request.allow_busy else ()
        case "nodes":
            return (str(spec.node_count),) if spec.node_count and not spec.pins else ()
        case "node_gpu_ids":
            text = ";".join(f"{pin.node}:{','.join(map(str, pin.device_indices))}" for pin in spec.pins)
            return (text,) if text else ()
        case "name":
            return (spec.name,) if spec.name and spec.name != name_of_command(spec.argv) else ()
        case "env":
            itself = PASSED_INTO_CONTAINERS if spec.HasField("container") else PASSED_ON
            return [f"{name}={spec.env[name]}" for name in sorted(spec.env) if name not in itself]
        case "env_all":
            return ()  # one by one
        case "cwd":
            return (spec.cwd,) if spec.cwd else ()
        case "array":
            cap = f"%{spec.array.max_active_count}" if spec.array.max_active_count else ""
            return (f"{spec.array.indices}{cap}",) if spec.HasField("array") else ()
        case "max_fails":
            return (str(spec.array.max_fails),) if spec.array.max_fails else ()
    raise AssertionError(f"{option.name} is read together with others, and nobody says how it is shown")


ESCAPES = {"\n": r"\n", "\t": r"\t", "\r": r"\r", "'": r"\'", "\\": r"\\"}


def shell_line(words: Iterable[str]) -> str:
    """The command line of these words. What cannot be shown, such as the end of a line, is written as in `$'a\\nb'`.

    Shells that know that form: bash, zsh, ksh, and POSIX since 2024.
    """
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(map(_escaped, word)) + "'"


def _escaped(character: str) -> str:
    if character in ESCAPES:
        return ESCAPES[character]
    if character.isprintable():
        return character
    number = ord(character)
    if number < 0x80:
        return rf"\x{number:02x}"
    return rf"\u{number:04x}" if number < 0x10000 else rf"\U{number:08x}"
