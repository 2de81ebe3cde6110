"""Answers whether the shared folder is the one that somebody else has, and how fast files come: CheckFilesOnNode."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import grpc.aio
from google.protobuf.duration_pb2 import Duration
from gpufleet.v1 import node_agent_pb2 as pb

from gpufleet.net.status import from_rpc_error

from ..core.commands import CheckFiles
from ..isolation.accounts import AccountUnusable
from .shared_root import NotRead, SharedRoot

if TYPE_CHECKING:
    from gpufleet.v1.node_agent_pb2_grpc import NodeAgentAsyncStub

_log = logging.getLogger(__name__)

CHECKS_MAX = 4
"""At the same time; one more is told to wait."""
FETCH_SECONDS_MAX = 60.0


class FileChecks:
    """`say` sends an answer, and says False when there is no way to: who asked then waits in vain, and a while."""

    def __init__(self, node: str, incarnation: int, root: SharedRoot, say: Callable[[pb.FilesChecked], bool]) -> None:
        self._node = node
        self._incarnation = incarnation
        self._root = root
        self._say = say
        self._stub: NodeAgentAsyncStub | None = None
        self._checking: set[asyncio.Task[None]] = set()

    async def hold(self, stub: NodeAgentAsyncStub) -> None:
        """Answer by this connection until cancelled; what is under way then ends, as nobody hears it."""
        self._stub = stub
        try:
            await asyncio.Event().wait()
        finally:
            self._stub = None
            for task in self._checking:
                task.cancel()
            await asyncio.gather(*self._checking, return_exceptions=True)

    def carry_out(self, command: CheckFiles) -> None:
        """Begin to answer."""
        if len(self._checking) >= CHECKS_MAX:
            self._say(pb.FilesChecked(request=command.request, root_problem="its agent checks others now"))
            return
        task = asyncio.get_running_loop().create_task(self._answer(command))
        self._checking.add(task)
        task.add_done_callback(self._checking.discard)

    async def _answer(self, command: CheckFiles) -> None:
        answer = pb.FilesChecked(request=command.request)
        if command.root:
            await self._check_root(command, answer)
        if command.by_wire:
            try:
                async with asyncio.timeout(FETCH_SECONDS_MAX):
                    answer.wire_duration.CopyFrom(_duration(await self._fetch(command)))
            except TimeoutError:
                answer.wire_problem = f"it did not come within {FETCH_SECONDS_MAX:.0f} s"
            except grpc.aio.AioRpcError as problem:
                answer.wire_problem = from_rpc_error(problem).message
            except NotRead as problem:
                answer.wire_problem = str(problem)
        if not self._say(answer):
            _log.warning("what a check of files has found could not be told")

    async def _check_root(self, command: CheckFiles, answer: pb.FilesChecked) -> None:
        try:
            took_s = await self._root.read_probe(command.root, command.probe, command.digest, command.size_bytes)
            answer.root_duration.CopyFrom(_duration(took_s))
            if command.paths:
                found = await self._root.unreadable(command.root, command.paths, command.user)
                answer.unreadable.extend(found)
                answer.unreadable_reason = next(iter(found.values()), "")
        except AccountUnusable as problem:
            answer.root_problem = problem.refusal.detail
        except (NotRead, OSError) as problem:
            answer.root_problem = str(problem)

    async def _fetch(self, command: CheckFiles) -> float:
        """Seconds that fetching the probe took, which is kept nowhere. Errors: NotRead, those of FetchBlob."""
        assert self._stub is not None, "a check ends with its connection"
        request = pb.FetchBlobRequest(
            digest=command.digest,
            node=self._node,
            incarnation=self._incarnation,
            check_request=command.request,
        )
        sha, size, begun = hashlib.sha256(), 0, time.monotonic()
        call = self._stub.FetchBlob(request)
        try:
            while isinstance(piece := await call.read(), pb.FetchBlobResponse) and size <= command.size_bytes:
                sha.update(piece.data)
                size += len(piece.data)
        finally:
            call.cancel()
        if size != command.size_bytes or sha.hexdigest() != command.digest:
            raise NotRead("other bytes came than were uploaded", is_lasting=True)
        return time.monotonic() - begun


def _duration(seconds: float) -> Duration:
    span = Duration()
    span.FromMicroseconds(max(1, round(seconds * 1e6)))
    return span
