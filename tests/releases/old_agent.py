"""An agent of a kept release, as a transcript: it says to a scheduler of today what it said to one of its own."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio
from gpufleet.v1 import node_agent_pb2

from gpufleet.net import channel
from tests.e2e.processes import DEADLINE_SECONDS
from tests.releases.kept import Release, answered_calls, data_of, path_of
from tests.releases.wire import DOWN, OPEN, UP, Line

REGISTER = "/gpufleet.v1.NodeAgent/Register"
HEARTBEAT = "/gpufleet.v1.NodeAgent/Heartbeat"
OUTPUT = "/gpufleet.v1.NodeAgent/ReportOutput"


class OldAgent:
    """`run` says everything in its order; what waited for a command then waits for it now."""

    def __init__(self, release: Release, address: str) -> None:
        self._release = release
        self._address = address
        self._lineages: dict[bytes, bytes] = {}
        """Of each start of its scheduler, and of today's: text of one length, so that it can be put in place."""
        self._newest_command = 0
        self._launches: list[Any] = []
        self._changed = asyncio.Event()
        self.not_understood: list[str] = []
        """Commands that its descriptors do not know."""

    async def run(self) -> None:
        """Until everything was said, and taken."""
        async with grpc.aio.insecure_channel(self._address, options=channel.client_options()) as line:
            await self._register(line)
            lines = self._lines()
            paths = {each.call: each for each in lines if each.kind == OPEN}
            # The last of each: streams that were open to the end.
            calls: dict[int, Any] = {
                each.call: line.stream_stream(each.text)(metadata=each.metadata)
                for each in {each.text: each for each in paths.values()}.values()
                if each.text in (HEARTBEAT, OUTPUT)
            }
            readers = [asyncio.create_task(self._read(paths[number].text, call)) for number, call in calls.items()]
            try:
                async with asyncio.timeout(DEADLINE_SECONDS):
                    for each in lines:
                        await self._go_on(each, paths, calls)
                    while not self._is_forgotten:
                        await self._wait()
            finally:
                for call in calls.values():
                    call.cancel()
                await asyncio.gather(*readers, return_exceptions=True)
                calls.clear()

    def _lines(self) -> list[Line]:
        """What was said about the jobs that the store holds; one that was submitted later is not there today."""
        known, paths, found = set(self._release.jobs.values()), dict[int, str](), list[Line]()
        for each in self._release.after:
            if each.kind == OPEN:
                paths[each.call] = each.text
            elif each.kind == DOWN and paths.get(each.call) == HEARTBEAT:
                commands = _unfolded(self._release.answered(HEARTBEAT, each.data))
                if any(command.HasField("launch") and command.launch.key.job_id not in known for command in commands):
                    break
            if each.kind in (OPEN, UP, DOWN):
                found.append(each)
        return found

    async def _register(self, line: Any) -> None:
        call = next(each for each in answered_calls(self._release.after) if path_of(each) == REGISTER)
        (request,) = data_of(call, UP)
        async with asyncio.timeout(DEADLINE_SECONDS):
            answer = await line.unary_unary(REGISTER)(request, metadata=call[0].metadata)
        self.registered = self._release.answered(REGISTER, answer)
        self._forgets: set[int] = set()

    async def _go_on(self, each: Line, paths: dict[int, Line], calls: dict[int, Any]) -> None:
        if each.call not in calls:
            return
        path = paths[each.call].text
        if each.kind == DOWN and path == HEARTBEAT:
            for command in _unfolded(self._release.answered(path, each.data)):
                if command.WhichOneof("command") == "launch":
                    await self._launched(command.launch.key)
        elif each.kind == UP:
            message: Any = self._release.asked(path, self._placed_now(each.data))
            if path == HEARTBEAT:
                for said in _unfolded(message):
                    said.acked_sequence = self._newest_command
            await calls[each.call].write(message.SerializeToString())

    async def _launched(self, key: Any) -> None:
        """Today's scheduler launches the job, too; from now on it is spoken of as placed by this one."""
        while True:
            for launch in self._launches:
                if (launch.key.job_id, launch.key.attempt) == (key.job_id, key.attempt):
                    self._lineages[key.lineage.encode()] = launch.key.lineage.encode()
                    return
            await self._wait()

    def _placed_now(self, data: bytes) -> bytes:
        for before, now in self._lineages.items():
            assert len(before) == len(now)
            data = data.replace(before, now)
        return data

    @property
    def _is_forgotten(self) -> bool:
        jobs = self._release.jobs
        return {jobs["running"], jobs["queued"]} <= self._forgets

    async def _wait(self) -> None:
        await self._changed.wait()
        self._changed.clear()

    async def _read(self, path: str, call: Any) -> None:
        async for data in call:
            if path == HEARTBEAT:
                self._take(data)
            self._changed.set()

    def _take(self, data: bytes) -> None:
        old: Any = self._release.answered(HEARTBEAT, data)
        new = node_agent_pb2.HeartbeatResponse.FromString(data)
        for each, today in zip(_unfolded(old), _unfolded(new), strict=True):
            self._newest_command = max(self._newest_command, each.sequence)
            if each.WhichOneof("command") != today.WhichOneof("command"):
                self.not_understood.append(str(today.WhichOneof("command")))
            match each.WhichOneof("command"):
                case "launch":
                    self._launches.append(each.launch)
                case "forget":
                    self._forgets.add(each.forget.key.job_id)


def _unfolded(message: Any) -> list[Any]:
    return [message, *message.more]
