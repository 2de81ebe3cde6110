"""Agents and keepers of each kept release, as a transcript, and those of today: what one says the other goes on with.

An agent is replaced while its keeper holds jobs, and so it must serve, and be served by, the version before.
"""

from __future__ import annotations

import asyncio
import fcntl
import gzip
import json
import os
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpufleet.jobs.runs import ExitCode, ExitSignal
from node_agent.core.outcome import Offsets
from node_agent.keeper.client import Keepers
from node_agent.keeper.linux import boottime_us
from node_agent.keeper.state_dir import StateDir, socket_address
from tests.e2e.processes import DEADLINE_SECONDS
from tests.node_agent.keeper.keeping import COMMAND
from tests.releases.keep import FOLDER as RELEASES
from tests.releases.keeper_talk import AGENT, BUILD, FILE, FOLDER, KEEPER, Json, first_agent, second_agent, talk_of

LENGTH = struct.Struct(">I")
NOW = "heartbeat_sent_us"
"""A time of this machine: what was one of another machine may lie in its future."""

NOTHING_STARTED = ("/bin/false",)
"""How today's agent would start a keeper, if it did not take the one that is there."""


@pytest.fixture(params=sorted(path.parent for path in RELEASES.glob(f"*/{FILE}")), ids=lambda path: path.name)
def kept(request: pytest.FixtureRequest) -> list[Json]:
    """Everything that was said, a line each."""
    folder: Path = request.param
    return [json.loads(line) for line in gzip.decompress((folder / FILE).read_bytes()).splitlines()]


def test_what_agent_and_keeper_said_is_kept_beginning_with_the_first_release() -> None:
    assert (RELEASES / "0.1.0" / FILE).exists()


def said(message: Any, path: str = "") -> Iterator[str]:
    """The path of each value that a message has, of null none."""
    if isinstance(message, dict):
        for name, value in message.items():
            yield from said(value, f"{path}.{name}")
    elif isinstance(message, list):
        for number, value in enumerate(message):
            yield from said(value, f"{path}[{number}]")
    elif message is not None:
        yield path


class Wire:
    """Frames on a socket, written anew here: those of a release are no matter of today's code."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, message: Json) -> None:
        body = json.dumps(message).encode()
        self._writer.write(LENGTH.pack(len(body)) + body)

    async def receive(self) -> Json | None:
        """The next message; None once the other side has gone."""
        try:
            (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
            message: Json = json.loads(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return message

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


def named(message: Json) -> tuple[Any, ...]:
    """What an answer or a report is known by: the number of its request, or its kind and its attempt."""
    return ("re", message["re"]) if "re" in message else (message["kind"], message["key"])


class KeptAgent:
    """An agent of the release: it says what it said to today's keeper, and hears what it needs."""

    def __init__(self, lines: list[Json], wire: Wire, folder: Path) -> None:
        self._lines, self._wire, self._folder = lines, wire, folder
        self._heard: dict[tuple[Any, ...], Json] = {}

    async def run(self) -> dict[tuple[Any, ...], Json]:
        """All in its order; answers what it heard."""
        reports: dict[int, tuple[Any, ...]] = {}
        for line in self._lines:
            message = line["message"]
            if line["by"] == AGENT:
                if message["do"] == "acknowledge":
                    about = reports[message["report"]]
                    message["report"] = self._heard[about]["report"]
                    if about == ("started", "1.1.0"):
                        await asyncio.to_thread((self._folder / "gate").write_text, "go\n")
                self._wire.send(self._of_now(message))
                continue
            name = named(message)
            if "report" in message:
                reports[message["report"]] = name
            await self._hear(name)
            missing = set(said(message)) - set(said(self._heard[name]))
            assert not missing, (message, self._heard[name])
            assert ("refused" in message) == ("refused" in self._heard[name]), self._heard[name]
        return self._heard

    def _of_now(self, message: Json) -> Json:
        now = json.loads(json.dumps(message).replace(FOLDER, str(self._folder)))
        for each in (now, now.get("launch", {})):
            if NOW in each:
                each[NOW] = boottime_us()
        found: Json = now
        return found

    async def _hear(self, name: tuple[Any, ...]) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while name not in self._heard:
                message = await self._wire.receive()
                assert message is not None, f"the keeper hung up before it said {name}"
                self._heard[named(message)] = message


@asynccontextmanager
async def dialled(state: StateDir) -> AsyncIterator[Wire]:
    """A connection to the only keeper there."""
    (keeper_id,) = state.keeper_ids()
    directory = os.open(state.keeper(keeper_id), os.O_RDONLY | os.O_DIRECTORY)
    try:
        wire = Wire(*await asyncio.open_unix_connection(socket_address(directory)))
    finally:
        os.close(directory)
    try:
        yield wire
    finally:
        await wire.close()


