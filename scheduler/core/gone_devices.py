"""Devices that a job holds and that the node's agent, started anew, no longer finds: they fell off the bus.

While somebody holds such a device it stays in its node's list, marked as unhealthy, so that the job is told, people see
it, and nobody else is given it. It leaves the list when its node is resumed, or registers, and nobody holds it any more
(JOBS.md 4: a vanished device is unhealthy, and not placed on until a resume).
"""

from collections.abc import Collection, Iterator
from dataclasses import replace

from ..state.events import InventoryReported
from ..state.ids import DeviceUuid
from ..state.nodes import Device, Node, UnhealthyDevice
from ..state.records import DeviceMarked, JobWarned, NodeRegistered, Record
from ..state.state import State
from ..state.units import Instant
from .decision import Decision
from .warnings import bounded, of_trouble, tell_commands

REASON = "VANISHED: the agent of its node no longer finds it"


def registered(state: State, at: Instant, known: Node | None, told: Node) -> Decision:
    """What follows when a node registers as it tells: the node with what is held and gone, and who is told of that."""
    gone = () if known is None else tuple(_gone(known, told, state.durable.hold(known.name).device_uuids()))
    uuids = {device.uuid for device in gone}
    node = replace(
        told,
        info=replace(told.info, devices=(*told.info.devices, *gone)),
        unhealthy=tuple(replace(mark, is_gone=mark.uuid in uuids) for mark in told.unhealthy),
    )
    records: list[Record] = []
    if known is None or replace(node, version=known.version) != known:
        records.append(NodeRegistered(at=at, node=node))
    warned: list[JobWarned] = []
    for device in gone:
        if all(mark.uuid != device.uuid for mark in node.unhealthy):
            mark = UnhealthyDevice(uuid=device.uuid, reason=REASON, is_gone=True)
            records.append(DeviceMarked(at=at, node=node.name, device=mark))
            if known is not None and known.boot_id == node.boot_id:  # else what held it has ended with the old boot
                warned.extend(of_trouble(state, at, node.name, mark))
    warnings = tuple(bounded(state, warned))
    return Decision(records=(*records, *warnings), commands=tuple(tell_commands(state, warnings)))


def _gone(known: Node, told: Node, held: Collection[DeviceUuid]) -> Iterator[Device]:
    """What is held and was not told, each under its index, or behind all others where that is another device's now."""
    there = {device.uuid for device in told.info.devices}
    taken = {device.index for device in told.info.devices}
    for device in known.info.devices:
        if device.uuid not in there and device.uuid in held:
            index = device.index if device.index not in taken else max(taken) + 1
            taken.add(index)
            yield replace(device, index=index)


def without_those_of_an_old_boot(state: State, node: Node, event: InventoryReported) -> Iterator[NodeRegistered]:
    """The node without gone devices that attempts of its old boot held: these end with this inventory."""
    hold = state.durable.hold(node.name)
    kept: set[DeviceUuid] = set()
    for key in hold.ranks:
        attempt = state.durable.jobs[key.job].attempt
        assert attempt is not None
        placement = attempt.ranks[key.rank].placement
        if placement.boot_id == event.boot_id:
            kept |= {device.uuid for device in placement.devices}
    over = {mark.uuid for mark in node.unhealthy if mark.is_gone} & (hold.device_uuids() - kept)
    if over:
        devices = tuple(device for device in node.info.devices if device.uuid not in over)
        unhealthy = tuple(mark for mark in node.unhealthy if mark.uuid not in over)
        without = replace(node, info=replace(node.info, devices=devices), unhealthy=unhealthy, is_lost=False)
        yield NodeRegistered(at=event.at, node=without)
