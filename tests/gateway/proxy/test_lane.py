"""A connection that asks for programs: which requests go by the short way, and what waits behind one under way."""

from __future__ import annotations

import asyncio

import pytest

from gateway.proxy.lane import Lane
from tests.e2e.processes import DEADLINE_SECONDS, until
from tests.gateway.proxy.stage import Call, asked, program, stage

PROGRAM = b"GET /m/chat/%d HTTP/1.1\r\nHost: x\r\n\r\n"
PAGE = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
WAITING_BYTES_MAX = 10_000_000
"""More than what the system holds of both ends of a connection, and one reading of the gateway."""


async def hello(call: Call) -> None:
    await call.reply(await call.body() or b"hello")


@pytest.fixture
def handed_on(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What came on connections when uvicorn got them."""
    found: list[bytes] = []
    hand_on = Lane._hand_on

    def notes(lane: Lane, data: bytes) -> None:
        found.append(data)
        hand_on(lane, data)

    monkeypatch.setattr(Lane, "_hand_on", notes)
    return found


async def answer_in(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The next answer on a connection, which says how long it is."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.partition("content-length: ")[2].split("\r\n")[0])
    return int(head.split()[1]), await reader.readexactly(length)


async def test_plain_requests_for_programs_go_the_short_way_and_a_page_takes_the_connection_along(
    handed_on: list[bytes],
) -> None:
    async with stage() as at, program("r1", hello) as replica:
        await at.serve("chat", replica)
        async with asyncio.timeout(DEADLINE_SECONDS), at.raw(PROGRAM % 1) as (reader, writer):
            assert await answer_in(reader) == (200, b"hello")
            writer.write(b"POST /m/chat/2 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc" + PROGRAM % 3)
            assert [await answer_in(reader), await answer_in(reader)] == [(200, b"abc"), (200, b"hello")]
            assert not handed_on
            writer.write(PROGRAM % 4 + PAGE + PROGRAM % 5)
            answers = [await answer_in(reader) for _ in range(3)]
            assert [each[0] for each in answers] == [200, 200, 200] and b"scheduler" in answers[1][1]
        assert handed_on == [PAGE + PROGRAM % 5]
        assert [each.target for each in replica.calls] == ["/1", "/2", "/3", "/4", "/5"]


async def test_a_head_that_comes_in_two_parts_and_one_with_chunks_are_answered_too(handed_on: list[bytes]) -> None:
    chunks = b"POST /m/chat/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"
    async with stage() as at, program("r1", hello) as replica:
        await at.serve("chat", replica)
        for first, second, body in ((PROGRAM[:9], PROGRAM[9:] % 1, b"hello"), (chunks, b"", b"ab")):
            async with asyncio.timeout(DEADLINE_SECONDS), at.raw(first) as (reader, writer):
                await until("it is handed on", lambda first=first: first in handed_on)
                writer.write(second)
                assert await answer_in(reader) == (200, body)


async def test_requests_behind_one_that_is_under_way_wait_unread() -> None:
    begun, goes_on = asyncio.Event(), asyncio.Event()

    async def waits(call: Call) -> None:
        begun.set()
        await goes_on.wait()
        await call.reply(b"hello")

    async with stage() as at, program("r1", waits) as replica:
        await at.serve("chat", replica)
        async with asyncio.timeout(DEADLINE_SECONDS), at.raw(PROGRAM % 1) as (reader, writer):
            await begun.wait()
            many, sent = (PROGRAM % 2) * 2_000, 0
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.0):  # a client that is not read from is stopped
                    while True:
                        writer.write(many)
                        await writer.drain()
                        sent += len(many)
            assert sent < WAITING_BYTES_MAX
            assert len(replica.calls) == 1
            goes_on.set()
            for _ in range(20):
                assert await answer_in(reader) == (200, b"hello")
            writer.transport.abort()


async def test_a_body_that_nobody_wants_any_more_is_skipped_and_the_next_request_is_answered() -> None:
    async def refuses(call: Call) -> None:
        if call.head.target == "/long":
            await call.reply(b"too long", "413 Content Too Large", {"Connection": "close"})
            call.keeps = False
        else:
            await hello(call)

    async with stage() as at, program("r1", refuses) as replica:
        await at.serve("chat", replica)
        head = b"POST /m/chat/long HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n"
        async with asyncio.timeout(DEADLINE_SECONDS), at.raw(head) as (reader, writer):
            assert await answer_in(reader) == (413, b"too long")
            writer.write(b"x" * 300_000 + PROGRAM % 2)
            assert await answer_in(reader) == (200, b"hello")


@pytest.mark.parametrize("path", ["/m/chat/", "/healthz"])
async def test_a_host_with_a_user_is_refused_whatever_it_is_for(path: str) -> None:
    async with stage() as at, program("r1", hello) as replica:
        await at.serve("chat", replica)
        head = f"GET {path} HTTP/1.1\r\nHost: a@b\r\n\r\n".encode()
        async with asyncio.timeout(DEADLINE_SECONDS), at.raw(head) as (reader, _):
            status, body = await answer_in(reader)
            assert status == 400 and b"host: is no name or address" in body, body
        assert replica.calls == []


async def test_a_client_that_says_when_it_is_done_sees_the_end_and_one_that_asks_for_a_head_no_body() -> None:
    async with stage() as at, program("r1", hello) as replica:
        await at.serve("chat", replica)
        head = b"HEAD /m/chat/ HTTP/1.1\r\nHost: x\r\n\r\nGET /m/chat/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        async with asyncio.timeout(DEADLINE_SECONDS), at.raw(head) as (reader, _):
            first = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert b"content-length: 5" in first and b"connection: close" not in first
            rest = await reader.read()
            assert rest.startswith(b"HTTP/1.1 200") and rest.endswith(b"hello") and b"connection: close" in rest


@pytest.mark.parametrize(
    ("proxies", "known"),
    [(("127.0.0.0/8",), ("192.0.2.7", "https")), ((), ("127.0.0.1", "http")), (("192.0.2.1",), ("127.0.0.1", "http"))],
    ids=["of a proxy", "of anybody", "of another machine"],
)
async def test_only_a_proxy_that_the_settings_name_is_believed_where_a_request_comes_from(
    proxies: tuple[str, ...], known: tuple[str, str]
) -> None:
    async with stage(proxies=proxies) as at, program("r1", hello) as replica:
        await at.serve("chat", replica)
        said = {"X-Forwarded-For": "192.0.2.7", "X-Forwarded-Proto": "https"}
        assert (await asked(at, "/m/chat/", headers=said))[0] == 200
        (call,) = replica.calls
        assert (call["x-forwarded-for"], call["x-forwarded-proto"]) == known


async def test_a_request_that_breaks_the_gateway_is_answered_with_500(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage() as at, program("r1", hello) as replica:
        await at.serve("chat", replica)
        monkeypatch.setattr("gateway.proxy.serving.to_program", None)
        assert (await asked(at, "/m/chat/"))[0] == 500
        assert "was not answered" in caplog.text
    caplog.clear()  # its traceback holds all that was there
