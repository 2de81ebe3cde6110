"""What `logs` is asked for, from its options."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from google.protobuf.timestamp_pb2 import Timestamp
from gpufleet.v1 import job_pb2, sessions_pb2

from gpufleet.errors import GpufleetError, Reason, UnavailableError, invalid
from gpufleet.fleet.async_client import AsyncClient
from gpufleet.fleet.client import connected
from gpufleet.fleet.following.output import OutputRequest
from gpufleet.fleet.named_jobs import ids_of, read_selection
from gpufleet.fleet.reading import wrong
from gpufleet.fleet.settings import Settings
from gpufleet.text.units import parse_duration

from ..sessions.listing import all_models
from .log_options import LogOptions

LOOK_S = 1.0
"""How often it is seen whether workers have come."""

PAGE_SIZE = 1000

FOLLOWED_MAX = 100
"""Jobs whose output one command follows at once."""


@dataclass(frozen=True, slots=True)
class Workers:
    """Workers that are followed: those of a model, or of all models without a name. `each` is what is shown of one."""

    model: str
    each: OutputRequest

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
        models = [model for model in all_models(client) if name in ("", model.name)]
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
    begin: Callable[[OutputRequest], None],
    followed: Callable[[], int],
) -> None:
    """Begin with each worker that comes, until its model is not served any more; `followed` answers how many are now.

    Raises UnavailableError where nobody is followed, who would say that the scheduler is away.
    """
    seen = set(known)
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            pages = client.all_pages(client.scheduler.ListModels, sessions_pb2.ListModelsRequest(page_size=PAGE_SIZE))
            models = [each async for page in pages for each in page.models if workers.model in ("", each.name)]
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


def _jobs(models: Iterable[sessions_pb2.Model]) -> Iterator[tuple[int, str]]:
    """The jobs of workers that the fleet started, with what stands before their lines."""
    for model in models:
        jobs = [worker.job_id for worker in model.workers if worker.job_id]
        if not jobs and model.HasField("failure"):
            jobs = [model.failure.job_id]
        yield from ((job_id, f"{model.name} {job_id}") for job_id in jobs)


def requests_of(
    settings: Settings, jobs: Sequence[str], wanted: LogOptions
) -> tuple[list[OutputRequest], Workers | None]:
    """What to show, one entry for each job, and the workers that are followed, also those to come.

    Raises INVALID_ARGUMENT.
    """
    if wanted.attempt is not None and wanted.all_attempts:
        raise invalid("--attempt", "--all-attempts is given, too", next_step="Name either of them.")
    if wanted.program and (wanted.attempt is not None or wanted.all_attempts):
        option = "--attempt" if wanted.attempt is not None else "--all-attempts"
        raise invalid(option, "a program's own log has no attempts", next_step=f"Leave out {option}.")
    if wanted.setup:
        _check_setup(wanted)
    make = partial(
        OutputRequest,
        attempt=wanted.attempt or 0,
        all_attempts=wanted.all_attempts,
        follow=wanted.follow,
        tail_lines=wanted.tail,
        since_time=stamp_of(since_moment(wanted.since)) if wanted.since is not None else None,
        rank=wanted.rank,
        stream=_stream(stdout=wanted.stdout, stderr=wanted.stderr),
        of_setup=wanted.setup,
    )
    if wanted.program:
        if jobs:
            raise invalid(
                "--program",
                "it shows a program's own log, and jobs are named too",
                next_step="Name either a program or jobs.",
            )
        name, node = read_program("--program", wanted.program)
        return [make(program=name, node=node)], None
    if wanted.model or wanted.all_workers:
        option = "--model" if wanted.model else "--all-workers"
        if jobs:
            raise invalid(option, "it shows workers, and jobs are named too", next_step="Name either of them.")
        workers = workers_of(settings, wanted.model, follow=wanted.follow)
        _refuse_too_many(wanted.follow, len(workers))
        requests = [make(job_id=job_id, label=label) for job_id, label in workers]
        return requests, Workers(wanted.model, make()) if wanted.follow else None
    selection = read_selection(jobs or ["last"])
    if selection.asks_scheduler:
        with connected(settings) as client:
            ids = ids_of(client, selection)
    else:
        ids = list(selection.job_ids)
    _refuse_too_many(wanted.follow, len(ids))
    return [make(job_id=job_id) for job_id in ids], None


def _check_setup(wanted: LogOptions) -> None:
    """Raises INVALID_ARGUMENT for what does not go with --setup."""
    others = {
        "--since": wanted.since is not None,
        "--all-attempts": wanted.all_attempts,
        "--stdout": wanted.stdout,
        "--stderr": wanted.stderr,
        "--program": wanted.program,
        "--model": wanted.model,
        "--all-workers": wanted.all_workers,
    }
    for option, is_given in others.items():
        if is_given:
            why = "it shows what made the environments of jobs, which has no times and no streams"
            raise invalid("--setup", f"{why}, and {option} is given, too", next_step=f"Leave out {option}.")


def _refuse_too_many(follow: bool, count: int) -> None:
    if follow and count > FOLLOWED_MAX:
        raise wrong(
            f"{count} jobs are more than the {FOLLOWED_MAX} that can be followed at once",
            "Follow fewer, in several commands.",
        )


def stamp_of(moment: datetime) -> Timestamp:
    """A moment as requests tell it."""
    stamp = Timestamp()
    stamp.FromDatetime(moment.astimezone(UTC))
    return stamp


def until_moment(text: str, now: datetime) -> datetime:
    """The same as `since_moment`, for --until."""
    try:
        return since_moment(text, now)
    except GpufleetError as problem:
        why = problem.violations[0].why if problem.violations else problem.message
        raise invalid("--until", why, next_step=problem.next_step) from None


def since_moment(text: str, now: datetime | None = None) -> datetime:
    """The moment that `10m` or an RFC 3339 time means; one without a zone is of this machine's. `now` is aware.

    Raises INVALID_ARGUMENT, also for a time in the future.
    """
    now = now or datetime.now(UTC)
    how = "Write a span such as 10m, or a time such as 2026-01-31T12:00:00+01:00."
    try:
        moment = datetime.fromisoformat(text.strip()).astimezone(UTC)
    except OverflowError:
        raise invalid("--since", f'"{text}" is beyond the years 1 to 9999', next_step=how) from None
    except ValueError:
        try:
            moment = now - parse_duration(text)
        except GpufleetError as problem:
            raise invalid("--since", problem.message, next_step=how) from None
    if moment > now:
        raise invalid("--since", f'"{text}" is in the future', next_step=how)
    return moment.astimezone(UTC)


def _stream(*, stdout: bool, stderr: bool) -> job_pb2.Stream.ValueType:
    if stdout == stderr:
        return job_pb2.STREAM_UNSPECIFIED
    return job_pb2.STREAM_STDOUT if stdout else job_pb2.STREAM_STDERR


def read_program(option: str, text: str) -> tuple[str, str]:
    """The program and the node in `scheduler` or `agent:NODE`. Raises INVALID_ARGUMENT."""
    name, colon, node = text.partition(":")
    if name == "scheduler" and not colon:
        return name, ""
    if name == "agent" and node:
        return name, node
    known = "scheduler, agent:NODE or gateway" if option == "--program" else "scheduler or agent:NODE"
    raise invalid(option, f'"{text}" is not {known}', next_step="See the nodes with: gpuctl nodes")
