"""The engine foretells the starts of jobs that came to wait, and learns again after a start what was learned before."""

from __future__ import annotations

from dataclasses import replace

from gpufleet.jobs.runs import ExitCode
from scheduler.engine import PASS_INTERVAL, Engine
from scheduler.state.attempts import RankExit
from scheduler.state.events import RankExited, RankStarted
from scheduler.state.ids import JobId, NodeName, RankKey
from scheduler.state.live import run_key
from scheduler.state.units import MINUTE, Span
from tests.core.fleet import spec
from tests.engine.harness import Harness


async def test_a_job_that_waits_is_foretold_and_its_wait_is_known_again_after_a_start() -> None:
    harness = Harness()
    limited = replace(spec(gpus=1), time_limit=Span(10 * MINUTE))
    async with harness.running():
        await harness.join("n1", gpus=1)
        await harness.submit(limited)
        harness.clock.advance(PASS_INTERVAL)
        await harness.submit(limited)
        for _ in range(4):
            harness.clock.advance(PASS_INTERVAL)
            await harness.poke()
        waits = harness.engine.view.live.waits
        assert list(waits.forecasts) == [JobId(2)]
        first, second = (RankKey(JobId(number), 1, 0) for number in (1, 2))
        ended = RankExit(exit=ExitCode(code=0), reason="EXITED")
        for key in (first, second):
            for event in (
                RankStarted(at=harness.clock.now(), node=NodeName("n1"), key=key),
                RankExited(at=harness.clock.now(), node=NodeName("n1"), key=key, exit=ended),
            ):
                await harness.engine.report(event)
                for _ in range(2):
                    harness.clock.advance(PASS_INTERVAL)
                    await harness.poke()
        assert not waits.forecasts and len(waits.scores) == 4
        job = harness.engine.recently_finished[JobId(2)]
        runs = harness.engine.view.live.runs
        store = harness.engine.store
    anew = Engine(store, harness.link, harness.clock, harness.limits, lambda changes: None)
    assert (anew.view.live.waits, anew.view.live.runs[run_key(job)]) == (waits, runs[run_key(job)])
    anew.close()
