"""Which programs of a fleet have which version: its gateways and its workers say it when they connect."""

from __future__ import annotations

from collections.abc import Sequence

from gpufleet.v1 import scheduler_pb2, sessions_pb2

from ..render.sessions import worker_in_words

FIRST_RELEASE = "0.1.0"
"""What a gateway or a worker has that says no version."""


def gateway_versions(server: scheduler_pb2.GetServerInfoResponse) -> dict[str, str]:
    """The version of each gateway that is connected, by what people call it."""
    return {
        f"gateway {each.gateway or 'at ' + each.address}": each.gateway_version or FIRST_RELEASE
        for each in server.gateways
    }


def worker_versions(models: Sequence[sessions_pb2.Model]) -> dict[str, str]:
    """The version of each worker that has called, by what people call it."""
    return {
        worker_in_words(model, worker): worker.worker_version or FIRST_RELEASE
        for model in models
        for worker in model.workers
        if worker.worker_start
    }
