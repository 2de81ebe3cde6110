"""`doctor --nodes`: what the nodes have installed, side by side, and which one is odd."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gpufleet.v1 import node_pb2

from ..render.words import counted
from .finding import Finding, ok, warning

NAMES_SHOWN_MAX = 5
NONE = "none"


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that should be the same everywhere, and how to make it so on the odd node."""

    what: str
    of: Callable[[node_pb2.Node], str]
    fix: str
    concerns: Callable[[node_pb2.Node], bool] = lambda _: True


def has_real_gpu(node: node_pb2.Node) -> bool:
    """Whether a driver has anything to do there."""
    return any(not each.device.is_virtual for each in node.devices)


FACTS = (
    Fact("gpufleet", lambda node: node.info.agent_version, "pip install gpufleet=={most}, and start the agent again"),
    Fact("Python", lambda node: node.info.python_version, "Make the agent's environment with Python {most}"),
    Fact("torch", lambda node: node.info.torch_version, "pip install torch=={most}"),
    Fact("CUDA", lambda node: node.info.cuda_runtime_version, "Install the torch that the others have: it brings CUDA"),
    Fact(
        "driver",
        lambda node: "/".join(filter(None, (node.info.driver_version, node.info.cuda_version))),
        "Install the driver that the others have",
        has_real_gpu,
    ),
)
"""What is compared. Python, torch and CUDA are those beside the agent; a job's own environment may hold others. The
driver's version comes with the CUDA that it supports."""


def compare_nodes(nodes: Sequence[node_pb2.Node]) -> Iterator[Finding]:
    """A finding for each fact: the same everywhere, or who is odd."""
    heard = [node for node in nodes if node.state != node_pb2.NODE_STATE_LOST]
    for fact in FACTS:
        concerned = [node for node in heard if fact.concerns(node)]
        if concerned:
            yield _compared(fact, concerned)


def _compared(fact: Fact, nodes: Sequence[node_pb2.Node]) -> Finding:
    versions = {node.name: fact.of(node) or NONE for node in nodes}
    counts = Counter(versions.values())
    if len(counts) == 1:
        (version,) = counts
        if version == NONE:
            return ok(fact.what, "on no node")
        where = "on the only node" if len(nodes) == 1 else f"on all {len(nodes)} nodes"
        return ok(fact.what, f"{version} {where}")
    # Of two that are equally common the newer is taken for the right one: what is odd is what was left behind.
    most = max(counts, key=lambda version: (counts[version], version != NONE, _order(version)))
    odd = sorted(name for name, version in versions.items() if version != most)
    told = [f"{name} has {versions[name]}" for name in odd[:NAMES_SHOWN_MAX]]
    told += [f"and {counted(len(odd) - len(told), 'more node')} differ"] if len(odd) > len(told) else []
    sentence = f"{', '.join(told)}; {counted(counts[most], 'node')} {'has' if counts[most] == 1 else 'have'} {most}"
    where = f"On {', '.join(odd[:NAMES_SHOWN_MAX])}: "
    return warning(fact.what, sentence, where + fact.fix.format(most=most))


def _order(version: str) -> list[tuple[int, str]]:
    """Versions as people order them: 2.10 is newer than 2.9."""
    parts = version.replace("+", ".").replace("/", ".").split(".")
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
