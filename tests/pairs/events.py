"""What happens to jobs while they run: to one alone, or to the programs of the fleet and so to all rows of a batch."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing

from tests.e2e.processes import until
from tests.pairs.course import Course
from tests.pairs.site import NODES, Site

Happening = Callable[[Site], Awaitable[None]]


async def nothing(course: Course) -> None:
    """Nothing happens."""


async def cancelled(course: Course) -> None:
    """Its user cancels it."""
    await course.typed("cancel", str(course.job))


async def held(course: Course) -> None:
    """Its user asks to hold it, which is for jobs that wait: it runs on."""
    done = await course.person.type("hold", str(course.job))
    course.sight["hold is refused"] = done.code != 0


async def preempted(course: Course) -> None:
    """A job of the highest band wants the very GPUs that it has; of what need not make room, it gets them later."""
    pins = await course.pins()
    async with course.person.site.admin() as admin:
        asked = ("submit", "--band", "urgent", "--node-gpu-ids", pins, "--cwd", "/", "--", "true")
        done = await admin.type(*asked)
        assert done.code == 0, done.err
        other = int(done.out)
        if course.is_cut():
            assert (await admin.type("wait", str(other), stays=True)).code == 0
        else:
            assert (await admin.type("cancel", str(other))).code == 0


async def agents_killed(site: Site) -> None:
    """The agents are killed and started again; keepers and jobs live on."""
    for name in NODES:
        site.fleet.agents[name].kill()
    await _agents_back(site)


async def scheduler_killed(site: Site) -> None:
    """The scheduler is killed and started again."""
    site.fleet.scheduler.kill()
    await site.fleet.scheduler.start()
    await _are_connected(site)


async def nodes_lost(site: Site) -> None:
    """Agents and keepers are killed, and with them all jobs; the machines are back at once."""
    for name in NODES:
        agent = site.fleet.agents[name]
        agent.kill()
        for keeper in agent.keeper_pids():
            os.kill(keeper, signal.SIGKILL)
    await _agents_back(site)


async def store_restored(site: Site) -> None:
    """The database is put back as it was a moment ago, when the jobs ran already."""
    scheduler = site.fleet.scheduler
    database, copy = scheduler.data / "scheduler.db", site.folder / "copy.db"
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    async with site.admin() as admin:
        assert (await admin.type("submit", "--cwd", "/", "--", "true")).code == 0
    scheduler.kill()
    for file in scheduler.data.glob("scheduler.db*"):
        file.unlink()
    shutil.copy(copy, database)
    scheduler.flags.append("--accept-restored")
    await scheduler.start()
    scheduler.flags.remove("--accept-restored")
    await _are_connected(site)


async def disk_full(site: Site) -> None:
    """The disk of the first node is full for a while; what runs there goes on."""
    disk = site.disks[NODES[0]]
    disk.fill()
    await site.bystander()
    disk.make_room()


OWN = {
    "nothing": nothing,
    "cancel": cancelled,
    "hold": held,
    "time limit": nothing,
    "preemption": preempted,
}
"""Events that happen to one row's job."""

SHARED: dict[str, Happening] = {
    "agent killed": agents_killed,
    "scheduler killed": scheduler_killed,
    "node lost": nodes_lost,
    "disk full": disk_full,
    "store restored": store_restored,
}
"""Events that happen to all rows of a batch."""


async def _agents_back(site: Site) -> None:
    for name in NODES:
        site.fleet.agents[name].spawn()
    await asyncio.gather(*(site.fleet.node_is_ready(name) for name in NODES))


async def _are_connected(site: Site) -> None:
    async def are() -> bool:
        async with site.fleet.client() as admin:
            return all([(await admin.node(name)).is_connected for name in NODES])

    await until("the nodes are connected", are)
