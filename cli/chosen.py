"""From what a person names to jobs: what only the scheduler knows (the newest, all of mine, a name) is asked there."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError, Reason

from .client import Client
from .paging import all_pages
from .selectors import IDS_MAX, Selection

PAGE_SIZE = 1000


def selectors_of(client: Client, selection: Selection) -> list[scheduler_pb2.JobSelector]:
    """Selectors for a call that changes jobs; a call takes one name, so there is one selector a name."""
    ids = [*selection.job_ids, *(item.job_id for item in chosen_items(client, selection))]
    if selection.last:
        ids.append(newest_job(client).id)
    selectors = []
    if ids or selection.all_mine:
        selectors.append(scheduler_pb2.JobSelector(job_ids=ids, all_mine=selection.all_mine))
    return selectors + [scheduler_pb2.JobSelector(name=name) for name in selection.names]


def ids_of(client: Client, selection: Selection) -> list[int]:
    """Ids for a command that reads: a name stands for the newest job with it, `all` for mine that have not ended."""
    ids = [*selection.job_ids, *(item.job_id for item in chosen_items(client, selection))]
    if selection.last:
        ids.append(newest_job(client).id)
    for name in selection.names:
        ids.append(client.call(client.scheduler.GetJob, scheduler_pb2.GetJobRequest(name=name)).job.id)
    if selection.all_mine:
        ids += [job.id for job in my_jobs(client)]
    return list(dict.fromkeys(ids))


def chosen_items(client: Client, selection: Selection) -> Iterator[scheduler_pb2.ArrayItem]:
    """The items of arrays that are named. Raises ITEM_NOT_FOUND where a name stands for none, and NOT_AN_ARRAY."""
    found = 0
    for array, first, last in selection.items:
        request = scheduler_pb2.ListArrayItemsRequest(
            job_id=array, first_index=first, last_index=last, page_size=PAGE_SIZE
        )
        before = found
        for page in all_pages(client, client.scheduler.ListArrayItems, request):
            found += len(page.items)
            if found > IDS_MAX:
                raise GpufleetError(
                    Reason.INVALID_ARGUMENT,
                    f"more than {IDS_MAX:,} items are named",
                    next_step="Name fewer, in several commands, or the whole array by its id.",
                )
            yield from page.items
        if found == before:
            which = f"item {first}" if first == last else f"items {first}-{last}"
            raise GpufleetError(
                Reason.ITEM_NOT_FOUND,
                f"array {array} has no {which}",
                next_step=f"See which it has with: gpuctl job {array}",
            )


def only_id(client: Client, selection: Selection) -> int:
    """The one job of a command that takes one."""
    ids = ids_of(client, selection)
    if len(ids) != 1:
        raise GpufleetError(
            Reason.INVALID_ARGUMENT,
            f"{len(ids) or 'no'} jobs are named, and this shows one",
            next_step="Name one job; see the ids with: gpuctl queue -a",
        )
    return ids[0]


def newest_job(client: Client) -> job_pb2.Job:
    """The caller's newest job."""
    return client.call(client.scheduler.GetJob, scheduler_pb2.GetJobRequest(last=True)).job


def my_jobs(client: Client) -> Iterator[job_pb2.Job]:
    """The caller's jobs that have not ended."""
    user = client.call(client.scheduler.GetServerInfo, scheduler_pb2.GetServerInfoRequest()).user
    request = scheduler_pb2.QueueRequest(user=user, page_size=PAGE_SIZE, omit_env=True)
    for _ in range(IDS_MAX // PAGE_SIZE):
        answer = client.call(client.scheduler.Queue, request)
        yield from answer.jobs
        if not answer.next_page_token:
            return
        request.page_token = answer.next_page_token
