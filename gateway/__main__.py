"""Starts the gateway: `python -P -m gpufleet.gateway`, or `gpuctl gateway`.

SIGTERM and SIGINT tell its people to connect again, and end it; SIGHUP reads the settings again. Exit codes: 0 stopped,
1 it cannot start.
"""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Sequence
from contextlib import closing

import gpufleet.host.grpc_forks  # before anything imports grpc
import gpufleet.host.grpc_names  # noqa: F401  the same
from gpufleet.config.gateway_settings import GatewaySettings
from gpufleet.config.live import Live
from gpufleet.config.paths import log_file
from gpufleet.errors import GpufleetError, Reason, as_lines
from gpufleet.host import event_loop
from gpufleet.telemetry import metrics
from gpufleet.telemetry import spans as telemetry
from gpufleet.telemetry.logs import ProgramLog

from .folder import DataFolder
from .options import parser, reader_of, token_of

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; answers its exit code."""
    given = parser().parse_args(arguments)
    try:
        live = Live(reader_of(given))
        settings = live.now
        _check_installed()
        token = token_of(settings)
        if given.check_settings:
            return 0
        with closing(DataFolder(settings.data)) as folder:
            file = log_file(folder.path, "gateway")
            with ProgramLog("gateway", settings.log, file) as program_log:
                event_loop.run(_run(live, token, folder, program_log), settings.event_loop)
    except GpufleetError as error:
        print(as_lines(error), file=sys.stderr)
        return 1
    return 0


def _check_installed() -> None:
    try:
        import cryptography  # noqa: F401
        import httptools  # noqa: F401
        import itsdangerous  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
        import websockets  # noqa: F401
    except ImportError as problem:
        raise GpufleetError(
            Reason.EXTRA_MISSING,
            f"a gateway needs {problem.name}",
            next_step="Install it with: pip install 'gpufleet[gateway]'",
        ) from None


async def _run(live: Live[GatewaySettings], token: str, folder: DataFolder, program_log: ProgramLog) -> None:
    from .program import Program

    gc.freeze()  # What is loaded stays: neither the collector nor the end of the process need look through it.
    is_scraped = live.now.metrics.port is not None
    with (
        closing(telemetry.start("gateway")) as traces,
        closing(metrics.start("gateway", is_scraped=is_scraped)) as measured,
    ):
        await Program(live, token, folder, program_log, traces, measured).run()


if __name__ == "__main__":
    sys.exit(main())
