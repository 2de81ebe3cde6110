"""The Scheduler service: people who reach into running jobs. Each method is one RPC.

The owner of a job and admins may, and who is let in is written down in the job's story before the first byte passes.
Who may read what a job writes reaches the files of its folder that its --download chooses, too (rule 4.59).
"""

from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from gpufleet.v1 import files_pb2, node_agent_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.net.carrying import PIECE_BYTES_MAX, PORT_MAX

from ...blobs.store import BlobStore
from ...state import events
from ...state.ids import JobId, NodeName, RankKey, UserName
from ...state.jobs import Finished, Job
from ...watching import ChangeHub
from ..answers import reply_of
from ..jobs.finding import JobsFound
from ..jobs.starting import until_started
from ..long_streams import first_of
from ..roles import caller
from ..sight import Sight
from .executing import check_start, relay_command, story_line
from .files import relay_files
from .keeping import check_keeps, kept_by
from .tunnels import AgentSide, Direction, Tunnels, relay

START_SECONDS_MAX = 30.0
"""How long a caller may take to say what it wants to reach."""

START_WAIT_SECONDS_MAX = 10.0
"""How long a call waits for a job that is being started."""

CONNECTIONS_OF_USER_MAX = 256
"""Calls into jobs that one person may have open at once; a browser opens six to a page."""

ENTRIES_REMEMBERED = 10_000
"""Who connected to which port of which attempt is told once; of more than so many it is told again."""

Request = scheduler_pb2.ForwardPortRequest
Response = scheduler_pb2.ForwardPortResponse
FilesRequest = files_pb2.AccessFilesRequest
FilesResponse = files_pb2.AccessFilesResponse
Entry = tuple[RankKey, UserName, int]
"""Who came to which rank by which port, 0 for its files."""


