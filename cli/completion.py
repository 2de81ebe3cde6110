"""What a shell completes from the scheduler: jobs, nodes, models. Silent when it is away, and never slow."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpufleet.fleet.client import Client

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

        return _offered(incomplete, ask_items)

    def ask(client: Client) -> list[tuple[str, str]]:
        request = scheduler_pb2.QueueRequest(page_size=100, include_finished=True, omit_env=True)
        jobs = client.call(client.scheduler.Queue, request).jobs
        return [(str(job.id), job.spec.name) for job in jobs]

    return _offered(incomplete, ask, ("last", "the newest job"))


def complete_nodes(incomplete: str) -> list[tuple[str, str]]:
    """Names of nodes."""
    from gpufleet.v1 import scheduler_pb2

    from gpufleet.text.units import counted

    def ask(client: Client) -> list[tuple[str, str]]:
        nodes = client.call(client.scheduler.ListNodes, scheduler_pb2.ListNodesRequest()).nodes
        return [(node.name, counted(len(node.devices), "GPU")) for node in nodes]

    return _offered(incomplete, ask)


def complete_models(incomplete: str) -> list[tuple[str, str]]:
    """Names of models."""
    from gpufleet.v1 import sessions_pb2

    from gpufleet.text.units import counted

    def ask(client: Client) -> list[tuple[str, str]]:
        models = client.call(client.scheduler.ListModels, sessions_pb2.ListModelsRequest()).models
        return [(model.name, counted(len(model.workers), "worker")) for model in models]

    return _offered(incomplete, ask)


def _offered(
    incomplete: str, ask: Callable[[Client], list[tuple[str, str]]], *more: tuple[str, str]
) -> list[tuple[str, str]]:
    """What is known and begins so, each with what stands beside it."""
    from gpufleet.fleet.client import connected

    from .options import Connection

    found = []
    # Whatever is wrong, a completion is no place to say it: the command itself will.
    with suppress(Exception), connected(Connection(connection_timeout=f"{WAIT_S_MAX:g}s").settings()) as client:
        found = ask(client)
    return [pair for pair in [*found, *more] if pair[0].startswith(incomplete)]
