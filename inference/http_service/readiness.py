"""Asks a program whether it is well: whether its port is open, and what its ready path answers."""

from __future__ import annotations

import asyncio
import re

ANSWER_S_MAX = 2.0
"""How long a probe may take, from the dial to the status line."""

STATUS_LINE_BYTES_MAX = 1_024

STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: [^\r\n]*)?\r\n")


HANGS_UP_S = 0.2
"""Who forwards a port takes connections for a program that does not listen, and has hung up by then."""


async def probe(host: str, port: int, path: str, *, forwarded_to: str = "") -> str:
    """Why the program is not well, in a clause; empty where it is. Without a path an open port is enough.

    `forwarded_to`: the port is forwarded, to this one in words: it is open where a connection stays open.
    """
    what = f"GET {path}" if path else forwarded_to or f"{host}:{port}"
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            try:
                reader, writer = await asyncio.open_connection(host, port, limit=STATUS_LINE_BYTES_MAX)
            except OSError:
                return f"waits for {forwarded_to or f'{host}:{port}'} to open"
            try:
                if path:
                    return await _ask(reader, writer, f"{host}:{port}", path, forwarded_to)
                is_closed = bool(forwarded_to) and await _has_hung_up(reader)
                return f"waits for {forwarded_to} to open" if is_closed else ""
            finally:
                writer.transport.abort()
    except TimeoutError:
        return f"{what} does not answer within {ANSWER_S_MAX:g} s"


async def _has_hung_up(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(HANGS_UP_S):
            return not await reader.read(1)
    except TimeoutError:
        return False
    except OSError:
        return True


async def _ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, path: str, forwarded_to: str
) -> str:
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode("ascii"))
        line = await reader.readuntil(b"\n")
    except asyncio.LimitOverrunError:
        return f"GET {path} is not answered in HTTP"
    except (asyncio.IncompleteReadError, OSError):
        maybe = f"; maybe nothing listens on {forwarded_to}" if forwarded_to else ""
        return f"GET {path}: the connection was closed without an answer{maybe}"
    found = STATUS_LINE.fullmatch(line)
    if found is None:
        return f"GET {path} is not answered in HTTP"
    return "" if 200 <= int(found[1]) <= 399 else f"GET {path} answers {found[1].decode()}"
