"""Calls become requests, and what becomes of the requests becomes results: one answer or one error for each item.

    dispatcher.submit(...)        a call: its items, in batches
    dispatcher.replied(...)       a request was answered        each of these changes what is known;
    dispatcher.failed(...)        a request failed              `step` then says what is to be done,
    dispatcher.checked(...)       a worker said how it is       and `wake_at_s` when to ask again at the latest

An item is in one request at a time, or waits, or is settled. It is settled once.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from .calls import AbortRequest, Action, Call, CheckWorker, Chunk, FinishCall, Request, Rules, SendRequest
from .outcomes import FAULTS_OF_WORKERS, PERHAPS_ONE_ITEM, Answer, Backend, ErrorKind, Failure, Reply, Result
from .placing import Placing
from .retrying import backoff_s
from .sums import Batch, Sums
from .suspects import broken_with, poison
from .workers import RETRY_AFTER_S_MAX, Condition, Health, WorkerState


class Dispatcher:
    """All calls of one client. `chance` gives numbers from 0 to 1."""

    def __init__(self, rules: Rules, workers: Sequence[WorkerState], chance: Callable[[], float]) -> None:
        self._rules = rules
        self.workers = {worker.id: worker for worker in workers}
        self._chance = chance
        self._calls: dict[int, Call] = {}
        self._requests: dict[int, Request] = {}
        self._number = 0
        self._placing = Placing(rules, self.workers)
        self._actions: list[Action] = []
        self.sums = Sums()
        self.sums_of_workers = {worker.id: Sums() for worker in workers}

    @property
    def is_idle(self) -> bool:
        """Whether there is no call."""
        return not self._calls

    @property
    def expects_gpu(self) -> bool:
        """Whether GPUs are the preferred backend."""
        return next(iter(self._placing.tiers), None) is Backend.GPU

    # --- what happens

    def submit(self, keys: Sequence[Hashable | Failure], deadline_s: float) -> int:
        """A call of so many items, and its number. Items that lie side by side and have equal keys may share a request;
        one whose key is a Failure cannot be sent, and is settled with it."""
        count = len(keys)
        call = Call(self._next(), deadline_s, [None] * count, [0] * count, count)
        size = self._rules.batch_size
        for key, group in groupby(range(count), keys.__getitem__):
            items = tuple(group)
            if isinstance(key, Failure):
                self._give_up_all(call, items, key)
            else:
                call.ready.extend(Chunk(items[start : start + size]) for start in range(0, len(items), size))
        self._calls[call.number] = call
        return call.number

    def cancel(self, number: int) -> None:
        """Nobody waits for a call any more: end what it has under way."""
        call = self._calls.pop(number, None)
        if call is not None:
            self._abort(call)

    def checked(self, worker: str, health: Health, now_s: float) -> None:
        """A worker said how it is."""
        self.workers[worker].checked(health, now_s, self._rules.health_interval_s)

    def replied(self, number: int, reply: Reply, now_s: float) -> None:
        """A request was answered, with one outcome for each of its items."""
        request = self._requests.get(number)
        if request is None:
            return
        if len(reply.outcomes) != len(request.chunk.items):
            count = len(request.chunk.items)
            text = f"the answer holds {len(reply.outcomes)} items where {count} were asked"
            self.failed(number, Failure(ErrorKind.BAD_ANSWER, text), now_s)
            return
        if reply.fell_back:
            request.is_fallback, request.chunk.fallback_reason = True, f"{request.worker.id}: {reply.fell_back}"
        is_success = not all(isinstance(each, Failure) and each.kind in FAULTS_OF_WORKERS for each in reply.outcomes)
        self._end(number, now_s, is_success=is_success)
        failures: list[tuple[int, Failure]] = []
        answered = 0
        for index, outcome in zip(request.chunk.items, reply.outcomes, strict=True):
            if isinstance(outcome, Answer):
                answered += 1
                self._settle(request, index, outcome, reply.backend)
            else:
                failures.append((index, outcome))
        given_up = sum(self._item_failed(request, index, failure, now_s) for index, failure in failures)
        self._add(request, now_s, answered=answered, failed=given_up, backend=reply.backend, is_success=is_success)

    def failed(self, number: int, failure: Failure, now_s: float) -> None:
        """A request failed as a whole."""
        request = self._requests.get(number)
        if request is None:
            return
        counts = failure.kind in FAULTS_OF_WORKERS and failure.kind is not ErrorKind.MODEL_DOWN
        self._end(number, now_s, is_success=False if counts else None)
        worker, chunk = request.worker, request.chunk
        request.call.last_failure = failure
        if worker.needs_checks and failure.kind is ErrorKind.UNREACHABLE:
            worker.condition, worker.why = Condition.UNREACHABLE, failure.message
            worker.check_at_s = now_s
        if failure.kind is ErrorKind.MODEL_DOWN:
            worker.condition, worker.why, worker.status = Condition.FAILED, failure.message, failure.status
        if failure.retry_after_s is not None:
            pause_s = min(max(0.0, failure.retry_after_s), RETRY_AFTER_S_MAX)
            worker.held_until_s = max(worker.held_until_s, now_s + pause_s)
        given_up = 0
        if failure.broke is not None and len(chunk.items) == 1:
            chunk.broken = broken_with(chunk.broken, failure.broke)
        if len(chunk.broken) >= self._rules.poison_breaks:
            given_up = self._no_more(request, chunk.items, poison(failure, len(chunk.broken)))
        elif failure.is_transient and chunk.retries < self._rules.retries:
            self._retry(request, chunk.items, failure, now_s, is_of_item=False)
        elif not failure.is_transient and failure.kind in PERHAPS_ONE_ITEM and len(chunk.items) > 1:
            # Not sent again as it was: taken apart, to find the one at fault. This is no retry.
            request.call.ready.extendleft(
                replace(chunk, items=(item,), avoided=worker.id) for item in reversed(chunk.items)
            )
        else:
            given_up = self._no_more(request, chunk.items, failure)
        self._add(request, now_s, answered=0, failed=given_up, backend=None, is_success=False)

    # --- what is to be done

    def step(self, now_s: float) -> list[Action]:
        """What is to be done now."""
        self._placing.waits_until_s = None
        for call in list(self._calls.values()):
            if now_s >= call.deadline_s:
                self._expire(call)
        self._check(now_s)
        for call in self._calls.values():
            while call.delayed and call.delayed[0][0] <= now_s:
                call.wait_no_more(heapq.heappop(call.delayed)[2])
        # In turns, so that a long call does not keep out a short one.
        while sum(self._send_one(call, now_s) for call in list(self._calls.values())):
            pass
        if not self._calls:
            self._placing.forget()
        for call in [call for call in self._calls.values() if not call.open_items]:
            del self._calls[call.number]
            self._actions.append(FinishCall(call.number, tuple(each for each in call.results if each is not None)))
        actions, self._actions = self._actions, []
        return actions

    def wake_at_s(self) -> float | None:
        """When to step again if nothing happens before; None where nothing is to be done."""
        if not self._calls:
            return None
        times = [call.deadline_s for call in self._calls.values()]
        times += [call.delayed[0][0] for call in self._calls.values() if call.delayed]
        times += [each.check_at_s for each in self._checkable() if not each.is_being_checked]
        if self._placing.waits_until_s is not None:
            times.append(self._placing.waits_until_s)
        return min(times)

    def _check(self, now_s: float) -> None:
        if not self._calls:
            return
        for worker in self._checkable():
            if not worker.is_being_checked and now_s >= worker.check_at_s:
                worker.is_being_checked = True
                self._actions.append(CheckWorker(worker.id))

    def _checkable(self) -> Iterator[WorkerState]:
        """Those that this client might ask."""
        wanted = self._rules.backend
        for worker in self.workers.values():
            if worker.needs_checks and (wanted == "auto" or worker.is_of(Backend(wanted))):
                yield worker

    def _send_one(self, call: Call, now_s: float) -> bool:
        """Send the first batch of a call for which there is a worker; False where there is none, or nothing to send."""
        if call.suspects and (found := self._placing.place(call.suspects[0], now_s)) is not None:
            self._send_or_give_up(call, call.suspects.popleft(), found, now_s)
            return True
        for place, chunk in enumerate(call.ready):
            found = self._placing.place(chunk, now_s)
            if found is None:
                if place + 1 < len(call.ready) and call.ready[place + 1].tier != chunk.tier:
                    continue
                return False
            del call.ready[place]
            self._send_or_give_up(call, chunk, found, now_s)
            return True
        return False

    def _send_or_give_up(self, call: Call, chunk: Chunk, found: WorkerState | Failure, now_s: float) -> None:
        if isinstance(found, Failure):
            self._placing.let_go([chunk])
            self._give_up_all(call, chunk.items, found)
        else:
            self._send(call, chunk, found, now_s)
            self._calls[call.number] = self._calls.pop(call.number)  # now it is the others' turn

    def _send(self, call: Call, chunk: Chunk, worker: WorkerState, now_s: float) -> None:
        if 0 < worker.batch_max < len(chunk.items):
            call.ready.appendleft(replace(chunk, items=chunk.items[worker.batch_max :]))
            chunk.items = chunk.items[: worker.batch_max]
        number = self._next()
        worker.requests_under_way += 1
        worker.items_under_way += len(chunk.items)
        worker.used = number
        is_fallback = self._placing.is_fallback(worker)
        if is_fallback and not chunk.fallback_reason:
            chunk.fallback_reason = self._placing.why_not_preferred(now_s)
        is_probe = worker.circuit.sent(now_s)
        self._requests[number] = Request(call, chunk, worker, now_s, is_probe, is_fallback)
        for item in chunk.items:
            call.attempts[item] += 1
        rest_s = call.deadline_s - now_s
        # A callable is bounded by the deadline alone: it cannot be ended, and what it does is the user's.
        timeout_s = rest_s if worker.backend is Backend.CALLABLE else min(rest_s, self._rules.timeout_s)
        self._actions.append(SendRequest(number, call.number, worker.id, chunk.items, timeout_s))

    # --- what becomes of items

    def _end(self, number: int, now_s: float, *, is_success: bool | None) -> None:
        request = self._requests.pop(number)
        self._placing.let_go([request.chunk])
        request.worker.requests_under_way -= 1
        request.worker.items_under_way -= len(request.chunk.items)
        request.worker.circuit.ended(now_s, is_success=is_success, was_probe=request.is_probe)

    def _item_failed(self, request: Request, index: int, failure: Failure, now_s: float) -> bool:
        """One item of an answered batch failed: whether it was given up."""
        if failure.is_transient and request.chunk.retries < self._rules.retries:
            self._retry(request, (index,), failure, now_s, is_of_item=True)
            return False
        return self._no_more(request, (index,), failure) > 0

    def _retry(
        self, request: Request, items: tuple[int, ...], failure: Failure, now_s: float, *, is_of_item: bool
    ) -> None:
        chunk, rules = request.chunk, self._rules
        pause_s = backoff_s(
            chunk.retries, first_s=rules.backoff_first_s, longest_s=rules.backoff_max_s, chance=self._chance()
        )
        groups = [(item,) for item in items] if is_of_item or failure.kind in PERHAPS_ONE_ITEM else [items]
        if is_of_item and failure.retry_after_s is not None:
            pause_s = max(pause_s, min(failure.retry_after_s, RETRY_AFTER_S_MAX))
        self._count_retries(request.worker, len(groups))
        for group in groups:
            again = replace(chunk, items=group, retries=chunk.retries + 1, avoided=request.worker.id)
            heapq.heappush(request.call.delayed, (now_s + pause_s, self._next(), again))

    def _count_retries(self, worker: WorkerState, count: int) -> None:
        self.sums.retries += count
        self.sums_of_workers[worker.id].retries += count

    def _no_more(self, request: Request, items: tuple[int, ...], failure: Failure) -> int:
        """A worker has had its tries: a lesser backend gets them where it may do better. How many were given up."""
        tier = self._placing.next_tier(request.worker)
        if tier is None or failure.kind not in FAULTS_OF_WORKERS:
            for item in items:
                self._give_up(request.call, item, failure, request)
            return len(items)
        why = f"{request.worker.id}: {failure.message}"
        request.call.wait_no_more(Chunk(items, tier=tier, fallback_reason=why, broken=request.chunk.broken))
        return 0

    def _settle(self, request: Request, index: int, answer: Answer, backend: Backend | None) -> None:
        self._put(
            request.call,
            Result(
                index=index,
                value=answer.value,
                worker=request.worker.id,
                backend=backend or request.worker.backend,
                attempts=request.call.attempts[index],
                is_fallback=request.is_fallback,
                fallback_reason=request.chunk.fallback_reason if request.is_fallback else "",
            ),
        )

    def _give_up(self, call: Call, index: int, failure: Failure, request: Request | None = None) -> None:
        worker = request.worker.id if request else ""
        attempts = call.attempts[index]
        self._put(call, Result(index=index, error=failure.as_error(), worker=worker, attempts=attempts))

    def _give_up_all(self, call: Call, items: Sequence[int], failure: Failure) -> None:
        for item in items:
            self._give_up(call, item, failure)
        self.sums.add(Batch(answered=0, failed=len(items)))

    def _put(self, call: Call, result: Result) -> None:
        assert call.results[result.index] is None, "an item is settled once"
        call.results[result.index] = result
        call.open_items -= 1

    def _expire(self, call: Call) -> None:
        """Its deadline has passed: what has no answer gets an error."""
        if not call.open_items:
            return
        last = f"; before, {call.last_failure.message}" if call.last_failure else ""
        failure = Failure(ErrorKind.DEADLINE, f"the deadline of the call passed{last}")
        self._abort(call)
        call.forget_waiting()
        self._give_up_all(call, [index for index, each in enumerate(call.results) if each is None], failure)

    def _abort(self, call: Call) -> None:
        self._placing.let_go(call.suspects)
        for number in [number for number, each in self._requests.items() if each.call is call]:
            self._end(number, 0.0, is_success=None)
            self._actions.append(AbortRequest(number))

    def _add(
        self, request: Request, now_s: float, *, answered: int, failed: int, backend: Backend | None, is_success: bool
    ) -> None:
        batch = Batch(
            answered=answered,
            failed=failed,
            backend=backend or request.worker.backend,
            fallen_back=answered if request.is_fallback else 0,
            duration_s=now_s - request.sent_at_s,
            size=len(request.chunk.items),
            is_success=is_success,
        )
        self.sums.add(batch)
        self.sums_of_workers[request.worker.id].add(batch)

    def _next(self) -> int:
        self._number += 1
        return self._number
