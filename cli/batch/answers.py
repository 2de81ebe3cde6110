"""The file of answers: one JSON object a line, one line a row. It says by itself what was answered already.

While answers come it is handed to the system once in FLUSH_S, and to the disk once in FSYNC_S: what a crash takes away
is asked again. A last line that is not whole is cut away, and its row asked again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from gpufleet.client import Result
from gpufleet.errors import GpufleetError, Reason

from .done_rows import DoneRows
from .lines import answer_object, as_json
from .rows import InputRow

LINE_BEGINS = b'{"index": '
"""Each line does: a last one that is not whole and begins otherwise is somebody else's, and is not cut away."""

CRC32S = range(2**32)

FLUSH_S = 1.0
FSYNC_S = 5.0


class AnswerFile:
    """Opened by one program at a time. Times are in seconds, on any clock that only goes forward.

    Raises FILE_NOT_FOUND where it cannot be written (later on as well), ALREADY_RUNNING where another program writes
    it, and INVALID_ARGUMENT where it holds something else.
    """

    def __init__(self, path: Path, now_s: float) -> None:
        self.path = path
        self.done = DoneRows()
        try:
            self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
        except OSError as problem:
            raise GpufleetError(Reason.FILE_NOT_FOUND, f"{path} cannot be written: {problem.strerror}") from None
        try:
            self._lock()
            self._read()
        except BaseException:
            self._file.close()
            raise
        self._flushed_s = self._synced_s = now_s

    def add(self, row: InputRow, result: Result, now_s: float) -> None:
        """Write down what became of a row."""
        said = answer_object(result, row.index, row.name)
        text = as_json(said | {"input_crc32": row.crc32} if row.crc32 else said)
        with self._writing():
            # What is no Unicode, as in the name of a file, is written as JSON escapes it.
            self._file.write(text.encode(errors="backslashreplace") + b"\n")
            self.done.add(row.key, is_ok=result.is_ok, crc32=row.crc32)
            if now_s - self._flushed_s >= FLUSH_S:
                self._file.flush()
                self._flushed_s = now_s
            if now_s - self._synced_s >= FSYNC_S:
                self._sync()
                self._synced_s = now_s

    def close(self) -> None:
        """Write everything to the disk."""
        with self._writing():
            try:
                self._sync()
            finally:
                self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """What the disk refuses, as a full one does, is asked again when there is room."""
        try:
            yield
        except OSError as problem:
            why = f"{self.path} cannot be written: {problem.strerror}"
            step = "Make room, and give the same command again: what is missing there is asked anew."
            raise GpufleetError(Reason.FILE_NOT_FOUND, why, next_step=step) from None

    def _sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def _lock(self) -> None:
        import fcntl  # which Windows lacks

        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            why = f"another program writes {self.path}"
            raise GpufleetError(Reason.ALREADY_RUNNING, why, next_step="Wait for it, or name another file.") from None

    def _read(self) -> None:
        whole = 0
        for number, line in enumerate(self._file):
            if not line.endswith(b"\n"):
                # A system that crashed may have left zeros where it had not written.
                if line.strip(b"\0") and line[: len(LINE_BEGINS)] != LINE_BEGINS[: len(line)]:
                    raise self._not_ours(number)
                break
            whole += len(line)
            key, is_ok, crc32 = self._row_of(line, number)
            self.done.add(key, is_ok=is_ok, crc32=crc32)
        self._file.seek(whole)
        self._file.truncate()

    def _row_of(self, line: bytes, number: int) -> tuple[int | str, bool, int]:
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            said = None
        key = said.get("input", said.get("index")) if isinstance(said, dict) else None
        if not (isinstance(key, str) or (type(key) is int and key >= 0)) or key in self.done:
            raise self._not_ours(number)
        if not isinstance(said, dict) or "attempts" not in said or ("error" in said) == ("output" in said):
            raise self._not_ours(number)
        crc32 = said.get("input_crc32", 0)
        if type(crc32) is not int or crc32 not in CRC32S:
            raise self._not_ours(number)
        return key, "error" not in said, crc32

    def _not_ours(self, number: int) -> GpufleetError:
        return GpufleetError(
            Reason.INVALID_ARGUMENT,
            f"line {number + 1} of {self.path} is not what gpuctl batch writes",
            next_step="Name a file that is not there yet, or one of the same batch.",
        )
