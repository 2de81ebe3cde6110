"""The lines of `queue -w`: what there is in all, the jobs that are seen, in which order, and the nodes below them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from gpufleet.v1 import job_pb2, node_pb2, scheduler_pb2

from gpufleet.text.units import counted

from ..full_screen.view import Mode, Order, Sort, Sorts, View
from ..render import words
from ..render.jobs import WAITING, gpu_count, job_lines, name_of, nothing, totals, where_or_why
from ..render.nodes import node_lines
from ..render.table import Look, cut, cut_painted


def _time_s(job: job_pb2.Job) -> float:
    began = job.submit_time if job.state in WAITING or not job.HasField("start_time") else job.start_time
    ended = job.end_time.ToDatetime(UTC) if job.HasField("end_time") else datetime.now(UTC)
    return (ended - began.ToDatetime(UTC)).total_seconds()


def _time_limit(job: job_pb2.Job) -> timedelta | None:
    return job.spec.time_limit.ToTimedelta() if job.spec.HasField("time_limit") else None


SORTS: Sorts[job_pb2.Job] = {
    "q": Sort("order of the queue", lambda job: 0, smallest_first=True),
    "i": Sort("id", lambda job: job.id, smallest_first=True),
    "n": Sort("name", name_of, smallest_first=True),
    "u": Sort("user", lambda job: job.user, smallest_first=True),
    "s": Sort("state", lambda job: job.state, smallest_first=True),
    "b": Sort("band", lambda job: job.spec.band),
    "g": Sort("GPUs", lambda job: gpu_count(job.spec)),
    "t": Sort("time", _time_s),
    "l": Sort("limit", _time_limit, smallest_first=True),
}


class QueueRows:
    """The jobs of the newest reading. `me` is whose come first when that is asked for."""

    def __init__(self, me: str) -> None:
        self.me = me
        self.order: Order[job_pb2.Job] = Order(SORTS, "q")
        self.is_mine_first = False
        self.count = 0
        """Jobs in all, before the filter."""
        self._words: tuple[str, ...] = ()
        self._jobs: list[tuple[job_pb2.Job, str]] = []

    def put(self, jobs: Sequence[job_pb2.Job], now: datetime) -> None:
        """The jobs as they were just read, in the order of the queue."""
        self._jobs = [(job, _words_of(job, now)) for job in jobs]
        self.count = len(jobs)

    def filter(self, text: str) -> None:
        """Show those that hold each of these words, in any case of letters."""
        self._words = tuple(text.casefold().split())

    def toggle_mine_first(self) -> None:
        """Put one's own jobs first, or no more."""
        self.is_mine_first = not self.is_mine_first

    @property
    def shown(self) -> list[job_pb2.Job]:
        """The rows in their order."""
        found = self.order.sorted([job for job, text in self._jobs if all(word in text for word in self._words)])
        return sorted(found, key=lambda job: job.user != self.me) if self.is_mine_first else found


def _words_of(job: job_pb2.Job, now: datetime) -> str:
    state, band = words.job_state(job.state).text, words.band(job.spec.band)
    labels = " ".join(f"{name}={value}" for name, value in job.spec.labels.items())
    return f"{job.id} {name_of(job)} {job.user} {state} {band} {where_or_why(job, now)} {labels}".casefold()


NODES_PART = 3
"""The nodes have one part in so many of the screen, at most."""
JOB_LINES_LEAST = 3
STALE = "STALE"
"""How a head begins where what is shown is old; then it comes before all else."""
ORDER_PROMPT = "sort by: q queue, i id, n name, u user, s state, b band, g GPUs, t time, l limit"
HELP = """\
q            leave                        h ?   this help
↑ ↓ j k      scroll by a line             Home End g G first and last job
PgUp PgDn    scroll by a page; Space, too
/ f          filter as you type: words of id, name, user, state, band, node,
             label; Enter keeps it, Esc drops it
m            my jobs first, or no more    n     nodes below, or not
o and then   q order of the queue   i id   n name   u user   s state
             b band   g GPUs   t time   l limit
             a capital letter sorts the other way round
, .          sort by the column before, or behind
r F5         read the queue anew

LEFT is what is left of the time limit, START when it began, or ~ about when
it will. Why a job waits, node by node: gpuctl explain ID

Any key goes back."""


@dataclass(slots=True)
class Reading:
    """What was read last, and what stands on the first line beside the totals."""

    answer: scheduler_pb2.QueueResponse = field(default_factory=scheduler_pb2.QueueResponse)
    nodes: Sequence[node_pb2.Node] = ()
    with_finished: bool = False
    with_nodes: bool = True


def frame(
    view: View[QueueRows], reading: Reading, head: str, now: datetime, look: Look, columns: int, lines: int
) -> list[str]:
    """The whole screen, line by line."""
    if view.mode is Mode.HELP:
        return _filled([head, "", *HELP.splitlines()], columns, lines)
    rows = view.rows
    shown = rows.shown
    nodes = _fitting(node_lines(reading.nodes, look), max(lines // NODES_PART, JOB_LINES_LEAST))
    below = ["", *nodes] if reading.with_nodes else []
    view.room = max(lines - 3 - len(below), JOB_LINES_LEAST)  # the head, the titles and the foot
    view.clamp()
    title, *table = job_lines(shown, now, replace(look, width=look.width and columns))
    if not shown:
        empty = f'No job matches "{view.filter}"; Esc shows all.' if view.filter else ""
        table = [empty or nothing(with_finished=reading.with_finished)]
    seen = table[view.first : view.first + view.room]
    parts = [totals(reading.answer.counts, reading.nodes), head]
    first = " · ".join(reversed(parts) if head.startswith(STALE) else parts)
    foot = _foot(view, len(shown), len(seen), reading)
    return [
        *_filled([first, title, *seen], columns, lines - 1 - len(below)),
        *_filled(below, columns, len(below)),
        cut(foot, columns),
    ]


def _foot(view: View[QueueRows], shown: int, seen: int, reading: Reading) -> str:
    if view.mode is Mode.ORDER:
        return ORDER_PROMPT
    if view.mode is Mode.FILTER:
        return f"filter: {view.filter}_  (Enter keeps it, Esc drops it)"
    rows = view.rows
    parts = [f'filter "{view.filter}", Esc drops it'] if view.filter else []
    if rows.order.key != "q" or rows.order.is_reversed:
        parts.append(f"by {rows.order.word}")
    if rows.is_mine_first:
        parts.append("my jobs first")
    if seen < shown:
        parts.append(f"{view.first:,} above, {shown - view.first - seen:,} below")
    if reading.answer.next_page_token:
        parts.append(f"the first {counted(rows.count, 'job')} of the queue")
    return " · ".join([*parts, "h help"])


def _filled(lines: list[str], columns: int, count: int) -> list[str]:
    """So many lines, none of them too long."""
    fitting = [cut_painted(line, columns) for line in lines[:count]]
    return [*fitting, *([""] * (count - len(fitting)))]


def _fitting(lines: list[str], room: int) -> list[str]:
    if len(lines) <= room:
        return lines
    return [*lines[: room - 1], f"… {counted(len(lines) - room + 1, 'more node')}"]
