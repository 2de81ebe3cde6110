"""`queue`: one look at it; `queue_watch/` is the view that stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpufleet.v1 import job_pb2, node_pb2, scheduler_pb2

from gpufleet.errors import invalid
from gpufleet.fleet.client import Client, all_pages, connected
from gpufleet.fleet.named_jobs import each_once
from gpufleet.fleet.reading import names, pairs
from gpufleet.fleet.settings import Settings
from gpufleet.text.cleaning import clean
from gpufleet.text.spelling import did_you_mean

from .. import screen
from ..printing import print_list
from ..render.jobs import queue_screen
from ..render.table import Look

PAGE_SIZE_MAX = 1000
NODES_SHOWN_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRequest:
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

    def nothing(self) -> str:
        """What to say where nothing passes the filters; empty without a filter."""
        whose = "of yours" if self.is_mine else f"of {clean(self.user)}'s" if self.user else ""
        if not whose and not (self.name or self.labels or self.states):
            return ""
        how = " like that" if self.name or self.labels or self.states else ""
        are_told = "" if self.with_finished or self.states else " wait or run"
        return f"No jobs {whose}".rstrip() + f"{how}{are_told}. Everybody's, ended ones too: gpuctl queue -a"

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


def show_queue(settings: Settings, wanted: QueueRequest) -> None:
    """Print the queue once."""
    with connected(settings) as client:
        answer = read_queue(client, wanted)
        needs_nodes = settings.format in ("table", "wide")
        nodes = read_nodes(client) if needs_nodes else []
    print_queue(settings, wanted, answer, nodes)
    waiting = next((job.id for job in answer.jobs if job.state == job_pb2.JOB_STATE_QUEUED), None)
    if needs_nodes and waiting is not None:
        screen.tell(f"Why it waits, node by node, and what would start it: gpuctl explain {waiting}")


def read_queue(client: Client, wanted: QueueRequest) -> scheduler_pb2.QueueResponse:
    """The jobs, of as many pages as it takes, as one answer."""
    request = wanted.request(whose(client, wanted))
    pages = all_pages(client, client.scheduler.Queue, request)
    whole = next(pages)
    if len(whole.jobs) < wanted.limit and whole.next_page_token:
        jobs = list(whole.jobs)
        while len(jobs) < wanted.limit and whole.next_page_token:
            page = next(pages)
            jobs = each_once([*jobs, *page.jobs])
            whole.next_page_token = page.next_page_token
        del whole.jobs[:]
        whole.jobs.extend(jobs[: wanted.limit])
    return whole


def read_nodes(client: Client) -> list[node_pb2.Node]:
    """The first NODES_SHOWN_MAX nodes."""
    request = scheduler_pb2.ListNodesRequest(page_size=NODES_SHOWN_MAX)
    return list(client.call(client.scheduler.ListNodes, request).nodes)


def whose(client: Client, wanted: QueueRequest) -> str:
    """The user whose jobs are meant; empty for everybody's."""
    if not wanted.is_mine:
        return wanted.user
    return client.call(client.scheduler.GetServerInfo, scheduler_pb2.GetServerInfoRequest()).user


def print_queue(
    settings: Settings, wanted: QueueRequest, answer: scheduler_pb2.QueueResponse, nodes: Sequence[node_pb2.Node]
) -> None:
    """Print it in the format that was asked for."""

    def lines(look: Look) -> list[str]:
        drawn = queue_screen(answer, answer.jobs, nodes, screen.local_now(), look, with_finished=wanted.with_finished)
        if not answer.jobs and (sentence := wanted.nothing()):
            drawn[0] = sentence
        return drawn

    print_list(settings.format, answer.jobs, whole=answer, name=lambda job: str(job.id), lines=lines)
