"""Hold a live session with a model for some seconds, as the page does, and tell how fast it is.

    python session.py HOST:PORT MODEL [SECONDS]

HOST:PORT is the gateway. What is said between the two is in docs/web-protocol.md.
"""

from __future__ import annotations

import asyncio
import json
import math
import struct
import sys
import time

from websockets.asyncio.client import connect

FRAME = struct.Struct(">BBHHHIII")
"""Version, encoding, width, height, zero, number, newest input shown, microseconds of the model."""

STROKE_S = 0.1
"""A click, as often as this: each is looked for in the frames."""

WAIT_S_MAX = 60.0


async def hold(address: str, model: str, seconds: float) -> str:
    """One session; answers what it was like, in a sentence."""
    async with connect(f"ws://{address}/ws", proxy=None) as socket:
        await socket.send(json.dumps({"type": "hello", "version": 1, "model": model, "encodings": ["jpeg"]}))
        async with asyncio.timeout(WAIT_S_MAX):
            while True:
                said = json.loads(text) if isinstance(text := await socket.recv(), str) else {}
                if said.get("type") == "end":
                    raise SystemExit(f"the session ended: {said['message']}")
                if said.get("type") == "turn":
                    break
        clicks: dict[int, float] = {}
        drawing = asyncio.create_task(draw(socket, clicks))
        latencies_ms: list[float] = []
        frames, size, computed_us, begin = 0, "", 0, time.perf_counter()
        while time.perf_counter() - begin < seconds:
            message = await socket.recv()
            if isinstance(message, str):
                continue
            _, _, width, height, _, number, newest, model_us = FRAME.unpack_from(message)
            now = time.perf_counter()
            latencies_ms += [(now - clicks.pop(seq)) * 1e3 for seq in [*clicks] if seq <= newest]
            frames, size, computed_us = frames + 1, f"{width}×{height}", computed_us + model_us
            await socket.send(json.dumps({"type": "shown", "frame": number}))
        drawing.cancel()
        await socket.send(json.dumps({"type": "leave"}))
    if not latencies_ms or not frames:
        raise SystemExit("no frame showed a click")
    latencies_ms.sort()
    middle, late = latencies_ms[len(latencies_ms) // 2], latencies_ms[len(latencies_ms) * 99 // 100]
    return (
        f"{model}, {size}: {frames / seconds:.0f} frames a second; from a click to its frame {middle:.0f} ms, "
        f"99 of 100 within {late:.0f} ms; {computed_us / frames / 1e3:.1f} ms of the model for each frame"
    )


async def draw(socket: object, clicks: dict[int, float]) -> None:
    """Click along a circle."""
    for seq in range(1, 1_000_000):
        x, y = 0.5 + 0.3 * math.cos(seq / 5), 0.5 + 0.3 * math.sin(seq / 5)
        said = {"type": "pointer", "seq": seq, "x": x, "y": y, "buttons": seq % 2, "button_change": True}
        clicks[seq] = time.perf_counter()
        await socket.send(json.dumps(said))  # type: ignore[attr-defined]
        await asyncio.sleep(STROKE_S)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        raise SystemExit(__doc__)
    print(asyncio.run(hold(sys.argv[1], sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else 5.0)))
