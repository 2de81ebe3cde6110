"""The worker: a model on its thread, the turns it holds, and what it says of itself. On the event loop.

Knows neither gRPC's server nor the scheduler: `service.py` brings streams, `link.py` brings the scheduler's words.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from gpufleet.v1 import inference_pb2, sessions_pb2

from gpufleet.errors import GpufleetError, Reason
from gpufleet.model import Traits
from gpufleet.runtimes.facts import RuntimeFacts
from gpufleet.security.tickets import Refusal, TurnTicket, make_secret, read_ticket
from gpufleet.telemetry.metrics import OFF as NO_METRICS
from gpufleet.telemetry.metrics import Metrics, Readings, on_loop
from gpufleet.telemetry.spans import OFF, Telemetry

from . import wire
from .loading import Loaded, Wanted, load, model_name
from .measures import INSTRUMENTS, Measures
from .stepping import ModelCallbacks, ModelThread, now_us
from .turning import End, Turning

_log = logging.getLogger(__name__)

STEP_US_LATE = 1_000_000
"""A call into the model that takes longer is late: it is the model, and no person, that does nothing."""

STEP_US_MAX = 10_000_000
"""A call into the model that takes longer costs the worker."""

LOOKED_AFTER_S = 0.25
"""How often late steps and lost streams are looked for. Steps themselves wait for nothing of this."""

ENCODERS_MAX = 8
STOP_S_MAX = 5.0
"""How long a model may take to come back when the worker ends."""

LOADING, READY, DRAINING, FAILED = (
    inference_pb2.WORKER_STATE_LOADING,
    inference_pb2.WORKER_STATE_READY,
    inference_pb2.WORKER_STATE_DRAINING,
    inference_pb2.WORKER_STATE_FAILED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What a worker serves and under which names; `start` and `secret` are new with every start."""

    wanted: Wanted
    name: str = ""
    version: str = ""
    start: str = field(default_factory=lambda: secrets.token_hex(16))
    secret: bytes = field(default_factory=make_secret, repr=False)

    @property
    def model(self) -> str:
        """The model's name."""
        return self.name or model_name(self.wanted.entry_point)


