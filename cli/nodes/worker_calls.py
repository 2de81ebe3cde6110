"""What `workers` asks and shows."""

from __future__ import annotations

from gpufleet.v1 import status_pb2

from gpufleet.fleet.client import all_pages, connected
from gpufleet.fleet.settings import Settings

from .. import screen
from ..printing import print_list
from ..render.workers import workers_screen

PAGE_SIZE = 1000


def show_workers(settings: Settings) -> None:
    """Print the queues, the nodes and the workers of models; lines of JSON and names are of nodes, then of models."""
    whole = status_pb2.ListWorkersResponse()
    with connected(settings) as client:
        request = status_pb2.ListWorkersRequest(page_size=PAGE_SIZE)
        for page in all_pages(client, client.scheduler.ListWorkers, request):
            whole.MergeFrom(page)  # the queues and the models stand on the first page alone
    whole.next_page_token = ""
    rows: list[status_pb2.NodeWork | status_pb2.ModelWork] = [*whole.nodes, *whole.models]
    print_list(
        settings.format,
        rows,
        whole=whole,
        name=lambda each: each.node if isinstance(each, status_pb2.NodeWork) else each.model,
        lines=lambda look: workers_screen(whole, screen.local_now(), look),
    )
