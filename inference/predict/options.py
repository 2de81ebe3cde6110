"""What the command line of the server says."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from gpufleet.errors import GpufleetError, invalid
from gpufleet.predict import BATCH_MAX
from gpufleet.text.units import exact_duration, parse_duration, parse_size

from ..core.batching import BatchLimits
from ..loading import Wanted
from ..options import wanted_of

AUTO = "auto"
WAITING_MAX = 1_000_000
WAIT_US_MAX = 10_000_000
HANG_US_MIN, HANG_US_MAX = 100_000, 24 * 3_600 * 1_000_000
BODY_MAX_DEFAULT = "64MiB"


def parser() -> argparse.ArgumentParser:
    """The flags."""
    flags = argparse.ArgumentParser(
        prog="gpufleet-predict",
        description="Answer requests with a model class, by the Open Inference Protocol. Stop it with SIGTERM: what it "
        "has taken in is answered first.",
    )
    limits = BatchLimits()
    flags.add_argument("model", metavar="MODEL", help="package.module:Class (see docs/predict.md)")
    flags.add_argument("--name", metavar="NAME", default="", help="the model's name; default: the class's")
    flags.add_argument("--host", default="127.0.0.1", help="where to listen (default 127.0.0.1)")
    flags.add_argument("--port", type=int, default=0, metavar="PORT", help="the port (default: any, see the log)")
    flags.add_argument("--device", metavar="N|cpu", default="", help="GPU of the model; default: the first, or the CPU")
    flags.add_argument(
        "--model-arg", metavar="K=V", action="append", default=[], help="argument of the model; repeatable"
    )
    flags.add_argument(
        "--max-batch", metavar="N|auto", default=str(limits.batch_max), help="items of a batch; auto finds how many"
    )
    flags.add_argument("--max-wait", metavar="TIME", default="5ms", help="longest wait for more items (default 5ms)")
    flags.add_argument(
        "--max-waiting", metavar="N", type=int, default=limits.waiting_max, help="items that may wait (default 1024)"
    )
    flags.add_argument(
        "--predict-timeout", metavar="TIME", default="1m", help="longest time of a batch; then it ends (default 1m)"
    )
    flags.add_argument(
        "--max-body", metavar="SIZE", default=BODY_MAX_DEFAULT, help=f"largest body (default {BODY_MAX_DEFAULT})"
    )
    flags.add_argument("--verbose", action="store_true", help="the same as --log-level debug")
    flags.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info")
    flags.add_argument("--log-format", choices=("text", "json"), default="text")
    return flags


def read(words: Sequence[str]) -> argparse.Namespace:
    """The flags, with `wanted`, `limits`, `finds_size` and `body_max` made of them. Raises INVALID_ARGUMENT."""
    given = parser().parse_args(words)
    given.wanted = _wanted(given)
    given.finds_size = given.max_batch == AUTO
    given.limits = BatchLimits(
        batch_max=BatchLimits().batch_max if given.finds_size else _batch(given.max_batch),
        wait_us=_duration_us("--max-wait", given.max_wait, 0, WAIT_US_MAX),
        waiting_max=given.max_waiting,
        hang_us=_duration_us("--predict-timeout", given.predict_timeout, HANG_US_MIN, HANG_US_MAX),
    )
    given.body_max = _size("--max-body", given.max_body)
    if not 1 <= given.max_waiting <= WAITING_MAX:
        raise invalid("--max-waiting", f"must be 1 to {WAITING_MAX:,}")
    if not 0 <= given.port <= 65_535:
        raise invalid("--port", "must be 0 to 65535")
    return given


def _wanted(given: argparse.Namespace) -> Wanted:
    wanted = wanted_of(given)
    if ":" not in wanted.entry_point:
        raise invalid("MODEL", f'"{wanted.entry_point}" is not package.module:Class')
    return wanted


def _batch(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 8 and 1 <= int(text) <= BATCH_MAX):
        raise invalid("--max-batch", f'"{text}" is neither a number from 1 to {BATCH_MAX:,} nor {AUTO}')
    return int(text)


def _duration_us(option: str, text: str, least: int, most: int) -> int:
    try:
        duration = parse_duration(text)
    except GpufleetError as problem:
        raise invalid(option, problem.message, next_step=problem.next_step) from None
    found = round(duration.total_seconds() * 1e6)
    if not least <= found <= most:
        raise invalid(option, f"{exact_duration(duration)} is not between {least / 1e6:g} s and {most / 1e6:g} s")
    return found


def _size(option: str, text: str) -> int:
    try:
        found = parse_size(text)
    except GpufleetError as problem:
        raise invalid(option, problem.message, next_step=problem.next_step) from None
    if not found:
        raise invalid(option, "must be more than nothing")
    return found
