"""Takes the newest samples of all devices for one page.

Samples stay as their agents sent them, packed; what reads and writes them is another process. So a page costs the event
loop about a microsecond a device, in steps.
"""

import asyncio
from collections.abc import AsyncIterator

from ..engine import Engine
from ..state.indexes.indexes import NodeHold
from ..state.limits import Limits
from ..state.nodes import Device
from ..state.shares import WHOLE_MILLI
from ..state.units import SECOND, Span
from .snapshot import DeviceSnapshot

DEVICES_MAX = 20_000
"""Devices on a page; those of later nodes are left out, and a metric says how many."""

STEP_DEVICES = 250
"""So many are taken at a time: half a millisecond."""

SAMPLING_SPAN_MAX = Span(5 * SECOND)
"""The longest time between two readings of a device that an agent can be told."""


def stale_span(limits: Limits) -> Span:
    """How old a sample may be: a node that was heard in time has one that is younger."""
    return Span(limits.heartbeat_interval * limits.missed_heartbeats + SAMPLING_SPAN_MAX)


async def take_devices(engine: Engine) -> AsyncIterator[list[DeviceSnapshot]]:
    """The devices of all nodes that are known, some at a time, up to DEVICES_MAX."""
    view = engine.view
    step: list[DeviceSnapshot] = []
    count = 0
    for name, node in list(view.durable.nodes.items()):
        live, hold, now = view.live.nodes.get(name), view.durable.hold(name), engine.now()
        samples = {} if live is None else live.samples
        count += len(node.info.devices)
        if count > DEVICES_MAX:
            break
        for device in node.info.devices:
            sample = samples.get(device.uuid)
            told, age_s = (b"", 0.0) if sample is None else (sample.told, max(0, now - sample.taken_at) / SECOND)
            step.append(
                DeviceSnapshot(
                    name,
                    node.info.hostname,
                    device.uuid,
                    device.index,
                    device.name,
                    device.pci_bus_id,
                    told,
                    age_s,
                    _held(hold, device),
                )
            )
        if len(step) >= STEP_DEVICES:
            yield step
            step = []
            await asyncio.sleep(0)
    yield step


def _held(hold: NodeHold, device: Device) -> float:
    """The part of a device that jobs hold, from 0 to 1."""
    if device.uuid in hold.devices:
        return 1.0
    return sum(share.milli for share in hold.shares.get(device.uuid, {}).values()) / WHOLE_MILLI
