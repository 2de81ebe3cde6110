"""StreamOutput of what made a job's environment: its node has that, and is asked for it."""

from collections.abc import AsyncIterator, Awaitable, Callable

from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError, Reason, invalid

from ...state.attempts import Attempt, EndedAttempt
from ...state.ids import JobId
from ...state.jobs import Job
from .beginnings import TAIL_LINES_MAX
from .program_logs import ProgramLogs

PIECE_BYTES_MAX = 256 * 1024

Response = scheduler_pb2.StreamOutputResponse
ShowJob = Callable[[JobId], Awaitable[tuple[job_pb2.Job, bool]]]


async def stream_setup(
    request: scheduler_pb2.StreamOutputRequest, job: Job, logs: ProgramLogs, show: ShowJob
) -> AsyncIterator[Response]:
    """All of it that there is so far, or its newest lines.

    Errors: INVALID_ARGUMENT, ATTEMPT_NOT_FOUND, OUTPUT_NOT_FOUND, NODE_UNREACHABLE.
    """
    _check(request)
    attempt = _attempt(request, job)
    if not request.rank < len(attempt.ranks):
        raise invalid("rank", f"is {request.rank}; job {job.id} has {len(attempt.ranks)}, counted from 0")
    node = attempt.ranks[request.rank].placement.node
    written = await logs.of_setup(node, attempt.keys(job.id)[request.rank])
    if not written:
        raise GpufleetError(
            Reason.OUTPUT_NOT_FOUND,
            f"node {node} has nothing of what made the environment of job {job.id}",
            next_step=f"See what its story has of it: gpuctl story {job.id}",
        )
    begin = _begin(request, written)
    shown, _ = await show(job.id)
    for offset in range(begin, len(written), PIECE_BYTES_MAX):
        yield Response(
            attempt=attempt.number,
            rank=request.rank,
            stream=job_pb2.STREAM_STDOUT,
            offset=offset,
            data=written[offset : offset + PIECE_BYTES_MAX],
            job=shown if offset == begin else None,
        )
    yield Response(job=shown, is_end=True)


def _check(request: scheduler_pb2.StreamOutputRequest) -> None:
    asked = {
        "stream": request.stream,
        "follow": request.follow,
        "since_time": request.HasField("since_time"),
        "all_attempts": request.all_attempts,
    }
    for field, is_asked in asked.items():
        if is_asked:
            raise invalid(
                field, "does not go with of_setup, which is what was written so far", next_step="leave it out"
            )
    if request.tail_lines < 0 or request.tail_lines > TAIL_LINES_MAX:
        raise invalid("tail_lines", f"is {request.tail_lines}; it must be 0 to {TAIL_LINES_MAX:,}")
    if request.attempt < 0:
        raise invalid("attempt", f"is {request.attempt}; it must be 1 or more, or 0 for the newest")
    if any(position.offset < 0 for position in request.positions):
        raise invalid("positions", "have an offset below 0; offsets count from 0")
    if request.rank < 0:
        raise invalid("rank", f"is {request.rank}; ranks count from 0")


def _attempt(request: scheduler_pb2.StreamOutputRequest, job: Job) -> Attempt | EndedAttempt:
    if job.spec.environment is None:
        raise invalid("of_setup", f"job {job.id} has no environment that was made for it", next_step="leave it out")
    known: list[Attempt | EndedAttempt] = [*job.past, *([] if job.attempt is None else [job.attempt])]
    found = [each for each in known if request.attempt in (0, each.number)]
    if not found:
        which = "of this number" if request.attempt else "yet"
        raise invalid("attempt", f"job {job.id} has no attempt {which}", reason=Reason.ATTEMPT_NOT_FOUND)
    return found[-1]


def _begin(request: scheduler_pb2.StreamOutputRequest, written: bytes) -> int:
    """The offset of the first byte that is wanted."""
    if request.positions:
        return max(position.offset for position in request.positions)
    if not request.HasField("tail_lines"):
        return 0
    lines = written.splitlines(keepends=True)
    return len(written) - sum(map(len, lines[len(lines) - min(request.tail_lines, len(lines)) :]))
