"""`gpuctl infer`: files, texts and values in, an answer a line out, and words for whoever cannot be asked."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpufleet.errors import GpufleetError, Reason, as_object
from gpufleet.security.tokens import make_token
from tests.cli.conftest import Result, run_here
from tests.client.servers import MODEL, HttpRequest, Server, respond, serving


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUFLEET_INFERENCE_BACKOFF_FIRST_S", "1ms")


async def infer(server: Server, *more: str) -> Result:
    return await asyncio.to_thread(run_here, "infer", MODEL, "--address", server.address, *more)


async def echoes(server: Server, request: HttpRequest, writer: asyncio.StreamWriter) -> None:
    """Says of bytes what they are."""
    head = int(request.headers["inference-header-content-length"])
    (given,) = json.loads(request.body[:head])["inputs"]
    data, texts = request.body[head:], []
    while data:
        length = int.from_bytes(data[:4], "little")
        texts.append(data[4 : 4 + length].decode("latin-1"))
        data = data[4 + length :]
    output = {"name": "y", "datatype": "BYTES", "shape": given["shape"], "data": texts}
    await respond(writer, 200, {"outputs": [output]})


async def test_values_are_answered_a_line_each() -> None:
    async with serving() as server:
        done = await infer(server, "--item", "3", "--item", "4")
    assert (done.code, done.text, done.err) == (0, "6\n8\n", "")


async def test_lines_and_values_of_files_are_items_as_their_names_end(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("1\n\n{broken\n3\n")
    (tmp_path / "one.json").write_text("5\n")
    async with serving() as server:
        done = await infer(server, str(tmp_path / "rows.jsonl"), str(tmp_path / "one.json"))
        assert (done.code, done.text) == (1, "2\n6\n10\n")
        assert f"gpuctl: {tmp_path}/rows.jsonl:3: rejected: line 3 is no JSON" in done.err
        done = await infer(server, "-o", "jsonl", str(tmp_path / "rows.jsonl"))
        first, second, third = map(json.loads, done.text.splitlines())
    assert done.code == 1 and first["output"] == 2 and third["output"] == 6 and third["index"] == 2
    assert second["error"]["kind"] == "rejected" and second["input"].endswith("rows.jsonl:3")


async def test_other_files_a_folder_and_standard_input_are_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"a\x1b")
    (tmp_path / "photos" / "b.json").write_bytes(b"[]")
    (tmp_path / "c.jpg").write_bytes(b"c")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"piped")))
    async with serving(*[echoes] * 9, datatype="BYTES") as server:
        done = await infer(server, str(tmp_path / "photos"), str(tmp_path / "c.jpg"), "-", "-o", "json")
        said: list[dict[str, Any]] = json.loads(done.text)
        assert [each["output"] for each in said] == ["a\x1b", "[]", "c", "piped"]
        done = await infer(server, str(tmp_path / "photos"))
    assert done.text == '"a\\u001b"\n[]\n'  # nothing of an answer steers a terminal


async def test_what_was_typed_wrong_is_told_and_nobody_is_asked(tmp_path: Path) -> None:
    async with serving() as server:
        for words, code, said in (
            ((), 2, "FILE: is missing"),
            (("none.jpg",), 3, "there is no file or folder none.jpg"),
            (("--item", "{"), 2, "--item: '{' is no JSON"),
            (("--as", "jsn", "-"), 2, "none of bytes, text, json and jsonl"),
            (("-", "-"), 2, "standard input can be read once"),
        ):
            done = await infer(server, *words)
            assert done.code == code and said in done.err, done.err
        assert not server.requests


async def test_no_gateway_no_model_and_no_token_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def asked(*more: str) -> Result:
        return await asyncio.to_thread(run_here, "infer", "double", "--item", "1", *more)

    done = await asked("--gateway", "http://127.0.0.1:9")
    assert done.code == 5 and "no gateway answers at http://127.0.0.1:9: " in done.err and "gpuctl up" in done.err

    async def refuse(status: int, reason: str) -> Result:
        async with serving() as server:

            async def answer(request: HttpRequest, writer: asyncio.StreamWriter) -> None:
                server.requests.append(request)
                error = GpufleetError(Reason[reason], "so it says", next_step="do this")
                await respond(writer, status, {"error": as_object(error)})

            monkeypatch.setattr(server, "answer", answer)
            return await asked("--gateway", f"http://{server.address}")

    done = await refuse(404, "MODEL_NOT_FOUND")
    assert done.code == 3 and "so it says" in done.err and "gpuctl models" in done.err
    done = await refuse(401, "LOGIN_NEEDED")
    assert done.code == 4 and "wants a token, and none is named" in done.err and "--token-file" in done.err
    monkeypatch.setenv("GPUCTL_TOKEN", make_token())
    done = await refuse(401, "TOKEN_REVOKED")
    assert done.code == 4 and "so it says" in done.err and "Do this" in done.err
    done = await refuse(503, "MODEL_DOWN")
    assert done.code == 5 and done.err == "gpuctl: so it says\nDo this\n", done.err


def test_an_output_that_takes_no_more_is_said_in_a_sentence() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gpufleet.cli", "config", "show"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("gpuctl: the output cannot be written: No space left on device\n"), done.stderr


async def test_answers_for_which_there_is_no_room_are_said_in_a_sentence() -> None:
    async with serving() as server:
        words = ["infer", MODEL, "--address", server.address, "--item", "3"]
        with Path("/dev/full").open("w") as full:  # noqa: ASYNC230
            done = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-m", "gpufleet.cli", *words],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
    assert done.returncode == 1
    assert done.stderr.startswith("gpuctl: the output cannot be written: No space left on device\n"), done.stderr
