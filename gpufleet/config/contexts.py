"""Contexts: the schedulers that an account knows, by name, each with how to speak to it.

The file is `contexts.toml` in the account's config folder: `current = "lab"` and a table `[contexts.lab]`
each, which may hold any of the CLI's settings. `save_context` is how programs add one; people may edit the
file as well.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpufleet.config.files import parse_toml, read_text
from gpufleet.config.kinds import ADDRESS_OR_LIST, Unreadable, quoted
from gpufleet.config.layers import Problem, config_error
from gpufleet.net.addresses import Address
from gpufleet.text.spelling import did_you_mean


@dataclass(frozen=True, slots=True)
class Contexts:
    """The contexts of this account, each a table of settings as TOML has them, and the current one."""

    file: Path
    current: str = ""
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    text: str = ""


def read_contexts(file: Path, problems: list[Problem]) -> Contexts:
    """The contexts in the file; none when it is missing."""
    if not file.exists():
        return Contexts(file)
    text = read_text(file)
    document = dict(parse_toml(text, file, problems))
    current, tables = document.pop("current", ""), document.pop("contexts", {})
    if not isinstance(current, str):
        problems.append(Problem(str(file), "current", "this is not the name of a context"))
        current = ""
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        problems.append(Problem(str(file), "contexts", "write each context as a table, [contexts.NAME]"))
        tables = {}
    problems += [
        Problem(str(file), key, f"there is no such key{did_you_mean(key, ['current', 'contexts'])}") for key in document
    ]
    return Contexts(file, current, tables, text)


def context_of_address(raw: object, contexts: Contexts) -> str:
    """The context, the current one first, whose scheduler has these addresses, or more; empty when there is none."""
    wanted = _addresses(raw)
    names = sorted(contexts.tables, key=lambda name: name != contexts.current)
    found = (name for name in names if wanted and wanted <= _addresses(contexts.tables[name].get("scheduler")))
    return next(found, "")


def save_context(file: Path, name: str, values: Mapping[str, str | bool | int], *, make_current: bool) -> None:
    """Add or replace a context; the other contexts stay, comments in the file do not.

    `values` are settings as TOML has them (`{"scheduler": "gpu1:50051", "token_file": "/…"}`). Raises
    CONFIG_INVALID for a broken file, which is left as it is.
    """
    problems: list[Problem] = []
    contexts = read_contexts(file, problems)
    if problems:
        raise config_error(problems)
    current = name if make_current or not contexts.current else contexts.current
    lines = [f"current = {quoted(current)}"]
    for each, table in {**contexts.tables, name: values}.items():
        lines += [
            "",
            f"[contexts.{quoted(each)}]",
            *(f"{key} = {_toml(value)}" for key, value in table.items()),
        ]
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    unfinished.write_text("\n".join(lines) + "\n")
    unfinished.replace(file)


def _toml(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (int, float)) else quoted(str(value))


def _addresses(raw: object) -> frozenset[Address]:
    try:
        return frozenset(ADDRESS_OR_LIST.from_toml(raw))
    except Unreadable:
        return frozenset()
