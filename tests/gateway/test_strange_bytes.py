"""Bytes that no browser sends: each costs its own connection alone, with one answer, and no trace in the log."""

from __future__ import annotations

import asyncio
from random import Random

from tests.e2e.processes import DEADLINE_SECONDS
from tests.fuzz.web_socket import CLOSE, TEXT, frame
from tests.gateway.stage import Stage

NOT_UTF_8, NORMAL = 1007, 1000
FAIR = Random(1)
"""Masks the frames of what is sent here."""

HANDSHAKE = (
    "GET {path} HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)


async def said(stage: Stage, *pieces: bytes) -> bytes:
    """All that the gateway answers to these pieces, until it closes the connection."""
    host, _, port = stage.gateway.rpartition(":")
    async with asyncio.timeout(DEADLINE_SECONDS):
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            for number, piece in enumerate(pieces):
                writer.write(piece)
                if number == 0 and len(pieces) > 1:
                    await reader.readuntil(b"\r\n\r\n")
            return await reader.read()
        finally:
            writer.close()


def log_of(stage: Stage) -> str:
    return (stage.folder / "gateway.log").read_text()


def handshake(path: str) -> bytes:
    return HANDSHAKE.format(path=path).encode()


def nothing_wrong(stage: Stage, logged: int) -> None:
    new = log_of(stage)[logged:]
    assert "Traceback" not in new and "ERROR" not in new, new


async def test_a_text_that_is_not_utf_8_closes_with_the_code_for_that(stage: Stage) -> None:
    logged = len(log_of(stage))
    answer = await said(stage, handshake("/ws"), frame(FAIR, TEXT, b"\xff\xfe{}"))
    assert answer == bytes((0x80 | CLOSE, 2)) + NOT_UTF_8.to_bytes(2, "big")
    nothing_wrong(stage, logged)


async def test_what_follows_a_close_is_not_looked_at(stage: Stage) -> None:
    logged = len(log_of(stage))
    close = frame(FAIR, CLOSE, NORMAL.to_bytes(2, "big"))
    answer = await said(stage, handshake("/ws"), close + frame(FAIR, TEXT, b"\xff\xfe{}"))
    assert answer == bytes((0x80 | CLOSE, 2)) + NORMAL.to_bytes(2, "big")
    nothing_wrong(stage, logged)


async def test_a_refused_web_socket_is_no_error_of_the_gateway(stage: Stage) -> None:
    logged = len(log_of(stage))
    assert (await said(stage, handshake("/m/nothing/x"))).startswith(b"HTTP/1.1 404 ")
    nothing_wrong(stage, logged)


async def test_a_body_that_is_no_body_is_answered_once(stage: Stage) -> None:
    logged = len(log_of(stage))
    head = b"POST /api/v1/jobs HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = await said(stage, head + b"fffffffffffffffffffff\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1 ") == 1
    nothing_wrong(stage, logged)
