"""Settings in TOML files: read with the line of every key, so that an error can point at it."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gpufleet.config.layers import Layer, Problem, config_error
from gpufleet.config.settings import Setting, sections_of, settings_of
from gpufleet.errors import GpufleetError, Reason
from gpufleet.text.cleaning import is_utf8
from gpufleet.text.spelling import did_you_mean

CONFIG_FILE_BYTES_MAX = 1_000_000


def file_layer(cls: type[Any], file: Path, problems: list[Problem], *, in_project: bool = False) -> Layer:
    """A TOML file's values by key; problems are added for what is no TOML and for unknown keys."""
    text = read_text(file)
    document = parse_toml(text, file, problems)
    return table_layer(cls, document, text, file, problems, in_project=in_project)


def table_layer(
    cls: type[Any],
    table: Mapping[str, Any],
    text: str,
    file: Path,
    problems: list[Problem],
    *,
    inside: str = "",
    in_project: bool = False,
) -> Layer:
    """The values of a parsed table; `inside` is the table's own name in the file (`contexts.lab`)."""

    def where(key: str) -> str:
        return f"{file}:{line_of(text, f'{inside}.{key}' if inside else key)}"

    values: dict[str, object] = {}
    described = settings_of(cls)
    for key, raw in _flattened(cls, table):
        if key not in described:
            problems.append(Problem(where(key), key, _unknown(key, described)))
        elif in_project and described[key].private:
            why = "may not be set by a project's file, which may come from anyone; put it into a context"
            problems.append(Problem(where(key), key, why))
        else:
            values[key] = raw
    return Layer(values, where, is_text=False, folder=file.absolute().parent)


def parse_toml(text: str, file: Path, problems: list[Problem]) -> Mapping[str, Any]:
    """The document; empty, with a problem that names the line, when the text is no TOML."""
    import tomllib  # only those who have a file pay for it

    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        why, _, position = str(error).partition(" (at ")
        found = re.search(r"line (\d+)", position)
        line = found[1] if found else str(text.count("\n") + 1)
        problems.append(Problem(f"{file}:{line}", "", f"this is not TOML: {why}"))
        return {}
    if (key := _key_of_bytes(document)) is not None:
        problems.append(Problem(f"{file}:{line_of(text, key)}", "", "this is not UTF-8"))
        return {}
    return document


def _key_of_bytes(value: object) -> str | None:
    """The dotted key of the first text that is not UTF-8, empty where it is a key itself; None where all are."""
    match value:
        case str():
            return None if is_utf8(value) else ""
        case dict():
            found = ((key, _key_of_bytes(inner) if is_utf8(key) else "") for key, inner in value.items())
            return next((f"{key}.{below}".rstrip(".") for key, below in found if below is not None), None)
        case list():
            return next((below for below in map(_key_of_bytes, value) if below is not None), None)
    return None


def line_of(text: str, key: str) -> int:
    """The line that sets a dotted key, or that opens a table on the way to it; 1 when neither is found."""
    table: list[str] = []
    best_line, best_depth = 1, 0
    wanted = key.split(".")
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if header := re.fullmatch(r"\[\s*([^\[\]]+?)\s*\]\s*(?:#.*)?", line):
            table = _names(header[1])
            path = table
        elif assignment := re.match(r"""((?:[\w-]+|"[^"]*"|'[^']*'|\s*\.\s*)+?)\s*=""", line):
            path = table + _names(assignment[1])
        else:
            continue
        # A setting that is a table of tables stands where the first of them begins.
        shared = min(len(path), len(wanted))
        if wanted[:shared] == path[:shared] and shared > best_depth:
            best_line, best_depth = number, shared
    return best_line


def _names(dotted: str) -> list[str]:
    return [name.strip().strip("\"'") for name in dotted.split(".")]


def read_text(file: Path) -> str:
    """The content of a settings file, without a byte order mark; raises FILE_NOT_FOUND or CONFIG_INVALID.

    Bytes that are not UTF-8 stay as `parse_toml` expects them: it permits them in comments.
    """
    try:
        with file.open("rb") as opened:
            content = opened.read(CONFIG_FILE_BYTES_MAX + 1)
    except OSError as problem:
        raise GpufleetError(
            Reason.FILE_NOT_FOUND, f"the settings file {file} cannot be read: {problem.strerror}"
        ) from None
    if len(content) > CONFIG_FILE_BYTES_MAX:
        raise config_error([Problem(str(file), "", "the file is larger than 1 MB")])
    return content.removeprefix(codecs.BOM_UTF8).decode(errors="surrogateescape")


def _flattened(cls: type[Any], table: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    inner = sections_of(cls)
    for key, raw in table.items():
        if key in inner and isinstance(raw, dict):
            yield from ((f"{key}.{below}", value) for below, value in _flattened(inner[key][0], raw))
        else:
            yield key, raw


def _unknown(key: str, described: Mapping[str, Setting]) -> str:
    tables = {each.partition(".")[0] for each in described if "." in each}
    if key in tables:
        return f"this is a table; write [{key}] and its keys below"
    elsewhere = [each for each in described if each.rpartition(".")[2] == key.rpartition(".")[2]]
    if elsewhere:
        table = elsewhere[0].rpartition(".")[0]
        return f"no setting here, but there is {elsewhere[0]}; " + (
            f"write it below [{table}]" if table else "write it above all [tables]"
        )
    return f"there is no such setting{did_you_mean(key, [*described, *tables])}"
