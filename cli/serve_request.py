"""From what was typed to `serve` to the model that is asked for."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

from gpufleet.v1 import sessions_pb2

from gpufleet.errors import GpufleetError, invalid
from gpufleet.units import parse_duration

from .job_options import JobOptions
from .job_spec import spec_of
from .serve_options import TurnOptions, WorkerOptions


def model_of(
    entry_point: str,
    name: str,
    worker: WorkerOptions,
    turns: TurnOptions,
    environment: Mapping[str, str],
    folder: str,
) -> sessions_pb2.Model:
    """The model to serve, as it was typed. Raises INVALID_ARGUMENT with the option."""
    most = worker.max_workers if worker.max_workers is not None else max(1, worker.min_workers)
    if most < worker.min_workers:
        raise invalid("--max", f"{most} is less than --min {worker.min_workers}")
    # The interpreter that runs gpuctl is the one that has gpufleet, and, in a project's environment, what the model
    # needs. -P: the folder is searched last, by the worker itself.
    program = [worker.python or sys.executable, "-P", "-m", "gpufleet.inference"]
    options = JobOptions(
        gpus=worker.gpus,
        gpu_share=worker.gpu_share,
        min_memory=worker.min_memory,
        gpu_model=worker.gpu_model,
        node_gpu_ids=worker.node_gpu_ids,
        allow_busy=worker.allow_busy,
        cpus=worker.cpus,
        memory=worker.memory,
        nodelist=worker.nodelist,
        exclude=worker.exclude,
        node_label=worker.node_label,
        env=worker.env,
        cwd=worker.cwd,
        label=worker.label,
        band=worker.band,
        preemptible=worker.preemptible,
    )
    spec = spec_of(options, program, environment, folder)
    spec.ClearField("trace_context")
    return sessions_pb2.Model(
        name=name,
        entry_point=entry_point,
        worker=spec,
        min_workers=worker.min_workers,
        max_workers=most,
        arguments=arguments_of(worker.model_arg or ()),
        limits=limits_of(turns),
    )


def limits_of(turns: TurnOptions) -> sessions_pb2.SessionLimits:
    """The numbers that were named."""
    limits = sessions_pb2.SessionLimits(line_length=turns.line_length or 0)
    for option, text, field in (
        ("--idle", turns.idle, limits.idle),
        ("--turn", turns.turn, limits.turn),
        ("--turn-warning", turns.turn_warning, limits.turn_warning),
        ("--grace", turns.grace, limits.grace),
        ("--idle-warning", turns.idle_warning, limits.idle_warning),
    ):
        if text is not None:
            try:
                field.FromTimedelta(parse_duration(text))
                field.SetInParent()
            except GpufleetError as problem:
                raise invalid(option, problem.message, next_step=problem.next_step) from None
    return limits


def arguments_of(pairs: Sequence[str]) -> dict[str, str]:
    """The arguments of the model: `steps=32`. Raises INVALID_ARGUMENT."""
    arguments: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier():
            raise invalid("--model-arg", f'"{pair}" is not NAME=VALUE', next_step="Write it as --model-arg steps=32")
        if name in arguments:
            raise invalid("--model-arg", f"{name} is given twice")
        arguments[name] = value
    return arguments
