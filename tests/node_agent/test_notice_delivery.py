"""Notices reach a command or a URL within bounds, and what goes wrong with them is said and harms nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from gpufleet.jobs.runs import ExitCode, JobId, RankKey, StopCause
from node_agent import notice_delivery as telling
from node_agent.core.notices import Notice, Notified
from node_agent.core.outcome import AttemptEnd, Offsets
from node_agent.notice_delivery import COMMAND_OUTPUT_BYTES_MAX, TRIES_MAX, NoticeNotDelivered, post, run_command, shown
from node_agent.notice_records import NoticeRecords, Subject
from tests.e2e.processes import until

ENV = {"PATH": "/usr/bin:/bin"}
KEY = RankKey(JobId(7), 1, 0)


@asynccontextmanager
async def server(*answers: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """One that gives these answers in turn, the last one again and again; with what it was asked."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split()[0])
        asked.append(head + await reader.readexactly(length))
        writer.write(answers[min(len(asked), len(answers)) - 1])
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/hook?a=b", asked


async def test_a_command_runs_in_its_folder_with_its_variables(tmp_path: Path) -> None:
    said = await run_command('pwd; echo "$WORD"', str(tmp_path), {**ENV, "WORD": "two words"})
    assert said == f"{tmp_path}\ntwo words"


async def test_a_command_that_prints_much_is_heard_out_and_cut(tmp_path: Path) -> None:
    said = await run_command("head -c 1000000 /dev/zero | tr '\\0' x", str(tmp_path), ENV)
    assert said == "x" * COMMAND_OUTPUT_BYTES_MAX


async def test_a_command_that_fails_says_how(tmp_path: Path) -> None:
    with pytest.raises(NoticeNotDelivered, match="code 3: 'oh'"):
        await run_command("echo oh >&2; exit 3", str(tmp_path), ENV)


async def test_a_command_without_its_folder_is_not_run(tmp_path: Path) -> None:
    with pytest.raises(NoticeNotDelivered, match="cannot be run"):
        await run_command("true", str(tmp_path / "gone"), ENV)


async def test_a_command_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "COMMAND_SECONDS_MAX", 0.2)
    with pytest.raises(NoticeNotDelivered, match="was killed"):
        await run_command("sleep 1000", str(tmp_path), ENV)


async def test_a_command_may_leave_something_in_the_background(tmp_path: Path) -> None:
    assert await run_command("mkfifo fifo; (read _ < fifo; : > over) & echo done", str(tmp_path), ENV) == "done"
    await asyncio.to_thread((tmp_path / "fifo").write_text, "go on\n")
    await until("the background ended", (tmp_path / "over").exists)


async def test_a_post_is_json(monkeypatch: pytest.MonkeyPatch) -> None:
    async with server(b"HTTP/1.1 204 No Content\r\n\r\n") as (url, asked):
        await post(url, {"notice": "start", "job_id": 7}, allows_local=True)
    head, _, body = asked[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /hook?a=b HTTP/1.1\r\n")
    for line in (b"host: 127.0.0.1:", b"content-type: application/json", b"user-agent: gpufleet", b"connection: close"):
        assert b"\r\n" + line in head.lower()
    assert json.loads(body) == {"notice": "start", "job_id": 7}


async def test_a_server_in_trouble_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "RETRY_SECONDS", 0.0)
    async with server(b"HTTP/1.1 503 Busy\r\n\r\n", b"no http", b"HTTP/1.1 200 OK\r\n\r\n") as (url, asked):
        await post(url, {}, allows_local=True)
    assert len(asked) == 3


async def test_a_server_that_never_works_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telling, "RETRY_SECONDS", 0.0)
    async with server(b"HTTP/1.1 500 Oh\r\n\r\n") as (url, asked):
        with pytest.raises(NoticeNotDelivered, match="500, 4 times"):
            await post(url, {}, allows_local=True)
    assert len(asked) == TRIES_MAX


@pytest.mark.parametrize("status", [302, 304, 404])
async def test_a_refusal_or_a_redirection_to_nowhere_is_not_tried_again(status: int) -> None:
    async with server(b"HTTP/1.1 %d X\r\n\r\n" % status) as (url, asked):
        with pytest.raises(NoticeNotDelivered, match=str(status)):
            await post(url, {}, allows_local=True)
    assert len(asked) == 1


def test_a_log_shows_no_more_of_a_url_than_its_host() -> None:
    assert shown("https://hooks.example.com:8443/T00/secret?key=1") == "https://hooks.example.com:8443"


def test_what_was_written_down_is_read_back(tmp_path: Path) -> None:
    records = NoticeRecords(tmp_path / "notices")
    begun = Subject(facts=Notified(key=KEY, time_limit_us=9), target="date", cwd="/", env=ENV)
    assert records.all() == []
    records.begin(begun)
    end = AttemptEnd(status=ExitCode(code=0), output_ends=Offsets(1, 2), stop_cause=StopCause.PREEMPTED)
    started = replace(begun.facts, started_us=5, told=frozenset({Notice.START}))
    ended = replace(started, end=end, stop_cause=StopCause.PREEMPTED)
    records.note(begun.facts, started)
    records.note(started, ended)
    assert NoticeRecords(tmp_path / "notices").all() == [replace(begun, facts=ended)]
    with (tmp_path / "notices" / KEY.name).open("a") as file:
        file.write('{"told":["sta')
    assert records.all() == [replace(begun, facts=ended)], "half a line is none"
    (tmp_path / "notices" / "8.1.0").write_text("")
    assert records.all() == [replace(begun, facts=ended)]
    assert not (tmp_path / "notices" / "8.1.0").exists()
    records.end(KEY)
    assert records.all() == []
