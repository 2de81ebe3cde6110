"""Following changes of jobs and nodes with Watch: `wait`, `queue -w`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

from gpufleet.errors import GpufleetError, Reason
from gpufleet.v1 import job_pb2, scheduler_pb2

from ..async_client import AsyncClient
from ..outcome import has_ended
from .feeds import Feed, MessageKind


class Changes(Feed[scheduler_pb2.WatchResponse]):
    """Changes as a feed; `on_message` says what each message was."""

    def __init__(
        self,
        client: AsyncClient,
        request: scheduler_pb2.WatchRequest,
        on_message: Callable[[scheduler_pb2.WatchResponse], MessageKind],
        ask: Callable[[], Awaitable[bool]] | None = None,
        on_new_picture: Callable[[], None] = lambda: None,
    ) -> None:
        self._client = client
        self._request = request
        self._on_message = on_message
        self._ask = ask
        self._on_new_picture = on_new_picture

    def open(self) -> AsyncIterator[scheduler_pb2.WatchResponse]:
        """A stream that goes on after the last change that was seen."""
        if not self._request.resume_token:
            self._on_new_picture()
        return self._client.scheduler.Watch(self._request).__aiter__()

    async def ask(self) -> bool:
        """Whether the scheduler is there."""
        if self._ask is not None:
            return await self._ask()
        await self._client.call(self._client.scheduler.GetServerInfo, scheduler_pb2.GetServerInfoRequest())
        return False

    def take(self, message: scheduler_pb2.WatchResponse) -> MessageKind:
        """Remember how far it goes, and pass it on."""
        if message.event == scheduler_pb2.WATCH_EVENT_RESYNC:
            self._on_new_picture()
        if message.resume_token:
            self._request.resume_token = message.resume_token
        return self._on_message(message)

    def forgives(self, problem: GpufleetError) -> bool:
        """Too long away to go on from there: begin with the present state."""
        if problem.reason is Reason.RESUME_TOKEN_EXPIRED:
            self._request.resume_token = ""
            return True
        return False


class Ends:
    """Waits for the end of each of some jobs. A job that the stream does not show is looked up in its record."""

    def __init__(self, client: AsyncClient, job_ids: Iterable[int], on_end: Callable[[job_pb2.Job], None]) -> None:
        self._client = client
        self._waiting = set(job_ids)
        self._unseen: set[int] = set()
        self._doubtful: set[int] = set()
        self._on_end = on_end
        request = scheduler_pb2.WatchRequest(job_ids=sorted(self._waiting))
        self.feed = Changes(client, request, self._on_message, self.read_records, self._begin_picture)

    @property
    def waiting(self) -> list[int]:
        """Ids of the jobs that have not ended, as far as is known."""
        return sorted(self._waiting)

    async def read_records(self) -> bool:
        """Look up each job that is waited for; True when all have ended."""
        for job_id in self.waiting:
            request = scheduler_pb2.GetJobRequest(job_id=job_id)
            self._see((await self._client.call(self._client.scheduler.GetJob, request)).job)
        return not self._waiting

    def _on_message(self, message: scheduler_pb2.WatchResponse) -> MessageKind:
        match message.event:
            case scheduler_pb2.WATCH_EVENT_SYNCED:
                self._doubtful |= self._unseen & self._waiting
            case scheduler_pb2.WATCH_EVENT_REMOVED:
                self._doubtful |= {message.job.id} & self._waiting
            case scheduler_pb2.WATCH_EVENT_SNAPSHOT | scheduler_pb2.WATCH_EVENT_CHANGED:
                self._unseen.discard(message.job.id)
                self._see(message.job)
            case _:
                pass
        if not self._waiting:
            return MessageKind.END
        if self._doubtful:
            return MessageKind.DOUBT
        is_quiet = message.event == scheduler_pb2.WATCH_EVENT_KEEPALIVE
        return MessageKind.SIGN_OF_LIFE if is_quiet else MessageKind.NEWS

    def _begin_picture(self) -> None:
        self._unseen = set(self._waiting)

    def _see(self, job: job_pb2.Job) -> None:
        self._doubtful.discard(job.id)
        if job.id in self._waiting and has_ended(job):
            self._waiting.discard(job.id)
            self._on_end(job)
