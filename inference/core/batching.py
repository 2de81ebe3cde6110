"""Which items of which requests a model computes together, and when: dynamic batching, without a clock.

A request holds items that are alike, by a key that says what can be in one batch, such as the shapes of its tensors.
A batch begins when the model is free and `batch_max` items of a key wait, or as many requests are open as were at once
of late, or the oldest has waited for `wait_us`, or a deadline could be missed otherwise. So one caller never waits for
others, and eight wait for the eighth. Of several that could begin, the one whose first item came first does.

Each item that was taken in is settled exactly once: with the answer at a place of its batch's answers, or with an
error. Times are microseconds of one steady clock.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

MEASURES_MAX = 16
"""How many of the last batches tell how long one takes."""

OPEN_MAX = 8
"""How many of the last batches tell how many requests are open at once."""

EARLIER_US = 2_000
"""A batch that a deadline hurries begins so much earlier than it would have to."""

SIZES_MAX = 1_024
"""Keys whose batches have run out of memory and that are remembered; the oldest give way."""

RETRY_S_MAX = 60

ANSWERED, REFUSED, TOO_MANY, FAILED, ENDING, TOO_LATE = 200, 422, 429, 500, 503, 504
"""How an item is settled, as a status of HTTP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """What holds for all batches of a model.

    `batch_max`: items of a batch. `wait_us`: how long at most the first item of one waits for others while the model is
    free.
    `waiting_max`: items that wait; further requests are refused. `hang_us`: a batch that takes longer has hung.
    """

    batch_max: int = 32
    wait_us: int = 5_000
    waiting_max: int = 1_024
    hang_us: int = 60_000_000


@dataclass(slots=True, eq=False)
class Item:
    """One item of a request: its place there, when it came, and until when its answer is of use (None: always)."""

    request: int
    place: int
    key: Hashable
    came_us: int
    deadline_us: int | None
    is_waiting: bool = True
    is_settled: bool = False


@dataclass(frozen=True, slots=True)
class Batch:
    """Items that are computed together."""

    key: Hashable
    items: tuple[Item, ...]
    began_us: int = 0


@dataclass(frozen=True, slots=True)
class Settled:
    """What has become of an item: its answer's place in the batch that has ended, or the status and why."""

    request: int
    place: int
    status: int
    message: str = ""
    answer: int = 0


@dataclass(frozen=True, slots=True)
class Answered:
    """A batch has answers: for each, None, or why the model refuses that item."""

    refusals: Sequence[str | None]


