"""A program's own log: to stderr and to a rotated file, as text for people or one JSON object a line.

Modules use the standard library: `log = logging.getLogger(__name__)`, then `log.info("node joined",
extra=fields(node="n1", gpus=8))`. A line holds the time (RFC 3339, UTC), level, program, message and fields. Tokens
are masked wherever they stand, and a message is one line whatever it holds.
"""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import os
import queue
import stat
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from gpufleet.config.shared_settings import LogSettings
from gpufleet.security.tokens import mask_tokens

STDERR_LINES_MAX = 10_000
"""So many lines wait for a terminal or pipe that does not take them; further ones are counted and left out."""

STDERR_PAUSE_S = 0.02
"""After a line the others of this span are written together: to wake a thread costs more than to write a line."""

CLOSE_WAIT_S = 2.0
"""The longest wait at the end for stderr to take what is left."""

# Libraries that tell every step at these levels; ours say what matters.
_QUIET = ("alembic", "asyncio", "grpc", "opentelemetry", "sqlalchemy")

_CONTROL = {code: f"\\x{code:02x}" for code in [*range(32), *range(127, 160)]} | {9: "\t", 10: "\\n", 13: "\\r"}


def fields(**values: object) -> dict[str, object]:
    """Structured fields for `extra=`: `log.info("node joined", extra=fields(node="n1"))`."""
    return {"fields": values}


def as_logged(time: datetime) -> str:
    """An aware time as each line has it: RFC 3339, UTC, the milliseconds rounded down."""
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Format(logging.Formatter):
    def __init__(self, program: str) -> None:
        super().__init__()
        self._program = program


class TextFormat(_Format):
    """`TIME LEVEL program message key=value`, then a traceback's lines, indented."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, tokens masked."""
        parts = [_time(record), f"{record.levelname:<7}", self._program, record.getMessage().translate(_CONTROL)]
        parts += [f"{key}={_text_value(value)}" for key, value in _fields(record).items()]
        trace = "".join(f"\n    {line}" for line in _traceback(self, record).splitlines())
        # A path may hold bytes that are no UTF-8, which no stream takes as they are.
        line = (" ".join(parts) + trace).encode("utf-8", "backslashreplace").decode()
        return mask_tokens(line)


class JsonFormat(_Format):
    """One object a line: time, level, program, logger, message, the fields, and `error` with a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, tokens masked."""
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "program": self._program,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if trace := _traceback(self, record):
            line["error"] = trace
        # A field never hides what every line has.
        line |= {f"{key}_" if key in line else key: value for key, value in _fields(record).items()}
        return mask_tokens(json.dumps(line, default=str))


class ProgramLog:
    """The running log of a program; one at a time in a process. Close it at the end, or use it in `with`."""

    def __init__(self, program: str, settings: LogSettings, file: Path | None, stream: TextIO | None = None) -> None:
        """Begin to log; `file` is made with its folder, None logs to stderr (or `stream`) alone."""
        self._program = program
        to_stream = _StreamHandler(stream or sys.stderr)
        self._handlers: list[logging.Handler] = [to_stream]
        if file is not None:
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._handlers.append(_FileHandler(file, settings.file_bytes_max, settings.old_files_max, to_stream.tell))
        self._levels = {name: logging.getLogger(name).level for name in ("", *_QUIET)}
        for handler in self._handlers:
            handler.addFilter(_plainly)
            logging.root.addHandler(handler)
        for name in _QUIET:
            logging.getLogger(name).setLevel(logging.WARNING)
        self._hooks = (sys.excepthook, threading.excepthook)
        sys.excepthook = _log_uncaught
        threading.excepthook = _log_uncaught_in_thread
        self.apply(settings)

    def apply(self, settings: LogSettings) -> None:
        """Take the level and format of new settings, while running."""
        self.set_level(settings.level)
        self.set_format(settings.format)

    def set_level(self, level: str) -> None:
        """The least serious level that is logged: debug, info, warning or error."""
        logging.root.setLevel(level.upper())

    def set_format(self, name: str) -> None:
        """`text` or `json`, for lines from now on."""
        formatter = _Once(JsonFormat(self._program) if name == "json" else TextFormat(self._program))
        for handler in self._handlers:
            handler.setFormatter(formatter)

    def close(self) -> None:
        """Write what is waiting, at most for CLOSE_WAIT_S, and stop logging."""
        sys.excepthook, threading.excepthook = self._hooks
        for handler in self._handlers:
            logging.root.removeHandler(handler)
            with contextlib.suppress(OSError):  # what a full disk did not take is lost
                handler.close()
        for name, level in self._levels.items():
            logging.getLogger(name).setLevel(level)

    def __enter__(self) -> ProgramLog:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()


