"""What `job`, `story`, `explain` and `stats` ask and show."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpufleet.v1 import capacity_pb2, job_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError
from gpufleet.fleet.client import Client, all_pages, connected
from gpufleet.fleet.named_jobs import only_id, read_selection
from gpufleet.fleet.settings import Settings
from gpufleet.fleet.submitting.requests import in_options

from .. import screen
from ..printing import print_answer, print_list, print_object
from ..render.job import explain_screen, job_screen, story_screen
from ..render.jobs import ITEMS_SHOWN, LOOKED_FOR
from ..render.stats import stats_object, stats_screen


@contextmanager
def _asking(settings: Settings, which: str) -> Iterator[tuple[Client, int]]:
    with connected(settings) as client:
        yield client, only_id(client, read_selection([which]))


def show_job(settings: Settings, which: str) -> None:
    """Print all that is known of a job."""
    has_screen = settings.format in ("table", "wide")
    with _asking(settings, which) as (client, job_id):
        job = client.call(client.scheduler.GetJob, scheduler_pb2.GetJobRequest(job_id=job_id)).job
        items = []
        if job.HasField("array_counts") and has_screen:
            some = scheduler_pb2.ListArrayItemsRequest(job_id=job_id, page_size=ITEMS_SHOWN, states=LOOKED_FOR)
            items = list(client.call(client.scheduler.ListArrayItems, some).items)
    print_answer(settings.format, job, job.id, lambda look: job_screen(job, screen.local_now(), look, items))
    if has_screen and job.state == job_pb2.JOB_STATE_QUEUED:
        screen.tell(f"Why it waits, node by node, and what would start it: gpuctl explain {job_id}")
    elif has_screen and job.attempts:
        screen.tell(f"What it used: gpuctl stats {job_id} · what it wrote: gpuctl logs {job_id}")


def show_story(settings: Settings, which: str) -> None:
    """Print what happened to a job."""
    with _asking(settings, which) as (client, job_id):
        request = scheduler_pb2.GetStoryRequest(job_id=job_id, page_size=1000)
        lines = [line for page in all_pages(client, client.scheduler.GetStory, request) for line in page.lines]
    print_list(
        settings.format,
        lines,
        whole=scheduler_pb2.GetStoryResponse(lines=lines),
        name=lambda line: line.kind,
        lines=lambda look: story_screen(lines, screen.local_now(), look),
    )


def explain_job(settings: Settings, which: str) -> None:
    """Print why a job waits, and when it may start."""
    with _asking(settings, which) as (client, job_id):
        answer = client.call(client.scheduler.Explain, scheduler_pb2.ExplainRequest(job_id=job_id))
    reason = answer.explanation.reason.reason
    print_answer(settings.format, answer, reason, lambda look: explain_screen(answer, screen.local_now(), look))


def show_stats(settings: Settings, job: str, attempt: int) -> None:
    """Print what an attempt used."""
    selection = read_selection([job])
    with connected(settings) as client:
        job_id = only_id(client, selection)
        request = capacity_pb2.GetJobStatsRequest(job_id=job_id, attempt=attempt)
        try:
            answer = client.call(client.scheduler.GetJobStats, request)
        except GpufleetError as problem:
            raise in_options(problem, lambda field: "--attempt" if field == "attempt" else field) from None
        # A job that ended without ever having had devices waits for nothing any more.
        has_ended = not answer.attempt and _has_ended(client, job_id)
    match settings.format:
        case "json" | "jsonl":
            print_object(stats_object(job_id, answer), settings.format)
        case "name":
            print(job_id)
        case form:
            screen.print_lines(stats_screen(job_id, answer, screen.look(form), has_ended=has_ended))


def _has_ended(client: Client, job_id: int) -> bool:
    job = client.call(client.scheduler.GetJob, scheduler_pb2.GetJobRequest(job_id=job_id)).job
    return job.HasField("end_time")
