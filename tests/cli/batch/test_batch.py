"""`gpuctl batch`: one answer or one error a row, bad rows that cost themselves, and going on where it was."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cli.batch.answers import AnswerFile
from cli.batch.done_rows import DoneRows
from cli.batch.given import settings_given
from cli.batch.rows import ROW_BYTES_MAX, InputRow, rows_of
from cli.options import Connection
from gpufleet.client import Backend, ErrorKind, ItemError, Result
from gpufleet.client.core.outcomes import Failure
from gpufleet.errors import GpufleetError, Reason, as_object
from gpufleet.security.tokens import make_token
from tests.cli.conftest import Result as Ran
from tests.cli.conftest import run_here
from tests.client.servers import MODEL, HttpRequest, Server, closes, doubles, respond, says, serving


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUFLEET_INFERENCE_BACKOFF_FIRST_S", "1ms")
    monkeypatch.setenv("GPUFLEET_INFERENCE_BACKOFF_MAX_S", "10ms")


async def batch(server: Server, source: Path, to: Path, *more: str) -> Ran:
    words = ("batch", str(source), "-o", str(to), "--model", MODEL, "--address", server.address)
    return await asyncio.to_thread(run_here, *words, *more)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def numbers(path: Path, count: int) -> Path:
    path.write_text("".join(f"{number}\n" for number in range(count)))
    return path


async def test_each_row_gets_its_answer_in_order(tmp_path: Path) -> None:
    source, to = numbers(tmp_path / "in.jsonl", 1_000), tmp_path / "out.jsonl"
    async with serving(says(503), closes) as server:
        done = await batch(server, source, to)
    assert (done.code, done.err) == (0, f"gpuctl: {to}: 1,000 answered, 0 failed\n")
    found = lines(to)
    assert [(row["index"], row["output"]) for row in found] == [(each, 2 * each) for each in range(1_000)]
    assert found[0]["backend"] == "gpu" and max(row["attempts"] for row in found) >= 2


async def test_answers_as_they_come_are_the_same_ones(tmp_path: Path) -> None:
    source, to = numbers(tmp_path / "in.jsonl", 300), tmp_path / "out.jsonl"
    async with serving() as server:
        assert (await batch(server, source, to, "--as-they-come", "--batch-size", "7")).code == 0
        assert max(len(request.items) for request in server.infers) == 7
    assert sorted((row["index"], row["output"]) for row in lines(to)) == [(each, 2 * each) for each in range(300)]


async def test_a_full_disk_is_said_and_costs_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, to = numbers(tmp_path / "in.jsonl", 20), tmp_path / "out.jsonl"

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with serving() as server:
        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", full)
            done = await batch(server, source, to)
        assert done.code == 3 and f"{to} cannot be written: No space left on device" in done.err
        assert "the same command again" in done.err and "answered" not in done.err and "Traceback" not in done.err
        assert (await batch(server, source, to)).code == 0
    assert [row["output"] for row in lines(to)] == [2 * each for each in range(20)]


async def test_a_model_that_fails_meanwhile_ends_it_and_its_rows_are_left_for_later(tmp_path: Path) -> None:
    async def down(server: Server, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
        error = GpufleetError(Reason.MODEL_DOWN, "it has failed", next_step="Serve it again.")
        server.ready_status = 404  # so that its state does not turn
        await respond(writer, 503, {"error": as_object(error)})

    source, to = numbers(tmp_path / "in.jsonl", 100), tmp_path / "out.jsonl"
    async with serving(doubles, *[down] * 99) as server:
        done = await batch(server, source, to, "--batch-size", "10")
        assert done.code == 5 and "it has failed. Serve it again" in done.err and "goes on where it was" in done.err
        assert len(lines(to)) <= 10 and all("output" in row for row in lines(to))
    async with serving() as server:
        assert (await batch(server, source, to)).code == 0
    assert len(lines(to)) == 100


async def test_bad_rows_cost_themselves_alone(tmp_path: Path) -> None:
    source, to = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('1\n{broken\n\n"text"\n4\n[1, 2')
    async with serving() as server:
        done = await batch(server, source, to)
    assert done.code == 1 and "2 answered, 3 failed" in done.err
    found = lines(to)
    assert [(row["index"], row.get("output")) for row in found] == [(0, 2), (1, None), (3, None), (4, 8), (5, None)]
    assert found[1]["error"]["kind"] == "rejected" and "line 2 is no JSON" in found[1]["error"]["message"]
    assert "takes numbers" in found[2]["error"]["message"]


async def test_it_goes_on_where_it_was_and_asks_a_line_that_was_cut_off_again(tmp_path: Path) -> None:
    source, to = numbers(tmp_path / "in.jsonl", 100), tmp_path / "out.jsonl"
    async with serving() as server:
        await batch(server, source, to)
        whole = to.read_bytes()
        kept = whole.splitlines(keepends=True)
        to.write_bytes(b"".join(kept[:40]) + kept[40][:11])
        server.infers.clear()
        done = await batch(server, source, to)
        assert sorted(item for request in server.infers for item in request.items) == list(range(40, 100))
        assert "100 answered, 0 failed, 40 of them before" in done.err and to.read_bytes() == whole
        server.infers.clear()
        assert (await batch(server, source, to)).code == 0
        assert not server.infers and to.read_bytes() == whole


async def test_files_of_a_folder_are_known_by_their_names(tmp_path: Path) -> None:
    async def lengths(server: Server, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
        head = int(request.headers["inference-header-content-length"])
        (given,) = json.loads(request.body[:head])["inputs"]
        output = {"name": "y", "datatype": "INT64", "shape": given["shape"], "data": [7] * given["shape"][0]}
        await respond(writer, 200, {"outputs": [output]})

    folder, to = tmp_path / "photos", tmp_path / "out.jsonl"
    (folder / "below").mkdir(parents=True)
    (folder / "b.jpg").write_bytes(b"\xff")
    (folder / "below" / "c.jpg").write_bytes(b"")
    (folder / ".hidden").write_bytes(b"x")
    async with serving(*[lengths] * 9, datatype="BYTES") as server:
        assert (await batch(server, folder, to)).code == 0
        assert [row["input"] for row in lines(to)] == ["b.jpg", "below/c.jpg"]
        (folder / "a.jpg").write_bytes(b"a")  # which moves the others' places
        assert (await batch(server, folder, to)).code == 0
    assert [row["input"] for row in lines(to)] == ["b.jpg", "below/c.jpg", "a.jpg"]
    assert all(row["output"] == 7 for row in lines(to))


async def test_input_that_has_changed_since_is_refused_and_nothing_is_asked(tmp_path: Path) -> None:
    source, to = numbers(tmp_path / "in.jsonl", 20), tmp_path / "out.jsonl"
    async with serving() as server:
        assert (await batch(server, source, to)).code == 0
        server.infers.clear()
        whole, text = to.read_bytes(), source.read_text()
        for changed, told in (
            (text.replace("7\n", "70\n", 1), f"line 8 of {source} has changed since {to} has its answer"),
            (text.replace("3\n", "\n", 1), f"line 4 of {source} has changed"),
            ("".join(text.splitlines(keepends=True)[:12]), f"{source} has 12 lines, and {to} has an answer to line 20"),
        ):
            source.write_text(changed + "99\n" * ("12 lines" not in told))
            done = await batch(server, source, to)
            assert (done.code, to.read_bytes(), server.infers) == (2, whole, []), done.err
            assert told in done.err and "Name another file with -o" in done.err
        # Lines that were added are asked, and an answer of before, that does not say what was asked, holds.
        source.write_text(text.rstrip("\n"))
        assert (await batch(server, source, to)).code == 0 and not server.infers
        source.write_text(text + "20\n")
        assert (await batch(server, source, to)).code == 0 and lines(to)[-1]["output"] == 40
        stripped = [{name: value for name, value in row.items() if name != "input_crc32"} for row in lines(to)]
        to.write_text("".join(json.dumps(row) + "\n" for row in stripped))
        source.write_text("5\n" * 21)
        server.infers.clear()
        assert (await batch(server, source, to)).code == 0 and not server.infers


async def test_a_file_that_has_changed_since_is_named(tmp_path: Path) -> None:
    folder, to = tmp_path / "photos", tmp_path / "out.jsonl"
    folder.mkdir()
    for name in "ab":
        (folder / name).write_bytes(name.encode())
    with AnswerFile(to, 0.0) as answers:
        for row in rows_of(folder):
            answers.add(row, Result(index=0, value=1), 0.0)
    async with serving() as server:
        (folder / "a").unlink()  # files that are done may go
        assert (await batch(server, folder, to)).code == 0
        (folder / "b").write_bytes(b"another")
        done = await batch(server, folder, to)
        assert done.code == 2 and f"{folder / 'b'} has changed since {to} has its answer" in done.err
        assert not server.infers


async def test_a_file_of_something_else_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    source, to = numbers(tmp_path / "in.jsonl", 3), tmp_path / "notes.txt"
    answer = '{"index": 0, "output": 1, "attempts": 1}\n'
    asked = '{"input": "a", "output": "b"}\n'
    for text in ("my notes\n", answer + answer, "[]\n", '{"index": true}\n', asked, '{"a": 1}', answer + "more", "{}"):
        to.write_text(text)
        async with serving() as server:
            done = await batch(server, source, to)
        assert done.code == 2 and "is not what gpuctl batch writes" in done.err
        assert to.read_text() == text and not server.infers


async def test_answers_do_not_go_into_what_is_asked(tmp_path: Path) -> None:
    source, folder = tmp_path / "in.jsonl", tmp_path / "photos"
    source.write_text('{"input": "a"}\n{"input": "b"}')
    (folder / "below").mkdir(parents=True)
    (folder / "a").write_bytes(b"a")
    (tmp_path / "link").symlink_to(source)
    async with serving() as server:
        for given, to in ((source, source), (source, tmp_path / "link"), (folder, folder / "below" / "out.jsonl")):
            done = await batch(server, given, to)
            assert done.code == 2 and "is itself asked about" in done.err
    assert source.read_text() == '{"input": "a"}\n{"input": "b"}' and not server.infers
    assert [path.name for path in sorted(folder.rglob("*"))] == ["a", "below"]


def test_zeros_that_a_crash_left_at_the_end_are_cut_away(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    answer = b'{"index": 0, "output": 1, "attempts": 1}\n'
    for cut in (b"\0" * 99, b"{", b'{"index": 1, "out', b'{"index": 1\0\0'):
        path.write_bytes(answer + cut)
        with AnswerFile(path, 0.0) as answers:
            assert answers.done.count == 1
        assert path.read_bytes() == answer


def test_names_that_are_no_unicode_and_numbers_that_are_not_finite_are_json(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    rows = [InputRow(index, None, name) for index, name in enumerate(("\udcff", "\udcfe"))]
    nan = float("nan")
    with AnswerFile(path, 0.0) as answers:
        for row in rows:
            answers.add(row, Result(index=0, value={"y": [nan, 1.5, np.array([nan], "f4")]}), 0.0)

    def refuse(word: str) -> None:
        raise AssertionError(word)

    for row, line in zip(rows, path.read_bytes().splitlines(), strict=True):
        said = json.loads(line, parse_constant=refuse)
        assert (said["input"], said["output"]) == (row.name, {"y": [None, 1.5, [None]]})
    with AnswerFile(path, 0.0) as answers:
        assert all(row.key in answers.done for row in rows)


async def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    async with serving() as server:
        done = await batch(server, tmp_path / "none.jsonl", tmp_path / "out.jsonl")
        assert done.code == 3 and "there is no file or folder" in done.err
        done = await batch(server, numbers(tmp_path / "in.jsonl", 1), tmp_path / "no" / "out.jsonl")
        assert done.code == 3 and "cannot be written" in done.err


def test_two_programs_do_not_write_one_file(tmp_path: Path) -> None:
    with AnswerFile(tmp_path / "out.jsonl", 0.0), pytest.raises(GpufleetError) as caught:
        AnswerFile(tmp_path / "out.jsonl", 0.0)
    assert caught.value.reason is Reason.ALREADY_RUNNING


def test_answers_are_with_the_system_after_a_second_and_all_of_them_in_the_end(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    (row, *_) = rows_of(numbers(tmp_path / "in.jsonl", 1))
    with AnswerFile(path, 0.0) as answers:
        answers.add(row, Result(index=0, value=b"\xff", backend=Backend.CPU, is_fallback=True, attempts=1), 1.0)
        assert lines(path)[0]["output"] == {"base64": "/w=="} and lines(path)[0]["is_fallback"] is True
        row = type(row)(1, None)
        answers.add(row, Result(index=1, error=ItemError(ErrorKind.DEADLINE, "late")), 1.5)
        assert len(lines(path)) == 1
    assert lines(path)[1]["error"] == {"kind": "deadline", "message": "late", "status": 0}


def test_a_line_that_is_too_long_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.batch.rows.ROW_BYTES_MAX", 10)
    monkeypatch.setattr("cli.batch.rows.READ_BYTES", 4)
    source = tmp_path / "in.jsonl"
    source.write_text("1\n" + "2" * 50 + "\n3\n" + "4" * 11)
    first, second, third, fourth = (row.item for row in rows_of(source))
    assert (first, third) == (1, 3)
    assert isinstance(second, Failure) and isinstance(fourth, Failure) and "longer than 10 bytes" in second.message
    assert ROW_BYTES_MAX > 10**6


def test_rows_that_are_done_are_remembered_by_number_or_name() -> None:
    done = DoneRows()
    for key in (0, 7, 8, 1_000_003, "a", "b/c"):
        assert key not in done
        done.add(key, is_ok=key != 8)
        assert key in done
    assert 9 not in done and "c" not in done and 2_000_000 not in done
    assert (done.answered, done.failed, done.count) == (5, 1, 6)


async def test_stopped_within_it_keeps_what_it_has_and_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = threading.Event()

    def stops(source: Path, is_done: Callable[[int | str], bool]) -> Iterator[Any]:
        for row in rows_of(source, is_done):
            if row.index == 900 and not stopped.is_set():
                stopped.set()
                raise KeyboardInterrupt
            yield row

    monkeypatch.setattr("cli.batch.program.rows_of", stops)
    source, to = numbers(tmp_path / "in.jsonl", 1_000), tmp_path / "out.jsonl"
    async with serving() as server:
        done = await batch(server, source, to)
        assert done.code == 130 and "the same command goes on where it was" in done.err
        assert [row["index"] for row in lines(to)] == list(range(len(lines(to)))) and lines(to)
        assert (await batch(server, source, to)).code == 0
    assert [(row["index"], row["output"]) for row in lines(to)] == [(each, 2 * each) for each in range(1_000)]


async def test_on_a_terminal_a_bar_shows_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.batch.program._is_terminal", lambda: True)
    source = numbers(tmp_path / "in.jsonl", 100)
    async with serving() as server:
        done = await batch(server, source, tmp_path / "out.jsonl")
    assert done.code == 0 and "100/100" in done.err and "/s" in done.err


@pytest.mark.parametrize("scheduler", ["127.0.0.1", "head"])
def test_the_gateway_is_asked_with_gpuctls_token_unless_a_variable_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, scheduler: str
) -> None:
    token, other = make_token(), make_token()
    monkeypatch.setenv("GPUCTL_SCHEDULER", scheduler)
    monkeypatch.setenv("GPUCTL_TOKEN", token)
    settings = Connection(insecure=True).settings()
    gateway = {"gateway": "http://127.0.0.1:7860"} if scheduler == "127.0.0.1" else {}
    given = settings_given(settings, "m", [], None, None, {})
    assert given == {"model": "m", "token": token, "insecure": True, **gateway}
    variables = {"GPUFLEET_INFERENCE_TOKEN": other, "GPUFLEET_INFERENCE_GATEWAY": "https://g"}
    assert settings_given(settings, "m", [], None, 7, variables) == {"model": "m", "batch_size": 7, "insecure": True}
    assert settings_given(settings, "m", [], "https://x", None, variables)["gateway"] == "https://x"
    assert settings_given(settings, "m", ["a:1"], None, None, {}) == {"model": "m", "addresses": ["a:1"]}


def test_the_contexts_gateway_is_asked_as_gpuctl_up_wrote_it(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("config", "context", "add", "lab", "--scheduler", "head", "--use")
    assert run_here(*words, "--gateway", "https://head:8443/").code == 0
    settings = Connection().settings()
    assert settings_given(settings, "m", [], None, None, {})["gateway"] == "https://head:8443"
    assert settings_given(settings, "m", [], "https://x", None, {})["gateway"] == "https://x"
    assert "gateway" not in settings_given(settings, "m", [], None, None, {"GPUFLEET_INFERENCE_GATEWAY": "https://g"})
    monkeypatch.setenv("GPUCTL_GATEWAY", "http://other:7860")
    assert settings_given(Connection().settings(), "m", [], None, None, {})["gateway"] == "http://other:7860"
    wrong = run_here(*words, "--gateway", "head:7860")
    assert wrong.code == 2 and "--gateway" in wrong.err and "https://HOST:PORT" in wrong.err
