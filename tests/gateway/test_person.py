"""One person's texts, in the order in which things happened. The WebSocket is a fake that can be full."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

from gpufleet.v1 import inference_pb2, sessions_pb2

from gateway.carriers import Down
from gateway.lines import Response
from gateway.person import Person


class Full:
    """A WebSocket that takes nothing until it is told to."""

    def __init__(self) -> None:
        self.takes = asyncio.Event()
        self.taken: list[str] = []

    async def send_text(self, text: str) -> None:
        await self.takes.wait()
        self.taken.append(json.loads(text)["type"])

    async def send_bytes(self, data: bytes) -> None:
        await self.takes.wait()
        self.taken.append("frame")


async def test_a_place_that_waits_to_be_sent_is_told_before_the_turn_that_followed_it() -> None:
    socket = Full()
    person = Person(cast(Any, socket), "ann", cast(Any, None), cast(Any, None), 1.0)
    telling = asyncio.create_task(person._tell())
    person.on_told(Response(place=sessions_pb2.PlaceInfo(place=1, line_length=1)))
    person._turn = turn = cast(Any, object())

    async def worker_speaks() -> None:
        await person._on_worker_said(turn, Down(opened=inference_pb2.TurnOpened(session="s1", encoding="jpeg")))
        await person._on_worker_said(turn, Down(frame=inference_pb2.Frame(sequence=1, encoding="jpeg")))

    speaking = asyncio.create_task(worker_speaks())
    await asyncio.sleep(0)
    socket.takes.set()
    await speaking
    telling.cancel()
    await asyncio.gather(telling, return_exceptions=True)
    assert socket.taken == ["place", "turn", "frame"]
