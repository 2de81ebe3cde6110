"""`logs --model` and `--all-workers`: which jobs the workers of models are, those that come later too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from gpufleet.v1 import sessions_pb2

from gpufleet.errors import GpufleetError, Reason, UnavailableError

from .async_client import AsyncClient
from .client import connected
from .following.output import Wanted
from .paging import all_pages
from .settings import Settings

LOOK_S = 1.0
"""How often it is seen whether workers have come."""

PAGE_SIZE = 1000

FOLLOWED_MAX = 100
"""Jobs whose output one command follows at once."""


@dataclass(frozen=True, slots=True)
class Workers:
    """Workers that are followed: those of a model, or of all models without a name. `each` is what is shown of one."""

    model: str
    each: Wanted

    @property
    def flags(self) -> str:
        """What names them on the command line."""
        return f"--model {self.model}" if self.model else "--all-workers"


def workers_of(settings: Settings, name: str, *, follow: bool) -> list[tuple[int, str]]:
    """The jobs of the workers of a model, or of all, each with what stands before its lines.

    A model that has failed is shown by the worker by which it did. Who follows may come before the first worker.
    Raises MODEL_NOT_FOUND, JOB_NOT_FOUND.
    """
    with connected(settings) as client:
        request = sessions_pb2.ListModelsRequest(page_size=PAGE_SIZE)
        pages = all_pages(client, client.scheduler.ListModels, request)
        models = [model for page in pages for model in page.models if name in ("", model.name)]
    if name and not models:
        raise GpufleetError(
            Reason.MODEL_NOT_FOUND, f"no model is called {name!r}", next_step="See what is served: gpuctl models"
        )
    jobs = sorted(_jobs(models))
    if not jobs and not follow:
        whose = f"model {name}" if name else "any model"
        raise GpufleetError(
            Reason.JOB_NOT_FOUND,
            f"no worker of {whose} was started by the fleet",
            next_step="What a worker that was started by hand writes, it writes where it was started.",
        )
    return jobs if follow or len(jobs) > 1 else [(jobs[0][0], "")]


async def see_workers_come(
    client: AsyncClient,
    workers: Workers,
    known: Iterable[int],
    begin: Callable[[Wanted], None],
    followed: Callable[[], int],
) -> None:
    """Begin with each worker that comes, until its model is not served any more; `followed` answers how many are now.

    Raises UnavailableError where nobody is followed, who would say that the scheduler is away.
    """
    seen = set(known)
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            models = [model async for model in _models(client) if workers.model in ("", model.name)]
        except UnavailableError:
            if not followed():
                raise
            continue
        if workers.model and not models:
            return
        for job_id, label in sorted(_jobs(models)):
            if job_id not in seen and followed() < FOLLOWED_MAX:
                seen.add(job_id)
                begin(replace(workers.each, job_id=job_id, label=label))


async def _models(client: AsyncClient) -> AsyncIterator[sessions_pb2.Model]:
    request = sessions_pb2.ListModelsRequest(page_size=PAGE_SIZE)
    while True:
        page = await client.call(client.scheduler.ListModels, request)
        for model in page.models:
            yield model
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


def _jobs(models: Iterable[sessions_pb2.Model]) -> Iterator[tuple[int, str]]:
    """The jobs of workers that the fleet started, with what stands before their lines."""
    for model in models:
        jobs = [worker.job_id for worker in model.workers if worker.job_id]
        if not jobs and model.HasField("failure"):
            jobs = [model.failure.job_id]
        yield from ((job_id, f"{model.name} {job_id}") for job_id in jobs)