def _plainly(record: logging.LogRecord) -> bool:
    """What libraries tell of a caller's mistake in a trace, or as a warning, in one line of level info.

    gRPC shows a trace when a caller's line breaks just while something is sent, and of metadata that are no text.
    """
    problem = record.exc_info[1] if record.exc_info else None
    if record.name.startswith("grpc") and problem is not None:
        if type(problem).__name__ == "ExecuteBatchError":
            _tell_plainly(record, f"a caller went away while something was sent: {record.getMessage()}")
        elif isinstance(problem, UnicodeDecodeError):
            _tell_plainly(record, f"a caller sent metadata that are no text: {problem.reason}")
    elif record.name.startswith("uvicorn") and record.msg == _NO_REQUEST:
        _tell_plainly(record, str(record.msg))
    return True


_NO_REQUEST = "Invalid HTTP request received."
"""Words of uvicorn for a caller's mistake."""


def _tell_plainly(record: logging.LogRecord, message: str) -> None:
    record.exc_info, record.exc_text = None, None
    record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
    record.msg, record.args = message, ()


class _Once(logging.Formatter):
    """Makes a record's line once for all handlers, which get it one after the other."""

    def __init__(self, formatter: logging.Formatter) -> None:
        super().__init__()
        self._formatter = formatter
        self._last: tuple[logging.LogRecord, str] | None = None

    def format(self, record: logging.LogRecord) -> str:
        last = self._last
        if last is None or last[0] is not record:
            self._last = last = (record, self._formatter.format(record))
        return last[1]


class _StreamHandler(logging.Handler):
    """Lines to stderr by a thread: a terminal on hold (Ctrl-S, a pager) must never stop a scheduler."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._left_out = 0
        self._rest = threading.Event()
        self._thread = threading.Thread(target=self._write, name="log-stderr", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        self.tell(self.format(record))

    def tell(self, line: str) -> None:
        """Write the line as it is, when its turn comes."""
        if self._lines.qsize() >= STDERR_LINES_MAX:
            self._left_out += 1
            return
        if self._left_out:
            self._lines.put(self._note())
            self._left_out = 0
        self._lines.put(line + "\n")

    def _write(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._stream.write(line)
                if self._lines.empty():
                    self._stream.flush()
                    self._rest.wait(STDERR_PAUSE_S)
            except (OSError, ValueError):  # the terminal is gone, or the stream was closed: the file goes on
                continue

    def _note(self) -> str:
        return f"... {self._left_out} lines were left out here, stderr did not take them\n"

    def close(self) -> None:
        self._rest.set()
        if self._left_out:
            self._lines.put(self._note())
        self._lines.put(None)
        self._thread.join(CLOSE_WAIT_S)
        super().close()


class _FileHandler(logging.handlers.RotatingFileHandler):
    """The rotated file, written at once: after a crash it holds the last line. A full disk is told on stderr."""

    def __init__(self, file: Path, bytes_max: int, old_files_max: int, tell: Callable[[str], None]) -> None:
        super().__init__(
            file, maxBytes=bytes_max, backupCount=old_files_max, encoding="utf-8", errors="backslashreplace"
        )
        self._tell = tell
        self._problem: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        before, self._problem = self._problem, None
        super().emit(record)
        if self._problem is not None and before is None:
            self._tell(f"the log file {self.baseFilename} cannot be written: {self._problem}")
        if self._problem is None and before is not None:
            self._tell(f"the log file {self.baseFilename} is written again")

    def shouldRollover(self, record: logging.LogRecord) -> bool:
        """Whether the line would make the file too long; the base class asks the disk four times for each line."""
        if self.maxBytes <= 0:
            return False
        if self.stream is None:
            self.stream = self._open()
        status = os.fstat(self.stream.fileno())
        return stat.S_ISREG(status.st_mode) and status.st_size + len(self.format(record)) >= self.maxBytes

    def handleError(self, record: logging.LogRecord) -> None:
        self._problem = sys.exception()


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    found: Mapping[str, object] = getattr(record, "fields", {})
    return found


def _time(record: logging.LogRecord) -> str:
    return as_logged(datetime.fromtimestamp(record.created, UTC))


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return formatter.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else ""


def _text_value(value: object) -> str:
    text = str(value)
    if text.isprintable() and text and not set(text) & set(' "='):
        return text
    return json.dumps(text, ensure_ascii=False).translate(_CONTROL)


def _log_uncaught(kind: type[BaseException], problem: BaseException, trace: TracebackType | None) -> None:
    logging.getLogger(__name__).critical("the program ends by an error", exc_info=(kind, problem, trace))


def _log_uncaught_in_thread(args: Any) -> None:
    trace = (args.exc_type, args.exc_value, args.exc_traceback)
    name = args.thread.name if args.thread else "unknown"
    logging.getLogger(__name__).critical("a thread ends by an error", exc_info=trace, extra=fields(thread=name))
