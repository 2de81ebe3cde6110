"""The option --config: a model's configuration says how many GPUs a job needs, and how much memory of each."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gpufleet.errors import FieldViolation, GpufleetError, Reason, invalid
from gpufleet.text.units import exact_size
from gpufleet.v1 import capacity_pb2

from ..client import Client, connected
from ..settings import Settings
from .job_options import JobOptions

CONFIG_BYTES_MAX = 1_000_000
STDIN = "-"


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


def estimated(settings: Settings, options: JobOptions, say: Callable[[str], None]) -> JobOptions:
    """The options with --gpus and --min-memory as the file of --config needs them; those that were given stay.

    `say` is told the estimate, and what of the file counted for nothing.
    """
    if options.config is None:
        return options
    text = file_text(options.config, "--config")
    with connected(settings) as client:
        answer = ask_for_estimate(client, text, f"--config: {options.config}")
    say(answer.sentence)
    say_unused(answer, say)
    asks_for_devices = (options.gpus, options.gpus_per_node, options.node_gpu_ids, options.gpu_share)
    return replace(
        options,
        config=None,
        gpus=options.gpus if any(each is not None for each in asks_for_devices) else answer.device_count,
        min_memory=exact_size(answer.min_memory_bytes) if options.min_memory is None else options.min_memory,
    )


def ask_for_estimate(client: Client, config: str, called: str) -> capacity_pb2.EstimateResponse:
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


def say_unused(answer: capacity_pb2.EstimateResponse, say: Callable[[str], None]) -> None:
    """Tell what of a configuration counted for nothing."""
    if answer.unused_parameters:
        say(f"not used: {', '.join(answer.unused_parameters)}")
