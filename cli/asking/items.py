"""Items of what was typed: files, folders, standard input, texts and values of JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpufleet.client.core.outcomes import ErrorKind, Failure
from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.fleet.reading import check_known, wrong

from ..batch.rows import ROW_BYTES_MAX, rows_of

STDIN = "-"
KINDS = ("bytes", "text", "json", "jsonl")


@dataclass(frozen=True, slots=True)
class NamedItem:
    """An item, or a Failure where it cannot be asked, and what it is called for people."""

    name: str
    item: Any


def items_of(
    files: Sequence[Path], texts: Sequence[str], values: Sequence[str], read_as: str | None = None
) -> Iterator[NamedItem]:
    """The items, in this order; what is wrong with what was typed is raised before any is asked for.

    Raises INVALID_ARGUMENT where there is nothing to ask about, and FILE_NOT_FOUND for files that are not there.
    """
    if read_as is not None:
        check_known("--as", read_as, KINDS, "is none of bytes, text, json and jsonl")
    if not (files or texts or values):
        raise invalid("FILE", "is missing", next_step="Name a file, or - for standard input, or give --text or --item.")
    for file in files:
        if str(file) != STDIN and not file.exists():
            raise GpufleetError(Reason.FILE_NOT_FOUND, f"there is no file or folder {file}")
    if sum(str(file) == STDIN for file in files) > 1:
        raise wrong("standard input can be read once", "Name - once.")
    given = [NamedItem(text, text) for text in texts]
    for value in values:
        given.append(NamedItem(value, typed_value("--item", value)))
    return _all(files, given, read_as)


def typed_value(option: str, text: str) -> Any:
    """The value of JSON that was typed. Raises INVALID_ARGUMENT."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise invalid(option, f"{text[:80]!r} is no JSON: {problem}", next_step="Of a text: --text TEXT") from None


def _all(files: Sequence[Path], given: Sequence[NamedItem], read_as: str | None) -> Iterator[NamedItem]:
    for file in files:
        yield from _of_file(file, read_as)
    yield from given


def _of_file(file: Path, read_as: str | None) -> Iterator[NamedItem]:
    if str(file) == STDIN:
        yield from _of_bytes("standard input", sys.stdin.buffer.read(ROW_BYTES_MAX + 1), read_as or "bytes")
        return
    if file.is_dir():
        for row in rows_of(file):
            content = row.item
            if isinstance(content, bytes):
                yield from _of_bytes(str(file / row.name), content, read_as or _kind_of(Path(row.name), "bytes"))
            else:
                yield NamedItem(str(file / row.name), content)
        return
    kind = read_as or _kind_of(file, "jsonl")
    if kind == "jsonl":
        for row in rows_of(file):
            yield NamedItem(f"{file}:{row.index + 1}", row.item)
        return
    try:
        with file.open("rb") as opened:
            content = opened.read(ROW_BYTES_MAX + 1)
    except OSError as problem:
        yield NamedItem(str(file), Failure(ErrorKind.REJECTED, f"the file cannot be read: {problem.strerror}"))
        return
    yield from _of_bytes(str(file), content, kind)


def _kind_of(file: Path, of_lines: str) -> str:
    """By its name's end; `of_lines` is what .jsonl stands for, which within a folder is a file as any other."""
    return {".json": "json" if of_lines == "jsonl" else "bytes", ".jsonl": of_lines}.get(file.suffix.lower(), "bytes")


def _of_bytes(name: str, content: bytes, kind: str) -> Iterator[NamedItem]:
    if len(content) > ROW_BYTES_MAX:
        yield NamedItem(name, Failure(ErrorKind.REJECTED, f"it is larger than {ROW_BYTES_MAX} bytes"))
        return
    match kind:
        case "jsonl":
            for index, line in enumerate(content.splitlines()):
                if line.strip():
                    yield NamedItem(f"{name}:{index + 1}", _value(line))
        case "json":
            yield NamedItem(name, _value(content))
        case "text":
            try:
                yield NamedItem(name, content.decode())
            except UnicodeDecodeError:
                yield NamedItem(name, Failure(ErrorKind.REJECTED, "it is no text in UTF-8"))
        case _:
            yield NamedItem(name, content)


def _value(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        return Failure(ErrorKind.REJECTED, f"it is no JSON: {problem}")
