"""What `history` asks and shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice

from gpufleet.v1 import history_pb2, scheduler_pb2

from gpufleet.errors import invalid
from gpufleet.fleet.client import Client, all_pages, connected
from gpufleet.fleet.reading import names
from gpufleet.fleet.settings import Settings
from gpufleet.text.spelling import did_you_mean

from .. import screen
from ..logs.request import since_moment, stamp_of, until_moment
from ..printing import print_message
from ..render.history import FIELDS, USUAL, csv_line, csv_lines, history_screen, in_order, job_id
from .history_options import HistoryOptions
from .queue_view import ENDED, PAGE_SIZE_MAX, STATES

ALL_COLUMNS = "all"


def request_of(wanted: HistoryOptions, now: datetime) -> history_pb2.ListEndedJobsRequest:
    """The request for the first page. Raises INVALID_ARGUMENT, naming the option."""
    begin, end = since_moment(wanted.since, now), None
    if wanted.until is not None:
        end = until_moment(wanted.until, now)
        if begin >= end:
            why = f'"{wanted.until}" is not after --since'
            raise invalid("--until", why, next_step="Write --since 14d --until 7d.")
    return history_pb2.ListEndedJobsRequest(
        start_time=stamp_of(begin),
        end_time=None if end is None else stamp_of(end),
        user="me" if wanted.mine else wanted.user,
        name=wanted.name,
        states=[STATES[word] for word in ends_of(wanted)],
        node=wanted.node,
        include_items=wanted.items,
        page_size=min(wanted.limit or PAGE_SIZE_MAX, PAGE_SIZE_MAX) if not wanted.sort else PAGE_SIZE_MAX,
    )


def ends_of(wanted: HistoryOptions) -> list[str]:
    """The states of --state. Raises INVALID_ARGUMENT for a word that is no end."""
    known = [word for word, state in STATES.items() if state in ENDED]
    for word in names(wanted.state):
        if word.lower() not in known:
            what = f'"{word}" is no end of a job{did_you_mean(word.lower(), known)}'
            raise invalid("--state", what, next_step=f"Write one of: {', '.join(known)}.")
    return [word.lower() for word in names(wanted.state)]


def columns_of(wanted: HistoryOptions) -> list[str]:
    """The columns of --columns, or the usual ones. Raises INVALID_ARGUMENT."""
    chosen = [word.lower() for word in names(wanted.columns)]
    if not chosen:
        return list(FIELDS) if wanted.csv else list(USUAL)
    if chosen == [ALL_COLUMNS]:
        return list(FIELDS)
    for word in chosen:
        _check_column("--columns", word)
    return chosen


def _check_column(option: str, word: str) -> None:
    if word not in FIELDS:
        raise invalid(
            option,
            f'there is no column "{word}"{did_you_mean(word, FIELDS)}',
            next_step=f"There are: {', '.join(FIELDS)}.",
        )


def show_history(settings: Settings, wanted: HistoryOptions) -> None:
    """Print what has ended."""
    request, columns = request_of(wanted, datetime.now(UTC)), columns_of(wanted)
    if wanted.sort:
        _check_column("--sort", wanted.sort.removeprefix("-"))
    with connected(settings) as client:
        if request.user == "me":
            request.user = client.call(client.scheduler.GetServerInfo, scheduler_pb2.GetServerInfoRequest()).user
        pages = _pages(client, request, wanted)
        form = "csv" if wanted.csv else settings.format
        if form in ("csv", "jsonl", "name"):
            if form == "csv":
                screen.print_lines([csv_line(columns)])
            for page in pages:
                _print_plain(page, form, columns)
            return
        jobs = [job for page in pages for job in page]
    if form == "json":
        print_message(history_pb2.ListEndedJobsResponse(jobs=jobs), "json")
    elif jobs:
        shown = list(FIELDS) if form == "wide" and not wanted.columns else columns
        screen.print_lines(history_screen(jobs, shown, screen.local_now(), screen.look(form)))
    else:
        screen.print_lines(["Nothing ended like that. Look further back with: gpuctl history --since 90d"])


def _pages(
    client: Client, request: history_pb2.ListEndedJobsRequest, wanted: HistoryOptions
) -> Iterator[Sequence[history_pb2.EndedJob]]:
    """The rows, page by page where they need no order of their own."""
    pages = all_pages(client, client.scheduler.ListEndedJobs, request)
    if wanted.sort:
        jobs = in_order([job for page in pages for job in page.jobs], wanted.sort)
        yield jobs if wanted.limit is None else jobs[: wanted.limit]
        return
    left = wanted.limit
    for page in pages:
        jobs = list(islice(page.jobs, left))
        yield jobs
        if left is not None:
            left -= len(jobs)
            if not left:
                return


def _print_plain(jobs: Sequence[history_pb2.EndedJob], form: str, columns: Sequence[str]) -> None:
    if form == "csv":
        screen.print_lines(csv_lines(jobs, columns))
    elif form == "name":
        screen.print_lines(map(job_id, jobs))
    else:
        for job in jobs:
            print_message(job, "jsonl")
