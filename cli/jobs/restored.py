"""`release --restored`: let all jobs start that wait since the database was put back."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gpufleet.v1 import scheduler_pb2

from gpufleet.errors import invalid
from gpufleet.fleet.client import connected
from gpufleet.fleet.reading import wrong

from .. import screen
from ..errors import Declined
from ..options import Printing
from .filter_options import Filters

WARNING = "a node that has not told yet may run some of them, and what they do is then done twice"


def release_restored(options: Printing, filters: Filters, jobs: Sequence[str], *, is_sure: bool) -> None:
    """End the wait of all of them, of everybody, once a person has said that it is meant."""
    if jobs or filters.are_given:
        raise invalid("--restored", "means all jobs that wait so", next_step="Leave out --restored, or the jobs.")
    if not is_sure and not sys.stdin.isatty():
        raise wrong(f"{WARNING}, and there is no terminal to ask on", "Say --yes if that is meant.")
    with connected(options.settings()) as client:
        server = client.call(client.scheduler.GetServerInfo, scheduler_pb2.GetServerInfoRequest())
        gap = server.store_gap
        if not server.HasField("store_gap") or gap.is_over or gap.is_released:
            screen.tell("Nothing to change: no job waits since the database was put back.")
            return
        if not is_sure:
            print(f"Release all jobs below {gap.jobs_below}? {WARNING.capitalize()}. [y/N] ", end="", file=sys.stderr)
            sys.stderr.flush()
            if sys.stdin.readline().strip().lower() not in ("y", "yes"):
                raise Declined("nothing was changed")
        client.call_again(client.scheduler.UpdateServer, scheduler_pb2.UpdateServerRequest(releases_gap=True))
    screen.print_lines([f"jobs below {gap.jobs_below} wait for no node any more"])
