"""One address that opens many sockets and says nothing on them: `python -m bench.sessions.storm GATEWAY`.

Says when it begins, how many stay, and ends at the end of its input.
"""

import asyncio
import sys
from contextlib import suppress

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException
from websockets.protocol import State

SOCKETS, AT_ONCE = 5_000, 100
ADDRESS = ("127.0.0.2", 0)
"""Another one than that of who watches meanwhile."""


async def _storm(gateway: str) -> None:
    opened: list[ClientConnection] = []

    async def dial() -> None:
        with suppress(OSError, WebSocketException, TimeoutError):
            opened.append(await connect(f"ws://{gateway}/ws", proxy=None, local_addr=ADDRESS))

    print("begin", flush=True)
    for _ in range(SOCKETS // AT_ONCE):
        await asyncio.gather(*(dial() for _ in range(AT_ONCE)))
    print(sum(each.state is State.OPEN for each in opened), flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_storm(sys.argv[1]))
