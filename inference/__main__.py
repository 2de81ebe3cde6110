"""Starts a worker: `python -P -m gpufleet.inference`, or `gpuctl worker`.

SIGTERM and SIGINT end its turns and then the program. Exit codes: 0 stopped or drained, 1 the model cannot be loaded or
the settings are wrong, 3 the model hung.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import os
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

from gpufleet.errors import GpufleetError, Reason, as_lines

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
    from .options import parser

    given = parser().parse_args(arguments)
    sys.setswitchinterval(SWITCH_S)
    # A model beside the person who starts it is found, and can hide nothing that is installed: -P, and last.
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        _check_installed()
        code = asyncio.run(_run(given))
    except GpufleetError as error:
        print(as_lines(error), file=sys.stderr)
        code = EXIT_HUNG if error.reason is Reason.MODEL_HANGS else EXIT_FAILED
    if code == EXIT_HUNG:
        # The model's thread is still in its step, and would be waited for.
        sys.stderr.flush()
        os._exit(code)
    return code


def _check_installed() -> None:
    try:
        import numpy  # noqa: F401
        import simplejpeg  # noqa: F401
    except ImportError as problem:
        raise GpufleetError(
            Reason.EXTRA_MISSING,
            f"a worker needs {problem.name}",
            next_step="Install it with: pip install 'gpufleet[inference]'",
        ) from None


async def _run(given: argparse.Namespace) -> int:
    from gpufleet import metrics, telemetry
    from gpufleet.log_settings import LogSettings
    from gpufleet.logs import ProgramLog

    from .program import Program

    settings = LogSettings(level="debug" if given.verbose else given.log_level, format=given.log_format)
    instance = f"{socket.gethostname()}-{os.getpid()}"
    with (
        ProgramLog("worker", settings, None),
        closing(telemetry.start("worker", instance=instance)) as traces,
        closing(metrics.start("worker", instance=instance)) as measured,
    ):
        program = Program(given, traces, measured)
        _on_signals(program.stop)
        guard = asyncio.create_task(_guard())
        try:
            failure = await program.run()
        finally:
            guard.cancel()
            faulthandler.cancel_dump_traceback_later()
    if failure is not None:
        raise failure
    return 0


def _on_signals(stop: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, stop)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop))


async def _guard() -> None:
    """End the program where the model keeps the interpreter for itself, in a step of C that never lets go."""
    while True:
        faulthandler.dump_traceback_later(STUCK_S_MAX, exit=True)
        await asyncio.sleep(GUARDED_EVERY_S)


if __name__ == "__main__":
    sys.exit(main())
