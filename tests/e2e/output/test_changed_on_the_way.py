"""Output of which something changes between its node and the scheduler, behind all that TCP and gRPC look at."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from gpufleet.v1 import job_pb2

from tests.e2e.fleet import Fleet

SAID, CHANGED = b"it is so and not otherwise", b"it is SO and not otherwise"
"""Some bits of one byte more or less; as long as before, so that no frame breaks."""


class Flipping:
    """Passes bytes on in both directions; what goes up is changed the first times that SAID is in one reading."""

    def __init__(self, times: int) -> None:
        self.left = times
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def before(self, address: str) -> AsyncIterator[str]:
        """The address at which it listens for who wants that one."""
        host, _, port = address.rpartition(":")

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            their_reader, their_writer = await asyncio.open_connection(host, int(port))
            with suppress(OSError, asyncio.CancelledError):  # what is cancelled is logged
                await asyncio.gather(self._pass(reader, their_writer, is_up=True), self._pass(their_reader, writer))
            for each in (writer, their_writer):
                each.close()
            self._tasks.discard(task)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        own = server.sockets[0].getsockname()[1]
        try:
            yield f"127.0.0.1:{own}"
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_up: bool = False) -> None:
        while data := await reader.read(65_536):
            if is_up and self.left and SAID in data:
                self.left -= 1
                data = data.replace(SAID, CHANGED)
            writer.write(data)
            await writer.drain()
        writer.write_eof()


async def test_output_that_came_changed_is_refused_and_comes_again_as_it_was_written(fleet: Fleet) -> None:
    flipping = Flipping(times=1)
    async with flipping.before(fleet.scheduler.address) as address:
        agent = await fleet.add_node("n1", "--virtual-gpus", "2", "--scheduler", address)
        async with fleet.client() as client:
            # In pieces: the words of the command go down, and no other message up has them whole.
            words = [f"'{SAID[at : at + 9].decode()}'" for at in range(0, len(SAID), 9)]
            job = await client.run("sh", "-c", f"printf '%s' {' '.join(words)}")
            assert (job.state, job.output_is_complete) == (job_pb2.JOB_STATE_SUCCEEDED, True)
            assert await client.stdout(job.id) == SAID
        assert flipping.left == 0, "it never saw the output"
        assert "output came changed" in fleet.scheduler.log_text()
        await agent.stop()
