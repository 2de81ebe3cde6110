"""What `estimate` and `submit --config` ask and show."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gpufleet.v1 import capacity_pb2

from gpufleet.errors import FieldViolation, GpufleetError, Reason, invalid
from gpufleet.fleet.client import Client, connected
from gpufleet.fleet.settings import Settings
from gpufleet.fleet.submitting.job_options import JobOptions
from gpufleet.text.units import exact_size

from ..printing import print_message

CONFIG_BYTES_MAX = 1_000_000
STDIN = "-"


def config_of(path: str | None, model: str | None, degrees: Mapping[str, str | None]) -> tuple[str, str]:
    """The configuration as JSON, and what it is called: a file's, or one made of options."""
    given = {name: text for name, text in degrees.items() if text is not None}
    typed = [f"--{name}" for name in (["model"] if model is not None else []) + list(given)]
    if path is not None:
        if typed:
            raise invalid(typed[0], f"{path} says it", next_step="Give a file or options, not both.")
        return file_text(path, "CONFIG.json"), path
    if not typed:
        raise invalid(
            "CONFIG.json", "is missing", next_step="Name a file, or: gpuctl estimate --model llama-3-70b --tp 4"
        )
    config: dict[str, object] = {"parameters": {name: _numbers(f"--{name}", text) for name, text in given.items()}}
    if model is not None:
        config["model"] = {"id_or_path": model}
    return json.dumps(config), "the options"


def file_text(path: str, option: str) -> str:
    """The text of a file of JSON; `-` is standard input."""
    try:
        if path == STDIN:
            content = sys.stdin.buffer.read(CONFIG_BYTES_MAX + 1)
        else:
            with Path(path).open("rb") as file:
                content = file.read(CONFIG_BYTES_MAX + 1)
    except OSError as problem:
        raise GpufleetError(
            Reason.FILE_NOT_FOUND, f"{option}: {path} cannot be read: {problem.strerror}", next_step="Check its name."
        ) from None
    if len(content) > CONFIG_BYTES_MAX:
        raise invalid(option, f"{path} is larger than {CONFIG_BYTES_MAX:,} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise invalid(option, f"{path} is not UTF-8 text") from None


def show_estimate(settings: Settings, config: str, called: str) -> None:
    """Ask, and print the one line; what was not used is told on stderr."""
    with connected(settings) as client:
        answer = ask(client, config, called)
    if settings.format in ("json", "jsonl"):
        print_message(answer, settings.format)
        return
    print(str(answer.device_count) if settings.format == "name" else answer.sentence)
    _tell_unused(answer)


def estimated(settings: Settings, options: JobOptions) -> JobOptions:
    """The options with --gpus and --min-memory as the file of --config needs them; those that were typed stay."""
    if options.config is None:
        return options
    text = file_text(options.config, "--config")
    with connected(settings) as client:
        answer = ask(client, text, f"--config: {options.config}")
    print(f"gpuctl: {answer.sentence}", file=sys.stderr)
    _tell_unused(answer)
    asks_for_devices = (options.gpus, options.gpus_per_node, options.node_gpu_ids, options.gpu_share)
    return replace(
        options,
        config=None,
        gpus=options.gpus if any(each is not None for each in asks_for_devices) else answer.device_count,
        min_memory=exact_size(answer.min_memory_bytes) if options.min_memory is None else options.min_memory,
    )


def ask(client: Client, config: str, called: str) -> capacity_pb2.EstimateResponse:
    """One answer; a refusal names the file in place of the field."""
    try:
        return client.call_again(client.scheduler.Estimate, capacity_pb2.EstimateRequest(config_json=config))
    except GpufleetError as problem:
        if problem.reason is not Reason.INVALID_ARGUMENT:
            raise
        violations = [
            FieldViolation(each.field.replace("config_json", called), each.why) for each in problem.violations
        ]
        message = problem.message.replace("config_json", called, 1)
        raise GpufleetError(
            problem.reason, message, violations=violations, next_step=problem.next_step, metadata=problem.metadata
        ) from None


def _tell_unused(answer: capacity_pb2.EstimateResponse) -> None:
    if answer.unused_parameters:
        print(f"gpuctl: not used: {', '.join(answer.unused_parameters)}", file=sys.stderr)


def _numbers(option: str, text: str) -> list[int]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) <= 9 for word in words):
        raise invalid(option, f'"{text}" is not a number', next_step="Write it as 4, or as a grid: 1,2,4.")
    return [int(word) for word in words]
