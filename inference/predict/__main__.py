"""Starts the server of a model class: `python -P -m gpufleet.inference.predict package.module:Class --port N`.

SIGTERM and SIGINT end it once what it has taken in is answered. Exit codes: 0 stopped, 1 the model cannot be loaded or
the flags are wrong, 3 the model hung.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import gc
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from gpufleet.errors import GpufleetError, Reason, as_lines
from gpufleet.host import event_loop

from . import options

EXIT_FAILED = 1
EXIT_HUNG = 3

SWITCH_S = 0.0005
"""The model's thread gives the interpreter up this often when the event loop wants it."""

ANSWERS_S_MAX = 4.0
"""How long answers may take to leave when the program ends; its shim ends it after 5 s."""

STUCK_S_MAX = 15.0
GUARDED_EVERY_S = 2.0
"""An event loop that gets no chance for so long beyond the time of a batch has lost the interpreter to the model."""

CONNECTIONS_MAX = 4_096

_log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the server; answers its exit code."""
    try:
        given = options.read(sys.argv[1:] if arguments is None else arguments)
        _prepare()
        failure = event_loop.run(_run(given), os.environ.get(event_loop.EVENT_LOOP_VARIABLE, ""))
    except GpufleetError as error:
        failure = error
    if failure is None:
        return 0
    print(as_lines(failure), file=sys.stderr, flush=True)
    if failure.reason is Reason.MODEL_HANGS:
        os._exit(EXIT_HUNG)  # the model's thread is still in its call, and would be waited for
    return EXIT_FAILED


def _prepare() -> None:
    sys.setswitchinterval(SWITCH_S)
    # A model in the folder is found, and can hide nothing that is installed: -P, and last.
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        import numpy  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as problem:
        raise GpufleetError(
            Reason.EXTRA_MISSING,
            f"a model that answers requests needs {problem.name}, which is not installed in {sys.prefix}",
            next_step="Install it with: pip install 'gpufleet[predict]'",
        ) from None


async def _run(given: argparse.Namespace) -> GpufleetError | None:
    from gpufleet.config.shared_settings import LogSettings
    from gpufleet.telemetry.logs import ProgramLog

    settings = LogSettings(level="debug" if given.verbose else given.log_level, format=given.log_format)
    with ProgramLog("predict", settings, None):
        guard = asyncio.create_task(_guard(given.limits.hang_us / 1e6 + STUCK_S_MAX))
        try:
            return await _serve(given)
        finally:
            guard.cancel()
            faulthandler.cancel_dump_traceback_later()


async def _serve(given: argparse.Namespace) -> GpufleetError | None:
    import uvicorn

    from gpufleet.net.addresses import Address
    from gpufleet.net.http_server import QuietServer
    from gpufleet.net.listening import bound

    from ..loading import model_name
    from ..signals import on_signals
    from .app import PredictService
    from .predictor import Predictor, State

    listening = bound(Address(given.host, given.port), backlog=1_024)
    predictor = Predictor(given.wanted, given.limits, finds_size=given.finds_size, has_loaded=_keep_what_is_there)
    name = given.name or model_name(given.wanted.entry_point)
    service = PredictService(predictor, name=name, version=_version(), body_max=given.body_max)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    config = uvicorn.Config(
        service.app(),
        interface="asgi3",
        lifespan="off",
        ws="none",
        access_log=False,
        log_config=None,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_graceful_shutdown=int(ANSWERS_S_MAX),
    )
    server = QuietServer(config)

    def stop() -> None:
        _log.info("stopping: %d items are answered first", predictor.batcher.open)
        predictor.end()
        server.should_exit = True

    on_signals(stop)

    async def end_with_the_model() -> None:
        await predictor.has_ended.wait()
        server.should_exit = True  # what has an answer already is sent

    ending = asyncio.create_task(end_with_the_model())
    _log.info("listening on %s:%d for %s", given.host, listening.getsockname()[1], name)
    predictor.start()
    try:
        await server.serve(sockets=[listening])
    finally:
        ending.cancel()
        has_ended = predictor.close()
    counts = predictor.counts
    _log.info("%d items answered in %d batches", counts.items[200], sum(each.count for each in counts.batches.values()))
    if predictor.state is State.HUNG:
        step = "See its log for what it computed; --predict-timeout says how long a batch may take."
        return GpufleetError(Reason.MODEL_HANGS, predictor.why, next_step=step)
    if not has_ended:
        _log.warning("the model's thread is still in a call, and is left")
    if predictor.state is State.FAILED:
        return GpufleetError(Reason.MODEL_NOT_LOADED, f"{given.wanted.entry_point}: {predictor.why}")
    return None


def _keep_what_is_there() -> None:
    """What is loaded stays. The collector would look through it in the middle of requests, for 10 ms and more."""
    gc.collect()
    gc.freeze()


def _version() -> str:
    from importlib.metadata import version

    return version("gpufleet")


async def _guard(stuck_s: float) -> None:
    """End the program where the model keeps the interpreter for itself, in a call of C that never lets go."""
    while True:
        faulthandler.dump_traceback_later(stuck_s, exit=True)
        await asyncio.sleep(GUARDED_EVERY_S)


if __name__ == "__main__":
    sys.exit(main())
