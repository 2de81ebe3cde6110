"""Brings what ranks left to the scheduler, behind their end and before their folders are removed.

    DATA/files/results/KEY      the lines that choose what a rank leaves and keeps, for how long it was refused

An agent that dies meanwhile does it again: the scheduler has the attempt forgotten once more, and has kept what came.
`core/leavings.py` decides when something may be deleted: once the scheduler has a record of what became of it. Until
then it stays here, as output does, also where the scheduler refuses it, cannot store it or is away.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio
from gpufleet.v1 import node_agent_pb2 as pb

from gpufleet.errors import Reason
from gpufleet.host.whole_file import replace_file
from gpufleet.jobs.files import PIECE_BYTES_MAX
from gpufleet.jobs.run_protos import key_to_proto
from gpufleet.jobs.runs import RankKey
from gpufleet.net.status import from_rpc_error

from ..core.leavings import Bounds, Leavings, ResultsAnswer
from .brought import Brought, brought_of
from .leavings import Changed, bytes_of
from .reached_folder import NotReached

if TYPE_CHECKING:
    from gpufleet.v1.node_agent_pb2_grpc import NodeAgentAsyncStub

_log = logging.getLogger(__name__)

ANSWER_SECONDS = 60.0
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.2, 5.0
CHECKPOINT_TRIES = 4
"""How often the files of a running rank, which change, are looked at and sent before the checkpoint is given up."""
LOOKS_MAX = 3
"""How often files that change are looked at anew."""
AT_ONCE = 2
"""Ranks that bring what they left at the same time."""
TURN_SECONDS_MAX = 300.0
"""What cannot be stored for so long lets others have their turn, and is looked at anew when its own comes again."""
NOTED_AFTER_SECONDS = 600.0
"""How much of the time for which something was refused a crash of the agent may forget."""
KEPT_WAITING = frozenset({Reason.PERMISSION_DENIED, Reason.CONFLICT, Reason.NOT_BUILT, Reason.METHOD_UNKNOWN})
"""The scheduler knows no such rank, or not yet: others have their turn meanwhile."""
REFUSED = frozenset({Reason.QUOTA_EXCEEDED, Reason.FILE_TOO_LARGE, Reason.INVALID_ARGUMENT})
"""The scheduler will not have it, and is told so that people see why."""


@dataclass(frozen=True, slots=True)
class Note:
    """What is noted of a rank: the lines of what it leaves and of what it keeps for the next attempt, the boot in which
    it was launched, and for how long it was refused.
    """

    lines: tuple[str, ...]
    keep: tuple[str, ...] = ()
    boot_id: str = ""
    refused_s: float = 0.0
    trouble: str = ""
    """Why the lines cannot be read; then nothing can be chosen."""


class Results:
    """What this node's ranks leave. `hold` as long as there is a connection; `folder_of` is where their files are."""

    def __init__(
        self,
        node: str,
        incarnation: int,
        folder: Path,
        folder_of: Callable[[RankKey], Path],
        bounds: Callable[[], Bounds],
        boot_id: str = "",
    ) -> None:
        self._node = node
        self._incarnation = incarnation
        self._folder = folder / "results"
        self._folder_of = folder_of
        self._bounds = bounds
        self._boot_id = boot_id
        self._leavings = Leavings()
        self._stub: NodeAgentAsyncStub | None = None
        self._is_connected = asyncio.Event()
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._checkpointing: set[RankKey] = set()

    async def hold(self, stub: NodeAgentAsyncStub) -> None:
        """Bring by this connection until cancelled."""
        self._stub = stub
        self._is_connected.set()
        try:
            await asyncio.Event().wait()
        finally:
            self._stub = None
            self._is_connected.clear()

    def expect(self, key: RankKey, lines: tuple[str, ...], keep: tuple[str, ...] = ()) -> None:
        """Note what a rank is to leave and to keep, before it starts. Errors: OSError."""
        if lines or keep:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._write(key, Note(lines, keep, self._boot_id))

    def settle(self, key: RankKey) -> None:
        """Nothing more of this rank is kept: what became of it is on record, or it never ran."""
        self._leavings.settled(key)
        with suppress(OSError):
            (self._folder / key.name).unlink(missing_ok=True)

    def sweep(self, known: Iterable[RankKey]) -> tuple[RankKey, ...]:
        """Drop what is noted of ranks that nobody knows and that were launched in this boot: they never ran.

        Answers those of another boot: a power cut may have taken what the keeper wrote down of them, and their files
        may still be there.
        """
        kept = {key.name for key in known}
        orphans: list[RankKey] = []
        with suppress(FileNotFoundError):
            for path in sorted(self._folder.iterdir()):
                if path.name in kept:
                    continue
                with suppress(ValueError):
                    key = RankKey.parse(path.name)
                    if (note := self._read(key)) is not None and note.boot_id not in ("", self._boot_id):
                        orphans.append(key)
                        continue
                path.unlink(missing_ok=True)
        return tuple(orphans)

    async def bring(self, key: RankKey) -> None:
        """Bring what a rank left, if it is to leave anything; returns once it may be deleted."""
        note = self._read(key)
        if note is None:
            return
        self._leavings.remembered(key, note.refused_s)
        sent_at = time.monotonic()
        while True:
            async with self._turns:
                answer, size_bytes = await self._sent(key, note)
                if answer.permits_deletion:
                    break
                refused = self._leavings.refused(key, time.monotonic() - sent_at, size_bytes)
                sent_at = time.monotonic()
                why = self._leavings.why_given_up(key, self._bounds())
                if why and (await self._given_up(key, why)).permits_deletion:
                    break
            if refused.seconds - note.refused_s >= NOTED_AFTER_SECONDS:
                note = replace(note, refused_s=refused.seconds)
                with suppress(OSError):
                    self._write(key, note)
            await asyncio.sleep(refused.pause_s)
        self.settle(key)

    async def checkpoint(self, key: RankKey) -> tuple[int, int]:
        """Store what a running rank keeps for the next attempt; how many files, and their bytes. Errors: NotReached."""
        note = self._read(key)
        if note is None or not note.keep:
            raise NotReached(Reason.INVALID_ARGUMENT, f"attempt {key} keeps nothing")
        if key in self._checkpointing:
            raise NotReached(Reason.CONFLICT, f"what attempt {key} keeps is being stored already")
        self._checkpointing.add(key)
        try:
            return await self._checkpoint(key, note.keep)
        finally:
            self._checkpointing.discard(key)

    async def _checkpoint(self, key: RankKey, keep: tuple[str, ...]) -> tuple[int, int]:
        pause_s = RETRY_SECONDS_MIN
        for look in range(1, CHECKPOINT_TRIES + 1):
            is_last = look == CHECKPOINT_TRIES
            sent: list[str] = []
            try:
                brought = await asyncio.to_thread(brought_of, self._folder_of(key), (), keep, is_checkpoint=True)
                if brought.kept_manifest is None:
                    raise NotReached(Reason.FILE_TOO_LARGE, brought.kept_problem)
                if await self._send(key, brought, sent) is ResultsAnswer.STORED:
                    return brought.kept_count, brought.kept_bytes
            except (Changed, OSError) as problem:
                if is_last:
                    raise NotReached(Reason.CONFLICT, f"{problem}; write it beside its place, and rename it") from None
            except grpc.aio.AioRpcError as problem:
                error = from_rpc_error(problem)
                if error.reason in REFUSED or error.reason in KEPT_WAITING or is_last:
                    raise NotReached(error.reason, error.message) from None
            except (TimeoutError, asyncio.InvalidStateError) as problem:
                if is_last:
                    why = str(problem) or "the scheduler did not answer"
                    raise NotReached(Reason.NODE_UNREACHABLE, why) from None
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_SECONDS_MAX)
        raise NotReached(Reason.CONFLICT, "not all of it is stored")

    async def _sent(self, key: RankKey, note: Note) -> tuple[ResultsAnswer, int]:
        """Look at what a rank left and send it; what came of it, and its bytes."""
        if note.keep and not note.lines and await self._is_unwanted(key):
            return ResultsAnswer.NOT_WANTED, 0
        brought = await self._looked_at(key, note)
        looks, pause_s, told, since = 1, RETRY_SECONDS_MIN, "", time.monotonic()
        size_bytes = brought.size_bytes
        while True:
            sent: list[str] = []
            try:
                if (answer := await self._send(key, brought, sent)).permits_deletion:
                    return answer, size_bytes
                why, reason = "not all of it is stored", None
            except Changed as problem:
                looks += 1
                brought = brought.nothing(f"{problem}")
                if looks <= LOOKS_MAX:
                    brought = await self._looked_at(key, note)
                    size_bytes = brought.size_bytes
                continue
            except (grpc.aio.AioRpcError, TimeoutError, asyncio.InvalidStateError) as problem:
                why, reason = str(problem) or "the scheduler did not answer", None
                if isinstance(problem, grpc.aio.AioRpcError):
                    error = from_rpc_error(problem)
                    why, reason = error.message, error.reason
                if reason in REFUSED and brought.has_something:
                    brought = brought.less(why)
                    continue
            if why != told:
                _log.warning("what attempt %s left waits here, and is sent again: %s", key, why)
            told, pause_s = why, RETRY_SECONDS_MIN if sent else pause_s
            is_refused = reason in KEPT_WAITING or reason in REFUSED
            if is_refused or time.monotonic() - since >= TURN_SECONDS_MAX:
                return ResultsAnswer.REFUSED, size_bytes
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_SECONDS_MAX)

    async def _is_unwanted(self, key: RankKey) -> bool:
        """Whether nobody wants what a rank keeps: its job has ended, and it need not be read."""
        with suppress(grpc.aio.AioRpcError, TimeoutError, asyncio.InvalidStateError):
            return (await self._send(key, Brought(is_question=True), [])).permits_deletion
        return False

    async def _given_up(self, key: RankKey, why: str) -> ResultsAnswer:
        """Ask the scheduler to record that it is lost."""
        try:
            answer = await self._send(key, Brought(), [], gives_up=why)
        except (grpc.aio.AioRpcError, TimeoutError, asyncio.InvalidStateError) as problem:
            _log.warning("what attempt %s left waits here: that it is given up is not on record: %s", key, problem)
            return ResultsAnswer.REFUSED
        if answer is ResultsAnswer.LOST:
            _log.error("what attempt %s left is deleted and was not stored: %s", key, why)
        return answer

    async def _looked_at(self, key: RankKey, note: Note) -> Brought:
        if note.trouble:
            return Brought(keeps=bool(note.keep)).nothing(note.trouble)
        try:
            return await asyncio.to_thread(brought_of, self._folder_of(key), note.lines, note.keep)
        except (OSError, Changed) as problem:
            return Brought(keeps=bool(note.keep)).nothing(f"{problem}")

    async def _send(self, key: RankKey, brought: Brought, sent: list[str], gives_up: str = "") -> ResultsAnswer:
        """Send it; `sent` grows by the chunks that went. Errors: AioRpcError, Changed, TimeoutError."""
        async with asyncio.timeout(ANSWER_SECONDS):
            await self._is_connected.wait()
        assert self._stub is not None
        call: Any = self._stub.StoreResults()
        is_all = bool(gives_up) or brought.is_question
        try:
            first = pb.StoreResultsRequest(
                node=self._node,
                incarnation=self._incarnation,
                key=key_to_proto(key),
                manifest=brought.left.manifest,
                problems=brought.left.problems,
                gives_up=gives_up,
                kept_manifest=brought.kept_manifest,
                kept_problem=brought.kept_problem,
                is_checkpoint=brought.is_checkpoint,
                is_question=brought.is_question,
            )
            await _within(call.write(first))
            answer = await _within(call.read())
            if not isinstance(answer, pb.StoreResultsResponse) or answer_in(answer).permits_deletion or is_all:
                return answer_in(answer)
            for digest, stored in zip(answer.missing_digests, answer.stored_bytes, strict=True):
                data = await asyncio.to_thread(bytes_of, self._folder_of(key), brought.plans[digest])
                if hashlib.sha256(data).hexdigest() != digest:
                    raise Changed("a file changed while it was read")
                for offset in range(stored, len(data), PIECE_BYTES_MAX):
                    piece = data[offset : offset + PIECE_BYTES_MAX]
                    await _within(call.write(pb.StoreResultsRequest(digest=digest, offset=offset, data=piece)))
                sent.append(digest)
            await call.done_writing()
            return answer_in(await _within(call.read()))
        except asyncio.InvalidStateError:
            await _within(call)  # raises why the scheduler takes no more, where it says so
            return ResultsAnswer.REFUSED
        finally:
            call.cancel()

    def _read(self, key: RankKey) -> Note | None:
        """What is noted of a rank; None where it is to leave nothing, or that is settled."""
        try:
            noted = json.loads((self._folder / key.name).read_bytes())
            if isinstance(noted, list):  # as it was noted by 0.1
                return Note(tuple(map(str, noted)))
            lines, keep = tuple(map(str, noted["lines"])), tuple(map(str, noted.get("keep", ())))
            return Note(lines, keep, str(noted["boot_id"]), float(noted["refused_s"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as problem:
            return Note((), trouble=f"what was noted of --download and --keep cannot be read on the node: {problem}")

    def _write(self, key: RankKey, note: Note) -> None:
        noted = {"lines": note.lines, "keep": note.keep, "boot_id": note.boot_id, "refused_s": note.refused_s}
        replace_file(self._folder / key.name, json.dumps(noted).encode())


def answer_in(message: object) -> ResultsAnswer:
    """What the scheduler answers; only what is on record there permits to delete anything."""
    if isinstance(message, pb.StoreResultsResponse):
        if message.is_stored:
            return ResultsAnswer.STORED
        if message.is_unwanted:
            return ResultsAnswer.NOT_WANTED
        if message.is_lost:
            return ResultsAnswer.LOST
    return ResultsAnswer.REFUSED


async def _within(waited: Any) -> Any:
    async with asyncio.timeout(ANSWER_SECONDS):
        return await waited
