"""What a worker's job waits for, in a word that people who wait for the model may be told: no node is named.

Who stands in a line is told by this, the lobby by the reasons of the last pass (page_reasons.py): both are `fit`'s.
"""

from itertools import islice

from ...state.jobs import Job
from ...state.state import State
from ...state.units import Instant
from ..admission import minimum_memory
from ..explain import nearness_of
from ..fit import Miss, NodeChanges, devices_that_fit, node_view
from ..owners import as_its_users
from ..reservation import ends_if_placed

NODES_ASKED = 64
"""Nodes that are asked for one job. It is a hint for people, told often, and must not cost more with a larger fleet."""

WORDS = {
    "CPUS_IN_USE": "a free CPU",
    "TOO_FEW_CPUS": "a machine with more CPUs",
    "MEMORY_IN_USE": "free memory of a machine",
    "TOO_LITTLE_MEMORY": "a machine with more memory",
    "NODE_LOST": "a machine that can be reached",
    "NODE_NOT_HEARD": "a machine that can be reached",
    "NODE_DRAINING": "a machine that takes new work",
    "NODE_OF_ANOTHER": "a machine that takes such jobs",
    "NO_NODES": "a machine",
}
"""What is waited for, by the reason; any other one is about GPUs."""


def lacks(state: State, job: Job, at: Instant) -> str:
    """The reason of the node that is nearest to taking a job; empty where one could take it now."""
    if not state.durable.nodes:
        return "NO_NODES"
    job = as_its_users(state.durable, job)
    minimum, ends_at = minimum_memory(state, job.spec.resources), ends_if_placed(job, at)
    nearest: str | None = None
    for node in islice(state.durable.nodes.values(), NODES_ASKED):
        view = node_view(state, node, at, NodeChanges())
        miss = devices_that_fit(view, job.spec.resources, minimum, job.id, ends_at)
        if not isinstance(miss, Miss):
            return ""
        if nearest is None or nearness_of(miss.reason) < nearness_of(nearest):
            nearest = miss.reason
    return nearest or ""


def where_it_waits(state: State, job: Job, at: Instant) -> str:
    """What a worker's job waits for, as the rest of "it waits": "for a free GPU"."""
    reason = lacks(state, job, at)
    if not reason:
        return "in the queue"
    return f"for {WORDS.get(reason, 'a free GPU' if job.spec.resources.gpus else 'a free CPU')}"
