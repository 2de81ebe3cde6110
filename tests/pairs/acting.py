"""What is done with a job while it stays: another command in it, bytes through its port, and changes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.e2e.processes import POLL_SECONDS, until
from tests.pairs.features import Row
from tests.pairs.oracle import Sight
from tests.pairs.site import Person
from tests.pairs.typed import Places
from tests.ports import kept_port

EXECUTED = 'echo "rank $GPUFLEET_NODE_RANK, ${PAIRS_VARIABLE:-none}, ${PAIRS_SECRET:-none}"'

Action = Callable[[Row, Places, Person, int], Awaitable[Sight]]


def one_of(row: Row, job: int) -> str:
    """The job, or the first item of an array, which is one job."""
    return f"{job}.1" if row.array == "yes" else str(job)


async def execute(row: Row, at: Places, person: Person, job: int) -> Sight:
    """Run another command in the job; of a gang in its last rank."""
    rank = "1" if row.nodes == "two" else "0"
    done = await person.type("exec", "--rank", rank, one_of(row, job), "--", "sh", "-c", EXECUTED)
    return {"exec": (done.code, done.out or done.err)}


async def forward(row: Row, at: Places, person: Person, job: int) -> Sight:
    """Read what the job sends at its port."""
    here = kept_port()
    command = ("forward", one_of(row, job), f"{at.port}:{here}")
    forwarding = asyncio.create_task(person.type(*command, stays=True))
    said = b""

    async def is_read() -> bool:
        nonlocal said
        assert not forwarding.done(), forwarding.result()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", here)
        except OSError:
            await asyncio.sleep(POLL_SECONDS)
            return False
        writer.write(b"\n")
        try:
            said = await reader.read(100)
        except OSError:
            return False
        finally:
            writer.close()
        return bool(said)

    try:
        await until("the port is read", is_read)
    finally:
        forwarding.cancel()
        await asyncio.gather(forwarding, return_exceptions=True)
    return {"forward": said.decode()}


async def update(row: Row, at: Places, person: Person, job: int) -> Sight:
    """Change the job while it runs."""
    what = ("--name", at.newest_name(row)) if row.update == "name" else ("--time-limit", "30m")
    done = await person.type("update", *what, str(job))
    return {"update": (done.code, done.err)}


ACTIONS: dict[str, Action] = {"executes": execute, "forward": forward, "update": update}
"""By the feature that wants it."""
