"""The queue: a line for each job, and below them a line for each node; and the items of arrays."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from gpufleet.v1 import job_pb2, node_pb2, scheduler_pb2

from gpufleet.fleet.outcome import PLAIN_REASONS, exit_in_words
from gpufleet.jobs.names import name_of_command
from gpufleet.text.units import counted, format_duration

from . import words
from .nodes import is_in_use, node_lines
from .table import CLAUSE, Column, Look, draw, shown_width

LOOKED_FOR = (
    job_pb2.JOB_STATE_RUNNING,
    job_pb2.JOB_STATE_STARTING,
    job_pb2.JOB_STATE_STOPPING,
    job_pb2.JOB_STATE_FAILED,
    job_pb2.JOB_STATE_TIMED_OUT,
)
"""Items that the screen of an array shows: those that run, and those that failed."""
ITEMS_SHOWN = 20

LIVE_STATES = ("running", "starting", "stopping", "queued", "held")
"""States of what has not ended, as counts name them."""


def counts_in_words(counts: job_pb2.ArrayCounts) -> str:
    """`2 running, 97 queued, 1 failed`."""
    states = (*LIVE_STATES, "failed", "timed_out", "cancelled", "succeeded")
    numbers = {state.replace("_", " "): getattr(counts, state) for state in states}
    return ", ".join(f"{number:,} {state}" for state, number in numbers.items() if number)


def request_in_words(array: job_pb2.ArraySpec, counts: job_pb2.ArrayCounts) -> str:
    """`100 items (1-100), at most 10 at a time, until 3 have failed`."""
    indices = array.indices if len(array.indices) <= 60 else array.indices[:60] + "…"
    parts = [f"{counted(counts.items, 'item')} ({indices})"]
    if array.max_active_count:
        parts.append(f"at most {array.max_active_count:,} at a time")
    if array.max_fails:
        parts.append(f"until {array.max_fails:,} {'has' if array.max_fails == 1 else 'have'} failed")
    return ", ".join(parts)


def item_lines(items: Sequence[scheduler_pb2.ArrayItem], now: datetime, look: Look) -> list[str]:
    """The table of items."""
    columns: list[Column[scheduler_pb2.ArrayItem]] = [
        Column("ITEM", lambda item: str(item.index), is_right=True),
        Column("JOB", lambda item: str(item.job_id), is_right=True),
        Column("STATE", lambda item: words.job_state(item.state)),
        Column("WHERE", lambda item: " + ".join(item.nodes) or "-", least=6),
        Column("RAN", lambda item: ran(item, now), is_right=True),
        Column("END", lambda item: end_of(item) or "-", least=8),
    ]
    return draw(columns, items, look)


def ran(done: scheduler_pb2.ArrayItem | job_pb2.Attempt, now: datetime) -> str:
    """How long it ran, or runs so far; `-` for what has not begun."""
    if not done.HasField("start_time"):
        return "-"
    if done.HasField("end_time"):
        return words.between(done.start_time, done.end_time)
    return words.since(done.start_time, now)


def end_of(ended: scheduler_pb2.ArrayItem | job_pb2.PlacedRank | job_pb2.Attempt) -> str:
    """`exit code 3`, and the reason that says more; empty for what has not ended."""
    reason = "" if ended.exit_reason in PLAIN_REASONS else ended.exit_reason
    return " ".join(filter(None, (exit_in_words(ended.exit), reason)))


WHERE_CHARS_MIN = 30
"""What the last column has at least."""
COMMAND_SHOWN_MAX = 200
WAITING = frozenset({job_pb2.JOB_STATE_QUEUED, job_pb2.JOB_STATE_HELD})
OF_THE_LINE = frozenset(
    {"DEVICES_IN_USE", "CPUS_IN_USE", "MEMORY_IN_USE", "DEVICE_MEMORY_IN_USE", "KEPT_FOR_ANOTHER", "NEXT_PASS"}
)
"""Reasons that pass by themselves: of a job that is not the next its place in the line says more."""


def queue_screen(
    answer: scheduler_pb2.QueueResponse,
    jobs: Sequence[job_pb2.Job],
    nodes: Sequence[node_pb2.Node],
    now: datetime,
    look: Look,
    *,
    with_finished: bool,
) -> list[str]:
    """The whole screen of `gpuctl queue`."""
    lines = job_lines(jobs, now, look) if jobs else [nothing(with_finished=with_finished)]
    hidden = _hidden(answer.counts, jobs)
    if hidden > 0:
        lines.append(f"… and {counted(hidden, 'more job')}; see them with: gpuctl queue -o jsonl")
    in_all = ["", totals(answer.counts, nodes)] if jobs or nodes else []
    return [*lines, *in_all, "", *node_lines(nodes, look)]


def totals(counts: scheduler_pb2.QueueCounts, nodes: Sequence[node_pb2.Node]) -> str:
    """The whole queue and the whole fleet: `1 running, 12 waiting, 3 held · 20 of 32 GPUs in use, 12 free`."""
    parts = [f"{counts.running + counts.starting + counts.stopping:,} running", f"{counts.queued:,} waiting"]
    if counts.held:
        parts.append(f"{counts.held:,} held")
    devices = [device for node in nodes for device in node.devices]
    if not devices:
        return ", ".join(parts)
    used = sum(is_in_use(each) for each in devices)
    free = sum(each.is_free for each in devices)
    return f"{', '.join(parts)} · {used:,} of {counted(len(devices), 'GPU')} in use, {free:,} free"


def job_lines(jobs: Sequence[job_pb2.Job], now: datetime, look: Look) -> list[str]:
    """The table of jobs."""
    return draw(job_columns(now, is_wide=look.is_wide), jobs, look)


def job_columns(now: datetime, *, is_wide: bool = False) -> list[Column[job_pb2.Job]]:
    """The columns of the table of jobs."""
    usual: list[Column[job_pb2.Job]] = [
        Column("ID", lambda job: str(job.id), is_right=True),
        Column("NAME", name_of, least=6, most=16),
        Column("USER", lambda job: job.user, least=4, most=12),
        Column("STATE", lambda job: words.job_state(job.state)),
        Column("BAND", lambda job: words.band(job.spec.band), rank=2),
        Column("GPUS", gpus_of, is_right=True),
        Column("TIME", lambda job: time_of(job, now), is_right=True),
        Column("LEFT", lambda job: time_left(job, now), is_right=True, rank=1),
        Column("START", lambda job: start_of(job, now), is_right=True, rank=3),
        Column("WHERE OR WHY", lambda job: where_or_why(job, now), least=WHERE_CHARS_MIN, most=36, of_clauses=True),
    ]
    wide: list[Column[job_pb2.Job]] = [
        Column("LIKELY START", lambda job: likely_start(job, now)),
        Column("SUBMITTED", lambda job: words.full_clock(job.submit_time, now)),
        Column("TRIES", lambda job: str(words.runs_of(job)), is_right=True),
        Column("COMMAND", _command_of),
    ]
    return [*usual, *wide] if is_wide else usual


def _command_of(job: job_pb2.Job) -> str:
    command = " ".join(job.spec.argv)
    return command if len(command) <= COMMAND_SHOWN_MAX else command[:COMMAND_SHOWN_MAX] + "…"


def name_of(job: job_pb2.Job) -> str:
    """The job's name, else that of its command."""
    return job.spec.name or name_of_command(job.spec.argv)