@dataclass(frozen=True, slots=True)
class Raised:
    """A batch has none: what the model raised."""

    message: str
    is_out_of_memory: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that is not taken in; nothing of it waits. `retry_s`: in how many seconds it may be (0: never)."""

    status: int
    message: str
    retry_s: int = 0


@dataclass(slots=True)
class _Group:
    """Items of one key that wait, the oldest first. `deadline_us` is not above any of theirs."""

    items: dict[Item, None] = field(default_factory=dict)
    deadline_us: int | None = None

    @property
    def first(self) -> Item:
        return next(iter(self.items))


class Batcher:
    """Holds what waits for a model and what it computes now. After each call `settled()` tells what became of items.

    `batch_max` may be changed at any time. `waiting` counts the items that wait, `running` is the batch under way.
    """

    def __init__(self, limits: BatchLimits | None = None) -> None:
        self.limits = limits or BatchLimits()
        self.batch_max = self.limits.batch_max
        self.waiting = 0
        self.running: Batch | None = None
        self.is_hung = False
        self._groups: dict[Hashable, _Group] = {}
        self._again: deque[Batch] = deque()
        self._requests: dict[int, dict[Item, None]] = {}
        self._deadlines: list[tuple[int, int, Item]] = []
        self._numbers = itertools.count()
        self._settled: list[Settled] = []
        self._durations_us: deque[int] = deque(maxlen=MEASURES_MAX)
        self._opens: deque[int] = deque(maxlen=OPEN_MAX)
        self._sizes: dict[Hashable, int] = {}

    # --- what happens

    def offer(
        self, request: int, key: Hashable, count: int, now_us: int, deadline_us: int | None = None
    ) -> Refusal | None:
        """A request with so many items comes: all of them wait from now on, or none and why not.

        `request` is a number that no request under way has.
        """
        if self.is_hung:
            return Refusal(ENDING, "the model hangs, and is started again", self._retry_s())
        if count > self.limits.waiting_max:
            return Refusal(413, f"the request holds {count:,} items, and at most {self.limits.waiting_max:,} may wait")
        if self.waiting + count > self.limits.waiting_max:
            words = f"{self.waiting:,} items wait already, and {self.limits.waiting_max:,} may"
            return Refusal(TOO_MANY, words, self._retry_s())
        if deadline_us is not None and deadline_us <= now_us:
            return Refusal(TOO_LATE, "its deadline has passed")
        items = [Item(request, place, key, now_us, deadline_us) for place in range(count)]
        group = self._groups.setdefault(key, _Group())
        self._requests[request] = dict.fromkeys(items)
        group.items.update(self._requests[request])
        self.waiting += count
        if deadline_us is not None:
            group.deadline_us = min(group.deadline_us or deadline_us, deadline_us)
            for item in items:
                heapq.heappush(self._deadlines, (deadline_us, next(self._numbers), item))
            self._forget_deadlines()
        return None

    def cancel(self, request: int) -> None:
        """Nobody waits for this request any more: what of it has not begun never does, the rest is not told."""
        for item in list(self._requests.get(request, ())):
            self._close(item)

    def take(self, now_us: int) -> Batch | None:
        """The batch that begins now; None while the model computes, and where nothing is due."""
        self.expire(now_us)
        while self.running is None and not self.is_hung:
            found = self._next(now_us)
            if found is None:
                return None
            open_now = len(self._requests)
            items = tuple(item for item in found.items if not item.is_settled and not self._is_hopeless(item, now_us))
            for item in items:
                self._leave(item)
            if group := self._groups.get(found.key):
                group.deadline_us = min(
                    (at for each in group.items if (at := each.deadline_us) is not None), default=None
                )
            if items:
                self._opens.append(open_now)
                self.running = Batch(found.key, items, now_us)
                return self.running
        return None

    def finish(self, now_us: int, outcome: Answered | Raised) -> None:
        """The batch under way has ended. One that raised is tried again, in halves or each item alone."""
        batch, self.running = self.running, None
        if batch is None or self.is_hung:
            return
        if isinstance(outcome, Raised):
            self._try_again(batch, outcome)
            return
        self._durations_us.append(now_us - batch.began_us)
        if len(outcome.refusals) != len(batch.items):
            words = f"predict gave {len(outcome.refusals)} answers for {len(batch.items)} items"
            for item in batch.items:
                self._settle(item, FAILED, words)
            return
        for number, (item, why) in enumerate(zip(batch.items, outcome.refusals, strict=True)):
            self._settle(item, ANSWERED if why is None else REFUSED, why or "", answer=number)

    def expire(self, now_us: int) -> None:
        """Settle what is too late, also of the batch under way; and everything once that batch has hung."""
        while self._deadlines and (self._deadlines[0][0] <= now_us or self._deadlines[0][2].is_settled):
            self._settle(heapq.heappop(self._deadlines)[2], TOO_LATE, "its deadline has passed")
        if self.running is not None and not self.is_hung and now_us >= self.running.began_us + self.limits.hang_us:
            self.is_hung = True
            words = f"the model did not answer within {self.limits.hang_us / 1e6:g} s"
            for item in self.running.items:
                self._settle(item, FAILED, words)
            self.end(f"{words}, and is started again")

    def end(self, why: str) -> None:
        """Settle everything that waits: the model is about to end."""
        for request in list(self._requests.values()):
            for item in list(request):
                if item.is_waiting:
                    self._settle(item, ENDING, why)

    # --- what follows

    def settled(self) -> list[Settled]:
        """What has become of items since this was asked last."""
        settled, self._settled = self._settled, []
        return settled

    def due_us(self) -> int | None:
        """When `take` is to be asked again if nothing happens; None: never."""
        times = [each[0] for each in self._deadlines[:1]]
        if self.is_hung:
            return None
        if self.running is not None:
            times.append(self.running.began_us + self.limits.hang_us)
        else:
            times += [self._ready_us(key, group) for key, group in self._groups.items()]
            times += [batch.items[0].came_us for batch in self._again]
        return min(times, default=None)

    @property
    def open(self) -> int:
        """Items that wait or are computed, and whose answer somebody waits for."""
        return sum(map(len, self._requests.values()))

    def _next(self, now_us: int) -> Batch | None:
        """The items that are to begin: those that are tried again first."""
        if self._again:
            return self._again.popleft()
        due = [
            (group.first.came_us, number, key)
            for number, (key, group) in enumerate(self._groups.items())
            if self._ready_us(key, group) <= now_us
        ]
        if not due:
            return None
        key = min(due)[2]
        return Batch(key, tuple(itertools.islice(self._groups[key].items, self._size_of(key))))

    def _ready_us(self, key: Hashable, group: _Group) -> int:
        """When the first items of a group are to begin, if no other comes."""
        is_everybody_here = len(self._requests) >= max(self._opens, default=1)
        if is_everybody_here or len(group.items) >= self._size_of(key):
            return group.first.came_us
        ready_us = group.first.came_us + self.limits.wait_us
        if group.deadline_us is None:
            return ready_us
        return min(ready_us, group.deadline_us - max(self._durations_us, default=0) - EARLIER_US)

    def _size_of(self, key: Hashable) -> int:
        return min(self.batch_max, self._sizes.get(key, self.batch_max))

    def _is_hopeless(self, item: Item, now_us: int) -> bool:
        """Settle an item that the fastest of the last batches would have been too slow for."""
        if item.deadline_us is None or item.deadline_us >= now_us + min(self._durations_us, default=0):
            return False
        # What was measured once must not keep everything away for ever: the oldest counts no more.
        fastest_us = min(self._durations_us)
        self._durations_us.popleft()
        left_ms, takes_ms = (item.deadline_us - now_us) / 1e3, fastest_us / 1e3
        self._settle(item, TOO_LATE, f"its deadline is in {left_ms:.0f} ms, and a batch takes {takes_ms:.0f} ms")
        return True

    def _try_again(self, batch: Batch, raised: Raised) -> None:
        """Each item alone, or, where memory was short, both halves; they are the next to begin."""
        items = [item for item in batch.items if not item.is_settled]
        if len(batch.items) == 1:
            for item in items:
                self._settle(item, FAILED, raised.message)
            return
        size = 1
        if raised.is_out_of_memory:
            size = max(1, len(batch.items) // 2)
            self._sizes[batch.key] = min(size, self._size_of(batch.key))
            if len(self._sizes) > SIZES_MAX:
                del self._sizes[next(iter(self._sizes))]
        for item in items:
            item.is_waiting = True
        self.waiting += len(items)
        parts = [tuple(items[at : at + size]) for at in range(0, len(items), size)]
        self._again.extendleft(Batch(batch.key, part) for part in reversed(parts))

    def _leave(self, item: Item) -> None:
        """It waits no more."""
        self.waiting -= item.is_waiting
        item.is_waiting = False
        group = self._groups.get(item.key)
        if group is not None and item in group.items:
            del group.items[item]
            if not group.items:
                del self._groups[item.key]

    def _close(self, item: Item) -> bool:
        """Nothing more becomes of an item; whether anything could have."""
        if item.is_settled:
            return False
        item.is_settled = True
        self._leave(item)
        request = self._requests[item.request]
        del request[item]
        if not request:
            del self._requests[item.request]
        return True

    def _settle(self, item: Item, status: int, message: str, answer: int = 0) -> None:
        if self._close(item):
            self._settled.append(Settled(item.request, item.place, status, message, answer))

    def _forget_deadlines(self) -> None:
        """Leave out those of settled items, once they are most."""
        if len(self._deadlines) > 2 * (self.waiting + self.batch_max) + 64:
            self._deadlines = [each for each in self._deadlines if not each[2].is_settled]
            heapq.heapify(self._deadlines)

    def _retry_s(self) -> int:
        """In how many seconds what waits now is done, as the last batches took."""
        if not self._durations_us:
            return 1
        each_us = sum(self._durations_us) / len(self._durations_us)
        return min(RETRY_S_MAX, max(1, round(each_us * self.waiting / self.batch_max / 1e6)))
