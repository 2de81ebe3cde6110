"""A program's log: its two formats, masking, levels, rotation, and what a stuck terminal or a full disk does to it."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpufleet.config.shared_settings import LogSettings
from gpufleet.security.tokens import make_token
from gpufleet.telemetry.logs import STDERR_LINES_MAX, ProgramLog, fields

log = logging.getLogger("gpufleet_lib.test")


class Program:
    """A running log and both places that it writes to."""

    def __init__(self, folder: Path) -> None:
        self.stream = io.StringIO()
        self.file = folder / "logs" / "scheduler.log"

    def start(self, **settings: Any) -> ProgramLog:
        return ProgramLog("scheduler", LogSettings(**settings), self.file, self.stream)

    def lines(self) -> list[str]:
        """The lines in the file; the stream must have got the same."""
        text = self.file.read_text()
        assert self.stream.getvalue() == text
        return text.splitlines()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    before = (logging.root.level, list(logging.root.handlers), sys.excepthook, threading.active_count())
    yield Program(tmp_path)
    assert before == (logging.root.level, list(logging.root.handlers), sys.excepthook, threading.active_count())


def test_a_callers_mistake_that_a_library_warns_of_is_one_line_of_level_info(program: Program) -> None:
    with program.start():
        try:
            b"\xff".decode()
        except UnicodeDecodeError:
            logging.getLogger("grpc._cython.cygrpc").exception("Invalid encoding on %s", b"\xff" * 9_000)
        logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
        logging.getLogger("uvicorn.error").warning("something else")
    metadata, request, other = program.lines()
    assert " INFO " in metadata and "a caller sent metadata that are no text" in metadata and len(metadata) < 200
    assert " INFO " in request and " WARNING " in other


def test_a_line_that_breaks_while_something_is_sent_is_told_without_a_trace(program: Program) -> None:
    class ExecuteBatchError(Exception):
        """Named as that of gRPC, which it shows to nobody."""

    core = logging.getLogger("grpc._cython.cygrpc")
    with program.start():
        try:
            raise ExecuteBatchError
        except ExecuteBatchError:
            core.exception("raised in core by servicer method [%s]", "/gpufleet.v1.Scheduler/StreamOutput")
        try:
            raise ValueError
        except ValueError:
            core.exception("another one")
    lines = program.lines()
    assert "INFO" in lines[0]
    assert lines[0].endswith(
        "a caller went away while something was sent: "
        "raised in core by servicer method [/gpufleet.v1.Scheduler/StreamOutput]"
    )
    assert "ERROR" in lines[1]
    assert any("Traceback" in line for line in lines[2:])


def test_a_line_for_people_has_time_level_program_message_and_fields(program: Program) -> None:
    with program.start():
        log.info("node joined", extra=fields(node="n1", gpus=8, address="10.0.0.5:1", name='a "b" c', empty=""))
    (line,) = program.lines()
    time, rest = line.split(" ", 1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time)
    assert rest == (r'INFO    scheduler node joined node=n1 gpus=8 address=10.0.0.5:1 name="a \"b\" c" empty=""')


def test_a_json_line_is_one_object_and_no_field_hides_what_every_line_has(program: Program) -> None:
    with program.start(format="json"):
        log.warning("node %s is lost", "n1", extra=fields(node="n1", level="x", path=Path("/a")))
    (text,) = program.lines()
    line = json.loads(text)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning",
        "program": "scheduler",
        "logger": "gpufleet_lib.test",
        "message": "node n1 is lost",
        "node": "n1",
        "level_": "x",
        "path": "/a",
    }


@pytest.mark.parametrize("format", ["text", "json"])
def test_a_token_is_masked_in_messages_arguments_fields_and_tracebacks(program: Program, format: str) -> None:
    token = make_token()
    with program.start(format=format):
        log.info(f"literal {token}")
        log.info("argument %s", token)
        log.info("field", extra=fields(header=f"Bearer {token}"))
        try:
            raise ValueError(token)
        except ValueError:
            log.exception("trace")
    text = "\n".join(program.lines())
    assert token[3:] not in text
    assert text.count("gf_…") == 4


@pytest.mark.parametrize("format", ["text", "json"])
def test_no_message_can_forge_a_line_or_speak_to_the_terminal(program: Program, format: str) -> None:
    with program.start(format=format):
        log.info("name %s", "x\n2026-01-01T00:00:00.000Z INFO scheduler all is well\r\x1b[2J\x9b")
        log.info("field", extra=fields(name="y\nz\x1b"))
        log.info("surrogate %s", "\udcff")
    lines = program.lines()
    assert len(lines) == 3
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "".join(lines))


def test_a_traceback_is_indented_under_its_line(program: Program) -> None:
    with program.start():
        try:
            raise RuntimeError("first\nsecond")
        except RuntimeError:
            log.exception("it failed")
    first, *rest = program.lines()
    assert first.endswith("ERROR   scheduler it failed")
    assert rest[0] == "    Traceback (most recent call last):"
    assert all(line.startswith("    ") for line in rest)
    assert rest[-2:] == ["    RuntimeError: first", "    second"]


def test_level_and_format_change_while_running(program: Program) -> None:
    with program.start(level="warning") as running:
        log.info("1")
        running.apply(LogSettings(level="debug", format="json"))
        log.debug("2")
        running.set_level("error")
        log.warning("3")
        running.set_format("text")
        log.error("4")
    lines = program.lines()
    assert [json.loads(lines[0])["message"], lines[1].rpartition(" ")[2]] == ["2", "4"]


def test_libraries_that_tell_every_step_are_quiet_even_when_we_debug(program: Program) -> None:
    with program.start(level="debug"):
        logging.getLogger("sqlalchemy.engine").info("SELECT 1")
        logging.getLogger("grpc").warning("trouble")
    (line,) = program.lines()
    assert "trouble" in line


def test_an_error_that_nobody_catches_is_logged(program: Program) -> None:
    with program.start():
        sys.excepthook(RuntimeError, RuntimeError("boom"), None)
        thread = threading.Thread(target=lambda: 1 / 0, name="worker-1")
        thread.start()
        thread.join()
    text = "\n".join(program.lines())
    assert "CRITICAL scheduler the program ends by an error" in text and "RuntimeError: boom" in text
    assert "a thread ends by an error thread=worker-1" in text and "ZeroDivisionError" in text


def test_the_file_is_rotated_and_only_so_many_old_ones_are_kept(program: Program) -> None:
    with program.start(file_bytes_max=100_000, old_files_max=2):
        for _ in range(5):
            log.info("x" * 60_000)
    assert sorted(each.name for each in program.file.parent.iterdir()) == [
        "scheduler.log",
        "scheduler.log.1",
        "scheduler.log.2",
    ]
    assert program.file.parent.stat().st_mode & 0o077 == 0


def test_a_terminal_on_hold_stops_nothing_and_is_told_what_it_missed(tmp_path: Path) -> None:
    """A pipe that nobody reads fills up; the file gets every line, the pipe gets a count of those left out."""
    read_end, write_end = os.pipe()
    stream = os.fdopen(write_end, "w")
    file = tmp_path / "s.log"
    lines = STDERR_LINES_MAX + 3_000
    received: list[str] = []
    pause = threading.Event()

    def drain() -> None:
        with os.fdopen(read_end) as pipe:
            received.extend(pipe)

    reader = threading.Thread(target=drain)
    with ProgramLog("scheduler", LogSettings(), file, stream):
        for number in range(lines):
            log.info("%d %s", number, "x" * 40)
        assert file.read_bytes().count(b"\n") == lines
        reader.start()
        while not any("left out" in line for line in received):  # bounded by the time limit of tests
            log.info("more")
            pause.wait(0.001)
    stream.close()
    reader.join()
    left_out = sum(int(line.split()[1]) for line in received if "left out" in line)
    written = file.read_bytes().count(b"\n")
    assert left_out > 0
    assert sum("INFO" in line for line in received) + left_out == written


def test_a_stream_that_is_gone_does_not_stop_the_file(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    stream = os.fdopen(write_end, "w")
    file = tmp_path / "s.log"
    with ProgramLog("scheduler", LogSettings(), file, stream):
        log.info("1")
        log.info("2")
    assert len(file.read_text().splitlines()) == 2
    with pytest.raises(BrokenPipeError):
        stream.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux only")
def test_a_full_disk_is_told_once_on_stderr_and_stops_nothing(tmp_path: Path) -> None:
    file = tmp_path / "s.log"
    file.symlink_to("/dev/full")
    stream = io.StringIO()
    with ProgramLog("scheduler", LogSettings(), file, stream):
        log.info("1")
        log.info("2")
    told = [line for line in stream.getvalue().splitlines() if "cannot be written" in line]
    assert len(told) == 1 and "No space left" in told[0]
    assert sum("INFO" in line for line in stream.getvalue().splitlines()) == 2
