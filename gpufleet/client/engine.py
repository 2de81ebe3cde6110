"""What carries out a dispatcher's decisions on one event loop: requests, checks, the callable, and its timer."""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, assert_never

from .core.calls import AbortRequest, CheckWorker, FinishCall, Rules, SendRequest
from .core.circuit import OUTCOMES_MAX, Circuit
from .core.dispatch import Dispatcher
from .core.outcomes import Answer, Backend, Break, ErrorKind, Failure, InferenceFailed, ItemError, Reply, Result
from .core.sums import Thresholds
from .core.workers import Condition, Health, WorkerState
from .http import HttpAnswer, HttpOriginClient, RequestFailed
from .meter import measure
from .metrics import ClientMetrics, metrics_of
from .protocol import ModelMetadata, decode, encode, error_text, failure_of_model, metadata_of
from .routes import CALLABLE, Route
from .settings import ClientSettings
from .tensors import CannotDecode, CannotEncode, key_of

log = logging.getLogger("gpufleet.client")

Fallback: TypeAlias = Callable[[list[Any]], "Sequence[Any] | Awaitable[Sequence[Any]]"]
"""Takes a list of items, and gives one value for each in the same order; a coroutine function, or one for a thread."""

ITEMS_MAX = 1_000_000
"""Of one call; more are for `stream`, which holds a few batches at a time."""

REFUSING_STATUSES = frozenset({401, 403, 404})
"""Answers to a check that a wait does not change."""


CPU_IS_RIGHT = ("never", "auto")
"""Modes of requests by which an answer of a CPU is what was asked for."""


@dataclass(slots=True)
class _Connected:
    """A route with its connections, and what its worker said of the model."""

    route: Route
    http: HttpOriginClient
    metadata: ModelMetadata | None = None


