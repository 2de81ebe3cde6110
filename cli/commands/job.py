"""`job`, `story`, `explain`: one job, what happened to it, and why it waits."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from ..completion import complete_jobs
from ..options import Connection, Output

Which = Annotated[
    str,
    Argument(
        metavar="JOB", help="An id, an item 41.3, last, or a name.", autocompletion=complete_jobs, show_default=False
    ),
]


def job(which: Which, output: Output, connection: Connection) -> None:
    """Show all that is known of a job.

    With the command that would submit it again.
    """
    from gpufleet.v1 import job_pb2, scheduler_pb2

    from .. import screen
    from ..chosen import only_id
    from ..client import connected
    from ..render.arrays import ITEMS_SHOWN, LOOKED_FOR
    from ..render.as_json import print_message
    from ..render.job import job_screen
    from ..selectors import read_selection
    from ..settings import resolve

    settings = resolve(connection, output)
    with connected(settings) as client:
        job_id = only_id(client, read_selection([which]))
        answer = client.call(client.scheduler.GetJob, scheduler_pb2.GetJobRequest(job_id=job_id))
        items = []
        if answer.job.HasField("array_counts") and settings.format in ("table", "wide"):
            some = scheduler_pb2.ListArrayItemsRequest(job_id=job_id, page_size=ITEMS_SHOWN, states=LOOKED_FOR)
            items = list(client.call(client.scheduler.ListArrayItems, some).items)
    if settings.format in ("json", "jsonl"):
        print_message(answer.job, settings.format)
    elif settings.format == "name":
        print(answer.job.id)
    else:
        screen.print_lines(job_screen(answer.job, screen.local_now(), screen.look(settings.format), items))
        if answer.job.state == job_pb2.JOB_STATE_QUEUED:
            screen.tell(f"Why it waits, node by node, and what would start it: gpuctl explain {job_id}")
        elif answer.job.attempts:
            screen.tell(f"What it used: gpuctl stats {job_id} · what it wrote: gpuctl logs {job_id}")


def story(which: Which, output: Output, connection: Connection) -> None:
    """Tell what happened to a job, oldest first."""
    from gpufleet.v1 import scheduler_pb2

    from .. import screen
    from ..chosen import only_id
    from ..client import connected
    from ..paging import all_pages
    from ..render.as_json import print_message
    from ..render.job import story_screen
    from ..selectors import read_selection
    from ..settings import resolve

    settings = resolve(connection, output)
    with connected(settings) as client:
        job_id = only_id(client, read_selection([which]))
        request = scheduler_pb2.GetStoryRequest(job_id=job_id, page_size=1000)
        whole = scheduler_pb2.GetStoryResponse()
        for answer in all_pages(client, client.scheduler.GetStory, request):
            whole.lines.extend(answer.lines)
    if settings.format == "jsonl":
        for line in whole.lines:
            print_message(line, "jsonl")
    elif settings.format == "json":
        print_message(whole, "json")
    elif settings.format == "name":
        screen.print_lines(line.kind for line in whole.lines)
    else:
        screen.print_lines(story_screen(whole.lines, screen.local_now(), screen.look(settings.format)))


def explain(which: Which, output: Output, connection: Connection) -> None:
    """Say why a job waits, node by node, and when it may start."""
    from gpufleet.v1 import scheduler_pb2

    from .. import screen
    from ..chosen import only_id
    from ..client import connected
    from ..render.as_json import print_message
    from ..render.job import explain_screen
    from ..selectors import read_selection
    from ..settings import resolve

    settings = resolve(connection, output)
    with connected(settings) as client:
        job_id = only_id(client, read_selection([which]))
        answer = client.call(client.scheduler.Explain, scheduler_pb2.ExplainRequest(job_id=job_id))
    if settings.format in ("json", "jsonl"):
        print_message(answer, settings.format)
    elif settings.format == "name":
        print(answer.explanation.reason.reason)
    else:
        screen.print_lines(explain_screen(answer, screen.local_now(), screen.look(settings.format)))
