"""What `logs` is asked for, from its options."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial

from google.protobuf.timestamp_pb2 import Timestamp
from gpufleet.v1 import job_pb2

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.units import parse_duration

from .chosen import ids_of
from .client import connected
from .following.output import Wanted
from .selectors import read_selection
from .settings import Settings
from .worker_logs import FOLLOWED_MAX, Workers, workers_of


def wanted_of(
    settings: Settings,
    jobs: Sequence[str],
    *,
    program: str,
    model: str = "",
    all_workers: bool = False,
    follow: bool,
    tail: int | None,
    since: str | None,
    rank: int | None,
    stdout: bool,
    stderr: bool,
) -> tuple[list[Wanted], Workers | None]:
    """What to show, one entry for each job, and the workers that are followed, also those to come.

    Raises INVALID_ARGUMENT.
    """
    make = partial(
        Wanted,
        follow=follow,
        tail_lines=tail,
        since_time=since_time(since, datetime.now(UTC)) if since is not None else None,
        rank=rank,
        stream=_stream(stdout=stdout, stderr=stderr),
    )
    if program:
        if jobs:
            raise invalid(
                "--program",
                "it shows a program's own log, and jobs are named too",
                next_step="Name either a program or jobs.",
            )
        name, node = read_program("--program", program)
        return [make(program=name, node=node)], None
    if model or all_workers:
        option = "--model" if model else "--all-workers"
        if jobs:
            raise invalid(option, "it shows workers, and jobs are named too", next_step="Name either of them.")
        workers = workers_of(settings, model, follow=follow)
        _refuse_too_many(follow, len(workers))
        wanted = [make(job_id=job_id, label=label) for job_id, label in workers]
        return wanted, Workers(model, make()) if follow else None
    selection = read_selection(jobs or ["last"])
    if selection.asks_scheduler:
        with connected(settings) as client:
            ids = ids_of(client, selection)
    else:
        ids = list(selection.job_ids)
    _refuse_too_many(follow, len(ids))
    return [make(job_id=job_id) for job_id in ids], None


def _refuse_too_many(follow: bool, count: int) -> None:
    if follow and count > FOLLOWED_MAX:
        raise GpufleetError(
            Reason.INVALID_ARGUMENT,
            f"{count} jobs are more than the {FOLLOWED_MAX} that can be followed at once",
            next_step="Follow fewer, in several commands.",
        )


def since_time(text: str, now: datetime) -> Timestamp:
    """The same as `since_moment`, for a request."""
    stamp = Timestamp()
    stamp.FromDatetime(since_moment(text, now))
    return stamp


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
