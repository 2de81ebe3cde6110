"""What carries a turn's stream, of programs as people start them: the worker's local socket, or gRPC."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gateway.carriers import LOCAL_VARIABLE
from gpufleet.net.local_stream import NAME
from tests.e2e.processes import until
from tests.gateway.stage import Stage, browser

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="this system has no abstract Unix sockets")


def local_streams() -> list[str]:
    """The names of the sockets of workers' streams; one that listens is none of them."""
    is_connected = "03"
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return [line[7] for line in lines if len(line) > 7 and NAME[1:] in line[7] and line[5] == is_connected]


async def test_a_turn_on_one_machine_goes_over_the_workers_socket_and_none_where_that_is_off(stage: Stage) -> None:
    worker = stage.worker("near")
    await worker.is_served()
    before = set(local_streams())
    async with browser(stage) as ann:
        await ann.hello("near")
        await ann.text("turn")
        await ann.frame()
        assert len(set(local_streams()) - before) == 1
        assert worker.process is not None
        await ann.say(type="leave")
        await ann.text("end")
    await until("it is closed with the turn", lambda: set(local_streams()) == before)

    far = stage.another_gateway("far", variables={LOCAL_VARIABLE: "off"})
    async with browser(stage, gateway=await far.address()) as bob:
        await bob.hello("near")
        await bob.text("turn")
        await bob.frame()
        assert set(local_streams()) == before
        await bob.say(type="leave")
        await bob.text("end")
    far.end()
    worker.end()
