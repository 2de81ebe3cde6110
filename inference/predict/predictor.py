"""What the server holds: the model's state, the batches, and who waits for which of their items. On the event loop."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

from gpufleet.predict import PredictTraits
from gpufleet.runtimes.facts import RuntimeFacts

from ..core.batching import ANSWERED, Batcher, BatchLimits, Settled
from ..loading import Wanted
from .computing import Computed, PredictCallbacks, PredictThread
from .loading import Ready, load
from .metrics import Counts
from .requests import InferRequest, RequestError
from .results import ItemError, Values

STOP_WAIT_S = 1.0
"""How long the model's thread may take to end when nothing is computed any more."""

LOADING_RETRY_S = 1

_log = logging.getLogger(__name__)


class State(Enum):
    """What the model is; the value says so to people."""

    LOADING = "loading"
    READY = "ready"
    ENDING = "ending"
    HUNG = "hung"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class _Waiting:
    """A request under way: its items, and what each has so far."""

    items: list[Any]
    done: asyncio.Future[list[Values | ItemError]]
    found: list[Values | ItemError | None]
    left: int
    came_us: int


class Predictor:
    """Made inside the running loop. `state` is the model's, `why` in words where it is not ready.

    `has_ended` is set when the program is to end: the model cannot be loaded, or hangs. `has_loaded` is called once,
    when the model is there and takes no request yet.
    """

    def __init__(
        self,
        wanted: Wanted,
        limits: BatchLimits,
        *,
        finds_size: bool = False,
        has_loaded: Callable[[], None] = lambda: None,
    ) -> None:
        self.state = State.LOADING
        self.why = "the model is loading"
        self.traits = PredictTraits()
        self.device = ""
        self.runtimes: tuple[RuntimeFacts, ...] = ()
        self.counts = Counts()
        self.has_ended = asyncio.Event()
        self.batcher = Batcher(limits)
        self._has_loaded = has_loaded
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due_us: int | None = None
        batch_max = None if finds_size else limits.batch_max
        told = PredictCallbacks(
            loaded=self._on_loop(self._loaded),
            not_loaded=self._on_loop(self._not_loaded),
            computed=self._on_loop(self._computed),
        )
        self._thread = PredictThread(lambda: load(wanted, batch_max, self._on_loop(self._progress)), told)

    def start(self) -> None:
        """Load the model."""
        self._thread.start()

    def end(self) -> None:
        """Take nothing new; what was taken in is computed."""
        if self.state in (State.LOADING, State.READY):
            self.state, self.why = State.ENDING, "the replica is about to end"

    def close(self) -> bool:
        """Let the model's thread end; whether it did."""
        if self._timer is not None:
            self._timer.cancel()
        self.batcher.end("the replica ends")
        self._tell(())
        return self._thread.stop(0.0 if self.state in (State.HUNG, State.LOADING) else STOP_WAIT_S)

    def infer(self, request: InferRequest) -> asyncio.Future[list[Values | ItemError]]:
        """What each item of a request has, in time. To cancel it lets go of what has not begun. Raises RequestError."""
        if self.state is not State.READY:
            raise RequestError(503, self.why, LOADING_RETRY_S)
        number, now_us = next(self._numbers), _now_us()
        count = len(request.items)
        deadline_us = None if request.timeout_us is None else now_us + request.timeout_us
        if refusal := self.batcher.offer(number, request.key, count, now_us, deadline_us):
            self.counts.items[refusal.status] += count
            self.counts.failed.add(0.0)
            raise RequestError(refusal.status, refusal.message, refusal.retry_s)
        done: asyncio.Future[list[Values | ItemError]] = self._loop.create_future()
        self._waiting[number] = _Waiting(request.items, done, [None] * count, count, now_us)
        done.add_done_callback(lambda future: self._done(number, future))
        self._stir()
        return done

    # --- what happens

    def _done(self, number: int, future: asyncio.Future[Any]) -> None:
        self._waiting.pop(number, None)
        if future.cancelled():
            self.batcher.cancel(number)
            self._stir()

    def _progress(self, share: float, words: str = "") -> None:
        if self.state is State.LOADING and words and words != self.why:
            self.why = f"the model is loading: {words}"
            _log.info("%s", words)

    def _loaded(self, ready: Ready) -> None:
        self.traits, self.device, self.runtimes = ready.traits, ready.device, ready.runtimes
        self.batcher.batch_max = ready.batch_max
        self._has_loaded()
        if self.state is State.LOADING:
            self.state, self.why = State.READY, ""
        where = f" on {ready.device}" if ready.device else ""
        _log.info("ready%s: batches of at most %d", where, ready.batch_max)
        for each in ready.runtimes:
            _log.info("computes with %s", each.in_words())

    def _not_loaded(self, why: str) -> None:
        self.state, self.why = State.FAILED, why
        self.has_ended.set()

    def _computed(self, computed: Computed) -> None:
        now_us = _now_us()
        if self.batcher.running is not None:
            seconds = (now_us - self.batcher.running.began_us) / 1e6
            self.counts.batch(len(self.batcher.running.items), seconds, time.time())
        self.batcher.finish(now_us, computed.outcome)
        self._tell(computed.values)
        self._stir()

    def _stir(self) -> None:
        """Begin what is to begin now, and be awake when something is due."""
        batch = self.batcher.take(_now_us())
        self._tell(())
        if batch is not None:
            for item in batch.items:
                self.counts.waits_s.add((batch.began_us - item.came_us) / 1e6)
            self._thread.begin([self._waiting[item.request].items[item.place] for item in batch.items])
        if self.batcher.is_hung and self.state is not State.HUNG:
            limit_s = self.batcher.limits.hang_us / 1e6
            self.state, self.why = State.HUNG, f"the model did not answer within {limit_s:g} s"
            _log.error("%s: this replica ends", self.why)
            self.has_ended.set()
        due_us = self.batcher.due_us()
        if due_us != self._due_us:
            self._due_us = due_us
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None if due_us is None else self._loop.call_at(due_us / 1e6, self._on_due)

    def _on_due(self) -> None:
        self._timer = self._due_us = None
        self._stir()

    def _tell(self, values: Any) -> None:
        """Give those who wait what their items have."""
        for each in self.batcher.settled():
            self.counts.items[each.status] += 1
            waiting = self._waiting.get(each.request)
            if waiting is None or waiting.done.done():
                continue
            waiting.found[each.place] = _found(each, values)
            waiting.left -= 1
            if not waiting.left:
                found = [one for one in waiting.found if one is not None]
                is_success = any(not isinstance(one, ItemError) for one in found)
                ended = self.counts.succeeded if is_success else self.counts.failed
                ended.add((_now_us() - waiting.came_us) / 1e6)
                waiting.done.set_result(found)

    def _on_loop(self, call: Callable[..., None]) -> Callable[..., None]:
        """The same call, made on the loop by any other thread."""

        def later(*arguments: Any) -> None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(call, *arguments)

        return later


def _found(settled: Settled, values: Any) -> Values | ItemError:
    if settled.status == ANSWERED:
        found: Values = values[settled.answer]
        return found
    return ItemError(settled.status, settled.message)


def _now_us() -> int:
    """Microseconds of the loop's own clock."""
    return time.monotonic_ns() // 1_000
