"""Whatever happens in whatever order: what is decided, shown and stored is the same, and a restart loads exactly it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpufleet.jobs.runs import ExitCode
from scheduler.engine import PASS_INTERVAL, StoreAway
from scheduler.state.access import Role, Token
from scheduler.state.attempts import RankExit
from scheduler.state.events import (
    BandRequested,
    DrainRequested,
    ForgetRequested,
    HoldRequested,
    NodeDisconnected,
    RankRefused,
    ReportedExited,
    ReportedRunning,
    RequeueRequested,
    RevokeRequested,
    TokenRequested,
)
from scheduler.state.ids import JobId, NodeName, RankKey, TokenId
from scheduler.state.invariants import check_all
from scheduler.state.jobs import Job
from scheduler.state.specs import Band
from scheduler.state.units import MINUTE, SECOND, Span
from scheduler.store.errors import StoreUnavailable
from tests.core.fleet import assert_same, spec
from tests.engine.harness import ALICE, Harness, eventually
from tests.rings.choosing import examples

pytestmark = pytest.mark.slow

NODES = ("n1", "n2")
JOBS_MAX = 6

Step = tuple[str, int, int]
PEOPLE = ("submit", "submit", "submit", "cancel", "abandon", "hold", "release", "band", "requeue")
ADMINS = ("drain", "resume", "forget", "token", "revoke")
MACHINES = ("join", "join", "beat", "beat", "started", "exited", "exited", "synced", "synced", "refused")
TROUBLE = ("disconnect", "reconnect", "pass", "second", "minutes", "fail", "lose-answer", "mend", "restart")
steps = st.tuples(
    st.sampled_from(PEOPLE + ADMINS + MACHINES + TROUBLE),
    st.integers(0, JOBS_MAX - 1),
    st.integers(0, 3),
)

SUBMITS: list[Step] = [("submit", number, 0) for number in range(4)]
BEGINNING: list[Step] = [("join", 0, 0), ("join", 0, 1), *SUBMITS, ("pass", 0, 0)]


class Scenario:
    """Carries out steps; what makes no sense at a moment is what a real fleet may say as well."""

    def __init__(self) -> None:
        self.harness = Harness()
        self._reports: list[asyncio.Future[object]] = []

    def _job(self, number: int) -> JobId:
        jobs = sorted(self.harness.decided.jobs) or [JobId(1)]
        return jobs[number % len(jobs)]

    def _node(self, number: int) -> NodeName:
        return NodeName(NODES[number % len(NODES)])

    def _attempt(self, job: JobId) -> tuple[RankKey, NodeName]:
        known = self.harness.decided.jobs.get(job)
        if known is None or known.attempt is None:
            return RankKey(job, 1, 0), NodeName(NODES[0])
        return RankKey(job, known.attempt.number, 0), known.attempt.ranks[0].placement.node

    async def take(self, step: Step) -> None:
        """One step, and the turn that it causes."""
        name, first, second = step
        harness = self.harness
        at = harness.clock.now()
        job, node = self._job(first), self._node(second)
        key, where = self._attempt(job)
        match name:
            case "submit" if len(harness.decided.jobs) < JOBS_MAX:
                wanted = spec(gpus=second % 3, is_requeueable=second != 1)
                await self._ask(lambda: harness.ask(wanted, held=second == 3, request_id=f"{first}" if second else ""))
            case "join":
                await self._report(self._join(node))
            case "beat" if node in harness.decided.nodes:
                await self._report(harness.beat(node, unhealthy="XID 79" if first == 0 else ""))
            case "started":
                await self._report(harness.started(where, key.job, key.attempt))
            case "exited":
                await self._report(harness.exited(where, key.job, key.attempt, code=second))
            case "synced":
                await self._report(harness.synced(key.job, key.attempt))
            case "refused":
                reason = ("DEVICE_BUSY", "CWD_MISSING", "STALE_COMMAND", "REFUSED")[second]
                await self._report(harness.engine.report(RankRefused(at=at, node=where, key=key, reason=reason)))
            case "cancel" | "abandon":
                await self._ask(lambda: harness.cancel(job, abandon=name == "abandon"))
            case "hold" | "release":
                hold = HoldRequested(at=at, by=ALICE, jobs=(job,), is_held=name == "hold")
                await self._ask(lambda: harness.engine.request(hold))
            case "band":
                band = BandRequested(at=at, by=ALICE, jobs=(job,), band=Band(second + 1))
                await self._ask(lambda: harness.engine.request(band))
            case "requeue":
                requeue = RequeueRequested(at=at, by=ALICE, jobs=(job,))
                await self._ask(lambda: harness.engine.request(requeue))
            case "drain" | "resume":
                drain = DrainRequested(at=at, by=ALICE, node=node, is_draining=name == "drain")
                await self._ask(lambda: harness.engine.request(drain))
            case "forget":
                forget = ForgetRequested(at=at, by=ALICE, node=node)
                await self._ask(lambda: harness.engine.request(forget))
            case "disconnect":
                live = harness.engine.view.live.nodes.get(node)
                stream = live.stream if live is not None else 0
                await self._report(harness.engine.report(NodeDisconnected(at=at, node=node, stream=stream)))
            case "reconnect" if node in harness.decided.nodes:
                seen = ReportedExited(exit=RankExit(exit=ExitCode(code=0), reason="EXITED"))
                entries = {
                    held: seen if second == 3 else ReportedRunning(run_span=Span(SECOND))
                    for held in harness.decided.hold(node).ranks
                }
                if second == 0:
                    entries.clear()
                await self._report(harness.inventory(node, entries.items()))
            case "token":
                token = Token(id=TokenId(f"t{first}"), user=ALICE, role=Role.USER, digest=f"d{first}", created_at=at)
                await self._ask(lambda: harness.engine.request(TokenRequested(at=at, by=ALICE, token=token)))
            case "revoke":
                revoke = RevokeRequested(at=at, by=ALICE, token=TokenId(f"t{first}"))
                await self._ask(lambda: harness.engine.request(revoke))
            case "pass":
                await self._time(PASS_INTERVAL)
            case "second":
                await self._time(SECOND)
            case "minutes":
                for _ in range(4):
                    await self._time(MINUTE * 2)
            case "fail":
                harness.store.failures = 1_000_000
            case "lose-answer":
                harness.store.lost_answers = 1
            case "mend":
                await self.mend()
            case "restart":
                await self.restart()
            case _:
                pass

    async def _ask(self, ask: Callable[[], Awaitable[object]]) -> None:
        with suppress(StoreAway):
            await ask()

    async def _join(self, node: NodeName) -> None:
        with suppress(StoreAway):
            await self.harness.join(node, gpus=2)

    async def _report(self, report: Awaitable[object]) -> None:
        """A report waits for the store, and nobody waits for the report then."""
        done = asyncio.ensure_future(report)
        self._reports.append(done)
        await self._settle(done.done)

    async def _time(self, span: int) -> None:
        self.harness.clock.advance(span)
        self.harness.engine._last_tick = self.harness.clock.now()  # it was reading all the time
        poked = asyncio.ensure_future(self.harness.poke())
        await self._settle(poked.done)

    async def _settle(self, is_done: Callable[[], bool]) -> None:
        await eventually("the step is done, or the store is away", lambda: is_done() or self.harness.engine.store_error)

    async def mend(self) -> None:
        """The store works again and has everything; then all must agree."""
        harness = self.harness
        harness.store.failures = 0
        await eventually("the store is back", lambda: not harness.engine.store_error)
        await harness.poke()
        await harness.poke()
        await eventually("nothing waits", lambda: not harness.engine._events)
        harness.check_agreement()
        wrong = check_all(harness.engine._state)
        assert not wrong, wrong

    async def restart(self) -> None:
        """A crash at any moment: what the new start decides from is what was shown."""
        old = self.harness
        shown = old.view
        await self.end()
        self.harness = Harness(old.store.reopened(), old.clock, old.limits)
        self.harness.streams = old.streams
        if not old.store.lost_answers and not old.engine.store_error:
            assert_same(self.harness.decided, shown)
        self.begin()

    async def end(self) -> None:
        """Kill the engine, with all who wait for it."""
        assert self.harness.task is not None
        self.harness.task.cancel()
        for report in self._reports:
            report.cancel()
        await asyncio.gather(self.harness.task, *self._reports, return_exceptions=True)
        self._reports.clear()
        self.harness.engine.close()

    def begin(self) -> None:
        """Start the engine."""
        self.harness.task = asyncio.create_task(self.harness.engine.run(), name="engine")


async def play(steps: list[Step]) -> None:
    scenario = Scenario()
    scenario.begin()
    try:
        for step in steps:
            await scenario.take(step)
            harness = scenario.harness
            assert harness.task is not None
            assert not harness.task.done(), harness.task.exception()
            if not harness.engine.store_error:
                assert_same(harness.view, harness.store.durable())
        await scenario.mend()
        shown = scenario.harness.view
        assert_same(scenario.harness.restarted().decided, shown)
        ended = {
            job.id
            for change in scenario.harness.changes
            for job in change.jobs
            if isinstance(job, Job) and job.is_finished
        }
        assert ended <= scenario.harness.store.finished.keys()
    finally:
        await scenario.end()


@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(st.lists(steps, min_size=40, max_size=80))
def test_decided_shown_and_stored_agree(steps: list[Step]) -> None:
    asyncio.run(play([*BEGINNING, *steps]))


def test_the_store_of_these_tests_can_fail() -> None:
    """The property above is worth something only if commits fail in it."""

    async def check() -> None:
        scenario = Scenario()
        scenario.begin()
        await scenario.take(("fail", 0, 0))
        await scenario.take(("submit", 0, 3))
        assert scenario.harness.engine.store_error == str(StoreUnavailable("disk full"))
        assert not scenario.harness.view.jobs
        await scenario.mend()
        assert scenario.harness.view.jobs
        await scenario.restart()
        assert scenario.harness.view.jobs
        await scenario.end()

    asyncio.run(check())
