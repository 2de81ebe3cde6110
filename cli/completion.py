"""What a shell completes from the scheduler: job ids, node names. Silent when it is away, and never slow."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .client import Client

WAIT_S_MAX = 1.0
"""A person waits for the completion: after this there is none."""


def complete_jobs(incomplete: str) -> list[tuple[str, str]]:
    """Ids of jobs with their names, and `last`; behind an array's id and a dot, its items."""
    from gpufleet.v1 import scheduler_pb2

    array, dot, _ = incomplete.partition(".")
    if dot and array.isascii() and array.isdigit():

        def ask_items(client: Client) -> list[tuple[str, str]]:
            request = scheduler_pb2.ListArrayItemsRequest(job_id=int(array), page_size=100)
            items = client.call(client.scheduler.ListArrayItems, request).items
            return [(f"{array}.{item.index}", f"job {item.job_id}") for item in items]

        return [pair for pair in _asked(ask_items) if pair[0].startswith(incomplete)]

    def ask(client: Client) -> list[tuple[str, str]]:
        request = scheduler_pb2.QueueRequest(page_size=100, include_finished=True, omit_env=True)
        jobs = client.call(client.scheduler.Queue, request).jobs
        return [(str(job.id), job.spec.name) for job in jobs]

    found = _asked(ask)
    return [pair for pair in [*found, ("last", "the newest job")] if pair[0].startswith(incomplete)]


def complete_nodes(incomplete: str) -> list[tuple[str, str]]:
    """Names of nodes."""
    from gpufleet.v1 import scheduler_pb2

    from .render.words import counted

    def ask(client: Client) -> list[tuple[str, str]]:
        nodes = client.call(client.scheduler.ListNodes, scheduler_pb2.ListNodesRequest()).nodes
        return [(node.name, counted(len(node.devices), "GPU")) for node in nodes]

    return [pair for pair in _asked(ask) if pair[0].startswith(incomplete)]


def _asked(ask: Callable[[Client], list[tuple[str, str]]]) -> list[tuple[str, str]]:
    from .client import connected
    from .options import Connection
    from .settings import resolve

    try:
        with connected(resolve(Connection(connection_timeout=f"{WAIT_S_MAX:g}s"))) as client:
            return ask(client)
    except Exception:
        # Whatever is wrong, a completion is no place to say it: the command itself will.
        return []
