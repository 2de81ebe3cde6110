"""Nodes: a line for each, and in `wide` a line for each of their devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from gpufleet.v1 import node_pb2

from gpufleet.text.units import format_megabytes, format_size

from . import words
from .table import ABSENT, Cell, Colour, Column, Look, draw

Placed = tuple[str, node_pb2.NodeDevice]
"""A device, and the name of its node."""


def node_lines(nodes: Sequence[node_pb2.Node], look: Look) -> list[str]:
    """The table of nodes, or what to do when there are none."""
    if not nodes:
        return ["No nodes. Start an agent on a machine: gpuctl agent --scheduler HOST:PORT"]
    return draw(NODE_COLUMNS, nodes, look)


def nodes_screen(nodes: Sequence[node_pb2.Node], now: datetime, look: Look) -> list[str]:
    """The whole screen of `gpuctl nodes`."""
    lines = node_lines(nodes, look)
    if look.is_wide and nodes:
        lines += ["", *draw(_fact_columns(now), nodes, look)]
        devices = [(node.name, each) for node in nodes for each in node.devices]
        if devices:
            lines += ["", *draw(DEVICE_COLUMNS, devices, look)]
    return lines


def free_screen(devices: Sequence[node_pb2.NodeDevice], look: Look) -> list[str]:
    """Free GPUs in the order given, or why there may be none."""
    if not devices:
        return ["No GPU is free that is as asked for. See what there is with: gpuctl nodes -o wide"]
    return draw(FREE_COLUMNS, [(each.node, each) for each in devices], look)


def devices_in_words(node: node_pb2.Node) -> str:
    """What is wrong with the node or its devices, then `8 × NVIDIA H200 (143,771 MB)`."""
    parts = [f"refused: {node.refusal.message}"] if node.HasField("refusal") else []
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


def _free_of(node: node_pb2.Node) -> str:
    free = sum(each.is_free for each in node.devices)
    shared_milli = sum(each.free_milli for each in node.devices if each.shares)
    return f"{free}+{shared_milli / 1000:g}" if shared_milli else str(free)


NODE_COLUMNS: Sequence[Column[node_pb2.Node]] = (
    Column("NODE", lambda node: node.name),
    Column("STATE", lambda node: words.node_state(node.state)),
    Column("GPUS", lambda node: str(len(node.devices)), is_right=True),
    Column("FREE", _free_of, is_right=True),
    Column("BUSY", lambda node: str(sum(is_in_use(each) for each in node.devices if _is_healthy(each))), is_right=True),
    Column("CPUS FREE", lambda node: f"{max(node.info.cpus - node.cpus_used, 0)}/{node.info.cpus}", is_right=True),
    Column("DEVICES", devices_in_words, least=12),
)


def _memory_free(node: node_pb2.Node) -> str:
    free_bytes = max(node.info.memory_bytes - node.memory_used_bytes, 0)
    return f"{format_size(free_bytes)}/{format_size(node.info.memory_bytes)}"


def _memory_in_use(node: node_pb2.Node) -> str:
    return format_size(node.host_memory_used_bytes) if node.HasField("host_memory_used_bytes") else ABSENT


def _heard(node: node_pb2.Node, now: datetime) -> str:
    return f"{words.since(node.last_heard_time, now)} ago" if node.HasField("last_heard_time") else "not yet"


_USER_NAMESPACES = {"allowed": ", user namespaces", "unfiltered": ", any system call"}
"""What is said of a node beside as whom jobs run; nothing where user namespaces are refused, as they are by default."""


def _runs_as(node: node_pb2.Node) -> str:
    """`own uids`, `own uids from 1900065536`, `own accounts, user namespaces`, `ada (ada alone)`, `ada (all users)`."""
    told = node.info.job_accounts
    beyond = _USER_NAMESPACES.get(told.user_namespaces, "")
    match told.runs_as:
        case node_pb2.RUNS_AS_RANGE:
            return (f"own uids from {told.uid_first}" if told.uids_note else "own uids") + beyond
        case node_pb2.RUNS_AS_ACCOUNTS:
            return f"own accounts{beyond}"
        case node_pb2.RUNS_AS_OWNER:
            return f"{told.account} ({told.owner or 'nobody'} alone)"
        case node_pb2.RUNS_AS_SHARED:
            return f"{told.account} (all users)"
        case _:
            return "agent (all users)"


def _containers(node: node_pb2.Node) -> str:
    """`podman 4.3.1`, with its way to GPUs where it has one."""
    told = node.info.containers
    return f"{told.engine}, GPUs by {told.gpus_by}" if told.engine and told.gpus_by else told.engine or "-"


def _fact_columns(now: datetime) -> list[Column[node_pb2.Node]]:
    return [
        Column("NODE", lambda node: node.name),
        Column("ADDRESS", lambda node: node.address),
        Column("MEMORY FREE", _memory_free, is_right=True),
        Column("CPU", lambda node: f"{node.cpu_percent}%" if node.HasField("cpu_percent") else ABSENT, is_right=True),
        Column("IN USE", _memory_in_use, is_right=True),
        Column("HEARD", lambda node: _heard(node, now), is_right=True),
        Column("AGENT", lambda node: node.info.agent_version),
        Column("JOBS RUN AS", _runs_as),
        Column("CONTAINERS", _containers),
        Column("DRIVER", lambda node: node.info.driver_version or "-"),
        Column("LABELS", lambda node: words.labels(node.info.labels) or "-"),
        Column("PLATFORM", lambda node: node.info.platform, least=12),
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
    if each.is_used_by_others:
        return Cell("used by others", Colour.WARNING)
    return Cell("free") if each.is_free else Cell("not free", Colour.WARNING)


def is_in_use(each: node_pb2.NodeDevice) -> bool:
    """Of a lost or draining node the devices that nobody has are neither free nor busy."""
    return bool(each.job_id or each.shares or each.is_used_by_others)


def _is_healthy(each: node_pb2.NodeDevice) -> bool:
    return each.device.is_healthy and (not each.HasField("sample") or each.sample.is_healthy)


def _of_device(title: str, show: Callable[[node_pb2.NodeDevice], Cell | str], **shape: Any) -> Column[Placed]:
    return Column(title, lambda placed: show(placed[1]), **shape)


def _of_sample(title: str, field: str, in_words: Callable[[Any], str]) -> Column[Placed]:
    """A counter of the newest sample, which not every device tells."""

    def show(each: node_pb2.NodeDevice) -> str:
        return in_words(getattr(each.sample, field)) if each.sample.HasField(field) else ABSENT  # type: ignore[arg-type]

    return _of_device(title, show, is_right=True)


def _score(each: node_pb2.NodeDevice) -> str:
    return f"{each.availability_score:.2f}" if each.HasField("availability_score") else ABSENT


NODE: Column[Placed] = Column("NODE", lambda placed: placed[0])
GPU = _of_device("GPU", lambda each: str(each.device.index), is_right=True)
LOAD = _of_sample("LOAD", "utilization_percent", "{}%".format)
FREE = _of_sample("FREE", "memory_free_bytes", format_megabytes)
MEMORY = _of_device("MEMORY", lambda each: format_megabytes(each.device.memory_bytes), is_right=True)
NAME = _of_device("NAME", lambda each: each.device.name, least=12)
DEVICE_COLUMNS = (
    NODE,
    GPU,
    _of_device("STATE", _device_state),
    _of_device("JOB", _jobs_on, is_right=True),
    LOAD,
    FREE,
    MEMORY,
    NAME,
    _of_device("UUID", lambda each: each.device.uuid, goes_below=True),
)
FREE_COLUMNS = (
    NODE,
    GPU,
    _of_device("SCORE", _score, is_right=True),
    LOAD,
    FREE,
    MEMORY,
    _of_sample("TEMP", "temperature_c", "{}°C".format),
    _of_sample("POWER", "power_mw", lambda power_mw: f"{power_mw / 1000:.0f}W"),
    NAME,
)
