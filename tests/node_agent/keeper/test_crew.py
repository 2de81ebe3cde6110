"""What the keeper takes in of its supervisors, without any."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from node_agent.keeper.crew import Crew, Watch
from node_agent.keeper.reactor import Reactor
from node_agent.keeper.wire import send


class Turns:
    """A reactor whose turn ends when the test says so."""

    def __init__(self) -> None:
        self._after_turn: dict[Callable[[], None], None] = {}

    def call_when_readable(self, fd: int, callback: Callable[[], None]) -> None:
        """The test says when something is read."""

    def call_after_turn(self, callback: Callable[[], None]) -> None:
        self._after_turn[callback] = None

    def finish(self) -> None:
        while self._after_turn:
            callback = next(iter(self._after_turn))
            del self._after_turn[callback]
            callback()


@pytest.fixture
def channel() -> Iterator[tuple[socket.socket, socket.socket]]:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    near.setblocking(False)
    with near, far:
        yield near, far


def test_a_supervisor_that_was_killed_after_its_leader_ended_tells_the_end_of_its_attempt_once(
    channel: tuple[socket.socket, socket.socket],
) -> None:
    near, far = channel
    turns, told = Turns(), []
    watch = Watch(1, near, cast(Reactor, turns), cast(Crew, None))
    watch.is_done = False  # as once a command runs below it
    watch.changed = lambda: told.append((watch.exit, watch.is_done))
    send(far, {"exit": {"status": 0, "cpu_us": 1, "max_rss_bytes": 2}})
    watch.died()
    watch.left_alone(None)
    turns.finish()
    assert len(told) == 1, told
    assert watch.exit is not None and watch.exit.wait_status == 0 and watch.is_done
