"""The endpoint of a replica: who is let through, and that bytes pass both ways, bounded, to their very ends."""

from __future__ import annotations

import asyncio
import hashlib
import random
import ssl

import pytest

from gpufleet.net.addresses import Address
from gpufleet.net.certificates import context_of, make_own_certificate
from gpufleet.security.tickets import connect_key, connect_line
from inference.http_service import splicing
from tests.inference.http_service.endpoints import LINE, Reader, Writer, endpoint, read_all
from tests.inference.serving import WAIT_S_MAX, until


async def echo(reader: Reader, writer: Writer) -> None:
    """Says what it is told, and ends when the other side does."""
    while data := await reader.read(65_536):
        writer.write(data)
        await writer.drain()
    writer.write_eof()
    await reader.read()


async def nobody(reader: Reader, writer: Writer) -> None:
    raise AssertionError("somebody without the key got through")


def test_the_key_is_of_the_secret_and_the_start_and_the_line_says_it_in_hexadecimal_digits() -> None:
    key = connect_key(b"s" * 32, "a start")
    assert LINE == connect_line(key) == b"GPUFLEET " + key.hex().encode() + b"\n"
    assert len({key, connect_key(b"t" * 32, "a start"), connect_key(b"s" * 32, "another start")}) == 3


async def test_what_follows_the_key_reaches_the_program_and_its_answer_comes_back() -> None:
    async with endpoint(echo) as running, running.dial(LINE + b"begun ") as (reader, writer):
        writer.write(b"and ended")
        writer.write_eof()
        assert await read_all(reader) == b"begun and ended"
        await until(lambda: running.counts == [1, 0])
        assert (running.server.open, running.server.total, running.server.refused) == (0, 1, 0)


async def test_a_key_in_pieces_is_a_key() -> None:
    async with endpoint(echo) as running, running.dial(b"") as (reader, writer):
        for byte in LINE + b"hello":
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        assert await reader.readexactly(5) == b"hello"


@pytest.mark.parametrize(
    "begin",
    [
        connect_line(connect_key(b"t" * 32, "a start")),
        LINE.upper(),
        LINE[:-1] + b" ",
        LINE[:-1] + b"\r\n",
        LINE[:-2] + b"\n",
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"\n",
        b"\x16\x03\x01" + bytes(300),
        b"GPUFLEET " + b"0" * 64 + b"\n",
        bytes(100_000),
    ],
)
async def test_whoever_begins_otherwise_is_closed_without_an_answer(begin: bytes) -> None:
    async with endpoint(nobody) as running, running.dial(begin) as (reader, _):
        assert await read_all(reader) == b""
        await until(lambda: running.server.refused == 1)
        assert running.counts == []


@pytest.mark.parametrize("begin", [b"", LINE[:20], LINE[:-1]])
async def test_whoever_is_silent_is_closed_after_a_while(begin: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splicing, "KEY_S_MAX", 0.05)
    async with endpoint(nobody) as running, running.dial(begin) as (reader, _):
        assert await read_all(reader) == b""
        await until(lambda: running.server.refused == 1)


async def test_who_ends_before_the_key_is_forgotten() -> None:
    async with endpoint(nobody) as running, running.dial(LINE[:20]) as (reader, writer):
        writer.write_eof()
        assert await read_all(reader) == b""
        await until(lambda: running.server.refused == 1)


async def test_with_the_key_nobody_is_closed_for_being_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splicing, "KEY_S_MAX", 0.05)
    async with endpoint(echo) as running, running.dial() as (first, writer):
        await until(lambda: running.counts == [1])
        async with running.dial(b"") as (late, _):
            assert await read_all(late) == b""  # by now the deadline of the first has passed, too
        writer.write(b"still here")
        assert await first.readexactly(10) == b"still here"


