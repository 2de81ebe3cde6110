"""What SIGTERM and SIGINT do to a program of this room."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable


def on_signals(stop: Callable[[], None]) -> None:
    """Call `stop` on the running loop whenever this process is asked to end."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, stop)
        except NotImplementedError:  # Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop))
