"""Starts a worker: `python -P -m gpufleet.inference`, or `gpuctl worker`.

SIGTERM and SIGINT end its turns and then the program. Exit codes: 0 stopped or drained, 1 the model cannot be loaded or
the settings are wrong, 3 the model hung. With --http-service it serves a program in place of a model: `http_service/`;
where that ends by itself, its exit code is that of this one, 128 and the signal's number for a signal.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import gc
import itertools
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import gpufleet.host.grpc_forks  # before anything imports grpc
import gpufleet.host.grpc_names  # noqa: F401  the same
from gpufleet.errors import GpufleetError, Reason, as_lines
from gpufleet.host import event_loop

EXIT_FAILED = 1
EXIT_HUNG = 3

SWITCH_S = 0.0005
"""The model's thread gives the interpreter up this often when the event loop wants it; 5 ms by default, which a frame
would feel."""

STUCK_S_MAX = 15.0
"""An event loop that gets no chance for so long has lost the interpreter to the model: the program ends."""

GUARDED_EVERY_S = 2.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; answers its exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        given = _read(words)
    except GpufleetError as error:
        print(as_lines(error), file=sys.stderr)
        return EXIT_FAILED
    try:
        if not given.http_service:
            _prepare_for_a_model()
        failure = event_loop.run(_run(given), os.environ.get(event_loop.EVENT_LOOP_VARIABLE, ""))
    except GpufleetError as error:
        from .last_words import tell

        failure = error
        tell(given, error)
    if failure is None:
        return 0
    print(as_lines(failure), file=sys.stderr)
    if failure.reason is Reason.MODEL_HANGS:
        # The model's thread is still in its step, and would be waited for.
        sys.stderr.flush()
        os._exit(EXIT_HUNG)
    return int(failure.metadata.get("exit_code", EXIT_FAILED))


def _read(words: Sequence[str]) -> argparse.Namespace:
    """What the flags say: of a model, or of a program."""
    if "--http-service" in itertools.takewhile(lambda word: word != "--", words):
        from .http_service import options

        return options.read(words)
    from .options import parser

    return parser().parse_args(words)


def _prepare_for_a_model() -> None:
    sys.setswitchinterval(SWITCH_S)
    # A model beside the person who starts it is found, and can hide nothing that is installed: -P, and last.
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    _check_installed()


def _check_installed() -> None:
    try:
        import numpy  # noqa: F401
        import PIL  # noqa: F401
        import simplejpeg  # noqa: F401
    except ImportError as problem:
        raise GpufleetError(
            Reason.EXTRA_MISSING,
            f"a worker needs {problem.name}, which is not installed in {sys.prefix}",
            next_step="Install it with: pip install 'gpufleet[inference]'",
        ) from None


async def _run(given: argparse.Namespace) -> GpufleetError | None:
    """One run of the program; answers why it failed, once its scheduler knows. Raises what it could not begin for."""
    from gpufleet.config.shared_settings import LogSettings
    from gpufleet.telemetry import metrics
    from gpufleet.telemetry import spans as telemetry
    from gpufleet.telemetry.logs import ProgramLog

    from .signals import on_signals

    settings = LogSettings(level="debug" if given.verbose else given.log_level, format=given.log_format)
    instance = f"{socket.gethostname()}-{os.getpid()}"
    with (
        ProgramLog("worker", settings, None),
        closing(telemetry.start("worker", instance=instance)) as traces,
        closing(metrics.start("worker", instance=instance)) as measured,
    ):
        if given.http_service:
            from .http_service.shim import Shim

            shim = Shim(given, _open_files())
            on_signals(shim.stop)
            return await shim.run()
        from .program import Program

        gc.freeze()  # What is loaded stays: neither the collector nor the end of the process need look through it.
        program = Program(given, traces, measured)
        on_signals(program.stop)
        guard = asyncio.create_task(_guard())
        try:
            return await program.run()
        finally:
            guard.cancel()
            faulthandler.cancel_dump_traceback_later()


def _open_files() -> int:
    """Hold as many files open as the system allows; answers how many it would have been."""
    if os.name != "posix":
        return 0
    from gpufleet.host.facts import open_files_max, raise_open_files

    before = open_files_max()
    raise_open_files()
    return before


async def _guard() -> None:
    """End the program where the model keeps the interpreter for itself, in a step of C that never lets go."""
    while True:
        faulthandler.dump_traceback_later(STUCK_S_MAX, exit=True)
        await asyncio.sleep(GUARDED_EVERY_S)


if __name__ == "__main__":
    sys.exit(main())
