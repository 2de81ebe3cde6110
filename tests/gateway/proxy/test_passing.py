"""Requests and answers as they pass: bodies both ways and their ends, with programs that misbehave."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from gateway.proxy import upstream as upstream_module
from gpufleet.net.certificates import make_own_certificate
from tests.e2e.processes import DEADLINE_SECONDS, until
from tests.gateway.proxy.stage import Call, asked, program, stage

MEGABYTE = 1_000_000


async def hello(call: Call) -> None:
    await call.reply(await call.body() or b"hello", headers={"Content-Type": "text/plain"})


async def test_a_request_reaches_a_replica_and_its_answer_comes_back() -> None:
    async with stage() as at, program("r1", hello) as replica:
        await at.serve("chat", replica)
        status, headers, body = await asked(at, "/m/chat/v1/%6dodels?page=2")
        assert (status, headers["content-type"], body) == (200, "text/plain", b"hello")
        assert headers["content-security-policy"].startswith("sandbox ")
        assert [(each.method, each.target) for each in replica.calls] == [("GET", "/v1/%6dodels?page=2")]
        assert replica.calls[0]["x-forwarded-prefix"] == "/m/chat"
        assert replica.calls[0]["gpufleet-request-id"] == headers["gpufleet-request-id"]
        status, headers, _ = await asked(at, "/m/chat?a=1")
        assert (status, headers["location"]) == (308, "/m/chat/?a=1")


async def test_requests_share_a_connection_which_is_closed_when_it_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream_module, "KEPT_S_MAX", 0.3)
    async with stage() as at, program("r1", hello) as replica:
        await at.serve("chat", replica)
        for method in ("GET", "POST", "HEAD", "GET"):
            assert (await asked(at, "/m/chat/", method))[0] == 200
        assert replica.connections <= 4 and len(replica.calls) == 4
        await until("the kept one is closed", lambda: replica.open == 0)


async def test_a_replica_with_a_certificate_of_its_own_is_trusted_by_it_alone(tmp_path: Path) -> None:
    own, other = make_own_certificate("127.0.0.1"), make_own_certificate("127.0.0.1")
    (tmp_path / "key.pem").write_bytes(own.key)
    (tmp_path / "cert.pem").write_bytes(own.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    async with stage() as at, program("r1", hello, own, context) as replica:
        await at.serve("chat", replica)
        assert (await asked(at, "/m/chat/", "POST", b"x" * MEGABYTE))[2] == b"x" * MEGABYTE
        replica.own, replica.name = other, "r2"
        await at.serve("other", replica)
        before = len(replica.calls)
        status, _, body = await asked(at, "/m/other/", "POST", b"x")
        assert (status, b"REPLICA_FAILED" in body, len(replica.calls)) == (502, True, before)


@pytest.mark.parametrize(
    ("answer", "status", "body"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nto the end", 200, b"to the end"),
        (b"HTTP/1.0 200 OK\r\n\r\nto the end", 200, b"to the end"),
        (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nA: 1\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
            204,
            b"",
        ),
        (b"HTTP/1.1 304 Not Modified\r\nETag: x\r\nContent-Length: 7\r\n\r\n", 304, b""),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\nTrailer: 1\r\n\r\n", 200, b"ab"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", 200, b"a"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 502, None),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n", 502, None),
        (b"HTTP/1.1 700 Odd\r\nContent-Length: 0\r\n\r\n", 502, None),
        (b"SSH-2.0-OpenSSH\r\n\r\n", 502, None),
        (b"HTTP/1.1 200 OK\r\nA: " + b"a" * MEGABYTE + b"\r\n\r\n", 502, None),
        (b"HTTP/1.1 200 OK\r\nA: 1\r\n", 502, None),
        (b"", 502, None),
    ],
)
async def test_an_answer_ends_where_its_head_says(answer: bytes, status: int, body: bytes | None) -> None:
    async def say(call: Call) -> None:
        await call.raw(answer)
        call.keeps = False

    async with stage() as at, program("r1", say) as replica:
        await at.serve("chat", replica)
        told, headers, content = await asked(at, "/m/chat/", "POST")
        assert told == status, content
        if body is None:
            assert b"REPLICA_FAILED" in content and headers["cache-control"] == "no-store"
        else:
            assert content == body


async def test_an_answer_that_breaks_off_breaks_off_for_the_client_too() -> None:
    async def breaks(call: Call) -> None:
        await call.raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await call.chunk(b"half")
        call.keeps = False

    async with stage() as at, program("r1", breaks) as replica:
        await at.serve("chat", replica)
        async with at.raw(b"GET /m/chat/ HTTP/1.1\r\nHost: x\r\n\r\n") as (reader, _):
            text = await reader.read()
            assert b"half" in text and not text.endswith(b"0\r\n\r\n")


async def test_events_are_passed_on_as_they_come() -> None:
    goes_on = asyncio.Event()

    async def events(call: Call) -> None:
        await call.raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        await call.chunk(b"data: 1\n\n")
        await goes_on.wait()
        await call.chunk(b"data: 2\n\n")
        await call.raw(b"0\r\n\r\n")

    async with stage() as at, program("r1", events) as replica:
        await at.serve("chat", replica)
        async with asyncio.timeout(DEADLINE_SECONDS), at.asking("/m/chat/") as asking:
            _, headers = await asking.head()
            chunks = asking.chunks(headers)
            assert await anext(chunks) == b"data: 1\n\n"
            goes_on.set()
            assert [each async for each in chunks] == [b"data: 2\n\n"]


async def test_a_program_that_sends_two_gigabytes_waits_for_a_client_that_does_not_read() -> None:
    """What the program could send and the client has not read lies in buffers, of which there are few."""
    size, sent = 2_000 * MEGABYTE, 0

    async def pours(call: Call) -> None:
        nonlocal sent
        await call.raw(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        while sent < size:
            await call.raw(b"x" * MEGABYTE)
            sent += MEGABYTE

    async with stage() as at, program("r1", pours) as replica:
        await at.serve("chat", replica)
        async with at.raw(b"GET /m/chat/ HTTP/1.1\r\nHost: x\r\n\r\n") as (reader, _):
            read = 0
            while read < 100 * MEGABYTE:
                read += len(await reader.read(MEGABYTE))
                assert sent - read < 40 * MEGABYTE
        await until("the program's connection ends with the client's", lambda: replica.open == 0)
        assert sent < 200 * MEGABYTE


async def test_a_body_that_never_ends_is_passed_on_and_waits_for_the_program() -> None:
    taken, goes_on = 0, asyncio.Event()

    async def takes(call: Call) -> None:
        nonlocal taken
        assert call.head["transfer-encoding"] == "chunked"
        await goes_on.wait()
        while data := await call.reader.read(MEGABYTE):
            taken += len(data)

    async with stage() as at, program("r1", takes) as replica:
        await at.serve("chat", replica)
        async with at.raw(b"POST /m/chat/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n") as (_, writer):
            sent = 0
            with pytest.raises(TimeoutError):
                # Of a program that does not read, the client learns by being stopped: it cannot send much.
                async with asyncio.timeout(1.0):
                    while True:
                        writer.write(b"10000\r\n" + b"x" * 65_536 + b"\r\n")
                        await writer.drain()
                        sent += 65_536
            assert sent < 60 * MEGABYTE
            goes_on.set()
            await until("what waited is taken", lambda: taken >= sent)
        await until("the end of the client is the end", lambda: replica.open == 0)


async def test_an_answer_may_come_before_the_body_has() -> None:
    async def refuses(call: Call) -> None:
        await call.reply(b"too long", "413 Content Too Large", {"Connection": "close"})
        call.keeps = False

    async with stage() as at, program("r1", refuses) as replica:
        await at.serve("chat", replica)
        async with at.raw(b"POST /m/chat/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\nbegin") as (
            reader,
            _,
        ):
            assert b" 413 " in await reader.readline()


async def test_a_client_that_asks_whether_to_send_its_body_is_told_to() -> None:
    async with stage() as at, program("r1", hello) as replica:
        await at.serve("chat", replica)
        head = b"POST /m/chat/ HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
        async with asyncio.timeout(DEADLINE_SECONDS), at.raw(head) as (reader, writer):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"abc")
            assert (await reader.readuntil(b"abc")).startswith(b"HTTP/1.1 200")
        assert not replica.calls[0].all("expect")


async def test_a_program_is_left_at_once_when_its_client_goes_away() -> None:
    is_left = asyncio.Event()

    async def thinks(call: Call) -> None:
        await call.is_left()
        is_left.set()

    async with stage() as at, program("r1", thinks) as replica:
        await at.serve("chat", replica)
        async with at.asking("/m/chat/"):
            await until("the program has it", lambda: replica.calls)
            await until("it is told", lambda: at.scheduler.reported("chat") == (1, 0))
        async with asyncio.timeout(DEADLINE_SECONDS):
            await is_left.wait()
        await until("it is told", lambda: at.scheduler.reported("chat") == (0, 0))


SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    "data",
    [
        b"POST /m/chat/ HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" % 41,
        b"POST /m/chat/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n0\r\n\r\n",
        b"POST /m/chat/ HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"POST /m/chat/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n",
        b"POST /m/chat/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n",
        b"POST /m/chat/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n",
        b"GET /m/chat/ HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
        b"GET /m/chat/ HTTP/1.1\r\nHost: x\r\nA: 1\rB: 2\r\n\r\n",
        b"GET /m/chat/ HTTP/1.1\r\nHost: x\r\nA: 1\0\r\n\r\n",
    ],
)
async def test_a_request_that_two_servers_could_read_in_two_ways_is_refused(data: bytes) -> None:
    async with stage() as at, program("r1", hello) as replica:
        await at.serve("chat", replica)
        async with asyncio.timeout(DEADLINE_SECONDS), at.raw(data + SMUGGLED) as (reader, _):
            first = await reader.readline()
            assert first.split()[1] in (b"400", b"501"), first
            assert b"HTTP/1.1" not in await reader.read(), "what follows is not looked at"
        assert not replica.calls


async def test_what_is_odd_and_clear_reaches_the_program_in_its_plain_form() -> None:
    async with stage() as at, program("r1", hello) as replica:
        await at.serve("chat", replica)
        head = b"GET /m/chat/ HTTP/1.1\r\nHost: x\r\nA: 1\r\n 2\r\nConnection: close, Gpufleet-User, B\r\nB: 3\r\n"
        async with asyncio.timeout(DEADLINE_SECONDS), at.raw(head + b"Gpufleet_User: root\r\n\r\n") as (reader, _):
            assert b" 200 " in await reader.readline()
            await reader.read()
        (call,) = replica.calls
        assert call["a"] == "1 2" and not call.all("b") and not call.all("connection")
        assert b"root" not in call.text and b"\r\n " not in call.text


async def test_two_requests_on_one_connection_are_two() -> None:
    async with stage() as at, program("r1", hello) as replica:
        await at.serve("chat", replica)
        two = b"GET /m/chat/1 HTTP/1.1\r\nHost: x\r\n\r\nGET /m/chat/2 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        async with asyncio.timeout(DEADLINE_SECONDS), at.raw(two) as (reader, _):
            assert (await reader.read()).count(b"200 OK") == 2
        assert [each.target for each in replica.calls] == ["/1", "/2"]
