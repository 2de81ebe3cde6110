"""Nodes: a line for each, and in `wide` a line for each of their devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime

from gpufleet.v1 import node_pb2

from gpufleet.units import format_megabytes, format_size

from . import words
from .table import Cell, Colour, Column, Look, Row, draw

ABSENT = "–"
"""A counter that nobody told."""

NODE_COLUMNS = (
    Column("NODE"),
    Column("STATE"),
    Column("GPUS", is_right=True),
    Column("FREE", is_right=True),
    Column("BUSY", is_right=True),
    Column("CPUS FREE", is_right=True),
    Column("DEVICES", least=12),
)
DEVICE_COLUMNS = (
    Column("NODE"),
    Column("GPU", is_right=True),
    Column("STATE"),
    Column("JOB", is_right=True),
    Column("LOAD", is_right=True),
    Column("FREE", is_right=True),
    Column("MEMORY", is_right=True),
    Column("NAME", least=12),
    Column("UUID", least=12),
)
FREE_COLUMNS = (
    Column("NODE"),
    Column("GPU", is_right=True),
    Column("SCORE", is_right=True),
    Column("LOAD", is_right=True),
    Column("FREE", is_right=True),
    Column("MEMORY", is_right=True),
    Column("TEMP", is_right=True),
    Column("POWER", is_right=True),
    Column("NAME", least=12),
)
FACT_COLUMNS = (
    Column("NODE"),
    Column("ADDRESS"),
    Column("MEMORY FREE", is_right=True),
    Column("HEARD", is_right=True),
    Column("AGENT"),
    Column("DRIVER"),
    Column("LABELS"),
    Column("PLATFORM", least=12),
)


def node_lines(nodes: Sequence[node_pb2.Node], look: Look) -> list[str]:
    """The table of nodes, or what to do when there are none."""
    if not nodes:
        return ["No nodes. Start an agent on a machine: gpuctl agent --scheduler HOST:PORT"]
    return draw(NODE_COLUMNS, [_node_row(node) for node in nodes], look)


def nodes_screen(nodes: Sequence[node_pb2.Node], now: datetime, look: Look) -> list[str]:
    """The whole screen of `gpuctl nodes`."""
    lines = node_lines(nodes, look)
    if look.is_wide and nodes:
        lines += ["", *draw(FACT_COLUMNS, [_fact_row(node, now) for node in nodes], look)]
        rows = [_device_row(node, device) for node in nodes for device in node.devices]
        if rows:
            lines += ["", *draw(DEVICE_COLUMNS, rows, look)]
    return lines


def free_screen(devices: Sequence[node_pb2.NodeDevice], look: Look) -> list[str]:
    """Free GPUs in the order given, or why there may be none."""
    if not devices:
        return ["No GPU is free that is as asked for. See what there is with: gpuctl nodes -o wide"]
    return draw(FREE_COLUMNS, [_free_row(each) for each in devices], look)


def _free_row(each: node_pb2.NodeDevice) -> Row:
    sample = each.sample
    return [
        each.node,
        str(each.device.index),
        f"{each.availability_score:.2f}" if each.HasField("availability_score") else ABSENT,
        f"{sample.utilization_percent}%" if sample.HasField("utilization_percent") else ABSENT,
        format_megabytes(sample.memory_free_bytes) if sample.HasField("memory_free_bytes") else ABSENT,
        format_megabytes(each.device.memory_bytes),
        f"{sample.temperature_c}°C" if sample.HasField("temperature_c") else ABSENT,
        f"{sample.power_mw / 1000:.0f}W" if sample.HasField("power_mw") else ABSENT,
        each.device.name,
    ]


def devices_in_words(node: node_pb2.Node) -> str:
    """What is wrong with the node or its devices, then `8 × NVIDIA H200 (143,771 MB)`."""
    parts = []
    unhealthy = [str(each.device.index) for each in node.devices if not _is_healthy(each)]
    if unhealthy:
        parts.append(f"unhealthy: GPU {', '.join(unhealthy)}")
    if node.drain_reason and node.is_draining:
        parts.append(f"drained: {node.drain_reason}")
    kinds = Counter((each.device.name, each.device.memory_bytes) for each in node.devices)
    parts += [f"{count} × {name} ({format_megabytes(memory)})" for (name, memory), count in kinds.items()]
    if not node.devices:
        parts.append(node.info.devices_note or "no GPU")
    return "; ".join(parts)


def _node_row(node: node_pb2.Node) -> Row:
    free = sum(each.is_free for each in node.devices)
    shared_milli = sum(each.free_milli for each in node.devices if each.shares)
    busy = sum(_is_in_use(each) and _is_healthy(each) for each in node.devices)
    return [
        node.name,
        words.node_state(node.state),
        str(len(node.devices)),
        f"{free}+{shared_milli / 1000:g}" if shared_milli else str(free),
        str(busy),
        f"{max(node.info.cpus - node.cpus_used, 0)}/{node.info.cpus}",
        devices_in_words(node),
    ]


def _fact_row(node: node_pb2.Node, now: datetime) -> Row:
    free_bytes = max(node.info.memory_bytes - node.memory_used_bytes, 0)
    return [
        node.name,
        node.address,
        f"{format_size(free_bytes)}/{format_size(node.info.memory_bytes)}",
        f"{words.since(node.last_heard_time, now)} ago" if node.HasField("last_heard_time") else "not yet",
        node.info.agent_version,
        node.info.driver_version or "-",
        " ".join(f"{name}={value}" for name, value in sorted(node.info.labels.items())) or "-",
        node.info.platform,
    ]


def _device_row(node: node_pb2.Node, each: node_pb2.NodeDevice) -> Row:
    sample = each.sample
    has_load = each.HasField("sample") and sample.HasField("utilization_percent")
    has_free = each.HasField("sample") and sample.HasField("memory_free_bytes")
    return [
        node.name,
        str(each.device.index),
        _device_state(each),
        _jobs_on(each),
        f"{sample.utilization_percent}%" if has_load else ABSENT,
        format_megabytes(sample.memory_free_bytes) if has_free else ABSENT,
        format_megabytes(each.device.memory_bytes),
        each.device.name,
        each.device.uuid,
    ]


def _jobs_on(each: node_pb2.NodeDevice) -> str:
    """`41`, and of a shared GPU `41:0.5 42:0.25`."""
    shares = [f"{held.job_id}:{held.share.milli / 1000:g}" for held in each.shares]
    return " ".join(shares) or (str(each.job_id) if each.job_id else "-")


def _device_state(each: node_pb2.NodeDevice) -> Cell:
    if not _is_healthy(each):
        reason = each.sample.unhealthy_reason or each.device.unhealthy_reason
        return Cell(f"unhealthy: {reason}" if reason else "unhealthy", Colour.BAD)
    if each.job_id:
        return Cell("busy", Colour.GOOD)
    if each.shares:
        return Cell(f"shared, {each.free_milli / 1000:g} free", Colour.GOOD)
    if foreign := [str(process.pid) for process in each.sample.processes if process.is_foreign]:
        more = f" and {len(foreign) - 1:,} more" if len(foreign) > 1 else ""
        return Cell(f"foreign process {foreign[0]}{more}", Colour.WARNING)
    return Cell("free") if each.is_free else Cell("not free", Colour.WARNING)


def _is_in_use(each: node_pb2.NodeDevice) -> bool:
    """Of a lost or draining node the devices that nobody has are neither free nor busy."""
    return bool(each.job_id or each.shares or any(process.is_foreign for process in each.sample.processes))


def _is_healthy(each: node_pb2.NodeDevice) -> bool:
    return each.device.is_healthy and (not each.HasField("sample") or each.sample.is_healthy)