def gpu_count(spec: job_pb2.JobSpec) -> int:
    """GPUs that the job asks for."""
    return spec.devices[0].count if spec.devices else 0


def gpus_of(job: job_pb2.Job) -> str:
    """GPUs of a job: `-` of one that is never on a GPU, `0/2` of one that does without the two that it prefers."""
    if job.gpu_choice.mode == job_pb2.GPU_MODE_NEVER:
        return "-"
    return f"{'0/' if job.gpu_choice.fell_back else ''}{gpus_in_words(job.spec)}"


def gpus_in_words(spec: job_pb2.JobSpec) -> str:
    """`2`, `0.5` for a half of one, `2×0.5` for a half of each of two, `-` for none."""
    count = gpu_count(spec)
    share = f"{spec.devices[0].share.milli / 1000:g}" if count and spec.devices[0].share.milli else ""
    if share:
        return share if count == 1 else f"{count}×{share}"
    return str(count) if count else "-"


def time_of(job: job_pb2.Job, now: datetime) -> str:
    """How long it ran, or runs, or waits."""
    if job.HasField("start_time") and job.state != job_pb2.JOB_STATE_QUEUED:
        if job.HasField("end_time"):
            return words.between(job.start_time, job.end_time)
        return words.since(job.start_time, now)
    if job.HasField("end_time"):
        return words.between(job.submit_time, job.end_time)
    return words.since(job.submit_time, now)


