"""What a pass remembers of the nodes for the next one never changes what that decides.

The fleet compares each pass with one that remembers nothing, so that here things only have to happen.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from gpufleet.jobs.runs import ExitCode
from scheduler.core.scheduling import schedule
from scheduler.policy.node_cache import NodeCache
from scheduler.state.attempts import RankExit
from scheduler.state.events import DrainRequested, RankExited, RankRefused, RankStarted
from scheduler.state.ids import NodeName, RankKey, UserName
from scheduler.state.jobs import Starting
from scheduler.state.limits import Limits, NodeOrder
from scheduler.state.nodes import DeviceProcess
from scheduler.state.specs import Band, NodePins
from scheduler.state.units import GB, MILLISECOND, MINUTE, SECOND, Span, after
from tests.core.fleet import Fleet, spec

pytestmark = pytest.mark.slow

EVENTS = 50
LABEL = (("disk", "nvme"),)


class Busy:
    """A fleet to which things happen by chance."""

    def __init__(self, seed: int, order: NodeOrder) -> None:
        self.chance = random.Random(seed)
        self.fleet = Fleet(Limits(node_order=order, preemptible_after=Span(SECOND)))
        for _ in range(self.chance.randint(1, 5)):
            self.join()

    def join(self) -> None:
        node = self.fleet.add_node(
            f"n{len(self.fleet.nodes)}",
            gpus=self.chance.randint(0, 4),
            cpus=self.chance.randint(2, 8),
            memory_bytes=self.chance.choice((16, 80)) * GB,
            model=self.chance.choice(("NVIDIA A100", "NVIDIA L4")),
            labels=self.chance.choice(((), LABEL)),
        )
        self.fleet.join(node)

    def submit(self) -> None:
        names = [NodeName(name) for name in self.fleet.nodes]
        devices = self.chance.randint(0, 3)
        narrowed = self.chance.choice(
            (
                {},
                {},
                {"nodelist": tuple(self.chance.sample(names, 1))},
                {"exclude": tuple(self.chance.sample(names, 1))},
                {"node_labels": LABEL},
                {"models": ("l4",), "gpus": max(1, devices)},
                {"pins": (NodePins(node=names[0], indices=(0,)),), "gpus": 1},
                {"memory_bytes": 300 * GB},
                {"min_memory_bytes": 20 * GB},
                {"allow_busy": True},
                {"gpus": max(1, devices), "share_milli": self.chance.choice((250, 500))},
                {"gpus": 1, "share_milli": 300, "min_memory_bytes": 10 * GB},
            )
        )
        wanted = {"gpus": devices, "cpus": self.chance.randint(1, 3), **narrowed}
        self.fleet.submit(
            spec(
                time_limit=self.chance.choice((None, Span(MINUTE), Span(10 * MINUTE))),
                is_preemptible=self.chance.random() < 0.5,
                **wanted,  # type: ignore[arg-type]
            ),
            band=self.chance.choice((Band.LOW, Band.NORMAL, Band.HIGH)),
            user=self.chance.choice(("alice", "bob")),
        )

    def go_on(self) -> None:
        """An active job starts, ends, or is refused."""
        durable = self.fleet.state.durable
        if not durable.active:
            return
        job = durable.jobs[self.chance.choice(list(durable.active))]
        assert job.attempt is not None
        node, key = job.attempt.ranks[0].placement.node, RankKey(job.id, job.attempt.number, 0)
        if isinstance(job.state, Starting) and self.chance.random() < 0.8:
            self.fleet.take_up(RankStarted(at=self.fleet.now, node=node, key=key))
        elif isinstance(job.state, Starting):
            reason = self.chance.choice(("DEVICE_BUSY", "TOO_OLD"))
            self.fleet.take_up(RankRefused(at=self.fleet.now, node=node, key=key, reason=reason))
        else:
            ended = RankExit(exit=ExitCode(code=0), reason="EXITED")
            self.fleet.take_up(RankExited(at=self.fleet.now, node=node, key=key, exit=ended))

    def drain(self) -> None:
        name = NodeName(self.chance.choice(list(self.fleet.nodes)))
        event = DrainRequested(
            at=self.fleet.now, by=UserName("alice"), node=name, is_draining=self.chance.random() < 0.5
        )
        self.fleet.take_up(event)

    def use(self) -> None:
        """Somebody outside begins or ends to use a device, or it falls ill, and its node says so."""
        node = self.fleet.nodes[NodeName(self.chance.choice(list(self.fleet.nodes)))]
        for uuid, sample in node.samples.items():
            if self.chance.random() < 0.5:
                node.samples[uuid] = replace(
                    sample,
                    memory_free_bytes=self.chance.choice((0, 10, 16, 60)) * GB,
                    utilization_percent=self.chance.choice((0, 20, 90)),
                    processes=self.chance.choice(((), (DeviceProcess(pid=1, is_foreign=True),))),
                    is_healthy=self.chance.random() < 0.9,
                    unhealthy_reason="XID 79",
                )
        if node.is_connected:
            self.fleet.beat(node.name)

    def silence(self) -> None:
        self.fleet.disconnect(NodeName(self.chance.choice(list(self.fleet.nodes))))

    def hear(self) -> None:
        self.fleet.inventory(self.fleet.nodes[NodeName(self.chance.choice(list(self.fleet.nodes)))])

    def wait(self) -> None:
        for _ in self.fleet.advance(
            self.chance.choice((1_000, 5_500, 40_000)) * MILLISECOND, beats=self.chance.random() < 0.5
        ):
            pass

    def happen(self) -> None:
        """One thing."""
        things: list[Callable[[], None]] = [self.submit] * 6 + [self.go_on] * 6 + [self.use] * 2
        things += [self.wait, self.wait, self.drain, self.silence, self.hear, self.join]
        self.chance.choice(things)()


@pytest.mark.parametrize("order", list(NodeOrder))
@pytest.mark.parametrize("seed", range(12))
def test_a_pass_that_remembers_decides_what_one_that_does_not_would(seed: int, order: NodeOrder) -> None:
    busy = Busy(seed, order)
    for _ in range(EVENTS):
        busy.happen()
    assert busy.fleet.state.durable.counters.next_job > 1


def test_only_nodes_that_changed_are_looked_at_again() -> None:
    fleet = Fleet(passes=False)
    for number in range(3):
        fleet.join(fleet.add_node(f"n{number}", gpus=1))
    known = NodeCache()
    schedule(fleet.state, fleet.now, known)
    before = dict(known.views)
    fleet.now = after(fleet.now, Span(SECOND))
    fleet.beat(NodeName("n1"))
    schedule(fleet.state, fleet.now, known)
    assert [name for name, view in known.views.items() if view is not before[name]] == ["n1"]
