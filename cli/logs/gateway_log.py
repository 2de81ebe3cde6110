"""`logs --program gateway`: a gateway's log, on the machine where it runs. No scheduler is asked for it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

from gpufleet.v1 import job_pb2

from gpufleet.config.gateway_settings import GatewaySettings
from gpufleet.config.merged import load_program
from gpufleet.config.paths import log_file, program_config_file
from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.telemetry.log_follow import TAIL_LINES_MAX, LogReader
from gpufleet.telemetry.log_follow import follow as follow_log

from ..following.writers import Streams
from ..quitting import Left, until_told_to_leave
from .log_options import LogOptions
from .request import since_moment

PROGRAM = "gateway"


def is_gateway(program: str) -> bool:
    """Whether `gateway` or `gateway:FOLDER` is meant."""
    return program.partition(":")[0] == PROGRAM


async def show_gateway_log(wanted: LogOptions, jobs: Sequence[str]) -> int:
    """Write the log to stdout; with `follow` until told to leave. Answers the exit code.

    Raises INVALID_ARGUMENT, FILE_NOT_FOUND.
    """
    if jobs:
        raise invalid("--program", "it shows a program's own log, and jobs are named too")
    file = _file_of(wanted.program)
    moment = since_moment(wanted.since) if wanted.since is not None else None
    lines = TAIL_LINES_MAX if wanted.tail is None else wanted.tail
    streams = Streams()
    if not wanted.follow:
        with LogReader(file, tail_lines=lines, since=moment) as reader:
            while data := reader.read():
                streams.write(job_pb2.STREAM_STDOUT, data)
        return 0

    async def pass_on() -> None:
        async with aclosing(follow_log(file, tail_lines=lines, since=moment)) as log:
            async for data in log:
                streams.write(job_pb2.STREAM_STDOUT, data)

    try:
        await until_told_to_leave(pass_on())
    except Left as left:
        streams.note(f"left. Come back with: gpuctl logs -f --program {wanted.program}")
        return left.code
    return 0


def _file_of(program: str) -> Path:
    """The log of the gateway whose folder is named, else of the one that is started here without flags."""
    _, colon, named = program.partition(":")
    if colon and not named:
        raise invalid("--program", f'"{program}" names no folder', next_step="Write gateway, or gateway:FOLDER.")
    folder = Path(named) if named else _settings().data
    file = log_file(folder, PROGRAM)
    if not file.exists():
        raise GpufleetError(
            Reason.FILE_NOT_FOUND,
            f"no gateway has written a log in {folder} on this machine",
            next_step="Type it on the gateway's own machine; one with --data DIR is meant by --program gateway:DIR.",
        )
    return file


def _settings() -> GatewaySettings:
    file = program_config_file(PROGRAM)
    resolved = load_program(GatewaySettings, PROGRAM, flags={}, environment=os.environ, file=file, file_is_named=False)
    return resolved.settings