class EnteringCalls(JobsFound):
    """What people reach inside jobs."""

    changes: ChangeHub
    tunnels: Tunnels
    blobs: BlobStore
    one_stream: Callable[[], AbstractContextManager[None]]
    _told_entries: OrderedDict[Entry, None]
    _entered: Counter[UserName]

    async def ForwardPort(self, request_iterator: AsyncIterator[Request], context: Any) -> None:
        """A connection to a port of a running job."""
        first = await first_of(request_iterator, START_SECONDS_MAX)
        if first is None or not first.target.job_id:
            raise invalid("target.job_id", "is not set", next_step="give a job's id, such as 41")
        target = first.target
        if not 1 <= target.port <= PORT_MAX:
            raise invalid("target.port", f"is {target.port}; it must be 1 to {PORT_MAX:,}")
        job = await self.find(target.job_id)
        self.check_owner(job)
        self.check_has_output(job)
        with self._one_of(caller().user), self.one_stream():
            node, key = await self._place(job, target.rank, "target.rank")
            async with self.tunnels.to_port(node, key, target.port) as side:
                await self._write_down(key, port=target.port)
                await context.write(Response(attempt=key.attempt))
                await _relay_port(request_iterator, context, side)

    async def ExecJob(self, request_iterator: AsyncIterator[scheduler_pb2.ExecJobRequest], context: Any) -> None:
        """Another command in the world of a running job."""
        first = await first_of(request_iterator, START_SECONDS_MAX)
        if first is None or not first.start.job_id:
            raise invalid("start.job_id", "is not set", next_step="give a job's id, such as 41")
        start = first.start
        check_start(start)
        job = await self.find(start.job_id)
        self.check_owner(job)
        self.check_has_output(job)
        with self._one_of(caller().user), self.one_stream():
            node, key = await self._place(job, start.rank, "start.rank")
            await self._write_down(key, command=story_line(start))
            async with self.tunnels.to_command(node, key, start) as side:
                await context.write(scheduler_pb2.ExecJobResponse(attempt=key.attempt))
                await relay_command(request_iterator, context, side)

    async def AccessFiles(self, request_iterator: AsyncIterator[FilesRequest], context: Any) -> None:
        """The folder of a running job: lists, files from it and into it."""
        first = await first_of(request_iterator, START_SECONDS_MAX)
        if first is None or not first.target.job_id:
            raise invalid("target.job_id", "is not set", next_step="give a job's id, such as 41")
        if first.HasField("question") or first.data:
            raise invalid("question", "comes before the folder is reached", next_step="send the target alone first")
        job = await self.find(first.target.job_id)
        only = self._only_results_of(job)
        self.check_has_output(job)
        with self._one_of(caller().user), self.one_stream():
            node, key = await self._place(job, first.target.rank, "target.rank")
            async with self.tunnels.to_files(node, key, job.user, only) as side:
                await self._write_down(key, files=True)
                await context.write(FilesResponse(attempt=key.attempt))
                await relay_files(request_iterator, context, side, self.blobs, may_write=only is None)

    def _only_results_of(self, job: Job) -> tuple[str, ...] | None:
        """The lines that choose what the caller reaches of a folder; None for all of it, for its owner and admins.

        Errors: OUTPUT_PRIVATE, NOT_YOUR_JOB where no line chooses anything.
        """
        if Sight.of_caller(self.facts).is_whole(job.user):
            return None
        self.check_may_read(job)
        if not job.spec.results:
            why = f"job {job.id} belongs to {job.user}, and no --download of it chooses files for others"
            raise GpufleetError(Reason.NOT_YOUR_JOB, why)
        return job.spec.results

    async def KeepFiles(self, request: files_pb2.KeepFilesRequest) -> files_pb2.KeepFilesResponse:
        """Have what a rank of a running job keeps stored for the next attempt; return once all of it is."""
        job = await self.find(request.job_id)
        self.check_owner(job)
        self.check_has_output(job)
        check_keeps(job)
        with self._one_of(caller().user), self.one_stream():
            node, key = await self._place(job, request.rank, "rank")
            async with self.tunnels.to_files(node, key, job.user) as side:
                return await kept_by(side, key)

    @contextmanager
    def _one_of(self, user: UserName) -> Iterator[None]:
        """Count a call for as long as it is served. Errors: TOO_MANY_STREAMS."""
        if self._entered[user] >= CONNECTIONS_OF_USER_MAX:
            raise GpufleetError(
                Reason.TOO_MANY_STREAMS,
                f"{user} has {CONNECTIONS_OF_USER_MAX} connections into jobs, and commands in them, open",
                next_step="close some, or try again later",
                retry_after_s=1.0,
            )
        self._entered[user] += 1
        try:
            yield
        finally:
            self._entered[user] -= 1
            if not self._entered[user]:
                del self._entered[user]

    async def _place(self, job: Job, rank: int, field: str) -> tuple[NodeName, RankKey]:
        """Where a rank of the job's running attempt is. Errors: JOB_FINISHED, JOB_NOT_RUNNING, INVALID_ARGUMENT."""
        await until_started(self.engine, self.changes, job.id, START_WAIT_SECONDS_MAX)
        present = self.engine.view.durable.jobs.get(job.id)
        if present is None or isinstance(present.state, Finished):
            raise GpufleetError(
                Reason.JOB_FINISHED, f"job {job.id} has ended", next_step=f"see how with: gpuctl job {job.id}"
            )
        attempt = present.attempt
        if attempt is None:
            raise _not_running(f"job {job.id} has no running process yet", job.id)
        if not 0 <= rank < len(attempt.ranks):
            raise invalid(field, f"is {rank}; job {job.id} has {len(attempt.ranks)}, counted from 0")
        place = attempt.ranks[rank]
        if place.started_at is None or place.exit is not None:
            raise _not_running(f"no process of rank {rank} of job {job.id} runs now", job.id)
        return place.placement.node, attempt.keys(job.id)[rank]

    async def _write_down(self, key: RankKey, port: int = 0, command: str = "", *, files: bool = False) -> None:
        """Have it stored that the caller is let in; that they come again by a port, or to files, is not told again."""
        entry = key, caller().user, port
        if not command and entry in self._told_entries:
            self._told_entries.move_to_end(entry)
            return
        event = events.EntryRequested(
            at=self.engine.now(),
            by=caller().user,
            job=key.job,
            attempt=key.attempt,
            port=port,
            command=command,
            files=files,
        )
        await reply_of(self.engine.request(event))
        if not command:
            self._told_entries[entry] = None
            while len(self._told_entries) > ENTRIES_REMEMBERED:
                self._told_entries.popitem(last=False)


async def _relay_port(requests: AsyncIterator[Request], context: Any, side: AgentSide) -> None:
    async def up(request: Request) -> bool:
        if request.HasField("target"):
            raise invalid("target", "belongs into the first message only")
        if len(request.data) > PIECE_BYTES_MAX:
            raise invalid("data", f"holds {len(request.data):,} bytes; at most {PIECE_BYTES_MAX:,} a message")
        await side.context.write(node_agent_pb2.CarryPortResponse(data=request.data, is_end=request.is_end))
        return not request.is_end

    async def down(message: node_agent_pb2.CarryPortRequest) -> bool:
        await context.write(Response(data=message.data, is_end=message.is_end))
        return not message.is_end

    from_person = Direction(lambda: anext(requests, None), up)
    await relay(side, from_person, Direction(lambda: anext(side.requests, None), down))


def _not_running(message: str, job_id: JobId) -> GpufleetError:
    return GpufleetError(
        Reason.JOB_NOT_RUNNING, message, next_step=f"see what it waits for with: gpuctl explain {job_id}"
    )