class Engine:
    """Made, used and closed in one running event loop."""

    def __init__(self, settings: ClientSettings, routes: Sequence[Route], fallback: Fallback | None) -> None:
        self.loop = asyncio.get_running_loop()
        self.settings = settings
        self._fallback = fallback
        self._is_coroutine = inspect.iscoroutinefunction(fallback)
        self._workers = {route.origin.url: _connected(route, settings) for route in routes}
        states = [_state(worker.route, settings, place) for place, worker in enumerate(self._workers.values())]
        if fallback is not None and settings.backend in ("auto", "callable"):
            states.append(_callable_state(settings))
        self._dispatcher = Dispatcher(_rules(settings), states, random.random)
        measure(settings.model, self._dispatcher, self.loop.time)
        self._calls: dict[int, tuple[Sequence[Any], asyncio.Future[list[Result]]]] = {}
        self._requests: dict[int, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._is_closed = False

    async def predict(self, items: Sequence[Any], deadline_s: float) -> list[Result]:
        """One result for each item, in their order, `deadline_s` from now at the latest."""
        if self._is_closed:
            raise closed()
        if len(items) > ITEMS_MAX:
            raise ValueError(f"{len(items)} items are more than {ITEMS_MAX}: use stream, which takes any number")
        number = self._dispatcher.submit([key_of(item) for item in items], self.loop.time() + deadline_s)
        answered: asyncio.Future[list[Result]] = self.loop.create_future()
        self._calls[number] = (items, answered)
        self._step()
        try:
            return await answered
        finally:
            if self._calls.pop(number, None) is not None:
                self._dispatcher.cancel(number)
                self._step()

    def metrics(self) -> ClientMetrics:
        """What it did so far."""
        return metrics_of(self._dispatcher, self.loop.time())

    async def close(self) -> None:
        """End what is under way: calls raise InferenceFailed. A callable that runs in a thread is not waited for."""
        self._is_closed = True
        for number, (_, answered) in list(self._calls.items()):
            self._dispatcher.cancel(number)
            if not answered.done():
                answered.set_exception(closed())
        self._calls.clear()
        self._step()
        tasks = [*self._tasks, *self._requests.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for worker in self._workers.values():
            worker.http.close()
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
        await asyncio.sleep(0)  # connections that were aborted are closed in the loop's next round

    def _step(self) -> None:
        """Carry out what is to be done now, and come back when there is more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for action in self._dispatcher.step(self.loop.time()):
            match action:
                case SendRequest():
                    self._start_request(action)
                case AbortRequest():
                    if (task := self._requests.pop(action.request, None)) is not None:
                        self._keep(task)
                        task.cancel()
                case CheckWorker():
                    self._keep(self.loop.create_task(self._check(action.worker), name="inference-check"))
                case FinishCall():
                    self._finish(action)
                case _:
                    assert_never(action)
        wake_at_s = self._dispatcher.wake_at_s()
        if wake_at_s is not None and not self._is_closed:
            self._timer = self.loop.call_at(wake_at_s, self._step)

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _finish(self, action: FinishCall) -> None:
        _, answered = self._calls.pop(action.call)
        if not answered.done():
            answered.set_result(list(action.results))
        settings = self.settings
        thresholds = Thresholds(
            warn_success_below=settings.warn_success_below,
            warn_batch_mean_above_s=settings.warn_batch_mean_above_s,
            warn_gpu_share_below=settings.warn_gpu_share_below,
            warn_fallback_above=settings.warn_fallback_above,
        )
        expects_gpu = self._dispatcher.expects_gpu and settings.gpu_mode not in CPU_IS_RIGHT
        for text in self._dispatcher.sums.new_warnings(thresholds, expects_gpu=expects_gpu):
            log.warning("%s: %s", self.settings.model or "inference", text)

    # --- requests

    def _start_request(self, action: SendRequest) -> None:
        items, _ = self._calls[action.call]
        part = [items[index] for index in action.items]
        task = self.loop.create_task(self._request(action, part), name="inference-request")
        self._requests[action.request] = task

    async def _request(self, action: SendRequest, items: list[Any]) -> None:
        outcome: Reply | Failure
        try:
            async with asyncio.timeout(action.timeout_s):
                if action.worker == CALLABLE:
                    outcome = await self._ask_callable(items)
                else:
                    outcome = await self._ask(self._workers[action.worker], items, action.timeout_s)
        except TimeoutError:
            outcome = Failure(ErrorKind.TIMED_OUT, f"no answer within {action.timeout_s:g} s")
        except RequestFailed as problem:
            outcome = problem.failure
            if outcome.kind is ErrorKind.BROKEN and await self._has_ended(self._workers[action.worker]):
                outcome = replace(outcome, broke=Break())
        except CannotEncode as problem:
            outcome = Failure(ErrorKind.REJECTED, str(problem))
        except Exception as problem:
            log.exception("a request could not be made")
            outcome = Failure(ErrorKind.REJECTED, f"the client failed: {type(problem).__name__}: {problem}")
        if self._requests.pop(action.request, None) is None:
            return
        if isinstance(outcome, Reply):
            self._dispatcher.replied(action.request, outcome, self.loop.time())
        else:
            self._dispatcher.failed(action.request, outcome, self.loop.time())
        self._step()

    async def _ask(self, worker: _Connected, items: list[Any], timeout_s: float) -> Reply | Failure:
        specs = worker.metadata.inputs if worker.metadata is not None else ()
        encoded = encode(items, specs, binary=self.settings.binary, timeout_s=timeout_s)
        headers = (*encoded.headers, *worker.route.headers)
        answer = await worker.http.request("POST", f"{worker.route.path}/infer", headers, encoded.body)
        return decode(answer.status, answer.headers, answer.body, items)

    async def _has_ended(self, worker: _Connected) -> bool:
        """Whether a worker that broke off has ended: nobody listens there any more. A gateway tells of its replicas."""
        if worker.route.is_gateway:
            return False
        try:
            await worker.http.check_listens()
        except RequestFailed:
            return True
        return False

    async def _ask_callable(self, items: list[Any]) -> Reply | Failure:
        assert self._fallback is not None
        try:
            answered: Sequence[Any] | Awaitable[Sequence[Any]]
            if self._is_coroutine:
                answered = self._fallback(items)
            else:
                # One thread: whoever wrote the callable need not think of two at a time.
                self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="inference-callable")
                answered = await self.loop.run_in_executor(self._thread, self._fallback, items)
            values = await answered if isinstance(answered, Awaitable) else answered
            return Reply(tuple(Answer(value) for value in values))
        except (Exception, SystemExit) as problem:  # which would end the loop, and leave callers waiting for ever
            return Failure(ErrorKind.MODEL_FAILED, f"the callable raised {type(problem).__name__}: {problem}")

    # --- checks

    async def _check(self, name: str) -> None:
        worker = self._workers[name]
        try:
            async with asyncio.timeout(self.settings.health_timeout_s):
                health = await self._health(worker)
        except TimeoutError:
            why = f"no answer within {self.settings.health_timeout_s:g} s"
            health = Health(Condition.STARTING, why, is_silent=True)
        except RequestFailed as problem:
            health = Health(Condition.UNREACHABLE, problem.failure.message)
            worker.metadata = None
        except Exception as problem:
            log.exception("a worker could not be asked how it is")
            health = Health(Condition.REFUSED, f"the client failed: {type(problem).__name__}: {problem}")
        self._dispatcher.checked(name, health, self.loop.time())
        self._step()

    async def _health(self, worker: _Connected) -> Health:
        ready = await worker.http.request("GET", f"{worker.route.path}/ready", worker.route.headers)
        if ready.status != 200:
            return _not_ready(ready)
        if worker.metadata is None:
            answer = await worker.http.request("GET", worker.route.path, worker.route.headers)
            if answer.status != 200:
                return _not_ready(answer)
            try:
                worker.metadata = metadata_of(answer.body)
            except CannotDecode as problem:
                return Health(Condition.REFUSED, f"it does not speak the Open Inference Protocol: {problem}")
        return Health(Condition.READY, "", worker.metadata.backend, worker.metadata.batch_max)


def _not_ready(answer: HttpAnswer) -> Health:
    if (failure := failure_of_model(answer.status, answer.body)) is not None:
        return Health(Condition.FAILED, failure.message, status=answer.status)
    why = f"status {answer.status} {error_text(answer.body)}".strip()
    condition = Condition.REFUSED if answer.status in REFUSING_STATUSES else Condition.STARTING
    return Health(condition, why, status=answer.status)


def closed() -> InferenceFailed:
    """What a call of a closed client raises."""
    return InferenceFailed(ItemError(ErrorKind.CLOSED, "the client is closed"))


def _connected(route: Route, settings: ClientSettings) -> _Connected:
    http = HttpOriginClient(
        route.origin,
        connect_timeout_s=settings.connect_timeout_s,
        answer_bytes_max=settings.answer_bytes_max,
        kept_max=settings.concurrency,
    )
    return _Connected(route, http)


def _circuit(settings: ClientSettings, failures: int = 0) -> Circuit:
    return Circuit(
        failures=failures or settings.circuit_failures,
        requests_min=settings.circuit_requests_min,
        window_s=settings.circuit_window_s,
        open_s=settings.circuit_open_s,
        successes=settings.circuit_successes,
    )


def _state(route: Route, settings: ClientSettings, place: int) -> WorkerState:
    return WorkerState(
        route.origin.url,
        _circuit(settings),
        settings.concurrency,
        backend=route.backend,
        is_labelled=route.backend is not None,
        place=place,
    )


def _callable_state(settings: ClientSettings) -> WorkerState:
    return WorkerState(
        CALLABLE,
        _circuit(settings, OUTCOMES_MAX + 1),  # never opens: there is nothing behind it
        seats=1,
        backend=Backend.CALLABLE,
        is_labelled=True,
        condition=Condition.READY,
        needs_checks=False,
    )


def _rules(settings: ClientSettings) -> Rules:
    return Rules(
        backend=settings.backend,
        batch_size=settings.batch_size,
        retries=settings.retries,
        backoff_first_s=settings.backoff_first_s,
        backoff_max_s=settings.backoff_max_s,
        timeout_s=settings.timeout_s,
        start_wait_s=settings.start_wait_s,
        health_interval_s=settings.health_interval_s,
        poison_breaks=settings.poison_breaks,
    )
