"""ssh answered by this process, where the job's node or its image has no sshd: what ssh says comes on standard input.

Nothing of it goes to the job: between here and there are the calls of `gpuctl exec` and `gpuctl forward`. Needs the
`ssh` extra.
"""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from io import FileIO

import asyncssh

from gpufleet.fleet.async_client import connected_async
from gpufleet.fleet.settings import Settings

from ..attaching.keyboard import STDIN, STDOUT
from .executing import write_out
from .ssh_keys import HostKeys, own_key
from .ssh_sessions import JobServer

READ_BYTES = 64 * 1024
"""So much is read at once of what ssh says, and of what it is told; as much again may wait."""

LAST_S_MAX = 2.0
"""How long ssh may take to hear what it was told last."""


async def answer(settings: Settings, job_id: int, rank: int, keys: HostKeys) -> int:
    """Be the server that ssh speaks with, until it hangs up; answers the exit code."""
    near, far = socket.socketpair()
    with near, far:
        async with connected_async(settings) as client:
            carrying = asyncio.create_task(_carry(far))
            try:
                connection = await asyncssh.run_server(
                    near,
                    server_factory=partial(JobServer, client, job_id, rank),
                    server_host_keys=[str(keys.private)],
                    authorized_client_keys=asyncssh.import_authorized_keys(own_key().with_suffix(".pub").read_text()),
                    encoding=None,
                    line_editor=False,
                    agent_forwarding=False,
                )
                async with connection:
                    await connection.wait_closed()
                return 0
            except (OSError, asyncssh.Error):
                return 1  # ssh knows why, or is gone
            finally:
                await asyncio.wait({carrying}, timeout=LAST_S_MAX)
                carrying.cancel()
                await asyncio.gather(carrying, return_exceptions=True)


async def _carry(channel: socket.socket) -> None:
    """Carry between standard input and output and the server, until ssh or the server has hung up."""
    reader, writer = await asyncio.open_connection(sock=channel, limit=READ_BYTES)
    loop, typed = asyncio.get_running_loop(), asyncio.StreamReader(READ_BYTES)
    with FileIO(STDIN, closefd=False) as pipe:
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(typed), pipe)

        async def carry_up() -> None:
            while data := await typed.read(READ_BYTES):
                writer.write(data)
                await writer.drain()
            writer.write_eof()

        sending = asyncio.create_task(carry_up())
        try:
            while data := await reader.read(READ_BYTES):
                await write_out(STDOUT, data)
        finally:
            sending.cancel()
            transport.close()
            writer.close()
            await asyncio.gather(sending, writer.wait_closed(), return_exceptions=True)