def time_left(job: job_pb2.Job, now: datetime) -> str:
    """What is left of its time limit: all of it while it waits; `-` without one, and behind its end."""
    if not job.spec.HasField("time_limit") or job.HasField("end_time"):
        return "-"
    limit = job.spec.time_limit.ToTimedelta()
    runs = job.HasField("start_time") and job.state not in WAITING
    ran = words.span_between(job.start_time, now) if runs else timedelta(0)
    return format_duration(max(limit - ran, timedelta(0)) // timedelta(seconds=1) * timedelta(seconds=1))


def start_of(job: job_pb2.Job, now: datetime) -> str:
    """When it started; of one that waits `~09:48`, when it is expected to."""
    if job.state in WAITING:
        known = job.HasField("estimated_start_time")
        return f"~{words.short_clock(job.estimated_start_time, now)}" if known else "-"
    return words.short_clock(job.start_time, now) if job.HasField("start_time") else "-"


def likely_start(job: job_pb2.Job, now: datetime) -> str:
    """Between when and when nine of ten such jobs start: `09:40–10:30`; `-` where nobody knows."""
    if not job.HasField("likely_latest_start_time"):
        return "-"
    ends = (job.likely_earliest_start_time, job.likely_latest_start_time)
    return "–".join(words.short_clock(each, now) for each in ends)


def where_or_why(job: job_pb2.Job, now: datetime) -> str:
    """Where it runs or ran, and that its output is blocked, else its newest warning; why it waits; how it ended when
    that is not plain.

    Of an array, how its items do.
    """
    why = why_it_waits(job, now) if job.state in WAITING else ""
    if job.HasField("array_counts"):
        counts = counts_in_words(job.array_counts)
        blocked = "! output blocked" if job.output_blocked else ""
        why = "" if job.state == job_pb2.JOB_STATE_HELD else why  # the counts say it
        return CLAUSE.join(filter(None, (blocked, counts, why)))
    if job.state in WAITING:
        return why
    newest = job.attempts[-1] if job.attempts else None
    where = words.nodes_of(newest) if newest else ""
    if newest is not None and newest.is_unreachable:
        return f"{where} (unreachable)"
    if job.state == job_pb2.JOB_STATE_FAILED:
        return f"{where} {_how_it_failed(job)}".strip()
    if job.setting_up:
        return f"{where} (setting up)"
    if job.output_blocked:
        return _noted(newest, "output blocked")
    if job.state == job_pb2.JOB_STATE_RUNNING and job.warnings:
        return _noted(newest, job.warnings[-1].kind.lower().replace("_", " "))
    return where


def _noted(attempt: job_pb2.Attempt | None, note: str) -> str:
    """Where it runs, with a note; without the GPUs where they would leave it no room."""
    if attempt is None:
        return f"! {note}"
    noted = f"{words.nodes_of(attempt)} ! {note}"
    if shown_width(noted) <= WHERE_CHARS_MIN:
        return noted
    return f"{words.folded([rank.node for rank in attempt.ranks])} ! {note}"


def why_it_waits(job: job_pb2.Job, now: datetime) -> str:
    """The fewest words that are true for this job: `place 247 · about 09:48`, `next · waits for 2 GPUs on n1`, `held`.

    `gpuctl explain` has the whole sentence.
    """
    reason, place = job.wait_reason, job.queue_position
    if reason.reason == "BEGIN_TIME" and job.spec.HasField("begin_time"):
        return f"begins {words.short_clock(job.spec.begin_time, now)}"
    short = reason.summary or reason.sentence or reason.reason
    if not place:
        return short
    if reason.reason not in OF_THE_LINE:
        return f"place {place:,} · {short}"
    lacks_gpus = reason.reason not in ("CPUS_IN_USE", "MEMORY_IN_USE")
    if lacks_gpus and job.gpu_choice.HasField("fall_back_time") and not job.gpu_choice.fell_back:
        none_at = words.short_clock(job.gpu_choice.fall_back_time, now)
        where = "next" if place == 1 else f"place {place:,}"
        several = "s" if gpu_count(job.spec) > 1 else ""
        return f"{where} · {gpus_in_words(job.spec)} GPU{several}, or none at {none_at}"
    if place == 1:
        return f"next · {short}"
    if job.HasField("estimated_start_time"):
        return f"place {place:,} · about {words.short_clock(job.estimated_start_time, now)}"
    return f"place {place:,}"


def _how_it_failed(job: job_pb2.Job) -> str:
    status = job.exit.WhichOneof("status")
    if job.exit_reason == "EXITED" and status == "code":
        return f"exit {job.exit.code}"
    return job.exit_reason or (f"signal {job.exit.signal}" if status == "signal" else "")


def _hidden(counts: scheduler_pb2.QueueCounts, jobs: Sequence[job_pb2.Job]) -> int:
    return _live(counts) - sum(map(_live_items, jobs)) if len(jobs) >= 1000 else 0


def _live_items(job: job_pb2.Job) -> int:
    """How many of the queue's counts a line stands for."""
    return _live(job.array_counts) if job.HasField("array_counts") else 1


def _live(counts: scheduler_pb2.QueueCounts | job_pb2.ArrayCounts) -> int:
    return sum(getattr(counts, state) for state in LIVE_STATES)


def nothing(*, with_finished: bool) -> str:
    """Where there is no job, what to type next."""
    if with_finished:
        return "No jobs yet. Submit one with: gpuctl submit --gpus 1 -- python train.py"
    return "No jobs wait or run. Submit one: gpuctl submit -- COMMAND. Ended: queue -a"
