"""What is asked: the lines of a JSONL file, or the files of a folder, one after the other."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from gpufleet.client.core.outcomes import ErrorKind, Failure
from gpufleet.errors import GpufleetError, Reason

from .done_rows import DoneRows

ROW_BYTES_MAX = 256 * 10**6
"""A longer line, or a larger file, costs itself."""

READ_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class InputRow:
    """One input: its place from 0 on, and in a folder its name; `item` is a Failure where it cannot be asked.

    `crc32` is that of its line, or of its file; 0 where it is not known.
    """

    index: int
    item: Any
    name: str = ""
    crc32: int = 0

    @property
    def key(self) -> int | str:
        """What stands for it in the answers: of a file its line, of a folder its name, whatever comes beside it."""
        return self.name or self.index


def check_source(source: Path, to: Path) -> None:
    """Raises FILE_NOT_FOUND for what is neither a file nor a folder, and INVALID_ARGUMENT where answers would be rows:
    in the same file, or in a file of the folder."""
    if not source.is_file() and not source.is_dir():
        raise GpufleetError(Reason.FILE_NOT_FOUND, f"there is no file or folder {source}")
    asked, answers = source.resolve(), to.resolve()
    is_row = source.is_dir() and answers.is_relative_to(asked) and not _is_hidden(answers, asked)
    if is_row or (to.exists() and to.samefile(source)):
        step = "Name a file that is no part of what is asked."
        raise GpufleetError(Reason.INVALID_ARGUMENT, f"{to} is itself asked about, with {source}", next_step=step)


def count_of(source: Path) -> int:
    """How many rows there are, blank lines among them: for the progress alone."""
    if source.is_dir():
        return len(_files(source))
    with source.open("rb") as opened:
        count, last = 0, b"\n"
        while data := opened.read(READ_BYTES):
            count, last = count + data.count(b"\n"), data[-1:]
    return count + (last != b"\n")


def rows_of(source: Path, is_done: Callable[[int | str], bool] = lambda key: False) -> Iterator[InputRow]:
    """Every row that is not done, in order; blank lines and files whose name begins with a dot are none."""
    if source.is_dir():
        for index, file in enumerate(_files(source)):
            name = file.relative_to(source).as_posix()
            if not is_done(name):
                content = _content(file)
                yield InputRow(index, content, name, _crc32_of(content))
        return
    with source.open("rb") as opened:
        for index, line in enumerate(_lines(opened)):
            if is_done(index):
                continue
            if line is None:
                yield InputRow(index, _rejected(f"line {index + 1} is longer than {ROW_BYTES_MAX} bytes"))
            elif line.strip():
                yield InputRow(index, _value(line, index), crc32=_crc32_of(line.strip()))


def check_unchanged(source: Path, to: Path, done: DoneRows) -> None:
    """Raises INVALID_ARGUMENT where what has an answer is not what was asked: changed, or a line that is gone. Lines
    and files may have been added, and files taken away."""
    if not done.count:
        return
    if source.is_dir():
        for file in _files(source):
            name = file.relative_to(source).as_posix()
            if (known := done.crc32_of(name)) and known != _crc32_of(_content(file)):
                raise _changed(f"{file} has changed since {to} has its answer", to)
        return
    count = 0
    with source.open("rb") as opened:
        for index, line in enumerate(_lines(opened)):
            count = index + 1
            if (known := done.crc32_of(index)) and line is not None and known != _crc32_of(line.strip()):
                raise _changed(f"line {count:,} of {source} has changed since {to} has its answer", to)
    if count < done.lines:
        raise _changed(f"{source} has {count:,} lines, and {to} has an answer to line {done.lines:,}", to)


def _changed(what: str, to: Path) -> GpufleetError:
    step = f"Name another file with -o to ask anew, or remove {to}, or put the input back."
    return GpufleetError(Reason.INVALID_ARGUMENT, what, next_step=step)


def _crc32_of(content: Any) -> int:
    """Of a file's content; 0 of what could not be read."""
    return zlib.crc32(content) if isinstance(content, bytes) else 0


def _files(folder: Path) -> list[Path]:
    found = (path for path in folder.rglob("*") if not _is_hidden(path, folder))
    return sorted(path for path in found if path.is_file())


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part[0] == "." for part in path.relative_to(folder).parts)


def _content(file: Path) -> Any:
    try:
        with file.open("rb") as opened:
            content = opened.read(ROW_BYTES_MAX + 1)
    except OSError as problem:
        return _rejected(f"the file cannot be read: {problem.strerror}")
    return _rejected(f"the file is larger than {ROW_BYTES_MAX} bytes") if len(content) > ROW_BYTES_MAX else content


def _lines(opened: BinaryIO) -> Iterator[bytes | None]:
    """Every line; None for one that is too long, which is passed over and never held."""
    while line := opened.readline(ROW_BYTES_MAX + 1):
        is_too_long = len(line) > ROW_BYTES_MAX
        while is_too_long and line and not line.endswith(b"\n"):
            line = opened.readline(READ_BYTES)
        yield None if is_too_long else line


def _value(line: bytes, index: int) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as problem:
        return _rejected(f"line {index + 1} is no JSON: {problem}")


def _rejected(why: str) -> Failure:
    return Failure(ErrorKind.REJECTED, why)
