"""What keeper and supervisors say to each other, over real sockets and with a real supervisor."""

from __future__ import annotations

import os
import select
import socket

from node_agent.core.launch import Process
from node_agent.keeper.frames import pack
from node_agent.keeper.spawn import Spawner
from node_agent.keeper.supervisor import Supervisor, fork_supervisor
from node_agent.keeper.values import process_to
from node_agent.keeper.wire import Received, send
from tests.node_agent.keeper.keeping import DEADLINE_S


def test_messages_that_come_together_are_answered_one_by_one() -> None:
    ours, its = socket.socketpair()
    with ours, its:
        ours.sendall(pack({"kill": True}) + pack({"spawn": {}}) + pack({"cut": "off"})[:-1])
        received = Received(its)
        assert (received.next(), received.has_more) == ({"kill": True}, True)
        assert (received.next(), received.has_more) == ({"spawn": {}}, False)
        ours.close()
        assert received.next() is None and received.has_ended


def test_descriptors_come_with_the_message_that_they_were_sent_with() -> None:
    ours, its = socket.socketpair()
    with ours, its:
        read_fd, write_fd = os.pipe()
        send(ours, {"spawn": 1}, (write_fd,))
        os.close(write_fd)
        received = Received(its)
        assert received.next() == {"spawn": 1}
        [taken] = received.take_descriptors()
        os.write(taken, b"hello")
        os.close(taken)
        assert os.read(read_fd, 10) == b"hello" and not received.take_descriptors()
        os.close(read_fd)


def test_a_command_that_comes_right_behind_a_kill_is_started() -> None:
    spawner = Spawner()
    pid, channel = fork_supervisor({spawner.home_fd}, lambda its: Supervisor(its, spawner).run())
    outputs = [os.pipe(), os.pipe()]
    with channel:
        channel.settimeout(DEADLINE_S)
        spawn = {**process_to(Process(argv=("/bin/echo", "hello"), env={}, cwd="/")), "space": ""}
        together = pack({"kill": True}) + pack({"spawn": spawn})
        assert socket.send_fds(channel, [together], [write_fd for _, write_fd in outputs]) == len(together)
        for _, write_fd in outputs:
            os.close(write_fd)
        said = Received(channel)
        started, ended = said.next(), said.next()
        assert started is not None and started["pid"] > 0
        # Nothing was left of it: one message has the exit and the end.
        assert ended is not None and ended["exit"]["status"] == 0 and ended["done"] is True
    assert os.read(outputs[0][0], 100) == b"hello\n"
    for read_fd, _ in outputs:
        os.close(read_fd)
    os.close(spawner.home_fd)
    assert os.waitpid(pid, 0)[1] == 0


def test_what_is_started_for_a_keeper_that_has_gone_meanwhile_is_ended() -> None:
    spawner = Spawner()
    pid, channel = fork_supervisor({spawner.home_fd}, lambda its: Supervisor(its, spawner).run())
    outputs = [os.pipe(), os.pipe()]
    with channel:
        spawn = {**process_to(Process(argv=("/bin/sleep", "1000"), env={}, cwd="/")), "space": ""}
        send(channel, {"spawn": spawn}, tuple(write_fd for _, write_fd in outputs))
    for _, write_fd in outputs:
        os.close(write_fd)
    assert os.waitpid(pid, 0)[1] == 0
    for read_fd, _ in outputs:
        assert select.select([read_fd], [], [], DEADLINE_S)[0], "the command lives"
        assert os.read(read_fd, 100) == b""
        os.close(read_fd)
    os.close(spawner.home_fd)
