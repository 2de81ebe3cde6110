"""The keeper's socket as a stranger, a bug or another version would use it."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.jobs.runs import ExitCode, JobId, RankKey
from node_agent.keeper.door import GUESTS_MAX
from node_agent.keeper.frames import FRAME_BYTES_MAX, PROTOCOL_VERSION, BadFrame, FrameTooLong, Unpacker, pack
from node_agent.keeper.reports import ENDED, SPOOL, STARTED, Reports
from node_agent.keeper.state_dir import StateDir, Tombstones, socket_address
from node_agent.keeper.values import Json
from tests.node_agent.keeper.keeping import DEADLINE_S, Node

HELLO = {"id": 1, "do": "hello", "protocol": PROTOCOL_VERSION}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
messages = st.lists(st.dictionaries(st.text(), json_values, max_size=4), max_size=5)


@given(messages, st.integers(1, 50))
def test_messages_come_out_whole_and_in_order_however_they_were_cut(sent: list[Json], size: int) -> None:
    data = b"".join(map(pack, sent))
    unpacker = Unpacker()
    got = [message for at in range(0, len(data), size) for message in unpacker.feed(data[at : at + size])]
    assert got == sent


def test_a_message_that_is_too_long_is_neither_sent_nor_taken() -> None:
    with pytest.raises(FrameTooLong):
        pack({"x": "y" * FRAME_BYTES_MAX})
    with pytest.raises(BadFrame, match="announces a message of 4294967295 bytes"):
        Unpacker().feed(b"\xff\xff\xff\xff")


@pytest.mark.parametrize("body", [b"nonsense", b"[1]", b"\xff", b"", b"[" * 100_000])
def test_a_message_that_is_no_json_object_is_not_taken(body: bytes) -> None:
    with pytest.raises(BadFrame):
        Unpacker().feed(struct.pack(">I", len(body)) + body)


@contextmanager
def plain_socket(node: Node) -> Iterator[socket.socket]:
    """Connect to the node's only keeper without the client."""
    (directory,) = (node.state_dir / "keepers").iterdir()
    directory_fd = os.open(directory, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as plain:
            plain.settimeout(DEADLINE_S)
            plain.connect(socket_address(directory_fd))
            yield plain
    finally:
        os.close(directory_fd)


def hear(plain: socket.socket) -> list[Json]:
    """Read until the keeper hangs up."""
    unpacker = Unpacker()
    heard: list[Json] = []
    while data := plain.recv(65536):
        heard += unpacker.feed(data)
    return heard


def ask(plain: socket.socket, message: Json) -> Json:
    """Send one message and read one answer."""
    plain.sendall(pack(message))
    unpacker = Unpacker()
    while True:
        data = plain.recv(65536)
        assert data, "the keeper hung up"
        for answer in unpacker.feed(data):
            if answer.get("re") == message["id"]:
                return answer


@pytest.mark.parametrize("first", [{"do": "inventory"}, {**HELLO, "protocol": 999}, {}])
async def test_who_does_not_say_hello_in_this_protocol_is_told_the_keepers_and_hung_up_on(
    node: Node, first: Json
) -> None:
    agent = await node.open()
    with plain_socket(node) as plain:
        plain.sendall(pack(first))
        assert await asyncio.to_thread(hear, plain) == [{"bye": "PROTOCOL", "protocol": PROTOCOL_VERSION}]
    assert (await agent.run(node.launch(1, "/bin/true")))[0].status == ExitCode(code=0), (
        "the agent is still listened to"
    )


async def test_bytes_that_are_no_messages_end_the_connection_and_nothing_else(node: Node) -> None:
    agent = await node.open()
    for nonsense in (b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\2[]", b"\xff" * 1000):
        with plain_socket(node) as plain:
            plain.sendall(nonsense)
            assert await asyncio.to_thread(hear, plain) == []
    assert (await agent.run(node.launch(1, "/bin/true")))[0].status == ExitCode(code=0)


async def test_silent_guests_do_not_pile_up(node: Node) -> None:
    agent = await node.open()
    with plain_socket(node) as oldest:
        guests = [plain_socket(node) for _ in range(GUESTS_MAX)]
        for guest in guests:
            guest.__enter__()
        assert await asyncio.to_thread(hear, oldest) == []
        for guest in guests:
            guest.__exit__(None, None, None)
    assert (await agent.run(node.launch(1, "/bin/true")))[0].status == ExitCode(code=0)


@pytest.mark.parametrize(
    ("request_fields", "words"),
    [
        ({"do": "dance"}, "do 'dance' is not known"),
        ({"do": ["launch"]}, "is not known"),
        ({}, "do 'None' is not known"),
        ({"do": "launch"}, "launch: KeyError: 'launch'"),
        ({"do": "launch", "launch": 5}, "launch: TypeError"),
        ({"do": "launch", "launch": {"key": "1.1.0"}}, "launch: KeyError: 'argv'"),
        ({"do": "launch", "launch": {"key": "../../x", "argv": []}}, "is not job.attempt.rank"),
        ({"do": "stop", "key": "1.1.0", "cause": "BOREDOM"}, "'BOREDOM' is not a valid StopCause"),
        ({"do": "stop", "key": "1.1.0"}, "stop: KeyError: 'cause'"),
        ({"do": "signal", "key": "1.1.0", "signal": True}, "signal True is not a whole number"),
        ({"do": "set_fence", "heartbeat_sent_us": -1}, "heartbeat_sent_us -1 is not a whole number"),
        ({"do": "output_synced", "key": "1.1.0", "synced": {}}, "KeyError: 'stdout'"),
        ({"do": "inventory", "after": "x"}, "is not job.attempt.rank"),
    ],
)
async def test_a_request_that_makes_no_sense_is_refused_and_says_why(
    node: Node, request_fields: dict[str, Any], words: str
) -> None:
    await node.open()
    with plain_socket(node) as plain:
        await asyncio.to_thread(ask, plain, HELLO)
        answer = await asyncio.to_thread(ask, plain, {"id": 2, **request_fields})
        assert answer["refused"]["reason"] == "BAD_REQUEST"
        assert words in answer["refused"]["detail"]


async def test_fields_of_a_later_version_are_ignored(node: Node) -> None:
    await node.open()
    launch = {
        "key": "1.1.0",
        "argv": ["/bin/true"],
        "env": {},
        "cwd": "/",
        "heartbeat_sent_us": 0,
        "limits": {"grace_us": 5, "later": 1},
        "later": [1],
    }
    with plain_socket(node) as plain:
        await asyncio.to_thread(ask, plain, {**HELLO, "later": 1})
        answer = await asyncio.to_thread(ask, plain, {"id": 2, "do": "launch", "launch": launch, "later": 1})
        assert answer["attempt"]["key"] == "1.1.0"


def test_the_keeper_loads_nothing_but_the_standard_library_its_own_package_and_runs_and_no_asyncio() -> None:
    """Whoever writes the agent next to it may not make the keeper heavier by an import."""
    text = (
        "import sys\nbefore = set(sys.modules)\nimport gpufleet.node_agent.keeper.life\n"
        "print(*(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", text], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "gpufleet.node_agent.keeper.keeper" in loaded
    foreign = {name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names}
    allowed = tuple(f"gpufleet.node_agent.{name}" for name in ("control_groups", "core", "keeper", "spool"))
    assert {name for name in foreign if not name.startswith(allowed)} <= {
        *("gpufleet", "gpufleet.node_agent"),
        *("gpufleet.jobs", "gpufleet.jobs.runs"),
    }
    assert not loaded & {"asyncio", "subprocess", "threading", "logging", "argparse"}


def test_of_each_kind_an_attempts_newest_report_is_kept_until_it_is_acknowledged() -> None:
    sent: list[Json] = []
    reports = Reports(sent.append)
    one, two = RankKey(JobId(1), 1, 0), RankKey(JobId(2), 1, 0)
    reports.add(one, STARTED, {})
    reports.add(one, SPOOL, {"full": "BOUND"})
    reports.add(two, ENDED, {})
    reports.add(one, SPOOL, {"full": None})
    sent.clear()
    reports.acknowledge(one, 2)
    reports.send_again()
    assert [report["report"] for report in sent] == [1, 3, 4]
    reports.acknowledge(one, 4)
    reports.forget(two)
    sent.clear()
    reports.send_again()
    assert [report["report"] for report in sent] == [1]


def test_tombstones_are_bounded_by_number_and_age(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    state = StateDir(node.state_dir)
    state.prepare()
    monkeypatch.setattr("node_agent.keeper.state_dir.TOMBSTONES_MAX", 3)
    tombstones = Tombstones(state)
    for number in range(5):
        (state.ended / f"{number}.1.0").write_text("{}")
        tombstones.add(f"{number}.1.0")
    assert sorted(path.name for path in state.ended.iterdir()) == ["2.1.0", "3.1.0", "4.1.0"]
    monkeypatch.setattr("node_agent.keeper.state_dir.TOMBSTONE_US", 0)
    (state.ended / "9.1.0").write_text("{}")
    tombstones.add("9.1.0")
    assert len(list(state.ended.iterdir())) <= 1


def test_a_clock_that_is_set_makes_no_tombstone_old(node: Node) -> None:
    """A machine that booted in 1970 has its clock set while jobs end; a keeper may also start after that."""
    state = StateDir(node.state_dir)
    state.prepare()
    before = Tombstones(state)
    for number in (1, 2):
        path = state.ended / f"{number}.1.0"
        path.write_text("{}")
        before.add(path.name)
        os.utime(path, (0, 0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.time_ns", lambda: 2**62)
        patch.setattr("time.time", lambda: 2.0**32)
        for number, tombstones in ((3, before), (4, Tombstones(state))):
            (state.ended / f"{number}.1.0").write_text("{}")
            tombstones.add(f"{number}.1.0")
    assert len(list(state.ended.iterdir())) == 4


def test_a_tombstone_is_kept_for_a_day(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    state = StateDir(node.state_dir)
    state.prepare()
    tombstones = Tombstones(state)
    day_us = 24 * 3600 * 1_000_000
    found = []
    for number, now_us in enumerate((1_000, day_us, day_us + 1_001)):
        monkeypatch.setattr("node_agent.keeper.state_dir.boottime_us", lambda now_us=now_us: now_us)
        (state.ended / f"{number}.1.0").write_text("{}")
        tombstones.add(f"{number}.1.0")
        found.append(sorted(path.name for path in state.ended.iterdir()))
    assert found == [["0.1.0"], ["0.1.0", "1.1.0"], ["1.1.0", "2.1.0"]]
