"""What there is now, counted when somebody collects: jobs, nodes, devices, sessions, workers.

It is counted on the event loop, for nothing else may look at the state while it changes, in steps that are so short
that no request waits for them. Between two steps the state may go on: sums may be off by what happened meanwhile.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

from gpufleet.telemetry.metrics import Instrument, InstrumentKind, Reading, Readings

from ..audit.log import AuditLog
from ..engine import Engine
from ..state.jobs import Running, Starting
from ..state.sessions.session import Granted
from ..wire.convert_nodes import node_state_word
from .measures import band_word

STEP_ITEMS = 500
"""So many jobs, lines or devices are counted at a time: about a third of a millisecond."""

MODELS_MAX = 200
"""Models with metrics of their own, the busiest ones; the others are told together, as the model OTHERS."""

OTHERS = "(others)"

_sum = partial(Instrument, kind=InstrumentKind.SUM)
INSTRUMENTS = (
    _sum(name="gpufleet.jobs", unit="{job}", doc="Jobs that have not ended, by state and band."),
    _sum(name="gpufleet.nodes", unit="{node}", doc="Nodes by state."),
    _sum(name="gpufleet.devices", unit="{device}", doc="Devices by state."),
    _sum(name="gpufleet.sessions", unit="{session}", doc="People by model: waiting or seated."),
    _sum(name="gpufleet.workers", unit="{worker}", doc="Workers by model and state."),
    _sum(name="gpufleet.seats", unit="{seat}", doc="Seats of the workers of each model."),
    _sum(name="gpufleet.events.waiting", unit="{event}", doc="Events that wait to be decided."),
    Instrument(name="gpufleet.store.failing", unit="", doc="1 while the store takes no commits."),
    Instrument(name="gpufleet.file_store.failing", unit="", doc="1 while the place of stored files is away."),
    Instrument(name="gpufleet.term", unit="", doc="The term: one more with each start."),
    _sum(name="gpufleet.audit.waiting", unit="{call}", doc="Calls that wait to be written into the audit."),
    Instrument(
        name="gpufleet.audit.lost",
        unit="{call}",
        doc="Calls that found no room in the queue of the audit.",
        kind=InstrumentKind.COUNT,
    ),
)


class _Steps:
    """Lets others have the loop after every STEP_ITEMS that were counted."""

    def __init__(self) -> None:
        self._count = 0

    async def took(self, items: int = 1) -> None:
        self._count += items
        if self._count >= STEP_ITEMS:
            self._count = 0
            await asyncio.sleep(0)


async def read_fleet(engine: Engine, audit: AuditLog, file_store_error: Callable[[], str]) -> Readings:
    """Everything in INSTRUMENTS, as it is committed now; `file_store_error`: why stored files cannot be reached."""
    steps = _Steps()
    readings: dict[str, Iterable[Reading]] = {
        "gpufleet.jobs": await _jobs(engine, steps),
        "gpufleet.events.waiting": [(engine.waiting_events, {})],
        "gpufleet.store.failing": [(float(bool(engine.store_error)), {})],
        "gpufleet.file_store.failing": [(float(bool(file_store_error())), {})],
        "gpufleet.term": [(engine.store.term, {})],
        "gpufleet.audit.waiting": [(audit.waiting, {})],
        "gpufleet.audit.lost": [(audit.lost, {})],
    }
    readings |= await _nodes(engine, steps)
    readings |= await _sessions(engine, steps)
    return readings


async def _jobs(engine: Engine, steps: _Steps) -> list[Reading]:
    durable = engine.view.durable
    counts: Counter[tuple[str, str]] = Counter()
    for band, users in durable.lines.of_band.items():
        counts["queued", band_word(band)] = 0
        for lines in list(users.values()):
            counts["queued", band_word(band)] += sum(map(len, lines.values()))
            await steps.took(len(lines))
        for state in ("starting", "running", "stopping"):
            counts[state, band_word(band)] = 0
    for job_id, kind in list(durable.active.items()):
        job = durable.jobs.get(job_id)
        if job is not None:
            state = "running" if kind is Running else "starting" if kind is Starting else "stopping"
            counts[state, band_word(job.band)] += 1
        await steps.took()
    readings: list[Reading] = [(count, {"state": state, "band": band}) for (state, band), count in counts.items()]
    # These never differ until they are released, and are counted as they are kept: many at once, whatever their band.
    readings += [(len(durable.held), {"state": "held"}), (len(durable.deferred), {"state": "deferred"})]
    return readings


async def _nodes(engine: Engine, steps: _Steps) -> dict[str, list[Reading]]:
    view = engine.view
    nodes: Counter[str] = Counter(dict.fromkeys(("ready", "suspect", "lost", "draining"), 0))
    devices: Counter[str] = Counter(dict.fromkeys(("free", "held", "shared", "unhealthy", "away"), 0))
    for name, node in list(view.durable.nodes.items()):
        state = node_state_word(node, view.live.nodes.get(name))
        nodes[state] += 1
        hold, unhealthy = view.durable.hold(name), {each.uuid for each in node.unhealthy}
        for device in node.info.devices:
            if device.uuid in hold.devices:
                devices["held"] += 1
            elif device.uuid in hold.shares:
                devices["shared"] += 1
            elif device.uuid in unhealthy:
                devices["unhealthy"] += 1
            else:
                devices["free" if state in ("ready", "draining") else "away"] += 1
        await steps.took(1 + len(node.info.devices))
    return {
        "gpufleet.nodes": [(count, {"state": state}) for state, count in nodes.items()],
        "gpufleet.devices": [(count, {"state": state}) for state, count in devices.items()],
    }


async def _sessions(engine: Engine, steps: _Steps) -> dict[str, list[Reading]]:
    sessions, turns = engine.view.durable.sessions, engine.view.live.turns
    people: Counter[tuple[str, str]] = Counter()
    workers: Counter[tuple[str, str]] = Counter()
    seats: Counter[tuple[str, str]] = Counter()
    for model in list(engine.view.durable.models):
        people[model, "waiting"] = sessions.line_length(model)
        people[model, "seated"] = 0
        workers[model, "ready"] = 0
        seats[model, ""] = 0
    for session in list(sessions.by_id.values()):
        if isinstance(session.state, Granted):
            people[session.model, "seated"] += 1
        await steps.took()
    for worker in list(turns.workers.values()):
        workers[worker.model, worker.state.name.lower()] += 1
        seats[worker.model, ""] += worker.seats
        await steps.took()
    busiest: Counter[str] = Counter({model: 0 for model, _ in workers})
    for (name, _), count in people.items():
        busiest[name] += count
    named = {model for model, _ in busiest.most_common(MODELS_MAX)}
    counted = {"gpufleet.sessions": people, "gpufleet.workers": workers, "gpufleet.seats": seats}
    return {name: bounded(counts, named) for name, counts in counted.items()}


def bounded(counts: Counter[tuple[str, str]], named: set[str]) -> list[Reading]:
    """Counts by model and state; those of models that are not named are told together."""
    told: Counter[tuple[str, str]] = Counter()
    for (name, state), count in counts.items():
        told[name if name in named else OTHERS, state] += count
    return [
        (count, {"model": model, "state": state} if state else {"model": model})
        for (model, state), count in told.items()
    ]
