"""A connection over a stream whose other end is over while bytes still go up: what came down is written."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest

from gpufleet.net.carrying import READ_AHEAD_BYTES, Connection, Cut, Piece
from gpufleet.net.stream_calls import CallEnded

PIECES = [Piece(b"a"), Piece(b"b"), Piece(b"c")]


class Refused(Exception):
    """How the call ended."""


async def come_down(
    has_failed: asyncio.Event, *, is_end: bool, ends_with: type[Exception] | None
) -> AsyncIterator[Piece]:
    await has_failed.wait()
    for piece in PIECES:
        yield piece
    if is_end:
        yield Piece(is_end=True)
    if ends_with is not None:
        raise ends_with


@pytest.mark.parametrize(
    ("is_end", "ends_with", "raised"),
    [(True, None, Cut), (False, None, Cut), (False, Refused, Refused)],
    ids=["with an end", "without one", "with a status"],
)
async def test_what_came_before_the_end_of_a_call_is_written_though_nothing_goes_up_any_more(
    is_end: bool, ends_with: type[Exception] | None, raised: type[Exception]
) -> None:
    here, there = socket.socketpair()
    reader, writer = await asyncio.open_unix_connection(sock=there, limit=READ_AHEAD_BYTES)
    has_failed = asyncio.Event()

    async def send(piece: Piece) -> None:
        has_failed.set()
        raise CallEnded("the call is over")

    with here:
        here.sendall(b"typed on")
        with pytest.raises(raised):
            await Connection(reader, writer).carry(come_down(has_failed, is_end=is_end, ends_with=ends_with), send)
        assert here.recv(100) == b"abc"
        writer.close()
        await writer.wait_closed()
