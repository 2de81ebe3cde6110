"""Servers that a measurement starts: a port for one, and its process for the length of a block."""

import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

START_S_MAX = 60.0


def free_port() -> int:
    """One that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@contextmanager
def running(command: Sequence[str], port: int, folder: Path) -> Iterator[None]:
    """A server, from when it listens."""
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_S_MAX
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            if time.monotonic() > deadline:
                raise TimeoutError(f"{command[0]} did not listen")
            time.sleep(0.02)
        yield
    finally:
        process.terminate()
        process.wait()
