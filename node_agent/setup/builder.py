"""The process above a build: it starts it as a job is started, waits for its end, and ends it when its agent has gone.

`python -m …builder LOCK` reads an order, a line of JSON, and goes on while its standard input is open. What the build
writes goes to its own output; its exit code is the build's. The descriptor LOCK is held until nothing of it is left.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys
from pathlib import Path

from ..control_groups.group import Group, make, remove
from ..core.launch import SPACE_PATH, Process
from ..keeper.isolated import IsolatedSupervisor
from ..keeper.jail import make_space
from ..keeper.spawn import Spawner
from ..keeper.supervisor import Supervisor, fork_supervisor
from ..keeper.values import process_from, process_to
from ..keeper.wire import Json, Received, send

PROGRAM = __name__

NOT_STARTED = 125
"""The exit code where the build was not started; the last line says why."""

GROUP_TRIES = 2
"""A group that a killed builder has left is removed, and made anew."""


def run(order: Json, lock_fd: int) -> int:
    """Build; answers the exit code, as a shell has it."""
    import json  # noqa: F401 - what the supervisor needs is loaded before it is forked

    process = process_from(order["process"])
    space, stage, name = str(order["space"]), str(order["stage"]), str(order["group_name"])
    spawner = Spawner()
    is_isolated = process.isolation is not None
    if process.isolation is not None:
        for folder in (stage, SPACE_PATH):
            Path(folder).mkdir(0o755, parents=True, exist_ok=True)
        make_space(space, process.isolation)

    def be(its: socket.socket) -> None:
        (IsolatedSupervisor(its, spawner, stage) if is_isolated else Supervisor(its, spawner)).run()

    group = _group(process, name)
    try:
        _, channel = fork_supervisor({1, 2, lock_fd, spawner.home_fd}, be, is_isolated=is_isolated)
        entrances = [] if group is None else group.entrances()
        told = {**process_to(process), "space": space, "entrances": len(entrances)}
        send(channel, {"spawn": told}, (1, 2, *entrances))
        for fd in entrances:
            os.close(fd)
        return _waited(channel, group)
    finally:
        if group is not None:
            group.end()
            remove(group.places)


def _waited(channel: socket.socket, group: Group | None) -> int:
    """Wait for the build, or for the agent's end: then its supervisor finds itself alone, and ends it."""
    received = Received(channel)
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    poll.register(0, select.POLLIN)
    while True:
        if not received.has_more:  # what was read tells the poll nothing any more
            ready = {fd for fd, _ in poll.poll()}
            if 0 in ready and not os.read(0, 4096):
                channel.close()
                return NOT_STARTED
            if channel.fileno() not in ready:
                continue
        message = received.next()
        if message is None:
            print("the supervisor of the build has died", flush=True)
            return NOT_STARTED
        for fd in received.take_descriptors():
            os.close(fd)
        if problem := message.get("refused") or message.get("not_run"):
            print(problem["detail"], flush=True)
            return NOT_STARTED
        if "exit" in message:
            return _code(message["exit"]["status"], group)


def _code(wait_status: int, group: Group | None) -> int:
    shortage = None if group is None else group.shortage()
    if shortage is not None and shortage.oom_kills:
        print(f"the kernel ended {shortage.oom_kills:,} of its processes, out of memory", flush=True)
    code = os.waitstatus_to_exitcode(wait_status)
    return 128 - code if code < 0 else code


def _group(process: Process, name: str) -> Group | None:
    if process.group is None:
        return None
    asked = process.group
    for left in range(GROUP_TRIES - 1, -1, -1):
        try:
            return make(asked, asked.folders, name)
        except FileExistsError:
            remove({f"{parent}/{name}" for parent in asked.folders.values()})
            if not left:
                raise
    raise AssertionError("it was made, or that was said")


if __name__ == "__main__":
    lock = int(sys.argv[1])
    os.set_inheritable(lock, False)
    try:
        code = run(json.loads(sys.stdin.buffer.readline()), lock)
    except OSError as error:
        print(f"the build cannot be started: {error}", flush=True)
        code = NOT_STARTED
    os._exit(code)
