"""Tells one notice: runs a shell line, or posts JSON to a URL. Everything here ends within a bound that has a name."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import ssl
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping
from urllib.parse import urlsplit

COMMAND_SECONDS_MAX = 60.0
"""A command that runs longer is killed, and with it what it has started in its process group."""

COMMAND_OUTPUT_BYTES_MAX = 4_096
"""So much of what a command prints goes to the agent's log."""

POST_SECONDS_MAX = 10.0
"""A server that has not answered by then has not answered."""

TRIES_MAX = 4
RETRY_SECONDS = 1.0
"""A URL is tried so often; the pauses between begin with this and double."""

STATUS_LINE_BYTES_MAX = 1_024


class NotTold(Exception):
    """A notice was not delivered; the text says why, without what is secret in a URL."""


async def run_command(line: str, cwd: str, env: Mapping[str, str]) -> str:
    """Run a line with /bin/sh and answer the beginning of what it prints. NotTold when it fails or takes too long.

    It is over when the shell has ended: what it leaves in the background goes on, without an output.
    """
    loop = asyncio.get_running_loop()
    ours, its = os.pipe()
    os.set_blocking(ours, False)
    printed = bytearray()
    try:
        try:
            process = await asyncio.create_subprocess_exec(
                "/bin/sh", "-c", line, cwd=cwd, env=env, stdin=DEVNULL, stdout=its, stderr=its, start_new_session=True
            )
        except (OSError, ValueError) as problem:
            raise NotTold(f"it cannot be run: {problem}") from None
        finally:
            os.close(its)
        loop.add_reader(ours, _read, loop, ours, printed)
        code = await _end_of(process)
        _read(loop, ours, printed)
    finally:
        loop.remove_reader(ours)
        os.close(ours)
    said = printed.decode(errors="replace").strip()
    if code != 0:
        raise NotTold(f"it ended with code {code}" + (f": {said!r}" if said else ""))
    return said


async def _end_of(process: Process) -> int:
    try:
        async with asyncio.timeout(COMMAND_SECONDS_MAX):
            return await process.wait()
    except TimeoutError:
        raise NotTold(f"it had not ended after {COMMAND_SECONDS_MAX:.0f} s, and was killed") from None
    finally:
        if process.returncode is None:
            # Not reaped yet, so that the number still is its own.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def _read(loop: asyncio.AbstractEventLoop, fd: int, printed: bytearray) -> None:
    """Take what is there, keep the first of it: a full pipe would hold the command up."""
    try:
        data = os.read(fd, 65_536)
    except BlockingIOError:
        return
    if not data:
        loop.remove_reader(fd)
    printed += data[: COMMAND_OUTPUT_BYTES_MAX - len(printed)]


async def post(url: str, fields: Mapping[str, str | int | bool]) -> None:
    """Post the fields as JSON, again after a while where that may help. NotTold when it never worked."""
    pause_s = RETRY_SECONDS
    problem = ""
    for left in reversed(range(TRIES_MAX)):
        try:
            async with asyncio.timeout(POST_SECONDS_MAX):
                status = await _post_once(url, json.dumps(fields).encode())
        except TimeoutError:
            problem = f"there was no answer within {POST_SECONDS_MAX:.0f} s"
        except (OSError, ValueError, EOFError) as error:
            problem = f"{type(error).__name__}: {error}"
        else:
            if 200 <= status < 300:
                return
            problem = f"the answer was {status}"
            if status < 500 and status not in (408, 429):
                raise NotTold(problem)
        if left:
            await asyncio.sleep(pause_s)
            pause_s *= 2
    raise NotTold(f"{problem}, {TRIES_MAX} times")


def shown(url: str) -> str:
    """A URL for a log: what follows the host may be a secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}"


async def _post_once(url: str, body: bytes) -> int:
    """One request over a connection of its own, which ends with the task; answers the status."""
    parts = urlsplit(url)
    is_secure = parts.scheme.lower() == "https"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nUser-Agent: gpufleet\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(
        parts.hostname,
        parts.port or (443 if is_secure else 80),
        ssl=ssl.create_default_context() if is_secure else None,
        limit=STATUS_LINE_BYTES_MAX,
    )
    try:
        writer.write(head.encode("ascii") + body)
        await writer.drain()
        line = await reader.readline()
    finally:
        writer.transport.abort()
    words = line.split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise ValueError("that is no HTTP server")
    return int(words[1])
