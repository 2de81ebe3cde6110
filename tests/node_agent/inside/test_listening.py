"""Whose a port is, as the kernel and /proc tell it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest

from node_agent.inside import listeners
from node_agent.inside.listeners import ListeningSocket, listeners_on
from node_agent.inside.listening import NotListening, doors_of, is_still

LISTEN = (
    "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"
)


@pytest.fixture
def foreign() -> Iterator[tuple[int, int]]:
    """A process that listens, as (pid, port)."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", LISTEN], stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None and process.stdout is not None
        yield process.pid, int(process.stdout.readline())
        process.stdin.close()


@pytest.mark.parametrize(
    ("family", "host", "address"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.1"),
        (socket.AF_INET, "0.0.0.0", "0.0.0.0"),
        (socket.AF_INET6, "::", "::"),
        (socket.AF_INET6, "::1", "::1"),
        (socket.AF_INET6, "::ffff:127.0.0.1", "127.0.0.1"),
    ],
)
def test_the_kernel_and_proc_say_the_same_of_a_socket(
    monkeypatch: pytest.MonkeyPatch, family: socket.AddressFamily, host: str, address: str
) -> None:
    with socket.socket(family) as own:
        own.bind((host, 0))
        port = own.getsockname()[1]
        assert listeners_on(port) == [], "it does not listen yet"
        own.listen()
        (asked,) = listeners_on(port)
        assert (str(asked.address), asked.inode) == (address, os.fstat(own.fileno()).st_ino)
        with monkeypatch.context() as without:
            without.setattr(listeners, "NETLINK_SOCK_DIAG", 31)  # a protocol that no kernel has
            assert listeners_on(port) == [asked]
            without.setattr(listeners, "TABLES", (Path("/nowhere"),))
            with pytest.raises(FileNotFoundError):
                listeners_on(port)
    assert listeners_on(port) == []


def test_a_door_is_of_the_process_that_holds_the_socket_and_of_no_other(foreign: tuple[int, int]) -> None:
    pid, port = foreign
    (door,) = doors_of(port, pid)
    assert door.address == "127.0.0.1" and is_still(door, port)
    with pytest.raises(NotListening, match="no process of the job"), subprocess.Popen(["sleep", "600"]) as other:
        try:
            doors_of(port, other.pid)
        finally:
            other.kill()
    with pytest.raises(NotListening, match="nothing does"):
        doors_of(1, pid)
    with pytest.raises(NotListening):
        doors_of(port, 2**22 + 1)  # no process has such a number


def test_a_door_is_another_one_as_soon_as_another_socket_answers() -> None:
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as own:
        port = own.getsockname()[1]
        (door,) = doors_of(port, os.getpid())
        with socket.create_server(("127.0.0.1", port), reuse_port=True):
            assert not is_still(door, port)
        assert is_still(door, port)
    assert not is_still(door, port)


def test_a_wildcard_takes_what_no_narrower_one_does() -> None:
    four, six = (ip_address(each) for each in ("0.0.0.0", "::"))
    one, local = (ip_address(each) for each in ("::1", "127.0.0.1"))
    assert ListeningSocket(four, 1).takes(local) and not ListeningSocket(four, 1).takes(one)
    assert ListeningSocket(six, 1).takes(local) and ListeningSocket(six, 1).takes(one)
    assert ListeningSocket(local, 1).takes(local) and not ListeningSocket(local, 1).takes(one)
