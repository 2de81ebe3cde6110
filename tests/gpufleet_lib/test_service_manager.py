"""What a program says to the systemd that started it, heard at the socket that it is named."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.host.service_manager import ServiceManager


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind(str(tmp_path / "notify"))
        line.settimeout(60)
        yield line


def environment(heard: socket.socket, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": heard.getsockname(), "HOME": "/"} | more


def test_what_it_says_comes_as_lines_of_a_datagram(heard: socket.socket) -> None:
    manager = ServiceManager(environment(heard))
    manager.not_yet("waits", 1.5)
    manager.ready("serving\nat 1:2")
    manager.status("x" * 1000)
    manager.stopping()
    assert heard.recv(4096) == b"EXTEND_TIMEOUT_USEC=1500000\nSTATUS=waits"
    assert heard.recv(4096) == b"READY=1\nSTATUS=serving at 1:2"
    assert heard.recv(4096) == b"STATUS=" + b"x" * 200
    assert heard.recv(4096) == b"STOPPING=1"


def test_what_it_starts_does_not_speak_for_it(heard: socket.socket) -> None:
    given = environment(heard, WATCHDOG_USEC="1000", WATCHDOG_PID=str(os.getpid()))
    ServiceManager(given)
    assert given == {"HOME": "/"}


def test_an_abstract_socket_is_found() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        line.bind(f"\0gpufleet-test-{os.getpid()}")
        line.settimeout(60)
        ServiceManager({"NOTIFY_SOCKET": f"@gpufleet-test-{os.getpid()}"}).stopping()
        assert line.recv(100) == b"STOPPING=1"


def test_nobody_is_told_where_nobody_asked_and_a_listener_that_left_is_no_trouble(tmp_path: Path) -> None:
    ServiceManager({}).ready("")
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready("")


def test_a_watchdog_of_another_process_is_not_ours(heard: socket.socket) -> None:
    assert ServiceManager(environment(heard, WATCHDOG_USEC="1000", WATCHDOG_PID="1")).watchdog_seconds == 0


async def test_it_lives_only_while_what_must_move_moves(heard: socket.socket) -> None:
    heard.setblocking(False)
    asked, stands = asyncio.Semaphore(0), asyncio.Event()
    count = 0

    async def moves() -> None:
        nonlocal count
        count += 1
        if count == 3:
            asked.release()
            await stands.wait()

    watching = asyncio.create_task(ServiceManager(environment(heard, WATCHDOG_USEC="3000")).watch(moves))
    async with asyncio.timeout(60):
        await asked.acquire()
    said = [heard.recv(100), heard.recv(100)]
    assert said == [b"WATCHDOG=1", b"WATCHDOG=1"]
    with pytest.raises(BlockingIOError):
        heard.recv(100)
    stands.set()
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
