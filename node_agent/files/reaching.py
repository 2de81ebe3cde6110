"""People who reach into the folder of a job that runs: a channel each, which the scheduler asks for.

    scheduler ── OpenFilesCommand ──▶ reaching.py ── CarryFiles ──▶ scheduler
                                          └── reached_folder.py, by the rights of the job's user

One question is answered after the other. With the connection to the scheduler all channels end; what was cut goes on
where it stood, by another one.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio
from gpufleet.v1 import files_pb2, node_agent_pb2

from gpufleet.errors import Reason
from gpufleet.jobs.runs import RankKey
from gpufleet.net.carrying import PIECE_BYTES_MAX

from ..core.commands import OpenFiles
from ..core.launch import Isolation
from ..isolation.accounts import AccountUnusable
from .account_thread import AccountThread
from .reached_folder import NotReached, ReachedFile, ResultsAlone, listed
from .written_file import WrittenFile

if TYPE_CHECKING:
    from gpufleet.v1.node_agent_pb2_grpc import NodeAgentAsyncStub

_log = logging.getLogger(__name__)

CHANNELS_MAX = 64
"""People who reach into folders of this node at once; one beyond them is told so."""
ENTRIES_AT_ONCE = 500
IDLE_SECONDS_MAX = 300.0
"""Nobody who asks nothing, and sends nothing, for so long is waited for."""

Request = node_agent_pb2.CarryFilesRequest
Answer = files_pb2.FolderAnswer


class Reaching:
    """The channels of one link to the scheduler after another; `hold` as long as there is one.

    `runs` says whether a rank runs here, `folder_of` where its folder is, `account_of` as whom a user's jobs run, and
    `checkpoint` stores what a rank keeps: how many files, and their bytes. Errors: NotReached.
    """

    def __init__(
        self,
        runs: Callable[[RankKey], bool],
        folder_of: Callable[[RankKey], Path],
        account_of: Callable[[str], Isolation | None],
        checkpoint: Callable[[RankKey], Awaitable[tuple[int, int]]],
    ) -> None:
        self._checkpoint = checkpoint
        self._runs = runs
        self._folder_of = folder_of
        self._account_of = account_of
        self._stub: NodeAgentAsyncStub | None = None
        self._channels: dict[str, asyncio.Task[None]] = {}

    async def hold(self, stub: NodeAgentAsyncStub) -> None:
        """Dial on this link until cancelled."""
        self._stub = stub
        try:
            await asyncio.Event().wait()
        finally:
            self._stub = None
            tasks = tuple(self._channels.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def open(self, command: OpenFiles) -> None:
        """Begin to answer."""
        if self._stub is None or command.channel_id in self._channels:
            return
        is_one_too_many = len(self._channels) >= CHANNELS_MAX
        task = asyncio.create_task(self._serve(self._stub, command, is_one_too_many=is_one_too_many))
        self._channels[command.channel_id] = task
        task.add_done_callback(lambda done: self._ended(command, done))

    def close(self, channel_id: str) -> None:
        """End a channel at once; one that has ended stays so."""
        if (task := self._channels.get(channel_id)) is not None:
            task.cancel()

    def _ended(self, command: OpenFiles, task: asyncio.Task[None]) -> None:
        del self._channels[command.channel_id]
        if not task.cancelled() and (problem := task.exception()) is not None:
            _log.error("the folder of %s could not be reached", command.key, exc_info=problem)

    async def _serve(self, stub: NodeAgentAsyncStub, command: OpenFiles, *, is_one_too_many: bool) -> None:
        call: Any = stub.CarryFiles()
        top = -1
        try:
            try:
                if is_one_too_many:
                    raise NotReached(Reason.TOO_MANY_STREAMS, f"{CHANNELS_MAX} others reach into folders of this node")
                top, account = self._opened(command)
            except NotReached as problem:
                told = Request(channel_id=command.channel_id, problem=str(problem), reason=problem.reason.name)
                await call.write(told)
                await call.done_writing()
                await call
                return
            await call.write(Request(channel_id=command.channel_id, only_results=command.only_results))
            with AccountThread(account) as thread:
                owner = os.geteuid() if account is None else account.uid
                alone = ResultsAlone(command.results, os.fstat(top).st_uid) if command.only_results else None
                checkpoint = partial(self._checkpoint, command.key)
                await _Conversation(call, thread, top, owner, alone, checkpoint).hold()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError) as problem:
            _log.debug("who reached into the folder of %s has left: %s", command.key, problem)
        finally:
            call.cancel()
            if top >= 0:
                os.close(top)

    def _opened(self, command: OpenFiles) -> tuple[int, Isolation | None]:
        if not self._runs(command.key):
            raise NotReached(Reason.JOB_NOT_RUNNING, f"{command.key} does not run here any more")
        try:
            account = self._account_of(command.user)
            return os.open(self._folder_of(command.key), os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW), account
        except AccountUnusable as problem:
            raise NotReached(Reason.PERMISSION_DENIED, problem.refusal.detail) from None
        except OSError:
            why = "the job has no folder of its own: it was submitted without --upload, --file, --download and --keep"
            raise NotReached(Reason.FILE_NOT_FOUND, why) from None


class _Conversation:
    """Questions and answers about one folder; with `alone` about those files of it."""

    def __init__(
        self,
        call: Any,
        thread: AccountThread,
        top: int,
        owner: int,
        alone: ResultsAlone | None,
        checkpoint: Callable[[], Awaitable[tuple[int, int]]],
    ) -> None:
        self._alone = alone
        self._checkpoint = checkpoint
        self._call = call
        self._thread = thread
        self._top = top
        self._owner = owner

    async def hold(self) -> None:
        """Answer until nobody asks any more."""
        while (message := await self._next()) is not None:
            if not message.HasField("question"):
                continue  # bytes of a file that was refused meanwhile
            question = message.question
            try:
                what = question.WhichOneof("what")
                if self._alone is not None and what not in ("list", "read"):
                    raise NotReached(Reason.NOT_YOUR_JOB, "only the job's owner and admins write into its folder")
                match what:
                    case "list":
                        await self._list(question.list)
                    case "read":
                        await self._read(question.read)
                    case "write":
                        await self._write(question.write)
                    case "keep":
                        file_count, size_bytes = await self._checkpoint()
                        await self._say(Answer(file_count=file_count, size_bytes=size_bytes, is_end=True))
                    case _:
                        raise NotReached(Reason.NOT_BUILT, "this node's agent does not know what is asked for")
            except NotReached as problem:
                await self._say(Answer(problem=str(problem), reason=problem.reason.name, is_end=True))
            except OSError as problem:
                why = problem.strerror or str(problem)
                await self._say(Answer(problem=why, reason=Reason.CONFLICT.name, is_end=True))

    async def _list(self, asked: files_pb2.ListFolder) -> None:
        left_out: list[str] = []
        found: Iterator[files_pb2.FolderEntry] = listed(self._top, asked.path, left_out, self._alone)
        while True:
            some = await self._thread.run(lambda: list(islice(found, ENTRIES_AT_ONCE)))
            is_end = len(some) < ENTRIES_AT_ONCE
            await self._say(Answer(entries=some, is_end=is_end, left_out=left_out if is_end else ()))
            if is_end:
                return

    async def _read(self, asked: files_pb2.ReadFile) -> None:
        file = await self._thread.run(lambda: ReachedFile(self._top, asked.path, self._alone))
        try:
            offset = asked.offset if asked.version == file.version else 0
            if not 0 <= offset <= file.entry.size_bytes:
                raise NotReached(Reason.OFFSET_OUT_OF_RANGE, f"{offset:,} is not within the file")
            passed = 0
            while passed < offset:  # what is there already counts for its SHA-256
                size = min(PIECE_BYTES_MAX, offset - passed)
                passed += len(await self._thread.run(lambda size=size: file.read(size)))  # type: ignore[misc]
            await self._say(Answer(file=file.entry, version=file.version, offset=offset))
            while not file.is_whole:
                data = await self._thread.run(lambda: file.read(PIECE_BYTES_MAX))
                await self._say(Answer(data=data, offset=offset))
                offset += len(data)
            await self._say(Answer(is_end=True, digest=await self._thread.run(file.digest)))
        finally:
            file.close()

    async def _write(self, asked: files_pb2.WriteFile) -> None:
        file = await self._thread.run(lambda: WrittenFile(self._top, asked, self._owner))
        try:
            await self._say(Answer(offset=file.offset))
            while not file.is_whole:
                message = await self._next()
                if message is None or message.HasField("question"):
                    raise NotReached(Reason.INVALID_ARGUMENT, f"{asked.path!a} ended before its size was reached")
                await self._thread.run(lambda data=message.data: file.write(data))  # type: ignore[misc]
            await self._thread.run(file.finish)
        finally:
            file.close()
        await self._say(Answer(is_end=True))

    async def _next(self) -> Any:
        async with asyncio.timeout(IDLE_SECONDS_MAX):
            message = await self._call.read()
        return message if isinstance(message, node_agent_pb2.CarryFilesResponse) else None

    async def _say(self, answer: files_pb2.FolderAnswer) -> None:
        await self._call.write(Request(answer=answer))
