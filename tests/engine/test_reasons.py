"""Why jobs wait, as pages tell it: never older than the last pass, whatever the size of the fleet."""

from __future__ import annotations

from scheduler.api.jobs.reasons import PASS_AGE, WaitReasons
from scheduler.engine import PASS_INTERVAL
from scheduler.policy.explain import explain
from scheduler.policy.forecast import FITS_TRIED
from scheduler.state.events import DrainRequested
from scheduler.state.ids import NodeName
from tests.core.fleet import spec
from tests.engine.harness import ALICE, Harness

NODES = 300


async def fleet_of(harness: Harness, nodes: int = NODES) -> None:
    """As many nodes of one GPU, each of which is in use, and two jobs that wait."""
    for number in range(nodes):
        await harness.join(f"n{number:03}", gpus=1)
    await harness.submit(spec(gpus=1), count=nodes)
    await harness.submit(spec(gpus=1))
    harness.clock.advance(PASS_INTERVAL)
    await harness.submit(spec(gpus=1, cpus=2))
    await pass_by(harness)


async def pass_by(harness: Harness) -> None:
    """One pass, and all that is committed with it."""
    harness.clock.advance(PASS_INTERVAL)
    for _ in range(4):
        await harness.poke()


async def test_a_reason_changes_within_one_pass_on_a_large_fleet() -> None:
    harness = Harness()
    async with harness.running():
        await fleet_of(harness)
        reasons = WaitReasons(harness.engine)
        job = harness.job(NODES + 2)
        before = reasons.of([job])[job.id]
        assert before[0] == "DEVICES_IN_USE"
        for number in range(NODES):
            drained = DrainRequested(at=harness.clock.now(), by=ALICE, node=NodeName(f"n{number:03}"), is_draining=True)
            await harness.engine.request(drained)
        await pass_by(harness)
        after = reasons.of([job])[job.id]
        assert after[0] == "NODE_DRAINING"
        told = explain(harness.engine.view, job, harness.clock.now())
        assert (told.reason, told.sentence.partition("because ")[2]) == after[:2]


async def test_where_no_pass_came_for_long_what_time_alone_does_is_told() -> None:
    harness = Harness()
    async with harness.running():
        await fleet_of(harness, nodes=2)
        reasons = WaitReasons(harness.engine)
        job = harness.job(4)
        assert reasons.of([job])[job.id][0] == "DEVICES_IN_USE"
        harness.clock.advance(PASS_AGE + harness.limits.heartbeat_interval * harness.limits.missed_heartbeats)
        assert reasons.of([job])[job.id][0] == "NODE_NOT_HEARD"


async def test_where_the_store_is_away_the_reasons_are_those_of_what_is_committed() -> None:
    harness = Harness()
    async with harness.running():
        await fleet_of(harness, nodes=2)
        reasons = WaitReasons(harness.engine)
        job = harness.job(4)
        assert harness.engine.last_pass is not None
        harness.engine.store_error = "the disk is full"
        assert harness.engine.last_pass is None
        assert reasons.of([job])[job.id][0] == "DEVICES_IN_USE"


async def test_where_nobody_can_say_when_a_job_starts_it_is_said_why() -> None:
    harness = Harness()
    async with harness.running():
        await fleet_of(harness, nodes=2)
        reasons = WaitReasons(harness.engine)
        job = harness.job(4)
        assert reasons.starts().of(job.id).sentence == "no estimate: nobody knows when what it waits for ends"
        told = explain(harness.engine.view, job, harness.clock.now())
        assert (told.estimated_start, told.estimate_sentence) == (None, reasons.starts().of(job.id).sentence)
        for number in range(FITS_TRIED // 2 + 1):
            await harness.join(f"late{number}")
        sentence = reasons.starts().of(job.id).sentence
        assert sentence == "no estimate: the first jobs ask 1,003 nodes for 2 different things, too many to replay"
