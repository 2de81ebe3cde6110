"""What a pass costs the core with a long queue and a large fleet; no I/O, processor time."""

import gc
import statistics
import time
from itertools import islice

from scheduler.core.scheduling import schedule
from scheduler.policy.caps import Caps
from scheduler.policy.node_cache import NodeCache
from scheduler.policy.order.page import order_from
from scheduler.policy.page_reasons import PassReasons
from scheduler.state.ids import RankKey
from scheduler.state.records import AttemptPlaced, Record
from scheduler.state.units import MILLISECOND, after

from .big_fleet import BigFleet, big_fleet
from .rows import Row, Run
from .scale import PAGE, TARGET

CLASSES = 200
CHANGED = 50
JOBS_PER_NODE = 13
"""Jobs of these classes that it takes to fill a node, about: they come on top of those that are to wait."""
PASSES = 10


def measure(run: Run) -> list[Row]:
    """The rows of the group `passes`."""
    fleet = big_fleet(run.agents)
    fleet.add_jobs(run.queued + JOBS_PER_NODE * run.agents, CLASSES)
    known = NodeCache()
    while placed := fleet.make_true(schedule(fleet.state, fleet.now, known)):
        _start(fleet, placed)
    # What stays is not looked through again and again: as the scheduler has it after its start.
    gc.collect()
    gc.freeze()
    try:
        cold = [_pass_ms(fleet, NodeCache()) for _ in range(PASSES)]
        warm: list[float] = []
        told: list[float] = []
        for number in range(PASSES):
            _change(fleet, number)
            warm.append(_pass_ms(fleet, known))
            told.append(_reasons_ms(fleet, known))
        same = [_pass_ms(fleet, known) for _ in range(PASSES)]
    finally:
        gc.unfreeze()
    waiting = fleet.state.durable.lines.count
    sizes = f"{waiting:,} queued, {CLASSES} classes, {run.agents:,} nodes"
    return [
        Row(f"pass, cold: {sizes}", statistics.median(cold), "ms", 250, TARGET),
        Row(f"pass, {CHANGED} nodes changed: the same", statistics.median(warm), "ms", 50, TARGET),
        Row("pass, nothing changed: the same", statistics.median(same), "ms"),
        Row(f"reasons of a page of {PAGE} behind a pass: the same", statistics.median(told), "ms"),
    ]


def _pass_ms(fleet: BigFleet, known: NodeCache) -> float:
    """Processor time of one pass, in milliseconds; what it places is made true afterwards."""
    begin = time.process_time()
    decision = schedule(fleet.state, fleet.now, known)
    taken = (time.process_time() - begin) * 1e3
    _start(fleet, fleet.make_true(decision))
    return taken


def _reasons_ms(fleet: BigFleet, known: NodeCache) -> float:
    """Processor time of why the first PAGE jobs of the order wait, by the pass that has just ended."""
    page = [job for _, job in islice(order_from(fleet.state, fleet.now, None), PAGE)]
    assert known.last_pass is not None
    begin = time.process_time()
    reasons, caps = PassReasons(known.last_pass), Caps(fleet.state, fleet.now)
    for job in page:
        reasons.of(job, caps)
    return (time.process_time() - begin) * 1e3


def _change(fleet: BigFleet, number: int) -> None:
    """On CHANGED nodes a job ends, and they beat, a tenth of a second later."""
    fleet.now = after(fleet.now, 100 * MILLISECOND)
    names = list(fleet.state.durable.nodes)
    for each in range(CHANGED):
        name = names[(number * CHANGED + each) % len(names)]
        ranks = fleet.state.durable.hold(name).ranks
        if ranks:
            fleet.end(next(iter(ranks)).job)
        fleet.beat(name)


def _start(fleet: BigFleet, records: tuple[Record, ...]) -> None:
    for record in records:
        if isinstance(record, AttemptPlaced):
            for rank, each in enumerate(record.attempt.ranks):
                fleet.start(RankKey(record.job, record.attempt.number, rank), each.placement.node)
