"""Brings what ranks left to the scheduler, behind their end and before their folders are removed.

    DATA/files/results/KEY      the lines that choose what a rank leaves; there until it is settled

An agent that dies meanwhile does it again: the scheduler has the attempt forgotten once more, and has kept what came.
While the scheduler cannot be reached, or cannot store, what was left stays here, as output does: nothing is given up
for that. What it will not have is said in the place of it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio
from gpufleet.v1 import node_agent_pb2 as pb

from gpufleet.errors import Reason
from gpufleet.host.whole_file import replace_file
from gpufleet.jobs.files import PIECE_BYTES_MAX
from gpufleet.jobs.results import PROBLEM_CHARS_MAX
from gpufleet.jobs.run_protos import key_to_proto
from gpufleet.jobs.runs import RankKey
from gpufleet.net.status import from_rpc_error

from .leavings import Changed, Left, bytes_of, look

if TYPE_CHECKING:
    from gpufleet.v1.node_agent_pb2_grpc import NodeAgentAsyncStub

_log = logging.getLogger(__name__)

ANSWER_SECONDS = 60.0
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.2, 5.0
LOOKS_MAX = 3
"""How often files that change are looked at anew."""
AT_ONCE = 2
"""Ranks that bring what they left at the same time."""
GIVES_UP = frozenset({Reason.PERMISSION_DENIED, Reason.NOT_BUILT, Reason.METHOD_UNKNOWN})
REFUSED = frozenset({Reason.QUOTA_EXCEEDED, Reason.FILE_TOO_LARGE, Reason.INVALID_ARGUMENT})
"""The scheduler will not have it, and is told so that people see why."""


class Results:
    """What this node's ranks leave. `hold` as long as there is a connection; `folder_of` is where their files are."""

    def __init__(self, node: str, incarnation: int, folder: Path, folder_of: Callable[[RankKey], Path]) -> None:
        self._node = node
        self._incarnation = incarnation
        self._folder = folder / "results"
        self._folder_of = folder_of
        self._stub: NodeAgentAsyncStub | None = None
        self._is_connected = asyncio.Event()
        self._turns = asyncio.Semaphore(AT_ONCE)

    async def hold(self, stub: NodeAgentAsyncStub) -> None:
        """Bring by this connection until cancelled."""
        self._stub = stub
        self._is_connected.set()
        try:
            await asyncio.Event().wait()
        finally:
            self._stub = None
            self._is_connected.clear()

    def expect(self, key: RankKey, lines: tuple[str, ...]) -> None:
        """Note what a rank is to leave, before it starts. Errors: OSError."""
        if lines:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._folder / key.name, json.dumps(lines).encode())

    def settle(self, key: RankKey) -> None:
        """Nothing more of this rank is wanted."""
        with suppress(OSError):
            (self._folder / key.name).unlink(missing_ok=True)

    def sweep(self, known: Iterable[RankKey]) -> None:
        """Drop what an earlier start of the agent noted of ranks that nobody knows."""
        kept = {key.name for key in known}
        with suppress(FileNotFoundError):
            for note in tuple(self._folder.iterdir()):
                if note.name not in kept:
                    note.unlink(missing_ok=True)

    async def bring(self, key: RankKey) -> None:
        """Bring what a rank left, if it is to leave anything; what cannot be brought is told where that is possible."""
        try:
            lines = tuple(map(str, json.loads((self._folder / key.name).read_bytes())))
        except (OSError, ValueError):
            return
        async with self._turns:
            await self._bring(key, lines)
        self.settle(key)

    async def _bring(self, key: RankKey, lines: tuple[str, ...]) -> None:
        left = await self._looked_at(key, lines)
        looks, pause_s, told = 1, RETRY_SECONDS_MIN, ""
        while True:
            sent: list[str] = []
            try:
                if await self._send(key, left, sent):
                    return
                why = "not all of it is stored"
            except Changed as problem:
                looks += 1
                left = Left(problems=[f"nothing is stored: {problem}"])
                if looks <= LOOKS_MAX:
                    left = await self._looked_at(key, lines)
                continue
            except (grpc.aio.AioRpcError, TimeoutError, asyncio.InvalidStateError) as problem:
                why = str(problem) or "the scheduler did not answer"
                if isinstance(problem, grpc.aio.AioRpcError):
                    error = from_rpc_error(problem)
                    why = error.message
                    if error.reason in GIVES_UP or (error.reason in REFUSED and not left.manifest):
                        _log.error("what attempt %s left is removed and was not stored: %s", key, why)
                        return
                    if error.reason in REFUSED:
                        left = Left(problems=[f"nothing is stored: {why}"[:PROBLEM_CHARS_MAX]])
                        continue
            if why != told:
                _log.warning("what attempt %s left waits here, and is sent again: %s", key, why)
            told, pause_s = why, RETRY_SECONDS_MIN if sent else pause_s
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_SECONDS_MAX)

    async def _looked_at(self, key: RankKey, lines: tuple[str, ...]) -> Left:
        try:
            return await asyncio.to_thread(look, self._folder_of(key), lines)
        except (OSError, Changed) as problem:
            return Left(problems=[f"nothing is stored: {problem}"[:PROBLEM_CHARS_MAX]])

    async def _send(self, key: RankKey, left: Left, sent: list[str]) -> bool:
        """Whether all of it is stored; `sent` grows by the chunks that went."""
        async with asyncio.timeout(ANSWER_SECONDS):
            await self._is_connected.wait()
        assert self._stub is not None
        call: Any = self._stub.StoreResults()
        try:
            first = pb.StoreResultsRequest(
                node=self._node,
                incarnation=self._incarnation,
                key=key_to_proto(key),
                manifest=left.manifest,
                problems=left.problems,
            )
            await _within(call.write(first))
            answer = await _within(call.read())
            if not isinstance(answer, pb.StoreResultsResponse):
                return False
            if answer.is_stored:
                return True
            for digest, stored in zip(answer.missing_digests, answer.stored_bytes, strict=True):
                data = await asyncio.to_thread(bytes_of, self._folder_of(key), left.plans[digest])
                if hashlib.sha256(data).hexdigest() != digest:
                    raise Changed("a file changed while it was read")
                for offset in range(stored, len(data), PIECE_BYTES_MAX):
                    piece = data[offset : offset + PIECE_BYTES_MAX]
                    await _within(call.write(pb.StoreResultsRequest(digest=digest, offset=offset, data=piece)))
                sent.append(digest)
            await call.done_writing()
            answer = await _within(call.read())
            return isinstance(answer, pb.StoreResultsResponse) and answer.is_stored
        except asyncio.InvalidStateError:
            await _within(call)  # raises why the scheduler takes no more, where it says so
            return False
        finally:
            call.cancel()


async def _within(waited: Any) -> Any:
    async with asyncio.timeout(ANSWER_SECONDS):
        return await waited
