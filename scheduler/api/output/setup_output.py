"""StreamOutput of what made a job's environment: its node has that, and is asked for it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError, Reason, invalid

from ...clock import is_set_within
from ...state.attempts import Attempt, EndedAttempt
from ...state.ids import JobId
from ...state.jobs import Job
from ...watching import ChangeHub
from .beginnings import TAIL_LINES_MAX
from .following import keepalive_seconds
from .program_logs import ProgramLogs

PIECE_BYTES_MAX = 256 * 1024

LOOK_SECONDS = 0.5
"""How often who follows has a node asked for what it has by now."""

Response = scheduler_pb2.StreamOutputResponse
FindJob = Callable[[int], Awaitable[Job]]
ShowJob = Callable[[JobId], Awaitable[tuple[job_pb2.Job, bool]]]


class SetupReader:
    """One reader of what makes the environment of a job's rank."""

    def __init__(
        self,
        request: scheduler_pb2.StreamOutputRequest,
        logs: ProgramLogs,
        changes: ChangeHub,
        find: FindJob,
        show: ShowJob,
    ) -> None:
        _check(request)
        self._request = request
        self._logs = logs
        self._changes = changes
        self._find = find
        self._show = show
        self._offsets = {
            position.attempt: position.offset for position in request.positions if position.rank == request.rank
        }
        self._was_written = bool(self._offsets)
        self._begun_at: dict[int, int] = {}

    async def stream(self, job: Job) -> AsyncIterator[Response]:
        """All of it that there is so far, or its newest lines; who follows gets the rest as it is written.

        Errors: INVALID_ARGUMENT, ATTEMPT_NOT_FOUND, OUTPUT_NOT_FOUND, NODE_UNREACHABLE.
        """
        if job.spec.environment is None:
            raise invalid(
                "of_setup",
                f"job {job.id} has no environment that was made for it",
                next_step=f"What the job itself wrote shows: gpuctl logs {job.id}",
            )
        changed = asyncio.Event()
        self._changes.follow_job(job.id, changed)
        try:
            async for response in self._looked_at(job, changed):
                yield response
        finally:
            self._changes.unfollow_job(job.id, changed)

    async def _looked_at(self, job: Job, changed: asyncio.Event) -> AsyncIterator[Response]:
        shown, has_ended = await self._show(job.id)
        yield Response(job=shown)
        silent_seconds = 0.0
        while True:
            attempt = self._attempt(job, may_come=self._request.follow and not has_ended)
            is_over = not self._request.follow or has_ended or self._is_over(job, attempt)
            data, offset = b"", 0
            if attempt is not None:
                data, offset = await self._new(job, attempt, may_be_away=not is_over)
                for at in range(0, len(data), PIECE_BYTES_MAX):
                    yield self._response(attempt, offset + at, data[at : at + PIECE_BYTES_MAX])
            if is_over:
                break
            silent_seconds = 0.0 if data else silent_seconds + LOOK_SECONDS
            if silent_seconds >= keepalive_seconds(self._request):
                yield Response()
                silent_seconds = 0.0
            await is_set_within(changed, LOOK_SECONDS)
            changed.clear()
            job = await self._find(job.id)
            shown, has_ended = await self._show(job.id)
        if not self._was_written:
            raise GpufleetError(
                Reason.OUTPUT_NOT_FOUND,
                f"its node has nothing of what made the environment of job {job.id}",
                next_step=f"See what its story has of it: gpuctl story {job.id}",
            )
        yield Response(job=shown, is_end=True)

    def _attempt(self, job: Job, *, may_come: bool) -> Attempt | EndedAttempt | None:
        """The one that is meant; None where it has not begun yet."""
        number = self._request.attempt
        known: list[Attempt | EndedAttempt] = [*job.past, *([] if job.attempt is None else [job.attempt])]
        found = [each for each in known if number in (0, each.number)]
        if not found:
            if may_come and not number:
                return None
            which = "of this number" if number else "yet"
            raise invalid("attempt", f"job {job.id} has no attempt {which}", reason=Reason.ATTEMPT_NOT_FOUND)
        ranks = len(found[-1].ranks)
        if self._request.rank >= ranks:
            raise invalid("rank", f"is {self._request.rank}; job {job.id} has {ranks}, counted from 0")
        return found[-1]

    def _is_over(self, job: Job, attempt: Attempt | EndedAttempt | None) -> bool:
        """Whether nothing more is written: the rank runs, or never will as the attempt that was asked for."""
        if attempt is None:
            return False
        has_ended = attempt is not job.attempt and bool(self._request.attempt)
        return has_ended or attempt.ranks[self._request.rank].started_at is not None

    async def _new(self, job: Job, attempt: Attempt | EndedAttempt, *, may_be_away: bool) -> tuple[bytes, int]:
        """What was written since the last look, and at which offset it stands for the reader."""
        number = attempt.number
        offset, begun_at = self._offsets.get(number, 0), self._begun_at.get(number, 0)
        node = attempt.ranks[self._request.rank].placement.node
        key = next(each for each in attempt.keys(job.id) if each.rank == self._request.rank)
        try:
            data, total_bytes = await self._logs.of_setup(node, key, offset - begun_at)
            if total_bytes < offset - begun_at:  # an agent that was started again has begun anew
                self._begun_at[number] = begun_at = offset
                data, total_bytes = await self._logs.of_setup(node, key, 0)
        except GpufleetError as problem:
            if problem.reason is not Reason.NODE_UNREACHABLE or not self._request.follow:
                raise
            if may_be_away:
                return b"", offset
            raise GpufleetError(
                Reason.OUTPUT_NOT_FOUND, f"the end of it is not known: {problem.message}", next_step=problem.next_step
            ) from None
        if number not in self._offsets and self._request.HasField("tail_lines") and not self._request.positions:
            offset = _begin_of_newest(data, self._request.tail_lines)
            data = data[offset:]
        self._was_written = self._was_written or total_bytes > 0
        if total_bytes:
            self._offsets[number] = offset + len(data)
        return data, offset

    def _response(self, attempt: Attempt | EndedAttempt, offset: int, data: bytes) -> Response:
        return Response(
            attempt=attempt.number, rank=self._request.rank, stream=job_pb2.STREAM_STDOUT, offset=offset, data=data
        )


def _check(request: scheduler_pb2.StreamOutputRequest) -> None:
    asked = {
        "stream": request.stream,
        "since_time": request.HasField("since_time"),
        "all_attempts": request.all_attempts,
    }
    for field, is_asked in asked.items():
        if is_asked:
            why = "does not go with of_setup, which is all that was written, without times"
            raise invalid(field, why, next_step="leave it out")
    if request.tail_lines < 0 or request.tail_lines > TAIL_LINES_MAX:
        raise invalid("tail_lines", f"is {request.tail_lines}; it must be 0 to {TAIL_LINES_MAX:,}")
    if request.attempt < 0:
        raise invalid("attempt", f"is {request.attempt}; it must be 1 or more, or 0 for the newest")
    if any(position.offset < 0 for position in request.positions):
        raise invalid("positions", "have an offset below 0; offsets count from 0")
    if request.rank < 0:
        raise invalid("rank", f"is {request.rank}; ranks count from 0")


def _begin_of_newest(written: bytes, count: int) -> int:
    """The offset of the first of so many lines."""
    lines = written.splitlines(keepends=True)
    return len(written) - sum(map(len, lines[len(lines) - min(count, len(lines)) :]))
