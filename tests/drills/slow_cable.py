"""A long line: a process that owns both ends of a cable, and hands on what goes in when its time has come.

    port of the machine ── bridge of its own ── tap ═ this program ═ tap ── the switch's bridge

Run as a program, in the namespace of the switch: `slow_cable.py TAP TAP MILLISECONDS`. The taps live as long as it.
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import sys
import time
from collections import deque

TUN = "/dev/net/tun"
TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
FRAME_BYTES_MAX = 65_536
HELD_FRAMES_MAX = 20_000
"""A line holds so many frames each way; what comes on top is lost, as on a real one."""


def open_tap(name: str) -> int:
    """Make the device; it is gone when the descriptor is closed."""
    descriptor = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH14x", name.encode(), IFF_TAP | IFF_NO_PI))
    return descriptor


class Way:
    """One direction."""

    def __init__(self, source: int, target: int, delay_seconds: float) -> None:
        self._source = source
        self._target = target
        self._delay_seconds = delay_seconds
        self._held: deque[tuple[float, bytes]] = deque()

    @property
    def due(self) -> float | None:
        """When the next frame comes out."""
        return self._held[0][0] if self._held else None

    def take(self) -> None:
        """Take all frames that have come."""
        while True:
            try:
                frame = os.read(self._source, FRAME_BYTES_MAX)
            except OSError:  # none any more, or the device is down
                return
            if len(self._held) < HELD_FRAMES_MAX:
                self._held.append((time.monotonic() + self._delay_seconds, frame))

    def give(self) -> None:
        """Hand on what is due."""
        now = time.monotonic()
        while self._held and self._held[0][0] <= now:
            try:
                os.write(self._target, self._held.popleft()[1])
            except OSError:  # full, or the device is down: the frame is lost
                return


def main() -> None:
    near, far, milliseconds = sys.argv[1:]
    one, other = open_tap(near), open_tap(far)
    ways = (Way(one, other, float(milliseconds) / 1000), Way(other, one, float(milliseconds) / 1000))
    while True:
        dues = [way.due for way in ways if way.due is not None]
        select.select([one, other], [], [], max(0.0, min(dues) - time.monotonic()) if dues else None)
        for way in ways:
            way.take()
            way.give()


if __name__ == "__main__":
    main()
