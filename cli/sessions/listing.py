"""The served models, as one list."""

from __future__ import annotations

from gpufleet.v1 import sessions_pb2

from gpufleet.fleet.client import Client, all_pages

PAGE_SIZE = 1000


def all_models(client: Client) -> list[sessions_pb2.Model]:
    """Every model with its workers."""
    request = sessions_pb2.ListModelsRequest(page_size=PAGE_SIZE)
    return [model for page in all_pages(client, client.scheduler.ListModels, request) for model in page.models]