async def test_todays_keeper_serves_agents_of_the_release(kept: list[Json], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "gate")
    state = StateDir(tmp_path / "state")
    keepers = await Keepers.open(state.root, build=BUILD, command=COMMAND)
    await keepers.close()
    try:
        for number in (1, 2):
            lines = [line for line in kept if line["agent"] == number]
            async with dialled(state) as wire:
                heard = await KeptAgent(lines, wire, tmp_path).run()
        assert heard["ended", "1.1.0"]["end"]["status"] == {"code": 3}
        assert heard["ended", "1.1.0"]["end"]["output_ends"] == {"stdout": len("before\nafter\n"), "stderr": 0}
        assert heard["ended", "2.1.0"]["end"]["status"] == {"signal": 9}
    finally:
        async with await Keepers.open(state.root, build=BUILD, command=COMMAND) as keepers:
            await keepers.shutdown(kill=True)


@dataclass
class KeptKeeper:
    """A keeper of the release: it answers today's agent what it answered its own, and reports what it reported."""

    lines: list[Json]
    folder: Path
    not_asked_then: list[Json]
    """What today's agent asks and that one never did."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One agent, until it goes."""
        wire, left = Wire(reader, writer), list(self.lines)
        try:
            while (request := await wire.receive()) is not None:
                at = next((n for n, line in enumerate(left) if self._is_asked(line, request)), None)
                if at is None:
                    self.not_asked_then.append(request)
                    return
                answer = next(line for line in left if line["message"].get("re") == left[at]["message"]["id"])
                wire.send({**self._here(answer["message"]), "re": request["id"]})
                left.remove(answer)
                del left[at]
                while at < len(left) and left[at]["by"] == KEEPER and "report" in left[at]["message"]:
                    wire.send(self._here(left.pop(at)["message"]))
        finally:
            await wire.close()

    def _is_asked(self, line: Json, request: Json) -> bool:
        asked = line["message"]
        keys = [each.get("key") or each.get("launch", {}).get("key") for each in (asked, request)]
        return bool(line["by"] == AGENT and asked["do"] == request["do"] and keys[0] == keys[1])

    def _here(self, message: Json) -> Json:
        found: Json = json.loads(json.dumps(message).replace(FOLDER, str(self.folder)))
        return found


@asynccontextmanager
async def kept_keeper(lines: list[Json], folder: Path) -> AsyncIterator[KeptKeeper]:
    """It stands where keepers do, and holds the lock that says that it lives."""
    state = StateDir(folder / "state")
    state.prepare()
    keeper_id = next(line["message"]["keeper_id"] for line in lines if "keeper_id" in line["message"])
    home = state.keeper(keeper_id)
    home.mkdir()
    lock = os.open(home / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    directory = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    keeper = KeptKeeper(lines, folder, [])
    server = await asyncio.start_unix_server(keeper.serve, socket_address(directory))
    try:
        yield keeper
    finally:
        server.close()
        await server.wait_closed()
        os.close(directory)
        os.close(lock)


async def test_todays_agent_starts_jobs_by_a_keeper_of_the_release(kept: list[Json], tmp_path: Path) -> None:
    lines = [line for line in kept if line["agent"] == 1]
    async with kept_keeper(lines, tmp_path) as keeper:
        async with await Keepers.open(tmp_path / "state", build=BUILD, command=NOTHING_STARTED) as keepers:
            await first_agent(keepers, tmp_path)
        assert keeper.not_asked_then == []


async def test_todays_agent_adopts_a_keeper_of_the_release_and_sees_its_jobs_to_their_ends(
    kept: list[Json], tmp_path: Path
) -> None:
    lines = [line for line in kept if line["agent"] == 2]
    async with kept_keeper(lines, tmp_path) as keeper:
        async with await Keepers.open(tmp_path / "state", build=BUILD, command=NOTHING_STARTED) as keepers:
            waits, reads = await second_agent(keepers, tmp_path)
        assert keeper.not_asked_then == []
    assert (waits.end.status, waits.end.output_ends) == (ExitCode(code=3), Offsets(len("before\nafter\n"), 0))
    assert (reads.end.status, reads.end.output_ends) == (ExitSignal(signal=9), Offsets(len("got hello\n"), 0))


async def test_todays_agent_and_keeper_say_what_can_be_kept_of_them(tmp_path: Path) -> None:
    lines = await talk_of(tmp_path, COMMAND)
    assert {line["message"]["do"] for line in lines if line["by"] == AGENT} > {"hello", "launch", "forget", "shutdown"}
    assert not any(str(tmp_path) in json.dumps(line) for line in lines)