class Worker:
    """One worker. Made inside the running loop; `run` lasts until it is stopped, drained or lost.

    `loading` is for tests, which bring a model of their own.
    """

    def __init__(
        self,
        described: Described,
        loading: Callable[[], Loaded] | None = None,
        traces: Telemetry = OFF,
        metrics: Metrics = NO_METRICS,
    ) -> None:
        self.described = described
        self.state: inference_pb2.WorkerState.ValueType = LOADING
        self.progress = 0.0
        self.message = ""
        self.traits = Traits()
        self.runtimes: tuple[RuntimeFacts, ...] = ()
        self.suspects: tuple[str, ...] = ()
        self.changed = asyncio.Event()
        self.state_changed = asyncio.Event()
        self.failure: GpufleetError | None = None
        self._loop = asyncio.get_running_loop()
        self._finished = asyncio.Event()
        self._clock_ahead_s = 0.0
        self._loaded = asyncio.Event()
        self._load_since = (now_us(), 0)
        self._encoders = ThreadPoolExecutor(min(ENCODERS_MAX, (os.cpu_count() or 1) + 1), thread_name_prefix="encoder")
        told = ModelCallbacks(
            loaded=self._soon(self._on_loaded),
            not_loaded=self._soon(self._on_not_loaded),
            begun=self._soon(lambda seat: self.turning.begun(seat)),
            failed=self._soon(lambda seat, why: self.turning.seat_failed(seat, why)),
            has_room=self._soon(lambda seat: self.turning.room_made(seat)),
        )
        self.model = ModelThread(loading or (lambda: load(described.wanted, self._soon(self._on_progress))), told)
        self.turning = Turning(
            self.model,
            self._encoders,
            changed=self.tell,
            ended=self._on_ended,
            traces=traces,
            measures=Measures(metrics, described.model),
        )
        if metrics.is_on:
            metrics.observe(INSTRUMENTS, on_loop(self._loop, self._readings))

    # --- life

    async def run(self) -> None:
        """Load the model and look after the turns, until there is nothing more to do; see `failure` then."""
        self.model.start()
        try:
            while not self._finished.is_set():
                try:
                    async with asyncio.timeout(LOOKED_AFTER_S):
                        await self._finished.wait()
                except TimeoutError:
                    self._look_after()
        finally:
            self.turning.end_all(End.DRAINING)
            is_hung = self.failure is not None and self.failure.reason is Reason.MODEL_HANGS
            if not is_hung and not await asyncio.to_thread(self.model.stop, STOP_S_MAX):
                _log.error("the model did not come back within %g s", STOP_S_MAX)
            self._encoders.shutdown(wait=not is_hung, cancel_futures=True)

    async def wait_until_loaded(self) -> None:
        """Return once the worker is ready, or has failed."""
        await self._loaded.wait()

    def stop(self) -> None:
        """End every turn and finish."""
        self.turning.turns.is_draining = True
        self.turning.end_all(End.DRAINING)
        self._finish()

    def drain(self) -> None:
        """Take no new turns, and finish after the last one."""
        self.turning.turns.is_draining = True
        if self.state == READY:
            self._set_state(DRAINING)
        _log.info("draining: no new turns; %d go on", len(self.turning.held))
        self._on_ended()

    # --- streams

    def expect(self, session: str, epoch: int, identity: str) -> None:
        """The scheduler has granted a turn here."""
        self.turning.turns.expect(session, epoch, identity, now_us())

    def end(self, session: str, epoch: int, reason: str) -> None:
        """The scheduler has ended a turn here."""
        self.turning.end(session, epoch, reason)

    def acknowledged(self, number: int) -> None:
        """The scheduler has stored the ends up to this number."""
        self.turning.acknowledged(number)

    def ticket(self, text: str) -> TurnTicket:
        """What a turn ticket says. Raises WORKER_NOT_READY, TICKET_REFUSED."""
        if self.state not in (READY, DRAINING):
            raise GpufleetError(Reason.WORKER_NOT_READY, self.message or "the model is being loaded", retry_after_s=1.0)
        described = self.described
        now_s = time.time() + self._clock_ahead_s
        found = read_ticket(text, described.secret, worker_start=described.start, now_s=now_s)
        if isinstance(found, Refusal):
            raise GpufleetError(Reason.TICKET_REFUSED, f"the turn ticket is refused: {found}")
        return found

    def set_scheduler_time(self, now_s: float) -> None:
        """The scheduler's clock says this now; tickets expire by it."""
        self._clock_ahead_s = now_s - time.time()

    # --- what it says of itself

    @property
    def seats(self) -> int:
        """Sessions that it can hold; 0 while that is unknown."""
        return self.turning.turns.seats

    @property
    def has_turns(self) -> bool:
        """Whether it holds any turn."""
        return bool(self.turning.held)

    @property
    def ends(self) -> Sequence[sessions_pb2.TurnEnded]:
        """Ends of turns that the scheduler has not stored yet."""
        return self.turning.ends

    @property
    def card(self) -> sessions_pb2.ModelCard:
        """What people are shown of its model."""
        return wire.card(self.traits.card)

    def tell(self) -> None:
        """A report would say something new."""
        self.changed.set()

    def report(self) -> sessions_pb2.ConnectWorkerRequest:
        """What the worker says of itself to the scheduler."""
        return wire.report(
            self.state,
            self.turning.live(),
            progress=self.progress,
            message=self.message,
            load=self._load(),
            seats=self.seats,
            suspects=self.suspects,
        )

    def info(self) -> inference_pb2.GetModelInfoResponse:
        """What the worker says to everybody."""
        return inference_pb2.GetModelInfoResponse(
            model=self.described.model,
            seats=self.seats,
            width=self.traits.width,
            height=self.traits.height,
            worker_start=self.described.start,
            state=self.state,
            progress=self.progress,
            ticks_per_second=self.traits.ticks_per_second,
            session_count=len(self.turning.held),
            message=self.message,
            version=self.described.version,
            runtimes=[wire.runtime(each) for each in self.runtimes],
        )

    # --- on the loop

    def _look_after(self) -> None:
        call = self.model.call
        took_us = 0 if call is None or self.state == LOADING else now_us() - call.began_us
        self.turning.set_step_late(took_us >= STEP_US_LATE)
        if call is not None and took_us >= STEP_US_MAX:
            self._on_hung(call.sessions)
        else:
            self.turning.end_overdue()

    def _on_hung(self, sessions: tuple[str, ...]) -> None:
        self.suspects = sessions
        self._fail(
            GpufleetError(
                Reason.MODEL_HANGS,
                f"a step of the model takes longer than {STEP_US_MAX / 1e6:g} s, in session {', '.join(sessions)}",
            )
        )
        self.turning.end_all(End.WORKER_LOST)
        self._finish()

    def _on_loaded(self, loaded: Loaded) -> None:
        traits = self.traits = loaded.traits
        self.runtimes = loaded.runtimes
        self.turning.turns.seats = traits.seats
        self.progress, self.message = 1.0, ""
        _log.info("ready: %s, %d seats, %g ticks/s", self.described.model, traits.seats, traits.ticks_per_second)
        for each in loaded.runtimes:
            _log.info("computes with %s", each.in_words())
        self._set_state(DRAINING if self.turning.turns.is_draining else READY)
        self._loaded.set()
        self._on_ended()

    def _on_not_loaded(self, why: str) -> None:
        self._fail(GpufleetError(Reason.MODEL_NOT_LOADED, f"{self.described.wanted.entry_point}: {why}"))
        self._loaded.set()
        self._finish()

    def _on_progress(self, share: float, words: str = "") -> None:
        self.progress, self.message = share, words
        if words:
            _log.info("loading, %d %%: %s", round(share * 100), words)
        self.tell()

    def _on_ended(self) -> None:
        if self.state == DRAINING and not self.turning.held:
            self._finish()

    def _fail(self, error: GpufleetError) -> None:
        _log.error("%s", error.message)
        self.failure = error
        self.message = error.message
        self._set_state(FAILED)

    def _finish(self) -> None:
        self._finished.set()

    def _set_state(self, state: inference_pb2.WorkerState.ValueType) -> None:
        self.state = state
        self.state_changed.set()
        self.tell()

    async def _readings(self) -> Readings:
        labels = {"model": self.described.model}
        return {
            "gpufleet.worker.sessions": [(len(self.turning.held), labels)],
            "gpufleet.worker.seats": [(self.seats, labels)],
            "gpufleet.worker.ready": [(float(self.state == READY), labels)],
        }

    def _load(self) -> float:
        since_us, busy_us = self._load_since
        self._load_since = (now_us(), self.model.busy_us())
        span_us = max(1, self._load_since[0] - since_us)
        return min(1.0, (self._load_since[1] - busy_us) / span_us)

    def _soon(self, call: Callable[..., None]) -> Callable[..., None]:
        """The call from any thread, run on the loop."""

        def later(*arguments: object) -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(call, *arguments)

        return later
