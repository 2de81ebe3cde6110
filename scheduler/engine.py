"""The loop: the only place where the core meets the store and the clock.

A turn takes up waiting events, decides each and makes it true in memory, runs at most one pass, and commits all of it
as one transaction on the store thread. Only then do replies, commands and changes leave. Reads see `view`, the last
committed state, at any time.
"""

import asyncio
import logging
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

from gpufleet.errors import GpufleetError, Reason
from gpufleet.telemetry.logs import fields
from gpufleet.telemetry.spans import OFF, Telemetry

from . import trackers
from .clock import is_set_within
from .core.deadlines import Wakes
from .core.decide import make_true, step
from .core.decision import NOTHING, Decision
from .core.early_commands import EarlyCommands, early_signals, early_stops
from .core.scheduling import schedule
from .core.sessions.turns import settle
from .policy.forecast import forecasts
from .policy.node_cache import NodeCache
from .policy.placement_pass import PlacementPass
from .ports import AgentLink, Clock, Commit, FinishedQuery, Measures, Store
from .state import live
from .state.commands import Command
from .state.durable import load, turn_over
from .state.events import (
    CancelRequested,
    ClockAdvanced,
    Event,
    NodeBeat,
    ReadingResumed,
    SchedulerStarted,
    SignalRequested,
    SpoolFilled,
)
from .state.ids import JobId, NodeName, UserName
from .state.indexes.equal_jobs import EqualJobs
from .state.jobs import Job
from .state.limits import Limits
from .state.records import Record
from .state.replies import JobChange, JobsChanged, Reply
from .state.sessions.commands import SessionCommand
from .state.sessions.events import CommitDelayed
from .state.sessions.session import ModelName
from .state.state import State
from .state.units import MILLISECOND, SECOND, Instant, Span, after
from .store.errors import StoreCorrupt, StoreUnavailable, read_as_stored
from .traces import JobTraces

T = TypeVar("T")
log = logging.getLogger(__name__)

EVENTS_PER_TURN = 1_024
WAITING_EVENTS = 65_536
"""Events that may wait for their turn; requests beyond it are refused."""
PASS_INTERVAL = Span(5 * MILLISECOND)
FORECAST_INTERVAL = Span(10 * SECOND)
"""How often, at most, starts are foretold to learn from what comes true; it takes some 30 ms with a long queue."""
LEARNED_JOBS = 2_000
"""Jobs that ended before the present start of which is learned how long they ran and waited, the newest."""
BEATS_PASS_INTERVAL = Span(250 * MILLISECOND)
"""The same where only signs of life came in: of many nodes one comes at every moment, and hardly one makes room."""
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 0.05, 2.0
FINISHED_JOBS_KEPT = 1_000
"""Jobs that ended lately and are answered without asking the store."""
TICK_SECONDS = 1.0
GAP_SPAN = Span(1 * SECOND)
"""A tick that is late by more than this was a time in which nothing was read."""
LATE_SPAN = Span(1 * SECOND)
"""What leaves later than this after it was decided: the times in which people answer it begin when it leaves."""
STOPPING = "the scheduler is stopping"


class StoreAway(Exception):
    """The store takes no commits now. `outcome_is_known`: False when the request may yet become durable."""

    def __init__(self, why: str, *, outcome_is_known: bool) -> None:
        super().__init__(why)
        self.outcome_is_known = outcome_is_known


class TooManyEvents(Exception):
    """More events wait than the loop takes."""


class StoppedUnstored(Exception):
    """The program was told to stop while the store took no commits: nothing of the last turn was answered as done."""


@dataclass(slots=True)
class _Waiting:
    event: Event
    reply: asyncio.Future[Reply] | None
    is_request: bool


@dataclass(frozen=True, slots=True)
class Changes:
    """What a commit changed, for those who watch."""

    jobs: tuple[Job | EqualJobs, ...]
    nodes: tuple[NodeName, ...]
    models: tuple[ModelName, ...] = ()
    """Models that changed, or whose workers did."""


