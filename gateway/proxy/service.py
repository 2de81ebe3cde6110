"""One served program in this gateway: its replicas, the requests that they work on, and those that wait for one."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field

from gpufleet.v1 import inference_pb2, job_pb2, sessions_pb2

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.channel import Target
from gpufleet.telemetry.logs import fields

from .core.choice import PASSED_OVER_S, choose
from .core.gpu_choice import MODEL_DOWN, NO_GPU_NODE, GpuMode, Line, Routing
from .core.waiting import Ends, Waiting, WaitingRequests
from .upstream import Endpoint, ReplicaFailed, Upstream

log = logging.getLogger(__name__)

WAIT_S_MAX = 60.0
"""How long a request waits for a replica; loading a program may take longer, and who asks then asks again."""

RETRY_S_MIN, RETRY_S_MAX = 1, 60
"""What is said in Retry-After: the estimate within these bounds, or the first where there is none."""

HOPEFUL = frozenset({inference_pb2.WORKER_STATE_LOADING, inference_pb2.WORKER_STATE_READY})
"""States of a worker that takes requests, or may yet; no other one is started of a model that has failed."""

SEATS = 64
"""Requests that a replica takes at a time where nothing else is said."""


MODES: Mapping[int, GpuMode] = {
    job_pb2.GPU_MODE_REQUIRED: GpuMode.REQUIRED,
    job_pb2.GPU_MODE_PREFERRED: GpuMode.PREFERRED,
    job_pb2.GPU_MODE_NEVER: GpuMode.NEVER,
    job_pb2.GPU_MODE_AUTO: GpuMode.AUTO,
}


class Busy(Exception):
    """No replica for a request: `error` says why, `place` how many turns it was until its own, `estimate_s` how long
    they would take, where that is known."""

    def __init__(self, error: GpufleetError, place: int, estimate_s: float | None) -> None:
        super().__init__(error.message)
        self.error = error
        self.place = place
        self.estimate_s = estimate_s
        self.retry_after_s = min(RETRY_S_MAX, max(RETRY_S_MIN, math.ceil(estimate_s or 0)))


@dataclass(slots=True, eq=False)
class _Request(Waiting):
    session: str
    avoided: Upstream | None
    replica: asyncio.Future[Upstream] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Service:
    """Made inside the running loop. `changed` is called after each change of how many requests there are."""

    def __init__(
        self,
        name: str,
        worker_target: Callable[[sessions_pb2.WorkerInfo], Target],
        waiting_in_all: Callable[[], int],
        changed: Callable[[], None],
    ) -> None:
        self.name = name
        self.access: sessions_pb2.ModelAccess.ValueType = sessions_pb2.MODEL_ACCESS_UNSPECIFIED
        self.waits_for = ""
        self.cpu_model = ""
        self.gpu_mode = GpuMode.REQUIRED
        self.routing = Routing()
        self._lacks_gpu_nodes = False
        self._failure: str | None = None
        self.under_way = 0
        self._worker_target = worker_target
        self._waiting_in_all = waiting_in_all
        self._changed = changed
        self._replicas: dict[str, Upstream] = {}
        self._waiting = WaitingRequests[_Request]()
        self._ends = Ends()
        self._number = 0
        self._now_s = asyncio.get_running_loop().time

    @property
    def ready(self) -> list[Upstream]:
        """Its replicas that take requests."""
        return list(self._replicas.values())

    @property
    def waiting(self) -> int:
        """Requests that wait for a replica."""
        return len(self._waiting)

    @property
    def is_idle(self) -> bool:
        """Whether there is no request."""
        return not (self.under_way or self.waiting)

    def report(self) -> sessions_pb2.ServedRequests:
        """What the scheduler is told of its requests."""
        said = sessions_pb2.ServedRequests(model=self.name, under_way=self.under_way, waiting=self.waiting)
        for replica in self._replicas.values():
            if replica.under_way:
                said.replicas.add(worker_start=replica.id, under_way=replica.under_way)
        oldest_s = self._waiting.oldest_s()
        if oldest_s is not None:
            said.longest_wait.FromMilliseconds(round((self._now_s() - oldest_s) * 1e3))
        return said

    def line(self) -> Line:
        """How it stands with it, for a request that may go elsewhere."""
        why = ""
        if not self._replicas:
            why = MODEL_DOWN if self._failure is not None else NO_GPU_NODE if self._lacks_gpu_nodes else ""
        return Line(waiting=self.waiting, why_none=why)

    def update(self, news: sessions_pb2.WatchWorkersResponse) -> None:
        """The scheduler has told its replicas."""
        self.access, self.waits_for = news.access, news.waits_for
        self.cpu_model, self.gpu_mode = news.http.cpu_model, MODES.get(news.http.gpu_mode, GpuMode.REQUIRED)
        self.routing, self._lacks_gpu_nodes = routing_of(news.routing), news.lacks_gpu_nodes
        has_hope = any(worker.state in HOPEFUL for worker in news.workers)
        self._failure = news.failure.message if news.HasField("failure") and not has_hope else None
        seats = news.http.concurrency or SEATS
        before, self._replicas = self._replicas, {}
        for worker in news.workers:
            if worker.state != inference_pb2.WORKER_STATE_READY or not (worker.endpoint and worker.connect_key):
                continue
            replica = before.pop(worker.worker_start, None)
            if replica is None:
                try:
                    replica = self._made(worker, seats)
                except (GpufleetError, ValueError, OSError) as problem:  # an address or a certificate that is none
                    log.warning("a replica cannot be used", extra=fields(model=self.name, why=str(problem)))
                    continue
            replica.seats = seats
            self._replicas[replica.id] = replica
        for gone in before.values():
            gone.close()
        self._serve()
        if self._failure is not None and not self._replicas:
            self._refuse_all(self._down(self._failure))

    def _made(self, worker: sessions_pb2.WorkerInfo, seats: int) -> Upstream:
        return Upstream(worker.worker_start, seats, Endpoint(self._worker_target(worker), worker.connect_key))

    def close(self, why: GpufleetError | None = None) -> None:
        """It is not watched any more. Where it is not served any more, `why` is the answer to all that wait."""
        replicas, self._replicas = self._replicas, {}
        for replica in replicas.values():
            replica.close()
        if why is not None:
            self._refuse_all(why)

    async def replica(self, caller: str, session: str, deadline_s: float, avoided: Upstream | None) -> Upstream:
        """The replica for a request, which is under way from now on; `release` follows. Raises Busy, MODEL_DOWN."""
        if self._failure is not None and not self._replicas:
            raise self._down(self._failure)
        if not self.waiting:
            found = self._take(session, avoided)
            if found is not None:
                self._changed()
                return found
        if not self._waiting.has_room(caller, self._waiting_in_all()):
            message = f"as many requests as may wait for a replica of {self.name!r} already"
            raise self._busy(GpufleetError(Reason.LINE_FULL, message), self.waiting + 1)
        request = _Request(caller, self._now_s(), session, avoided)
        self._waiting.add(request)
        self._changed()
        try:
            async with asyncio.timeout_at(deadline_s):
                return await request.replica
        except BaseException as problem:
            if request.replica.done() and not request.replica.cancelled():
                if request.replica.exception() is None:
                    # It got one in the moment in which it left.
                    self.release(request.replica.result())
                raise
            place = self._waiting.place_of(request)
            self._waiting.remove(request)
            self._changed()
            if isinstance(problem, TimeoutError):
                raise self._busy(GpufleetError(Reason.WORKER_NOT_READY, self._why()), place) from None
            raise

    def release(self, replica: Upstream) -> None:
        """A request is over."""
        replica.under_way -= 1
        self.under_way -= 1
        self._ends.add(self._now_s())
        self._serve()
        self._changed()

    def failed(self, replica: Upstream, problem: ReplicaFailed) -> None:
        """A replica is passed over for a moment. One that took a request and broke it stays, where there is no other: a
        program that breaks on some requests is of use to others."""
        if problem.was_sent:
            problem.replica = hashlib.blake2b(replica.id.encode(), digest_size=8).hexdigest()
            problem.is_shared = replica.broke(self._now_s())
        if problem.was_kept:
            return
        log.warning("a replica failed", extra=fields(model=self.name, replica=replica.id, why=str(problem)))
        if problem.was_sent and len(self._replicas) == 1:
            return
        replica.passed_over_until_s = self._now_s() + PASSED_OVER_S
        # Not a moment too early: else who waits would wait for the next change.
        asyncio.get_running_loop().call_at(replica.passed_over_until_s + 0.001, self._serve)

    def _take(self, session: str, avoided: Upstream | None) -> Upstream | None:
        found = choose(self._replicas.values(), self._now_s(), session, avoided)
        if found is not None:
            self._number += 1
            found.used = self._number
            found.under_way += 1
            self.under_way += 1
        return found

    def _serve(self) -> None:
        """Give replicas to those that wait, as far as there are any."""
        while (first := self._waiting.first()) is not None:
            found = self._take(first.session, first.avoided)
            if found is None:
                return
            self._waiting.take().replica.set_result(found)
            self._changed()

    def _refuse_all(self, why: GpufleetError) -> None:
        """Nothing comes any more for those that wait."""
        while self._waiting.first() is not None:
            request = self._waiting.take()
            if not request.replica.done():
                request.replica.set_exception(copy(why))  # one that is raised again and again grows with each traceback
        self._changed()

    def _down(self, words: str) -> GpufleetError:
        step = f"See its last lines with: gpuctl models -o wide --model {self.name}. Mended, serve it again."
        return GpufleetError(Reason.MODEL_DOWN, f"{self.name!r} has failed: {words}", next_step=step)

    def _why(self) -> str:
        if self._replicas:
            return f"every replica of {self.name!r} has as many requests as it takes"
        return f"no replica of {self.name!r} is ready" + (f": {self.waits_for}" if self.waits_for else "")

    def _busy(self, error: GpufleetError, place: int) -> Busy:
        estimate_s = self._ends.estimate_s(place, self._now_s()) if self._replicas else None
        return Busy(error, place, estimate_s)


def routing_of(said: sessions_pb2.GpuRouting) -> Routing:
    """The scheduler's table."""
    return Routing(
        modes={pattern: MODES[mode] for pattern, mode in said.content_types.items() if mode in MODES},
        gpu_wait_s=said.gpu_wait.ToTimedelta().total_seconds(),
        gpu_queue_limit=said.gpu_queue_limit,
    )
