"""`run --forward`: which ports of this machine lead to those of the job."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace

from gpufleet.v1 import scheduler_pb2

from gpufleet.fleet.client import all_pages, connected
from gpufleet.fleet.inside.ports import Pair, read_ports
from gpufleet.fleet.settings import Settings

from ..screen import say


def forwarded_pairs(settings: Settings, words: Sequence[str]) -> list[Pair]:
    """What was typed; a job that can only run on this very machine needs the port that it listens on for itself.

    A free one leads to it then, unless another was named. Raises INVALID_ARGUMENT, and what a call can.
    """
    pairs = read_ports(words)
    in_the_way = [pair.port for pair in pairs if pair.local == pair.port]
    if not in_the_way or not settings.is_local or not _is_whole_fleet(settings):
        return pairs
    for port in in_the_way:
        say(f"jobs run on this machine, where port {port} is the job's own; a free one leads to it, too")
    return [replace(pair, local=0) if pair.local == pair.port else pair for pair in pairs]


def _is_whole_fleet(settings: Settings) -> bool:
    """Whether all nodes are this machine, as with gpuctl up."""
    with connected(settings) as client:
        pages = list(all_pages(client, client.scheduler.ListNodes, scheduler_pb2.ListNodesRequest()))
    hosts = {node.info.hostname for page in pages for node in page.nodes}
    return hosts == {socket.gethostname()}
