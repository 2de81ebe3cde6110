"""What carries a turn's stream, of programs as people start them: the worker's local socket, or gRPC."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.carriers import LOCAL_VARIABLE
from gpufleet.net.local_stream import NAME
from tests.e2e.processes import until
from tests.gateway.stage import Side, Stage, browser

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="this system has no abstract Unix sockets")


def local_streams(worker: Side) -> int:
    """How many sockets of a worker's own streams are connected; the one that listens is none of them."""
    assert worker.process is not None
    is_connected, own = "03", set()
    for descriptor in Path(f"/proc/{worker.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed meanwhile
            own.add(str(descriptor.readlink()))
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    named = [line for line in lines if len(line) > 7 and NAME[1:] in line[7]]
    return sum(line[5] == is_connected and f"socket:[{line[6]}]" in own for line in named)


async def test_a_turn_on_one_machine_goes_over_the_workers_socket_and_none_where_that_is_off(stage: Stage) -> None:
    worker = stage.worker("near")
    await worker.is_served()
    assert local_streams(worker) == 0
    async with browser(stage) as ann:
        await ann.hello("near")
        await ann.text("turn")
        await ann.frame()
        assert local_streams(worker) == 1
        await ann.say(type="leave")
        await ann.text("end")
    await until("it is closed with the turn", lambda: local_streams(worker) == 0)

    far = stage.another_gateway("far", variables={LOCAL_VARIABLE: "off"})
    async with browser(stage, gateway=await far.address()) as bob:
        await bob.hello("near")
        await bob.text("turn")
        await bob.frame()
        assert local_streams(worker) == 0
        await bob.say(type="leave")
        await bob.text("end")
    far.end()
    worker.end()
