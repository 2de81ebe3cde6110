"""`make sim-scale`: a large fleet runs a great many jobs through the pure core, as fast as it decides.

No faults, no I/O, no heartbeats (nodes count as heard all the time): what is left are the decisions. Users submit
groups of equal jobs until so many have been submitted; each runs as long as chance says, and in each turn of simulated
time those that have ended end, and passes place until nothing more fits or a pass has placed its share.
"""

import argparse
import gc
import heapq
import resource
import statistics
import time
from dataclasses import dataclass, field, replace

from scheduler.core.scheduling import schedule
from scheduler.policy.node_cache import NodeCache
from scheduler.state.events import JobsSubmitted, WantedJob
from scheduler.state.ids import JobId, RankKey, UserName
from scheduler.state.invariants import check_all
from scheduler.state.limits import Limits
from scheduler.state.records import AttemptPlaced, Record
from scheduler.state.specs import Band, JobSpec
from scheduler.state.units import DAY, MINUTE, SECOND, Instant, Span, after

from .big_fleet import DEVICES_PER_NODE, USERS, BigFleet, big_fleet

ALWAYS = Limits(heartbeat_interval=Span(10_000 * DAY), sample_age=Span(10_000 * DAY), node_lease=Span(10_000 * DAY))
"""Nodes are heard once, and that is enough."""

TURN = Span(30 * SECOND)
CLASSES = 200
GROUP_MAX = 200
WAITING_SHARE = 0.1
"""Users keep at most this part of all jobs waiting; they submit the next when some have begun."""


@dataclass(slots=True)
class Replay:
    """A replay as it goes on, and what it has counted."""

    fleet: BigFleet
    jobs: int
    submitted: int = 0
    ended: int = 0
    decisions: int = 0
    pass_ms: list[float] = field(default_factory=list)
    ends: list[tuple[Instant, JobId]] = field(default_factory=list)
    known: NodeCache = field(default_factory=NodeCache)
    waiting_max: int = 0
    running_max: int = 0

    def run(self) -> None:
        """Until every job has ended."""
        kinds = list(self.fleet.classes(CLASSES))
        while self.ended < self.jobs:
            self._submit(kinds)
            self._place()
            durable = self.fleet.state.durable
            self.waiting_max = max(self.waiting_max, durable.lines.count)
            self.running_max = max(self.running_max, len(durable.active))
            assert self.ends, f"{durable.lines.count} jobs wait, and nothing runs"
            self.fleet.now = max(after(self.fleet.now, TURN), self.ends[0][0])
            self._end()

    def _submit(self, kinds: list[JobSpec]) -> None:
        fleet, chance = self.fleet, self.fleet.chance
        waiting_max = max(GROUP_MAX, int(self.jobs * WAITING_SHARE))
        while self.submitted < self.jobs and fleet.state.durable.lines.count < waiting_max:
            count = min(chance.randint(1, GROUP_MAX), self.jobs - self.submitted)
            event = JobsSubmitted(
                at=fleet.now,
                user=UserName(f"user{chance.randrange(USERS):02}"),
                jobs=(
                    WantedJob(
                        spec=replace(chance.choice(kinds), name=f"sweep-{self.submitted}"),
                        band=chance.choice((Band.LOW, Band.NORMAL, Band.NORMAL, Band.HIGH)),
                    ),
                ),
                count=count,
            )
            fleet.take_up(event)
            self.submitted += count
            self.decisions += 1

    def _place(self) -> None:
        while True:
            begin = time.perf_counter()
            decision = schedule(self.fleet.state, self.fleet.now, self.known)
            self.pass_ms.append((time.perf_counter() - begin) * 1e3)
            placed = self.fleet.make_true(decision)
            if not placed:
                return
            self._begin(placed)

    def _begin(self, placed: tuple[Record, ...]) -> None:
        for record in placed:
            self.decisions += 1
            if isinstance(record, AttemptPlaced):
                for rank, each in enumerate(record.attempt.ranks):
                    self.fleet.start(RankKey(record.job, record.attempt.number, rank), each.placement.node)
                    self.decisions += 1
                run = Span(self.fleet.chance.randint(MINUTE, 100 * MINUTE))
                heapq.heappush(self.ends, (after(self.fleet.now, run), record.job))

    def _end(self) -> None:
        while self.ends and self.ends[0][0] <= self.fleet.now:
            self.fleet.end(heapq.heappop(self.ends)[1])
            self.ended += 1
            self.decisions += 1


def replay(nodes: int, jobs: int, seed: int) -> Replay:
    """Run it. What is left must be an empty fleet, and a state in which everything that must be true is."""
    fleet = big_fleet(nodes, seed)
    fleet.state.limits = ALWAYS
    going = Replay(fleet, jobs)
    gc.freeze()
    gc.disable()
    try:
        going.run()
    finally:
        gc.enable()
        gc.unfreeze()
    durable = fleet.state.durable
    wrong = list(check_all(fleet.state))
    if wrong or durable.holds or len(durable.jobs):
        raise AssertionError(
            f"{len(durable.holds)} nodes still hold something, {len(durable.jobs)} jobs live: {wrong[:5]}"
        )
    return going


def main() -> None:
    """Run it once and report."""
    flags = argparse.ArgumentParser(prog="make sim-scale", description=__doc__)
    flags.add_argument("--nodes", type=int, default=10_000, help="nodes of eight devices (default 10,000)")
    flags.add_argument("--jobs", type=int, default=1_000_000, help="jobs in all (default 1,000,000)")
    flags.add_argument("--seed", type=int, default=1, help="decides all that chance does (default 1)")
    given = flags.parse_args()
    begin, cpu = time.perf_counter(), time.process_time()
    done = replay(given.nodes, given.jobs, given.seed)
    wall, cpu = time.perf_counter() - begin, time.process_time() - cpu
    days = (done.fleet.now - done.fleet.began_at) / DAY
    tenths = statistics.quantiles(done.pass_ms, n=10)
    print(f"{given.nodes:,} nodes, {given.nodes * DEVICES_PER_NODE:,} devices, {given.jobs:,} jobs: all ended")
    print(f"simulated       {days:,.1f} days in {wall:,.0f} s ({cpu:,.0f} s of processor time)")
    print(f"at most         {done.waiting_max:,} jobs waiting, {done.running_max:,} running")
    rates = f"{done.decisions / wall:,.0f} per second, {done.decisions / cpu:,.0f} per second of processor time"
    print(f"decisions       {done.decisions:,}: {rates}")
    print(f"passes          {len(done.pass_ms):,}; median {tenths[4]:,.1f} ms, 90 % within {tenths[8]:,.1f} ms")
    print(f"peak memory     {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:,.0f} MB")


if __name__ == "__main__":
    main()
