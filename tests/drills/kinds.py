"""The jobs of a drill: what is drawn from the chance of a person, as values."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpufleet.v1 import job_pb2

JOB = Path(__file__).with_name("job.py")
BANDS = (job_pb2.BAND_LOW, job_pb2.BAND_NORMAL, job_pb2.BAND_NORMAL, job_pb2.BAND_HIGH, job_pb2.BAND_URGENT)
CONDITIONS = ("OK", "ANY", "FAIL")
GRACE_SECONDS = 2.0
MOVED_SHARE = 0.1
"""So many jobs are moved to another band."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """One submit: what the job does, and what is asked of the scheduler."""

    kind: str
    seconds: float
    lines: int = 20
    code: int = 0
    fails_below: int = 0
    manners: str = "plain"
    gpus: int = 0
    cpus: int = 1
    band: int = job_pb2.BAND_NORMAL
    share_milli: int = 0
    count: int = 1
    nodes: int = 0
    items: int = 0
    active_max: int = 0
    failures_max: int = 0
    retries: int = 0
    is_requeueable: bool = True
    is_preemptible: bool = False
    is_held: bool = False
    time_limit: float = 0.0
    begins_in: float = 0.0
    after: tuple[tuple[int, str], ...] = ()
    cancel_after: float | None = None
    requeue_after: float | None = None
    moved_after: float | None = None
    release_after: float | None = None
    followers: int = 0
    nodelist: tuple[str, ...] = ()

    def argv(self, python: str, stamps: Path) -> list[str]:
        """Its command, for this interpreter."""
        told = (self.seconds, self.lines, self.code, self.fails_below, self.manners)
        return [python, "-S", "-E", str(JOB), str(stamps), *map(str, told)]

    @property
    def array(self) -> job_pb2.ArraySpec:
        """Its items."""
        indices = f"1-{self.items}"
        return job_pb2.ArraySpec(indices=indices, max_active_count=self.active_max, max_fails=self.failures_max)

    def fields(self) -> dict[str, Any]:
        """The fields of its spec, as tests.e2e.client.Client.spec takes them."""
        conditions = job_pb2.DependencyCondition
        return {
            "name": self.kind,
            "gpus": self.gpus,
            "cpus": self.cpus,
            "band": self.band,
            "retries": self.retries,
            "no_requeue": not self.is_requeueable,
            "is_preemptible": self.is_preemptible,
            "is_held": self.is_held,
            **({"array": self.array} if self.items else {}),
            "seconds": self.time_limit,
            "grace": GRACE_SECONDS,
            "nodelist": self.nodelist,
            "node_count": self.nodes,
            "after": [
                job_pb2.Dependency(job_id=job, condition=conditions.Value(f"DEPENDENCY_CONDITION_{wanted}"))
                for job, wanted in self.after
            ],
        }


def draw(rng: random.Random, known: Sequence[int], seconds_max: float) -> Wish:
    """The next wish of a person who knows these jobs; none runs for longer than that."""
    wish = rng.choices([each for each, _ in _MIX], [weight for _, weight in _MIX])[0]
    wish = replace(
        wish,
        seconds=round(min(wish.seconds * rng.uniform(0.5, 1.5), seconds_max), 2),
        gpus=rng.choice((0, 0, 0, 1, 1, 2)),
        band=rng.choice(BANDS),
        manners=wish.manners if wish.manners != "plain" else rng.choice(("plain", "plain", "polite", "stubborn")),
        followers=rng.choice((0, 0, 0, 1, 1, 2)),
    )
    if wish.kind == "dependent":
        if not known:
            return replace(wish, kind="short")
        chosen = rng.sample(list(known[-20:]), min(len(known[-20:]), rng.choice((1, 1, 2))))
        wish = replace(wish, after=tuple((job, rng.choice(CONDITIONS)) for job in chosen))
    if wish.kind == "held":
        wish = replace(wish, release_after=rng.choice((None, round(rng.uniform(0.0, 20.0), 1))))
    if wish.kind == "cancelled":
        wish = replace(wish, cancel_after=rng.choice((0.0, 0.05, round(rng.uniform(0.0, 15.0), 2))))
    if wish.kind == "share":
        wish = replace(wish, gpus=1, share_milli=rng.choice((250, 500, 600)))
    if wish.kind == "array":
        wish = replace(wish, items=rng.choice((2, 5, 12)), active_max=rng.choice((0, 0, 1, 3)), followers=0)
        wish = replace(wish, gpus=min(wish.gpus, 1), fails_below=rng.choice((0, 0, 2)), retries=rng.choice((0, 1)))
        wish = replace(wish, failures_max=rng.choice((0, 2)), cancel_after=rng.choice((None, None, 3.0)))
    if wish.kind == "burst":
        # Short jobs that are alike wait in the backlogs of nodes.
        wish = replace(wish, gpus=min(wish.gpus, 1), manners="plain", followers=0)
    if wish.kind == "gang":
        # How one rank ended may differ from how the others did only by what was done to it.
        wish = replace(wish, nodes=2, gpus=rng.choice((2, 2, 4)), manners="plain")
    if rng.random() < MOVED_SHARE:
        wish = replace(wish, moved_after=round(rng.uniform(0.0, 5.0), 2))
    if wish.kind == "requeued":
        wish = replace(wish, requeue_after=round(rng.uniform(0.5, 8.0), 1))
    return wish


_MIX: tuple[tuple[Wish, int], ...] = (
    (Wish(kind="short", seconds=0.2), 6),
    (Wish(kind="instant", seconds=0.0, lines=1), 3),
    (Wish(kind="long", seconds=15.0, lines=600), 5),
    (Wish(kind="longer", seconds=50.0, lines=2_000), 2),
    (Wish(kind="chatty", seconds=2.0, lines=30_000), 3),
    (Wish(kind="flood", seconds=1.0, lines=200_000), 1),
    (Wish(kind="failing", seconds=1.0, code=4), 2),
    (Wish(kind="retried", seconds=1.0, fails_below=3, retries=2), 2),
    (Wish(kind="preemptible", seconds=12.0, lines=300, is_preemptible=True), 3),
    (Wish(kind="dependent", seconds=1.0), 3),
    (Wish(kind="cancelled", seconds=10.0, lines=500), 4),
    (Wish(kind="requeued", seconds=8.0, lines=200), 1),
    (Wish(kind="held", seconds=1.0, is_held=True), 2),
    (Wish(kind="no requeue", seconds=10.0, lines=300, is_requeueable=False), 3),
    (Wish(kind="limited", seconds=20.0, lines=200, time_limit=4.0), 2),
    (Wish(kind="stubborn", seconds=20.0, lines=100, time_limit=3.0, manners="stubborn"), 1),
    (Wish(kind="later", seconds=0.5, begins_in=8.0), 1),
    (Wish(kind="share", seconds=4.0), 3),
    (Wish(kind="array", seconds=0.6), 2),
    (Wish(kind="gang", seconds=6.0, lines=200), 2),
    (Wish(kind="several", seconds=0.5, count=4), 2),
    (Wish(kind="burst", seconds=0.1, lines=5, count=40), 2),
)
