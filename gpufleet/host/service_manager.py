"""What a program tells systemd that started it: that it is ready, what it does, that it lives, that it leaves.

The protocol is sd_notify(3), datagrams to the socket that NOTIFY_SOCKET names; nothing is said where nobody asked for
it. The variables are taken out of this process's environment, so that neither keepers nor jobs speak for the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Awaitable, Callable, MutableMapping

_log = logging.getLogger(__name__)

SOCKET_VARIABLE, WATCHDOG_VARIABLE, WATCHDOG_PID_VARIABLE = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"

BEATS_PER_WATCHDOG = 3
"""Signs of life within the time after which systemd would end the program."""

STATUS_CHARACTERS_MAX = 200


class ServiceManager:
    """Who started this program, if it wants to be told anything."""

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        self._address = environment.pop(SOCKET_VARIABLE, "")
        watchdog_us, pid = environment.pop(WATCHDOG_VARIABLE, ""), environment.pop(WATCHDOG_PID_VARIABLE, "")
        is_for_us = pid in ("", str(os.getpid()))
        self.watchdog_seconds = int(watchdog_us) / 1e6 if watchdog_us.isdecimal() and is_for_us else 0.0
        """After so long without a sign of life this program is ended and started again; 0: never."""

    def ready(self, status: str) -> None:
        """It serves."""
        self._send("READY=1", _status(status))

    def status(self, status: str) -> None:
        """A line for `systemctl status`."""
        self._send(_status(status))

    def not_yet(self, status: str, seconds: float) -> None:
        """It is not ready, for a reason of its own, and will say so again or be ready within so many seconds."""
        self._send(f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}", _status(status))

    def stopping(self) -> None:
        """It leaves, as it was told to or by itself."""
        self._send("STOPPING=1")

    async def watch(self, moves: Callable[[], Awaitable[object]] | None = None) -> None:
        """Say again and again that the program lives, each time once `moves` has answered; for ever.

        This coroutine stands still with its event loop, and with what `moves` waits for; then systemd acts.
        """
        if not self._address or not self.watchdog_seconds:
            await asyncio.Event().wait()
        while True:
            if moves is not None:
                await moves()
            self._send("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_seconds / BEATS_PER_WATCHDOG)

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        # Of an abstract socket the first byte is nul, which no variable can hold.
        address = f"\0{self._address[1:]}" if self._address.startswith("@") else self._address
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)) as line:
            line.setblocking(False)
            try:
                line.sendto("\n".join(lines).encode(), address)
            except OSError as problem:
                _log.debug("systemd was not told %s: %s", lines[0], problem.strerror)


def _status(text: str) -> str:
    return "STATUS=" + text.replace("\n", " ")[:STATUS_CHARACTERS_MAX]