class Engine:
    """Owns the state. Everything here runs on one event loop but for the store, which has its own thread.

    `begun` is set once all that follows from the start is stored.
    """

    def __init__(
        self,
        store: Store,
        link: AgentLink,
        clock: Clock,
        limits: Limits,
        publish: Callable[[Changes], None],
        telemetry: Telemetry = OFF,
        tell_session: Callable[[SessionCommand], None] = lambda command: None,
        measures: Measures | None = None,
        record: Callable[[Commit, int], None] = lambda commit, sequence: None,
        gap: tuple[str, JobId, int] = ("", JobId(0), 0),
    ) -> None:
        self.store = store
        self._link = link
        self._tell_session = tell_session
        self._record = record
        self._gap = gap
        self.begun = asyncio.Event()
        self._clock = clock
        self._publish = publish
        self._traces = JobTraces(telemetry)
        self._measures = measures
        with read_as_stored("what is stored contradicts itself"):
            entities = list(store.load())
            self._state = State(durable=load(iter(entities)), limits=limits, lineage=store.lineage)
            for job in reversed(store.finished_jobs(FinishedQuery(limit=LEARNED_JOBS))):
                live.learn(self._state.live, job)
            self.view = State(durable=load(iter(entities)), live=self._state.live, limits=limits, lineage=store.lineage)
        self.recently_finished: OrderedDict[JobId, Job] = OrderedDict()
        self.store_error = ""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._events: deque[_Waiting] = deque()
        self._wakeup = asyncio.Event()
        self._commit_number = 0
        self._shown_commit = 0
        self._passed_commit = 0
        self._known_nodes = NodeCache()
        self._last_pass = Instant(0)
        self._forecast_at = Instant(0)
        self._pass_at: Instant | None = Instant(0)
        self._wake_at: Instant | None = None
        self._wakes = Wakes()
        self._last_tick = clock.now()
        self._reaches = trackers.ReachabilityTracker()
        self._blocked = trackers.Blocked()
        self._seen_workers = trackers.WorkerTracker()
        self._stopping = asyncio.Event()
        self._damage: StoreCorrupt | None = None
        self._has_ended = False
        self._told_early: set[JobId] = set()
        self._signals_sent: dict[tuple[UserName, str], str] = {}
        self._commands_sent: Counter[Command] = Counter()

    def request(self, event: Event) -> asyncio.Future[Reply]:
        """Post what a person asks; the reply comes once it is durable.

        Raises StoreAway or TooManyEvents at once when it is not taken up, and then nothing has changed. While the store
        takes no commits, cancellations and signals are told to nodes and answered as not yet stored: early_commands.py.
        """
        if self._has_ended:
            raise StoreAway(STOPPING, outcome_is_known=True)
        if len(self._events) >= WAITING_EVENTS:
            raise TooManyEvents
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        if self.store_error:
            told = self._tell_early(event)
            if told is None:
                raise StoreAway(self.store_error, outcome_is_known=True)
            reply.set_result(told)
            return reply
        self._post(_Waiting(event, reply, is_request=True))
        return reply

    def report(self, event: Event) -> asyncio.Future[Reply]:
        """Post what a node reports; done once it is durable.

        A beat waits for no store: the node is heard, which its fence counts from, and what the beat would change (a
        device in trouble, a warning, a node that is back) the first one after the store is back changes as well.
        """
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        if self.store_error and isinstance(event, NodeBeat):
            live.apply_event(self._state.live, self._state.durable, self._state.limits, event)
            self._reaches.note(event.node)
            reply.set_result(NOTHING.reply)
        else:
            if self.store_error and isinstance(event, SpoolFilled):
                # Its line in the story waits; that a job is held in its write is shown at once.
                live.apply_event(self._state.live, self._state.durable, self._state.limits, event)
                self._publish(Changes(jobs=self._blocked.changed(self._state.live, self.view.durable), nodes=()))
            self._post(_Waiting(event, reply, is_request=False))
        return reply

    def _tell_early(self, event: Event, *, is_decided: bool = False) -> Reply | None:
        """Tell nodes what of this may leave before its commit, and have it decided when the store is back.

        `is_decided`: it is in the commit that fails. None: nothing of it may leave.
        """
        match event:
            case CancelRequested():
                return self._stop_early(event, is_decided=is_decided)
            case SignalRequested():
                return self._signal_early(event, is_decided=is_decided)
            case _:
                return None

    def _stop_early(self, event: CancelRequested, *, is_decided: bool) -> Reply | None:
        stops = early_stops(self.view, event, self.store_error)
        if stops is None:
            return None
        self._send_early(stops)
        new = tuple(job for job in stops.jobs if job not in self._told_early)
        self._told_early.update(new)
        if new and not is_decided:
            self._post(_Waiting(replace(event, jobs=new), None, is_request=False))
        return stops.reply

    def _signal_early(self, event: SignalRequested, *, is_decided: bool) -> Reply | None:
        """Sent once: neither by the same request again, nor by the commit that it waits in, nor by its own later."""
        request = event.by, event.request_id
        if event.request_id and request in self._signals_sent:
            if self._signals_sent[request] != event.request_digest:
                return None
            before = "was signalled before by this request"
            return JobsChanged(
                changes=tuple(JobChange(job=job, changed=False, message=f"job {job} {before}") for job in event.jobs)
            )
        signals = early_signals(self.view, event, self.store_error, is_decided=is_decided)
        if signals is None or not signals.commands:
            return None if signals is None else signals.reply
        self._send_early(signals)
        if event.request_id:
            self._signals_sent[request] = event.request_digest
        if is_decided:
            self._commands_sent.update(signals.commands)
        else:
            self._post(_Waiting(replace(event, jobs=signals.jobs, is_sent=True), None, is_request=False))
        return signals.reply

    def _send_early(self, early: EarlyCommands) -> None:
        for command, stream in self._addressed(early.commands):
            self._link.send(command, stream)

    def _post(self, waiting: _Waiting) -> None:
        self._events.append(waiting)
        self._wakeup.set()

    def set_limits(self, limits: Limits) -> None:
        """Decide by other numbers from now on."""
        self._state.limits = limits
        self.view.limits = limits
        # By the new numbers a deadline may have come already.
        self._post(_Waiting(ClockAdvanced(at=self.now()), None, is_request=False))

    @property
    def commits(self) -> int:
        """Commits since the start; as long as it stays, so does the committed state."""
        return self._shown_commit

    @property
    def waiting_events(self) -> int:
        """Events that wait for their turn."""
        return len(self._events)

    @property
    def last_pass(self) -> PlacementPass | None:
        """The last pass as it ended. None before the first, and while what it decided may stay uncommitted for long."""
        return None if self.store_error else self._known_nodes.last_pass

    @property
    def awaits_pass(self) -> bool:
        """Whether something is committed that no pass has seen; one comes within PASS_INTERVAL."""
        return self._shown_commit > self._passed_commit

    def now(self) -> Instant:
        """The instant now."""
        return self._clock.now()

    async def on_store_thread(self, call: Callable[[], T]) -> T:
        """Run a read of the store on its thread. Errors: as meeting_damage()."""
        return await self.meeting_damage(asyncio.get_running_loop().run_in_executor(self._thread, call))

    async def meeting_damage(self, read: Awaitable[T]) -> T:
        """What a read of the store answers. Damage that it meets ends run(). Errors: STORE_CORRUPT, and others."""
        try:
            return await read
        except StoreCorrupt as error:
            self._damage = error
            self.stop()
            raise GpufleetError(Reason.STORE_CORRUPT, str(error)) from error

    async def run(self) -> None:
        """Turn until cancelled or stopped. Anything but an unavailable store ends the program."""
        self._last_tick = self.now()
        why, jobs_above, sessions_above = self._gap
        started = SchedulerStarted(
            at=self.now(), gap=why, jobs_above=jobs_above, sessions_above=sessions_above, term=self.store.term
        )
        self._post(_Waiting(started, None, is_request=False))
        ticker = asyncio.create_task(self._tick(), name="engine-tick")
        try:
            while not self._stopping.is_set():
                await self._wait_for_work()
                await self._turn()
        except StoppedUnstored:
            log.warning("stopping while the store takes no commits; what it did not take was answered as unknown")
        else:
            if self._damage is not None:
                raise self._damage
        finally:
            self._has_ended = True
            ticker.cancel()
            self._refuse_waiting(STOPPING)

    def stop(self) -> None:
        """Leave after the present turn, or without it while the store takes no commits."""
        self._stopping.set()
        self._wakeup.set()

    def close(self) -> None:
        """End the store thread; the store itself is closed by its owner."""
        self._thread.shutdown()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._notice_gap()

    def _notice_gap(self) -> None:
        now = self.now()
        gap = Span(now - self._last_tick - round(TICK_SECONDS * SECOND))
        self._last_tick = now
        if gap > GAP_SPAN:
            log.warning("nothing was read for a while", extra=fields(gap_seconds=round(gap / SECOND, 1)))
            self._post(_Waiting(ReadingResumed(at=now, gap=gap), None, is_request=False))

    async def _wait_for_work(self) -> None:
        while not self._events and not self._stopping.is_set():
            timeout = self._seconds_to_deadline()
            if timeout is not None and timeout <= 0:
                break
            self._wakeup.clear()
            if not await is_set_within(self._wakeup, timeout):
                break
        if self._wake_at is not None and self.now() >= self._wake_at:
            self._notice_gap()
            self._wake_at = None
            self._post(_Waiting(ClockAdvanced(at=self.now()), None, is_request=False))

    def _seconds_to_deadline(self) -> float | None:
        candidates = [] if self._wake_at is None else [self._wake_at]
        if self._pass_at is not None:
            candidates.append(self._pass_at)
        return (min(candidates) - self.now()) / SECOND if candidates else None

    async def _turn(self) -> None:
        begin_ns, began_at = time.time_ns(), self.now()
        batch = [self._events.popleft() for _ in range(min(len(self._events), EVENTS_PER_TURN))]
        if self._traces.is_on:
            self._traces.heard(waiting.event for waiting in batch)
        try:
            decisions, outgoing = self._decide(batch)
            records = tuple(record for decision in decisions for record in decision.records)
            if records:
                decided_ns = time.time_ns()
                await self._commit(self.now(), records, batch)
                if self._traces.is_on:
                    self._traces.stored(records, self._state.durable, self.recently_finished, begin_ns, decided_ns)
                if self._measures is not None:
                    self._measures.committed((time.time_ns() - decided_ns) / 1e9, len(batch))
                    self._measures.decided(records, self._state.durable, self.recently_finished)
            else:
                await asyncio.sleep(0)  # turns without a commit follow each other, and readers want their turn, too
        except BaseException as error:
            _answer_unknown(batch, str(error) or type(error).__name__)
            raise
        reaches = self._reaches.changed(self._state.live, (waiting.event for waiting in batch))
        if records or reaches or any(not isinstance(waiting.event, NodeBeat) for waiting in batch):
            events = (waiting.event for waiting in batch)
            self._wake_at = self._wakes.next(self._state, events, records, reaches)
        self._release(batch, decisions, outgoing)
        if self.now() > after(began_at, LATE_SPAN):
            self._post(_Waiting(CommitDelayed(at=self.now(), decided_at=began_at), None, is_request=False))
        models = self._seen_workers.changed(
            self._state.live.turns, (note for decision in decisions for note in decision.notes)
        )
        blocked = self._blocked.changed(self._state.live, self.view.durable)
        if reaches or models or blocked:
            self._publish(Changes(jobs=blocked, nodes=reaches, models=models))

    def _decide(self, batch: list[_Waiting]) -> tuple[list[Decision], list[tuple[Command, int]]]:
        """Decide each event and run the pass; each command comes with its stream as it is at that moment."""
        decisions: list[Decision] = []
        outgoing: list[tuple[Command, int]] = []
        for waiting in batch:
            decisions.append(step(self._state, waiting.event))
            outgoing.extend(self._addressed(decisions[-1].commands))
        settled = settle(self._state, self.now())
        make_true(self._state, settled)
        decisions.append(settled)
        outgoing.extend(self._addressed(settled.commands))
        # Whatever happened may have made room, if only by a rank that ended where nothing durable changed.
        if batch:
            are_beats = all(isinstance(waiting.event, NodeBeat) for waiting in batch)
            is_all_well = are_beats and all(decision is NOTHING for decision in decisions[:-1])
            due = after(self._last_pass, BEATS_PASS_INTERVAL if is_all_well else PASS_INTERVAL)
            self._pass_at = due if self._pass_at is None else min(self._pass_at, due)
        now = self.now()
        if self._pass_at is not None and now >= self._pass_at:
            decisions.append(self._pass(now))
            outgoing.extend(self._addressed(decisions[-1].commands))
        return decisions, outgoing

    def _addressed(self, commands: Iterable[Command]) -> Iterator[tuple[Command, int]]:
        """Each command with the stream of its node as it is at this moment: see AgentLink."""
        for command in commands:
            node = self._state.live.nodes.get(command.node)
            if node is not None:
                yield command, node.stream

    def _pass(self, now: Instant) -> Decision:
        self._pass_at = None
        self._passed_commit = self._commit_number + 1  # that of this turn, if there is one
        if not self._state.durable.lines.count:
            return NOTHING
        self._last_pass = now
        began_s = time.perf_counter()
        decision = schedule(self._state, now, self._known_nodes)
        make_true(self._state, decision)
        if self._measures is not None:
            self._measures.passed(time.perf_counter() - began_s)
        self._pass_at = after(now, PASS_INTERVAL) if decision.records else None
        if self._pass_at is None and now >= after(self._forecast_at, FORECAST_INTERVAL):
            self._foretell(now)
        return decision

    def _foretell(self, now: Instant) -> None:
        """Where jobs wait of which nothing was foretold, note when they are expected to start."""
        if self._state.durable.lines.count > len(self._state.live.waits.forecasts):
            self._forecast_at = now
            live.expect(self._state.live, forecasts(self._state, now))

    async def _commit(self, now: Instant, records: tuple[Record, ...], batch: list[_Waiting]) -> None:
        durable = self._state.durable
        touched, durable.touched = durable.touched, {}
        finished, durable.finished = durable.finished, {}
        self._commit_number += 1
        commit = Commit(
            number=self._commit_number,
            at=now,
            records=records,
            upserts=tuple(entity for entity in touched.values() if entity is not None),
            deletes=tuple(key for key, entity in touched.items() if entity is None),
            finished=tuple(finished.values()),
        )
        await self._store_until_durable(commit, batch)
        self._show(commit)

    async def _store_until_durable(self, commit: Commit, batch: list[_Waiting]) -> None:
        loop = asyncio.get_running_loop()
        pause = RETRY_SECONDS_MIN
        while True:
            try:
                await loop.run_in_executor(self._thread, self.store.commit, commit)
            except StoreUnavailable as error:
                if not self.store_error:
                    log.error("the store takes no commits", extra=fields(why=str(error)))
                self.store_error = str(error)
                self._answer_early(batch)
                _answer_unknown(batch, str(error))
                self._refuse_waiting(str(error))
                if await is_set_within(self._stopping, pause):
                    raise StoppedUnstored from error
                pause = min(pause * 2, RETRY_SECONDS_MAX)
            else:
                if self.store_error:
                    log.info("the store takes commits again")
                self.store_error = ""
                self._told_early.clear()
                return

    def _answer_early(self, batch: list[_Waiting]) -> None:
        """Tell nodes what of a commit that fails may leave before it, and answer who asked for that."""
        for waiting in batch:
            if waiting.is_request and waiting.reply is not None and not waiting.reply.done():
                told = self._tell_early(waiting.event, is_decided=True)
                if told is not None:
                    waiting.reply.set_result(told)

    def _refuse_waiting(self, why: str) -> None:
        """Requests that were not taken up are refused and change nothing; reports stay and wait."""
        events, self._events = self._events, deque()
        for waiting in events:
            if not waiting.is_request or waiting.reply is None:
                self._post(waiting)
            elif not waiting.reply.done():
                told = None if self._has_ended else self._tell_early(waiting.event)
                if told is not None:
                    waiting.reply.set_result(told)
                else:
                    waiting.reply.set_exception(StoreAway(why, outcome_is_known=True))

    def _show(self, commit: Commit) -> None:
        held = trackers.holds(self.view.durable, commit)
        jobs = trackers.changed_jobs(commit, self.view.durable)
        turn_over(self.view.durable, commit.upserts, commit.deletes)
        self._shown_commit = commit.number
        for job in commit.finished:
            self.recently_finished[job.id] = job
        while len(self.recently_finished) > FINISHED_JOBS_KEPT:
            self.recently_finished.popitem(last=False)
        nodes = trackers.changed_nodes(commit)
        nodes.update(node for _, node in held ^ trackers.holds(self.view.durable, commit))
        arrays = trackers.changed_arrays(commit, self.view.durable)
        models = trackers.changed_models(commit)
        self._record(commit, self.store.newest_sequence())
        self._publish(Changes(jobs=(*jobs, *arrays), nodes=tuple(sorted(nodes)), models=models))

    def _release(self, batch: list[_Waiting], decisions: list[Decision], outgoing: list[tuple[Command, int]]) -> None:
        # Commands first: a job waits for its launch, and to make and send the replies takes as long as to start it.
        for command, stream in outgoing:
            if self._commands_sent[command]:
                self._commands_sent[command] -= 1
            else:
                self._link.send(command, stream)
        self._commands_sent.clear()
        for waiting in batch if self._signals_sent else ():
            if isinstance(waiting.event, SignalRequested):
                self._signals_sent.pop((waiting.event.by, waiting.event.request_id), None)
        for waiting, decision in zip(batch, decisions, strict=False):
            if waiting.reply is not None and not waiting.reply.done():
                waiting.reply.set_result(decision.reply)
            if isinstance(waiting.event, SchedulerStarted):
                self.begun.set()
        for decision in decisions:
            for news in decision.session_commands:
                self._tell_session(news)


def _answer_unknown(batch: list[_Waiting], why: str) -> None:
    for waiting in batch:
        if waiting.is_request and waiting.reply is not None and not waiting.reply.done():
            waiting.reply.set_exception(StoreAway(why, outcome_is_known=False))
