"""The first moments of `gpuctl run`, without asyncio: a short job has ended by the time that would be imported.

Only what is simple is done here: output, and an end. A job that takes longer, a stream that is lost and a signal are
left to `attached.py`, which goes on from the byte that was written last.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType

import grpc
from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.fleet.client import Client
from gpufleet.fleet.following.feeds import MessageKind
from gpufleet.fleet.following.output import OutputFeed, OutputRequest
from gpufleet.fleet.settings import Settings

from ..following.writers import Plain, Streams
from .progress import Progress

FIRST_S_MAX = 2.0
"""How long a job is followed so at most."""


class FirstMoments:
    """A job that was just submitted, as far as it is followed here; it has no input of ours."""

    def __init__(self, job: job_pb2.Job) -> None:
        self.job = job
        self.began_at = monotonic()
        """When the session began, which `--session-timeout` counts from."""
        self.streams = Streams()
        self.progress = Progress(self.streams.note)
        self.output = OutputFeed(
            None, OutputRequest(job_id=job.id, follow=True), Plain(self.streams), on_job=self._on_job, known=job
        )
        self.signals: list[signal.Signals] = []
        """Those that came, which nobody has acted upon yet."""
        self._cancel: Callable[[], object] | None = None

    def follow(self, client: Client, settings: Settings) -> bool:
        """Write the output as it comes; whether that was all, and the job has ended."""
        limits = settings.config.settings
        longest_s = min(limits.session_timeout.total_seconds(), limits.max_wait_time.total_seconds(), FIRST_S_MAX)
        self.progress.tell(self.job)
        call = client.scheduler.StreamOutput(self.output.request(), timeout=longest_s)
        self._cancel = call.cancel
        try:
            return not self.signals and self._take(call)
        except grpc.RpcError:  # what it is, is told by the next stream
            return False
        finally:
            call.cancel()

    def _take(self, messages: Iterator[scheduler_pb2.StreamOutputResponse]) -> bool:
        for message in messages:
            kind = self.output.take(message)
            if kind is MessageKind.END:
                return True
            if kind is MessageKind.BROKEN or self.signals:
                return False
        return False

    @contextmanager
    def keeping_signals(self) -> Iterator[None]:
        """Have signals noted, and the stream left for them, so that none strikes in the middle of a write."""

        def keep(number: int, frame: FrameType | None) -> None:
            self.signals.append(signal.Signals(number))
            if self._cancel is not None:
                self._cancel()

        before = {number: signal.signal(number, keep) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_job(self, job: job_pb2.Job) -> None:
        self.progress.tell(job)
        self.job = job
