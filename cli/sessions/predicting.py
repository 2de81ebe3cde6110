"""`serve --predict`: a class that answers requests is a program that is served, one of gpufleet's own."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import timedelta

from gpufleet.errors import invalid
from gpufleet.fleet.reading import read
from gpufleet.text.units import exact_duration, parse_duration

from .serve_options import PredictOptions, ProgramOptions, WorkerOptions

PORT_ENV = "PREDICT_SERVER_PORT"
"""The variable with the server's port: a name that stands in nobody's arguments by chance."""

READY = "/v2/health/ready"
AUTO = "auto"
BATCH_MAX = 10_000
BATCH_DEFAULT = 32

BATCHES_TAKEN = 4
"""A replica takes requests for so many batches of one item each at a time: one is computed while others come."""

BATCHES_TARGET = 2
"""There is to be a replica for the requests of so many batches."""

AUTO_ASSUMED = 128
"""How many items a batch is taken to have where the replica itself finds how many."""

CONCURRENCY_MAX = 10_000


def as_program(
    entry_point: str,
    name: str,
    argv: Sequence[str],
    program: ProgramOptions,
    worker: WorkerOptions,
    predict: PredictOptions,
) -> tuple[Sequence[str], ProgramOptions, WorkerOptions]:
    """The program that answers with the class, how it is served, and its worker without what the program is told.

    Raises INVALID_ARGUMENT with the option.
    """
    if not predict.predict:
        named = next(
            each.name for each in fields(predict) if getattr(predict, each.name) is not None and each.name != "predict"
        )
        step = "Give --predict, too, or leave it out."
        raise invalid(f"--{named.replace('_', '-')}", "is for a class that answers requests", next_step=step)
    if argv:
        step = f"Leave out --predict or the program: gpuctl serve {entry_point} --predict"
        raise invalid("--predict", "goes with a class, and not with a program", next_step=step)
    if not all(entry_point.partition(":")):
        step = "Name a class: gpuctl serve digits:Digits --predict"
        raise invalid("MODEL", f'"{entry_point}" is not package.module:Class', next_step=step)
    if program.port_env is not None or program.ready is not None:
        option = "--ready" if program.port_env is None else "--port-env"
        raise invalid(option, "is what --predict says itself", next_step="Leave it out.")
    size = _size(predict.max_batch)
    taken = min(CONCURRENCY_MAX, max(64, BATCHES_TAKEN * size))
    concurrency = program.concurrency or taken
    served = replace(
        program,
        port_env=PORT_ENV,
        ready=READY,
        concurrency=concurrency,
        target_concurrency=program.target_concurrency or min(concurrency, max(8, BATCHES_TARGET * size)),
    )
    words = [worker.python or sys.executable, "-P", "-m", "gpufleet.inference.predict", entry_point]
    words += ["--name", name, "--port", f"${PORT_ENV}", *_limits(predict)]
    for pair in worker.model_arg or ():
        words += ["--model-arg", pair]
    return words, served, replace(worker, model_arg=None)


def _size(text: str | None) -> int:
    if text is None:
        return BATCH_DEFAULT
    if text == AUTO:
        return AUTO_ASSUMED
    if not (text.isascii() and text.isdigit() and len(text) < 8 and 1 <= int(text) <= BATCH_MAX):
        raise invalid("--max-batch", f'"{text}" is neither a number from 1 to {BATCH_MAX:,} nor {AUTO}')
    return int(text)


def _limits(predict: PredictOptions) -> list[str]:
    words: list[str] = []
    if predict.max_batch is not None:
        words += ["--max-batch", predict.max_batch]
    if predict.max_wait is not None:
        words += ["--max-wait", _duration("--max-wait", predict.max_wait, timedelta(0), timedelta(seconds=10))]
    if predict.max_waiting is not None:
        words += ["--max-waiting", str(predict.max_waiting)]
    if predict.predict_timeout is not None:
        least, most = timedelta(milliseconds=100), timedelta(days=1)
        words += ["--predict-timeout", _duration("--predict-timeout", predict.predict_timeout, least, most)]
    return words


def _duration(option: str, text: str, least: timedelta, most: timedelta) -> str:
    duration = read(option, parse_duration, text)
    if not least <= duration <= most:
        raise invalid(option, f"must be from {exact_duration(least) or '0s'} to {exact_duration(most)}")
    return exact_duration(duration)
