"""A run: everything that is sent, in an order that the seed alone says, and what must hold behind it."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

import grpc.aio

from gateway.api.table import ROWS, Row
from gpufleet.net.channel import client_options
from scheduler.api.roles import ROLES_OF
from tests.e2e.processes import clean_environment
from tests.fuzz import http_api, raw, web_socket
from tests.fuzz.calls import Call, Caller, Tally, calls_of
from tests.fuzz.messages import Forge
from tests.fuzz.site import Site, site
from tests.fuzz.steering import PROGRAM, STEERED
from tests.fuzz.watching import Size

WEB_SOCKETS = ("/ws", f"/m/{PROGRAM}/ws")
"""Where the gateway takes them: a person's session, and a program."""

AT_ONCE = 24
"""Connections and calls that are made at a time."""
CHANNELS = 3
"""Connections of calls to each port."""
MADE_UP_SHARE = 0.002
"""Of requests to the HTTP API, with a token that is none."""

WARM_SHARE = 0.25
"""After so much of a run the programs are measured first: caches are filled, and threads there, by then."""
SETTLE_SECONDS = 2.0
LOOK_EVERY = 500

GROWTH_BYTES_MAX, GROWTH_BYTES_PER_MESSAGE = 24_000_000, 500.0
"""No program grows by more, after it is warm: what it may keep by itself, and what a message may leave that is stored
(a job, a token, an entry of the audit)."""
DESCRIPTORS_MAX, THREADS_MAX = 12, 6
"""Nor has it so many more descriptors or threads, once all that was sent is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What run is wanted. `only`: the part of a name that all that is sent has in common; empty for everything."""

    seed: int
    messages: int
    only: str = ""

    @property
    def command(self) -> str:
        """What replays it."""
        only = f" --only {self.only}" if self.only else ""
        return f'make fuzz ARGS="--seed {self.seed} --messages {self.messages}{only}"'


@dataclass(slots=True)
class Report:
    """What came of a run."""

    order: Order
    tally: Tally
    seconds: float = 0.0
    sizes: dict[str, tuple[Size, Size | None]] = field(default_factory=dict)
    wrongs: dict[str, int] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    messages_after_warm: int = 0

    @property
    def is_good(self) -> bool:
        """Whether all held."""
        return not self.broken

    def __str__(self) -> str:
        """The table, and what is broken."""
        services: dict[str, Counter[str]] = {}
        for (name, status), count in self.tally.statuses.items():
            services.setdefault(name.partition("/")[0], Counter())[status] += count
        lines = [f"{'service':<24} {'calls':>8} {'messages':>9}  statuses"]
        for service in sorted(services):
            calls = sum(count for name, count in self.tally.calls.items() if name.partition("/")[0] == service)
            sent = sum(count for name, count in self.tally.messages.items() if name.partition("/")[0] == service)
            seen = ", ".join(f"{status} {count:,}" for status, count in services[service].most_common())
            lines.append(f"{service:<24} {calls:>8,} {sent:>9,}  {seen}")
        lines += ["", f"{'program':<12} {'tracebacks':>10} {'memory MB':>16} {'descriptors':>12} {'threads':>9}"]
        for name, (before, after) in self.sizes.items():
            if after is None:
                lines.append(f"{name:<12} has ended")
                continue
            memory = f"{before.memory_bytes / 1e6:.0f} -> {after.memory_bytes / 1e6:.0f}"
            files, threads = f"{before.descriptors} -> {after.descriptors}", f"{before.threads} -> {after.threads}"
            lines.append(f"{name:<12} {self.wrongs.get(name, 0):>10} {memory:>16} {files:>12} {threads:>9}")
        total = sum(self.tally.messages.values())
        lines += ["", f"seed {self.order.seed}: {total:,} messages in {self.seconds:.0f} s"]
        if self.broken:
            lines += ["broken:", *(f"  {each}" for each in self.broken[:40]), f"replay: {self.order.command}"]
        else:
            lines += ["all held"]
        return "\n".join(lines)


Step = Callable[[Random], Awaitable[None]]
"""Sends something, with randomness of its own."""


async def fuzz(order: Order, folder: Path) -> Report:
    """A fleet of its own in an empty folder, all of it sent, and what came of it."""
    tally = Tally.empty()
    report = Report(order, tally)
    async with site(folder) as place:
        steps = await _steps(place, order, tally, stack := AsyncExitStack())
        async with stack:
            await place.works()
            begun = time.monotonic()
            await _send(order, steps, tally, 0, int(order.messages * WARM_SHARE))
            await asyncio.sleep(SETTLE_SECONDS)
            warm = {each.name: each.size() for each in place.watched}
            sent_warm = sum(tally.messages.values())
            await _send(order, steps, tally, 1, order.messages)
            report.seconds = time.monotonic() - begun
        await asyncio.sleep(SETTLE_SECONDS)
        report.messages_after_warm = sum(tally.messages.values()) - sent_warm
        for each in place.watched:
            each.look()
            report.wrongs[each.name] = each.wrongs
            report.broken += [f"{each.name} logged: {text}" for text in each.found[:5]]
            if (before := warm[each.name]) is not None:
                report.sizes[each.name] = (before, each.size())
        report.broken += tally.wrong[:30]
        report.broken += [f"{name} has ended" for name in place.ended()]
        if not place.ended():
            try:
                await place.works()
            except Exception as problem:
                report.broken.append(f"ordinary work is not done any more: {type(problem).__name__}: {problem}")
        report.broken += _grown(report)
        scheduler = place.stage.fleet.scheduler
    report.broken += await _verified(scheduler.data, folder)
    return report