async def test_large_transfers_both_ways_at_once_arrive_whole_with_a_slow_reader() -> None:
    size, piece = 20_000_000, 100_000
    data = random.Random(7).randbytes(size)

    async def program(reader: Reader, writer: Writer) -> None:
        """Sends all of it at its own speed, and answers with the hash of what came, all at once."""

        async def send() -> None:
            for at in range(0, size, piece):
                writer.write(data[at : at + piece])
                await writer.drain()

        sending = asyncio.create_task(send())
        found = hashlib.sha256()
        while got := await reader.read(1_000_000):
            found.update(got)
            await asyncio.sleep(0)
        await sending
        writer.write(found.digest())
        writer.write_eof()
        await reader.read()

    async with endpoint(program) as running, running.dial() as (reader, writer):

        async def send() -> None:
            for at in range(0, size, piece):
                writer.write(data[at : at + piece])
                await writer.drain()
            writer.write_eof()

        sending = asyncio.create_task(send())
        came = bytearray()
        async with asyncio.timeout(WAIT_S_MAX):
            while got := await reader.read(4_096 + len(came) // 8):  # slow at first
                came += got
                await asyncio.sleep(0)
            await sending
        assert bytes(came) == data + hashlib.sha256(data).digest()


@pytest.mark.parametrize("towards_the_program", [True, False])
async def test_while_one_side_does_not_read_the_other_is_held_up_and_little_is_kept(towards_the_program: bool) -> None:
    reads = asyncio.Event()
    written = 0

    async def pour(writer: Writer) -> None:
        nonlocal written
        writer.transport.set_write_buffer_limits(high=0)
        while True:
            writer.write(bytes(64_000))
            await writer.drain()
            written += 64_000

    async def program(reader: Reader, writer: Writer) -> None:
        if towards_the_program:
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            await reads.wait()
        else:
            await pour(writer)

    async with endpoint(program) as running, running.dial() as (reader, writer):
        await until(lambda: running.counts == [1])
        (side,) = running.server._open
        await until(lambda: side.other is not None)
        if towards_the_program:
            pouring = asyncio.create_task(pour(writer))
            full = side.other
        else:
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            pouring, full = None, side
        assert full is not None
        await until(lambda: full.is_full)
        held = -1
        while held != written:  # what the sockets take is the system's to say
            held = written
            for _ in range(50):
                await asyncio.sleep(0.002)
        transport = full.transport
        assert transport is not None
        assert 0 < transport.get_write_buffer_size() <= 2 * splicing.UNREAD_BYTES_MAX
        reads.set()
        if pouring is not None:
            pouring.cancel()
            await asyncio.gather(pouring, return_exceptions=True)


async def test_the_end_of_what_a_gateway_says_is_passed_on_and_the_answer_still_comes() -> None:
    async def program(reader: Reader, writer: Writer) -> None:
        asked = await reader.read()
        writer.write(b"you asked " + asked)
        await writer.drain()
        writer.write_eof()

    async with endpoint(program) as running, running.dial(LINE + b"why") as (reader, writer):
        writer.write_eof()
        assert await read_all(reader) == b"you asked why"


async def test_the_end_of_what_the_program_says_is_passed_on_and_it_still_hears() -> None:
    heard: list[bytes] = []

    async def program(reader: Reader, writer: Writer) -> None:
        writer.write(b"no more of me")
        writer.write_eof()
        heard.append(await reader.read())

    async with endpoint(program) as running, running.dial() as (reader, writer):
        assert await read_all(reader) == b"no more of me"
        writer.write(b"I hear you")
        writer.write_eof()
        await until(lambda: heard == [b"I hear you"])
        await until(lambda: running.counts == [1, 0])


async def test_a_program_that_closes_while_data_flows_ends_the_connection_after_what_it_said() -> None:
    async def program(reader: Reader, writer: Writer) -> None:
        await reader.readexactly(1)
        writer.write(b"x" * 3_000_000)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with endpoint(program) as running:
        async with running.dial(LINE + b"?") as (reader, _):
            assert await read_all(reader) == b"x" * 3_000_000
        await until(lambda: running.counts == [1, 0])


async def test_a_connection_that_breaks_off_breaks_off_at_the_other_side() -> None:
    async def program(reader: Reader, writer: Writer) -> None:
        writer.write(b"half of")
        await reader.readexactly(1)
        writer.transport.get_extra_info("socket").setsockopt(1, 13, splicing.LINGER_NOT)  # SOL_SOCKET, SO_LINGER
        writer.transport.abort()

    async with endpoint(program) as running, running.dial() as (reader, writer):
        assert await reader.readexactly(7) == b"half of"
        writer.write(b"!")
        with pytest.raises(ConnectionResetError):
            async with asyncio.timeout(WAIT_S_MAX):
                await reader.read()
        await until(lambda: running.server.open == 0)


async def test_a_gateway_that_vanishes_takes_its_connection_with_the_program_along() -> None:
    gone = asyncio.Event()

    async def program(reader: Reader, writer: Writer) -> None:
        try:
            await reader.read()
        finally:
            gone.set()

    async with endpoint(program) as running:
        async with running.dial():
            await until(lambda: running.counts == [1])
        async with asyncio.timeout(WAIT_S_MAX):
            await gone.wait()
        await until(lambda: running.counts == [1, 0])


async def test_connections_beyond_the_bound_are_closed_and_room_is_made_again() -> None:
    async with endpoint(echo, open_max=2) as running:
        async with running.dial(), running.dial():
            await until(lambda: running.server.open == 2)
            async with running.dial(LINE + b"hello") as (reader, _):
                assert await read_all(reader) == b""
        await until(lambda: running.server.open == 0)
        async with running.dial(LINE + b"hello") as (reader, _):
            assert await reader.readexactly(5) == b"hello"


async def test_strangers_are_bounded_apart_from_those_with_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splicing, "UNPROVEN_MAX", 2)
    async with endpoint(echo, open_max=10) as running:
        async with running.dial() as (known, writer), running.dial(b""), running.dial(b""):
            await until(lambda: len(running.server._unproven) == 2 and running.server.open == 1)
            async with running.dial() as (reader, _):
                assert await read_all(reader) == b""
            writer.write(b"as before")
            assert await known.readexactly(9) == b"as before"
        await until(lambda: not running.server._unproven)
        async with running.dial(LINE + b"hello") as (reader, _):
            assert await reader.readexactly(5) == b"hello"


