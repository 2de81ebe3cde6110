"""`queue`: one look at it; `queue_watch.py` is the view that stays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from gpufleet.v1 import job_pb2, node_pb2, scheduler_pb2

from gpufleet.errors import invalid
from gpufleet.spelling import did_you_mean

from . import screen
from .client import Client, connected
from .labels import names, pairs
from .paging import all_pages
from .render.jobs import queue_screen
from .settings import Settings

PAGE_SIZE_MAX = 1000
NODES_SHOWN_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which jobs."""

    user: str = ""
    is_mine: bool = False
    name: str = ""
    labels: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    with_finished: bool = False
    limit: int = PAGE_SIZE_MAX

    def state_numbers(self) -> list[job_pb2.JobState.ValueType]:
        """The states of --state. Raises INVALID_ARGUMENT for a word that is none."""
        found = []
        for word in names(self.states):
            if word.lower() not in STATES:
                what = f'"{word}" is no state of a job{did_you_mean(word.lower(), STATES)}'
                raise invalid("--state", what, next_step=f"Write one of: {', '.join(STATES)}.")
            found.append(STATES[word.lower()])
        return found

    def takes(self, job: job_pb2.Job) -> bool:
        """Whether a job that is told passes the filters that a watch does not know."""
        labels = pairs("--label", self.labels)
        return (
            (not self.name or job.spec.name == self.name)
            and all(job.spec.labels.get(key) == value for key, value in labels.items())
            and (not self.states or job.state in self.state_numbers())
        )

    def request(self, user: str) -> scheduler_pb2.QueueRequest:
        """The request for the first page of them."""
        return scheduler_pb2.QueueRequest(
            user=user,
            name=self.name,
            labels=pairs("--label", self.labels),
            states=self.state_numbers(),
            include_finished=self.with_finished or any(state in ENDED for state in self.state_numbers()),
            page_size=min(self.limit, PAGE_SIZE_MAX),
            omit_env=True,
        )


STATES: Mapping[str, job_pb2.JobState.ValueType] = {
    name.removeprefix("JOB_STATE_").lower().replace("_", "-"): number
    for name, number in job_pb2.JobState.items()
    if number
}
ENDED = frozenset(STATES[word] for word in ("succeeded", "failed", "cancelled", "timed-out"))


def show_queue(settings: Settings, wanted: Wanted) -> None:
    """Print the queue once."""
    with connected(settings) as client:
        answer = read_queue(client, wanted)
        needs_nodes = settings.format in ("table", "wide")
        nodes = read_nodes(client) if needs_nodes else []
    print_queue(settings, wanted, answer, nodes)
    waiting = next((job.id for job in answer.jobs if job.state == job_pb2.JOB_STATE_QUEUED), None)
    if needs_nodes and waiting is not None:
        screen.tell(f"Why it waits, node by node, and what would start it: gpuctl explain {waiting}")


def read_queue(client: Client, wanted: Wanted) -> scheduler_pb2.QueueResponse:
    """The jobs, of as many pages as it takes, as one answer."""
    request = wanted.request(whose(client, wanted))
    pages = all_pages(client, client.scheduler.Queue, request)
    whole = next(pages)
    while len(whole.jobs) < wanted.limit and whole.next_page_token:
        page = next(pages)
        whole.jobs.extend(islice(page.jobs, wanted.limit - len(whole.jobs)))
        whole.next_page_token = page.next_page_token
    return whole


def read_nodes(client: Client) -> list[node_pb2.Node]:
    """The first NODES_SHOWN_MAX nodes."""
    request = scheduler_pb2.ListNodesRequest(page_size=NODES_SHOWN_MAX)
    return list(client.call(client.scheduler.ListNodes, request).nodes)


def whose(client: Client, wanted: Wanted) -> str:
    """The user whose jobs are meant; empty for everybody's."""
    if not wanted.is_mine:
        return wanted.user
    return client.call(client.scheduler.GetServerInfo, scheduler_pb2.GetServerInfoRequest()).user


def print_queue(
    settings: Settings, wanted: Wanted, answer: scheduler_pb2.QueueResponse, nodes: list[node_pb2.Node]
) -> None:
    """Print it in the format that was asked for."""
    match settings.format:
        case "json" | "jsonl" as form:
            from .render.as_json import print_message

            for message in [answer] if form == "json" else answer.jobs:
                print_message(message, form)
        case "name":
            screen.print_lines(str(job.id) for job in answer.jobs)
        case form:
            now, look = screen.local_now(), screen.look(form)
            screen.print_lines(queue_screen(answer, answer.jobs, nodes, now, look, with_finished=wanted.with_finished))