def _grown(report: Report) -> list[str]:
    found = []
    allowed = GROWTH_BYTES_MAX + GROWTH_BYTES_PER_MESSAGE * report.messages_after_warm
    for name, (before, after) in report.sizes.items():
        if after is None:
            continue
        if after.memory_bytes - before.memory_bytes > allowed:
            found.append(f"{name} grew by {(after.memory_bytes - before.memory_bytes) / 1e6:.0f} MB")
        if after.descriptors - before.descriptors > DESCRIPTORS_MAX:
            found.append(f"{name} has {after.descriptors - before.descriptors} descriptors more")
        if after.threads - before.threads > THREADS_MAX:
            found.append(f"{name} has {after.threads - before.threads} threads more")
    return found


async def _verified(data: Path, folder: Path) -> list[str]:
    """What `--verify` finds in what is stored: load(store) must be what the records say, and hold every invariant."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "gpufleet.scheduler", "--verify", "--data", str(data)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=clean_environment(folder, {}),
    )
    said, _ = await process.communicate()
    return [] if process.returncode == 0 else [f"the store does not verify: {said.decode()[-2_000:]}"]


async def _steps(place: Site, order: Order, tally: Tally, stack: AsyncExitStack) -> list[Step]:
    """What can be sent, each as often as it is to be drawn."""
    channels: dict[str, Sequence[grpc.aio.Channel]] = {}
    calls: list[Call] = []
    for port, address in place.grpc.items():
        calls += await calls_of(port, address)
        made = [
            grpc.aio.insecure_channel(address, options=[*client_options(), ("grpc.use_local_subchannel_pool", 1)])
            for _ in range(CHANNELS)
        ]
        for channel in made:
            stack.push_async_callback(channel.close)
        channels[address] = made
    caller = Caller(channels, place.tokens, tally)
    steps: list[Step] = []
    for call in calls:
        if order.only in call.name:
            roles = sorted(each.value for each in ROLES_OF.get(call.name, ()))
            steps += [partial(caller.make, call, known=place.known, roles=roles)] * 3
    for each in place.ports:
        if order.only in (name := f"raw bytes/{each.name}"):
            steps += [partial(_raw, each, name, place, tally)] * 2
    for row in ROWS:
        if order.only in (name := f"HTTP API/{row.verb} {row.path}"):
            steps += [partial(_http_api, place, row, name, tally)]
    for where in WEB_SOCKETS:
        if order.only in (name := f"WebSocket/{where}"):
            steps += [partial(_web_socket, place, where, name, tally)] * 6
    assert steps, f"nothing that is sent has {order.only!r} in its name"
    return steps


async def _raw(port: raw.Port, name: str, place: Site, tally: Tally, random: Random) -> None:
    tally.messages[name] += 1
    tally.calls[name] += 1
    secret = random.choice(list(place.tokens.values()))
    status = await raw.trouble(port, random, secret)
    tally.statuses[name, f"HTTP {status}" if status else "closed or silent"] += 1
    if status == "500":
        tally.wrong.append(f"{name}: HTTP 500")


async def _http_api(place: Site, row: Row, name: str, tally: Tally, random: Random) -> None:
    tally.messages[name] += 1
    tally.calls[name] += 1
    steered = STEERED.get(f"Scheduler/{row.rpc}")
    # An address that tries many made-up tokens is let wait, and nothing of it is looked at meanwhile.
    made_up = random.random() < MADE_UP_SHARE
    secret = "made-up" if made_up else random.choice((*place.tokens.values(), *place.admins, ""))
    forge = Forge(random, place.known)
    status = await http_api.trouble(place.stage.gateway, row, forge, steered.steer if steered else None, secret)
    tally.statuses[name, f"HTTP {status}" if status else "no answer in time"] += 1
    if status == "500":
        tally.wrong.append(f"{name}: HTTP 500")


async def _web_socket(place: Site, path: str, name: str, tally: Tally, random: Random) -> None:
    count, code = await web_socket.trouble(place.stage.gateway, path, random)
    tally.messages[name] += count
    tally.calls[name] += 1
    tally.statuses[name, f"code {code}" if code else "no code"] += 1
    if code == 1011:
        tally.wrong.append(f"{name}: closed with 1011, an error of the gateway")


async def _send(order: Order, steps: list[Step], tally: Tally, part: int, until_messages: int) -> None:
    """Send until so many messages are sent in all. Each step has randomness of its own, by its number."""
    number = 0

    async def some() -> None:
        nonlocal number
        while sum(tally.messages.values()) < until_messages:
            number += 1
            random = Random(f"{order.seed}/{part}/{number}")
            await random.choice(steps)(random)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(some())
