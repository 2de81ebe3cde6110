"""What `config` does with settings files and contexts, and shows of settings."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from gpufleet.config.contexts import Contexts, read_contexts, save_context
from gpufleet.config.kinds import HTTP_URL, Unreadable
from gpufleet.config.layers import Problem, config_error
from gpufleet.config.merged import check_file as problems_in
from gpufleet.config.merged import load_program
from gpufleet.config.paths import contexts_file, program_config_file
from gpufleet.config.program_settings import PROGRAMS, template
from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.fleet.reading import check_known
from gpufleet.fleet.settings import Settings
from gpufleet.net.addresses import addresses_text, parse_addresses
from gpufleet.net.tls import read_client_pair
from gpufleet.security.tokens import read_token_file
from gpufleet.text.spelling import did_you_mean

from .. import screen
from ..render.table import Column, draw

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
        columns: list[Column[tuple[str, str, str]]] = [
            Column("SETTING", lambda row: row[0]),
            Column("VALUE", lambda row: screen.with_tilde(row[1]), least=24),
            Column("FROM", lambda row: screen.with_tilde(row[2]), least=16, wraps=True),
        ]
        lines = draw(columns, rows, screen.look(settings.format))
    else:
        lines = [f"{name} = {value}" for name, value, _ in rows]
    screen.print_lines(lines)


def change_log_level(settings: Settings, program: str, level: str) -> None:
    """Change the log level of a running program."""
    from gpufleet.v1 import scheduler_pb2

    from gpufleet.fleet.client import connected

    from ..logs.request import read_program

    check_known("LEVEL", level, LEVELS, "is no log level", "Write one of: " + ", ".join(LEVELS))
    name, node = read_program("PROGRAM", program)
    selector = scheduler_pb2.ProgramSelector(program=name, node=node)
    with connected(settings) as client:
        request = scheduler_pb2.UpdateServerRequest(program=selector, log_level=level)
        client.call(client.scheduler.UpdateServer, request)
    print(f"{program} logs at level {level} until it is started again")


def _scheduler_rows(settings: Settings) -> list[tuple[str, str, str]]:
    from gpufleet.v1 import scheduler_pb2

    from gpufleet.fleet.client import connected

    with connected(settings) as client:
        answer = client.call(client.scheduler.GetServerInfo, scheduler_pb2.GetServerInfoRequest())
    return [(each.name, each.value, each.origin) for each in answer.settings]


def _check_program(option: str, program: str) -> None:
    step = f"Say whose settings with --program: {' or '.join(PROGRAMS)}."
    check_known(option, program, PROGRAMS, "is not the name of a program", step)


def show_contexts(settings: Settings) -> None:
    """Print the contexts."""
    contexts = _read()
    used = settings.config.context
    if settings.format in ("json", "jsonl"):
        objects = [{"name": name, "is_used": name == used, **table} for name, table in contexts.tables.items()]
        lines = [json.dumps(objects, indent=2)] if settings.format == "json" else list(map(json.dumps, objects))
    elif settings.format == "name":
        lines = list(contexts.tables)
    elif not contexts.tables:
        lines = ["No contexts. gpuctl up makes one; or: gpuctl config context add NAME --scheduler HOST:PORT"]
    else:
        columns: list[Column[str]] = [
            Column("", lambda name: "*" if name == used else ""),
            Column("NAME", str),
            Column("SCHEDULER", lambda name: str(contexts.tables[name].get("scheduler", ""))),
            Column("TOKEN FILE", lambda name: str(contexts.tables[name].get("token_file", "")), least=12),
        ]
        lines = draw(columns, contexts.tables, screen.look(settings.format))
    screen.print_lines(lines)


def use_context(name: str) -> None:
    """Make it the current one."""
    contexts = _read()
    if name not in contexts.tables:
        raise GpufleetError(
            Reason.INVALID_ARGUMENT,
            f'there is no context "{name}"{did_you_mean(name, contexts.tables)}',
            next_step="See them with: gpuctl config context list",
        )
    save_context(contexts.file, name, contexts.tables[name], make_current=True)
    screen.tell(f"From now on gpuctl speaks to {contexts.tables[name].get('scheduler', 'the default scheduler')}.")


def add_context(
    name: str,
    scheduler: str,
    token_file: Path | None,
    ca_file: Path | None,
    gateway: str | None,
    client_cert_file: Path | None = None,
    shared_root: Path | None = None,
    *,
    is_insecure: bool,
    is_used: bool,
) -> None:
    """Add a context; its token file must be usable now, so that the mistake shows now."""
    values: dict[str, str | bool | int] = {"scheduler": addresses_text(parse_addresses(scheduler))}
    if token_file is not None:
        read_token_file(token_file)
        values["token_file"] = str(token_file.absolute())
    if ca_file is not None:
        values["ca_file"] = str(ca_file.absolute())
    if client_cert_file is not None:
        read_client_pair(client_cert_file)
        values["client_cert_file"] = str(client_cert_file.absolute())
    if shared_root is not None:
        values["shared_root"] = str(shared_root.absolute())
    if is_insecure:
        values["insecure"] = True
    if gateway is not None:
        try:
            values["gateway"] = HTTP_URL.from_text(gateway)
        except Unreadable as problem:
            raise invalid("--gateway", str(problem)) from None
    file = contexts_file()
    save_context(file, name, values, make_current=is_used)
    screen.tell(f'Context "{name}" is in {file}. Use it with: gpuctl config context use {name}')


def _read() -> Contexts:
    problems: list[Problem] = []
    contexts = read_contexts(contexts_file(), problems)
    if problems:
        raise config_error(problems)
    return contexts
