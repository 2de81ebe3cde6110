"""What `config` does with settings files, and shows of settings."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from gpufleet.config import check_file as problems_in
from gpufleet.config import load_program
from gpufleet.config_layers import config_error
from gpufleet.config_template import template
from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.paths import program_config_file
from gpufleet.program_settings import PROGRAMS
from gpufleet.spelling import did_you_mean

from . import screen
from .render.table import Column, draw
from .settings import Settings

LEVELS = ("debug", "info", "warning", "error")
STDOUT = Path("-")


def write_template(program: str, file: Path | None, *, is_forced: bool) -> None:
    """Write the commented settings file of a program."""
    _check_program("PROGRAM", program)
    text = template(PROGRAMS[program], program)
    if file == STDOUT:
        sys.stdout.write(text)
        return
    path = file or program_config_file(program)
    if path.exists() and not is_forced:
        raise GpufleetError(
            Reason.CONFIG_INVALID,
            f"{path} is there already",
            next_step="Replace it with --force, or write to another one with --file FILE.",
        )
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(text)
    print(path)
    screen.tell(f"Every setting in it is commented out. Check it after a change with: gpuctl config check {path}")


def check_file(file: Path, program: str) -> None:
    """Say that the file is fine, or everything that is wrong with it."""
    whose = program or file.name.partition(".")[0]
    _check_program("--program" if program else "FILE", whose)
    problems = problems_in(PROGRAMS[whose], file)
    if problems:
        raise config_error(problems)
    print(f"{file}: ok, settings of the {whose}")


def show_settings(settings: Settings, program: str, *, with_origin: bool) -> None:
    """Print settings: of this command line, of the running scheduler, or those of an agent or gateway started here."""
    if program == "scheduler":
        rows = _scheduler_rows(settings)
    elif program:
        _check_program("--program", program)
        file = program_config_file(program)
        cls = PROGRAMS[program]
        rows = load_program(cls, program, flags={}, environment=os.environ, file=file, file_is_named=False).rows()
    else:
        rows = [("context", settings.config.context or "(none)", ""), *settings.config.resolved.rows()]
        token = settings.token()
        rows.append(("token", "(set)" if token else "(none)", token.origin if token else ""))
    if settings.format in ("json", "jsonl"):
        values = [{"name": name, "value": value, "origin": origin} for name, value, origin in rows]
        lines = [json.dumps(values, indent=2)] if settings.format == "json" else list(map(json.dumps, values))
    elif settings.format == "name":
        lines = [name for name, _, _ in rows]
    elif with_origin:
        columns = (Column("SETTING"), Column("VALUE", least=24), Column("FROM", least=16, wraps=True))
        look = screen.look(settings.format)
        lines = draw(columns, [[screen.with_tilde(text) for text in row] for row in rows], look)
    else:
        lines = [f"{name} = {value}" for name, value, _ in rows]
    screen.print_lines(lines)


def change_log_level(settings: Settings, program: str, level: str) -> None:
    """Change the log level of a running program."""
    from gpufleet.v1 import scheduler_pb2

    from .client import connected
    from .log_request import read_program

    if level not in LEVELS:
        raise invalid(
            "LEVEL",
            f'"{level}" is no log level{did_you_mean(level, LEVELS)}',
            next_step="Write one of: " + ", ".join(LEVELS),
        )
    name, node = read_program("PROGRAM", program)
    selector = scheduler_pb2.ProgramSelector(program=name, node=node)
    with connected(settings) as client:
        request = scheduler_pb2.UpdateServerRequest(program=selector, log_level=level)
        client.call(client.scheduler.UpdateServer, request)
    print(f"{program} logs at level {level} until it is started again")


def _scheduler_rows(settings: Settings) -> list[tuple[str, str, str]]:
    from gpufleet.v1 import scheduler_pb2

    from .client import connected

    with connected(settings) as client:
        answer = client.call(client.scheduler.GetServerInfo, scheduler_pb2.GetServerInfoRequest())
    return [(each.name, each.value, each.origin) for each in answer.settings]


def _check_program(option: str, program: str) -> None:
    if program not in PROGRAMS:
        raise invalid(
            option,
            f'"{program}" is not the name of a program{did_you_mean(program, PROGRAMS)}',
            next_step=f"Say whose settings with --program: {' or '.join(PROGRAMS)}.",
        )
