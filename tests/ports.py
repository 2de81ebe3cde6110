"""Ports for programs that are started again where they were, which nobody else is given meanwhile."""

from __future__ import annotations

import os
import random
import socket

FIRST, LAST = 20_000, 30_000
"""Not of the range from which systems give a port to whoever asks for any."""

_given: set[int] = set()


def kept_port() -> int:
    """A port of 127.0.0.1 that is free now. Of the processes that tests run in each has ports of its own."""
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    while True:
        port = random.randrange(FIRST + process, LAST, count)
        if port in _given:
            continue
        with socket.socket() as trial:
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port