async def test_without_a_program_there_is_an_end_and_no_answer() -> None:
    async with endpoint(echo) as running:
        running.server._program = lambda: Address("127.0.0.1", 1)
        async with running.dial(LINE + b"GET / HTTP/1.1\r\n\r\n") as (reader, _):
            assert await read_all(reader) == b""
        await until(lambda: running.counts == [1, 0])


async def test_over_tls_it_is_the_same_but_for_the_end_of_one_side() -> None:
    own = make_own_certificate("127.0.0.1")
    trusting = ssl.create_default_context(cadata=own.certificate.decode())
    size = 5_000_000

    async def program(reader: Reader, writer: Writer) -> None:
        asked = await reader.readexactly(size)
        writer.write(asked)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async with endpoint(program, tls=context_of(own)) as running:
        async with running.dial(tls=trusting) as (reader, writer):
            data = random.Random(3).randbytes(size)
            writer.write(data)
            assert await read_all(reader) == data
        async with running.dial(b"GET / HTTP/1.1\r\n\r\n", tls=trusting) as (reader, _):
            assert await read_all(reader) == b""
        async with running.dial(b"hello in clear text\n") as (reader, _):
            assert LINE[:5] not in await read_all(reader)
        await until(lambda: running.server.open == 0 and not running.server._unproven)


async def test_a_program_that_breaks_off_in_the_middle_of_an_upload_over_tls_ends_it_quietly(
    caplog: pytest.LogCaptureFixture,
) -> None:
    own = make_own_certificate("127.0.0.1")
    trusting = ssl.create_default_context(cadata=own.certificate.decode())

    async def program(reader: Reader, writer: Writer) -> None:
        await reader.readexactly(1_000_000)
        writer.transport.abort()

    async with endpoint(program, tls=context_of(own)) as running:
        async with running.dial(tls=trusting) as (_, writer):
            with pytest.raises(OSError):
                async with asyncio.timeout(WAIT_S_MAX):
                    while True:
                        writer.write(bytes(100_000))
                        await writer.drain()
                        await asyncio.sleep(0)  # uvloop takes all at once: nobody else would have a turn
        await until(lambda: running.counts == [1, 0])
    assert not [record for record in caplog.records if record.name == "asyncio" and record.levelname == "ERROR"]


async def test_what_comes_while_the_program_is_dialled_is_kept_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over TLS some may come although nothing is read."""
    async with endpoint(echo) as running, running.dial(b"") as (reader, writer):
        await until(lambda: len(running.server._unproven) == 1)
        (side,) = running.server._unproven
        for piece in (LINE + b"one ", b"two ", b"three"):
            side.data_received(piece)
        writer.write(b" four")
        assert await reader.readexactly(18) == b"one two three four"
        assert running.counts == [1]
