"""StreamOutput of a job: what is stored, then what arrives, until the job has ended and everything was sent."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from functools import partial

from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import Reason, invalid

from ...clock import is_set_within, wall_time
from ...output_hub import OutputHub, StreamKey
from ...ports import Gap, Piece
from ...state.attempts import OutputStream
from ...state.ids import JobId, RankKey
from ...state.jobs import ATTEMPTS_KEPT
from ...state.units import SECOND
from ...watching import ChangeHub
from ...wire.validate import span_of
from .arrival_order import ArrivalOrder
from .beginnings import TAIL_LINES_MAX, beginning, since_of
from .stored_ends import written_ends

KEEPALIVE_SECONDS = 10.0
"""A silent stream shows this often that it lives, unless its reader asks for another interval."""

KEEPALIVE_SECONDS_MIN, KEEPALIVE_SECONDS_MAX = 0.1, 300.0
"""What a reader may ask for: more often is a load, and more seldom tells nobody that the stream lives."""

Response = scheduler_pb2.StreamOutputResponse
ShowJob = Callable[[JobId], Awaitable[tuple[job_pb2.Job, bool]]]


def keepalive_seconds(request: scheduler_pb2.StreamOutputRequest) -> float:
    """The interval that the reader asked for, brought within the bounds; in seconds."""
    if not request.HasField("keepalive"):
        return KEEPALIVE_SECONDS
    return min(max(span_of(request.keepalive) / SECOND, KEEPALIVE_SECONDS_MIN), KEEPALIVE_SECONDS_MAX)


class JobFollower:
    """One reader of one job's output."""

    def __init__(
        self, request: scheduler_pb2.StreamOutputRequest, hub: OutputHub, changes: ChangeHub, show: ShowJob
    ) -> None:
        if request.tail_lines < 0 or request.tail_lines > TAIL_LINES_MAX:
            raise invalid("tail_lines", f"is {request.tail_lines}; it must be 0 to {TAIL_LINES_MAX:,}")
        if request.attempt < 0:
            raise invalid("attempt", f"is {request.attempt}; it must be 1 or more, or 0 for the newest")
        if request.attempt and request.all_attempts:
            raise invalid("all_attempts", f"attempt {request.attempt} is asked for as well; name one of the two")
        if request.rank < 0:
            raise invalid("rank", f"is {request.rank}; ranks count from 0")
        if request.stream not in job_pb2.Stream.values():
            raise invalid("stream", f"is {request.stream}; it must be stdout or stderr")
        for number, position in enumerate(request.positions):
            if position.offset < 0:
                raise invalid(f"positions[{number}].offset", f"is {position.offset}; offsets count from 0")
        self._since = since_of(request, wall_time())
        self._request = request
        self._job = JobId(request.job_id)
        self._hub = hub
        self._changes = changes
        self._show = show
        self._positions: dict[tuple[int, int, int], int] = {
            (position.attempt, position.rank, position.stream): position.offset for position in request.positions
        }
        self._keepalive_seconds = keepalive_seconds(request)
        self._newest = 0
        self._lineages: dict[int, str] = {}

    async def stream(self) -> AsyncGenerator[Response, None]:
        """Every message to the reader."""
        follower = self._hub.follow(self._job)
        self._changes.follow_job(self._job, follower.wakeup)
        try:
            shown, has_ended = await self._show(self._job)
            if self._request.attempt > shown.attempt_count:
                why = f"job {self._job} has {shown.attempt_count or 'no'} attempts so far, and none of this number"
                raise invalid("attempt", why, reason=Reason.ATTEMPT_NOT_FOUND)
            yield Response(job=shown)
            self._learn(shown)
            async for response in self._skip_to_beginning():
                yield response
            async for response in self._stored():
                yield response
            while self._request.follow and not has_ended and not self._is_replaced(shown):
                if not await is_set_within(follower.wakeup, self._keepalive_seconds):
                    yield Response()
                    continue
                pieces, is_behind = follower.take()
                now, has_ended = await self._show(self._job)
                self._learn(now)
                is_news = now.state != shown.state or now.attempt_count != shown.attempt_count
                # Where it runs is told before what it writes there, also of one that has ended meanwhile.
                is_news = is_news or now.warnings != shown.warnings or now.output_blocked != shown.output_blocked
                is_news = is_news or now.setting_up != shown.setting_up
                if is_news and (not has_ended or not shown.attempts):
                    yield Response(job=now)
                shown = now
                if is_behind:
                    async for response in self._stored():
                        yield response
                else:
                    for key, offset, data in pieces:
                        async for response in self._new(key, offset, data):
                            yield response
            async for response in self._stored():
                yield response
            shown, has_ended = await self._show(self._job)
            if self._lost(shown):  # it may also have come and ended meanwhile
                async for response in self._stored():
                    yield response
            for key, gap in self._lost(shown):
                yield self._response(key, gap)
            yield Response(job=shown, is_end=has_ended or self._is_replaced(shown))
        finally:
            self._hub.unfollow(self._job, follower)
            self._changes.unfollow_job(self._job, follower.wakeup)

    def _is_replaced(self, job: job_pb2.Job) -> bool:
        """Whether the attempt that was asked for has a later one: all that it wrote was stored before that began."""
        return 0 < self._request.attempt < job.attempt_count

    def _learn(self, job: job_pb2.Job) -> None:
        self._newest = job.attempt_count
        self._lineages = {attempt.number: attempt.lineage for attempt in job.attempts}

    def _is_of_the_job(self, key: RankKey) -> bool:
        """What lies under the same numbers may be of another job, of before the store was put back."""
        if key.attempt in self._lineages:
            return self._lineages[key.attempt] == key.lineage
        # Of the oldest attempts of many the job itself keeps nothing, and the store what they wrote.
        return len(self._lineages) >= ATTEMPTS_KEPT and key.attempt < min(self._lineages)

    def _is_wanted(self, key: StreamKey) -> bool:
        rank_key, stream = key
        request = self._request
        if not self._is_of_the_job(rank_key):
            return False
        if request.HasField("rank") and rank_key.rank != request.rank:
            return False
        if request.stream and int(stream) != int(request.stream):
            return False
        if request.attempt:
            return rank_key.attempt == request.attempt
        return request.follow or request.all_attempts or rank_key.attempt == self._newest

    def _place(self, key: StreamKey) -> tuple[int, int, int]:
        rank_key, stream = key
        return rank_key.attempt, rank_key.rank, stream

    def _position(self, key: StreamKey) -> int:
        return self._positions.get(self._place(key), 0)

    def _advance(self, key: StreamKey, offset: int) -> None:
        self._positions[self._place(key)] = offset

    async def _streams(self) -> list[StreamKey]:
        keys = await self._hub.on_thread(lambda: self._hub.store.streams(self._job))
        return [key for key in keys if self._is_wanted(key)]

    async def _stored(self) -> AsyncIterator[Response]:
        """Everything in the store behind the reader's positions, in the order in which it arrived."""
        positions = {key: self._position(key) for key in await self._streams()}
        reading = await self._hub.on_thread(partial(ArrivalOrder, self._hub.store, positions))
        while found := await self._hub.on_thread(reading.next):
            for key, part in found:
                yield self._response(key, part)

    async def _new(self, key: StreamKey, offset: int, data: bytes) -> AsyncIterator[Response]:
        """Bytes that just arrived; what came before them and was not sent yet is read from the store first."""
        if not self._is_wanted(key):
            return
        if offset > self._position(key):
            async for response in self._stored():
                yield response
        fresh = data[max(0, self._position(key) - offset) :]
        if fresh:
            yield self._response(key, Piece(offset=self._position(key), data=fresh))

    def _response(self, key: StreamKey, found: Piece | Gap) -> Response:
        rank_key, stream = key
        response = Response(
            attempt=rank_key.attempt,
            rank=rank_key.rank,
            stream=job_pb2.Stream.ValueType(stream),
            offset=found.offset,
        )
        if isinstance(found, Piece):
            response.data = found.data
            self._advance(key, found.offset + len(found.data))
        else:
            response.gap.from_offset = found.offset
            response.gap.to_offset = found.end
            self._advance(key, found.end)
        return response

    def _lost(self, shown: job_pb2.Job) -> list[tuple[StreamKey, Gap]]:
        """What attempts wrote behind the reader's positions: once all that is stored was sent, it is a gap."""
        if self._request.HasField("tail_lines") and not self._request.tail_lines:
            return []
        ends = [
            (
                (RankKey(self._job, attempt.number, end.rank, attempt.lineage), OutputStream(int(end.stream))),
                end.end_offset,
            )
            for attempt, end in written_ends(shown)
        ]
        return [
            (key, Gap(offset=self._position(key), end=end))
            for key, end in ends
            if self._is_wanted(key) and self._position(key) < end
        ]

    async def _skip_to_beginning(self) -> AsyncIterator[Response]:
        """Go to what was asked for, and tell where it begins: a reader that is cut off now goes on from there.

        The newest lines are looked for only by a reader who has none yet; a time holds for every stream without a
        position, so that a reader who comes back may ask for it again.
        """
        request = self._request
        lines = request.tail_lines if request.HasField("tail_lines") and not request.positions else None
        if lines is None and self._since is None:
            return
        for key in await self._streams():
            if self._place(key) not in self._positions:
                begin = partial(beginning, self._hub.store, key, since=self._since, lines=lines)
                start = await self._hub.on_thread(begin)
                yield self._response(key, Piece(offset=start, data=b""))
