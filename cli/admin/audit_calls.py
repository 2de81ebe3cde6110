"""What `audit` asks and shows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

from gpufleet.v1 import scheduler_pb2

from gpufleet.errors import invalid
from gpufleet.fleet.client import Client, all_pages, connected
from gpufleet.fleet.settings import Settings

from .. import screen
from ..logs.request import since_moment, stamp_of
from ..printing import print_message
from ..quitting import Left, until_told_to_leave
from ..render.audit import audit_line, audit_screen

PAGE_SIZE_MAX = 1_000

LOOK_SECONDS = 1.0
"""How often who follows asks for what is new."""

KINDS = ("job", "node", "token", "user", "model", "secret", "session", "program")
"""What --on is written of; the name of a secret goes on with whose it is: "secret:hub of ann"."""


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which entries are wanted, as it was typed, and whether to stay."""

    by: str
    call: str
    on: str
    since: str | None
    refused: bool
    limit: int
    follow: bool


def entries_request(wanted: AuditFilter, now: datetime) -> scheduler_pb2.ListAuditEntriesRequest:
    """The request for the first page. Raises INVALID_ARGUMENT, naming the option."""
    kind, _, name = wanted.on.partition(":")
    if wanted.on and not (kind in KINDS and name and (kind != "job" or name.isdigit())):
        raise invalid(
            "--on",
            f'"{wanted.on}" is nothing that calls are about',
            next_step="Write job:41, node:n1, token:ab12, user:ann, model:echo, session:7 or program:gw1.",
        )
    return scheduler_pb2.ListAuditEntriesRequest(
        user=wanted.by,
        call=wanted.call,
        target=wanted.on,
        since_time=None if wanted.since is None else stamp_of(since_moment(wanted.since, now)),
        only_refused=wanted.refused,
        page_size=min(wanted.limit, PAGE_SIZE_MAX),
    )


def show_audit(settings: Settings, wanted: AuditFilter) -> None:
    """Print the newest entries, oldest first, and go on with what comes where that is wanted."""
    request = entries_request(wanted, datetime.now(UTC))
    if wanted.follow and settings.format == "json":
        raise invalid("-o", "json is one answer, and -f never ends", next_step="Write -o jsonl: an entry a line.")
    with connected(settings) as client:
        if request.user == "me":
            request.user = client.call(client.scheduler.GetServerInfo, scheduler_pb2.GetServerInfoRequest()).user
        found = _newest(client, request, wanted.limit)
        if wanted.follow:
            _print_each(settings.format, found)
            newest = found[-1].sequence if found else request.after_sequence
            try:
                asyncio.run(until_told_to_leave(_follow(settings.format, client, request, newest)))
            except Left as left:
                raise SystemExit(left.code) from None
            return
    if settings.format == "json":
        print_message(scheduler_pb2.ListAuditEntriesResponse(entries=found), "json")
    elif settings.format in ("jsonl", "name"):
        _print_each(settings.format, found)
    elif found:
        screen.print_lines(audit_screen(found, screen.local_now(), screen.look(settings.format)))
    else:
        screen.print_lines(["Nothing was called like that. See everything with: gpuctl audit"])


async def _follow(form: str, client: Client, request: scheduler_pb2.ListAuditEntriesRequest, newest: int) -> None:
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        request.after_sequence = newest
        request.page_size = PAGE_SIZE_MAX
        request.page_token = ""
        found = await asyncio.to_thread(_newest, client, request, None)
        _print_each(form, found)
        newest = found[-1].sequence if found else newest


def _newest(
    client: Client, request: scheduler_pb2.ListAuditEntriesRequest, limit: int | None
) -> list[scheduler_pb2.AuditEntry]:
    """So many of the newest entries, oldest first."""
    pages = all_pages(client, client.scheduler.ListAuditEntries, request)
    found = list(islice((entry for page in pages for entry in page.entries), limit))
    return found[::-1]


def _print_each(form: str, entries: Iterable[scheduler_pb2.AuditEntry]) -> None:
    now = screen.local_now()
    shown: Callable[[scheduler_pb2.AuditEntry], str] = (
        (lambda entry: str(entry.sequence)) if form == "name" else (lambda entry: audit_line(entry, now))
    )
    for entry in entries:
        if form == "jsonl":
            print_message(entry, "jsonl")
        else:
            screen.print_lines([shown(entry)])
