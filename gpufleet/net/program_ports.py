"""The port of loopback on which a served program is reached: chosen, looked at, and told to the program."""

from __future__ import annotations

import os
import random
import re
import socket
from collections.abc import Container, Sequence

from gpufleet.errors import GpufleetError, Reason

LOOPBACK = "127.0.0.1"

PORT_FIRST, PORT_LAST = 10_240, 19_999
"""Programs are given ports below those that systems give to whoever asks for any: nobody takes one by chance."""

PORTS_TRIED_MAX = 1_000


def choose_port(but: Container[int] = ()) -> int:
    """A port of 127.0.0.1 that nobody listens on, and none of `but`. Raises PORT_TAKEN when there is none."""
    for _ in range(PORTS_TRIED_MAX):
        port = random.randint(PORT_FIRST, PORT_LAST)
        if port not in but and not is_port_taken(port):
            return port
    raise GpufleetError(Reason.PORT_TAKEN, f"no port of {PORT_FIRST} to {PORT_LAST} is free")


def is_port_taken(port: int) -> bool:
    """Whether somebody listens on this port of 127.0.0.1."""
    with socket.socket() as trial:
        if os.name == "posix":  # elsewhere it would mean that a port is shared
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((LOOPBACK, port))
        except OSError:
            return True
    return False


def with_port(argv: Sequence[str], variable: str, port: int) -> tuple[str, ...]:
    """The words of a command with the port in place of `$VARIABLE` and `${VARIABLE}`."""
    names = re.compile(rf"\$(?:{re.escape(variable)}(?![A-Za-z0-9_])|\{{{re.escape(variable)}\}})")
    return tuple(names.sub(str(port), word) for word in argv)
