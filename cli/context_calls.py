"""What `config context` reads and writes: the contexts of this account."""

from __future__ import annotations

import json
from pathlib import Path

from gpufleet.addresses import parse_address
from gpufleet.config_layers import Problem, config_error
from gpufleet.contexts import Contexts, read_contexts, save_context
from gpufleet.errors import GpufleetError, Reason
from gpufleet.paths import contexts_file
from gpufleet.spelling import did_you_mean
from gpufleet.tokens import read_token_file

from . import screen
from .render.table import Column, draw
from .settings import Settings

COLUMNS = (Column(""), Column("NAME"), Column("SCHEDULER"), Column("TOKEN FILE", least=12))


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
        rows = [
            ["*" if name == used else "", name, str(table.get("scheduler", "")), str(table.get("token_file", ""))]
            for name, table in contexts.tables.items()
        ]
        lines = draw(COLUMNS, rows, screen.look(settings.format))
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
    name: str, scheduler: str, token_file: Path | None, ca_file: Path | None, *, is_insecure: bool, is_used: bool
) -> None:
    """Add a context; its token file must be usable now, so that the mistake shows now."""
    values: dict[str, str | bool | int] = {"scheduler": str(parse_address(scheduler))}
    if token_file is not None:
        read_token_file(token_file)
        values["token_file"] = str(token_file.absolute())
    if ca_file is not None:
        values["ca_file"] = str(ca_file.absolute())
    if is_insecure:
        values["insecure"] = True
    file = contexts_file()
    save_context(file, name, values, make_current=is_used)
    screen.tell(f'Context "{name}" is in {file}. Use it with: gpuctl config context use {name}')


def _read() -> Contexts:
    problems: list[Problem] = []
    contexts = read_contexts(contexts_file(), problems)
    if problems:
        raise config_error(problems)
    return contexts
