"""The queue: a line for each job, and below them a line for each node."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from gpufleet.v1 import job_pb2, node_pb2, scheduler_pb2

from gpufleet.job_names import name_of_command

from . import words
from .arrays import counts_in_words
from .nodes import node_lines
from .table import WIDTH, Cell, Column, Look, Row, cut, draw

JOB_COLUMNS = (
    Column("ID", is_right=True),
    Column("NAME", least=6, most=18),
    Column("USER", least=4, most=12),
    Column("STATE"),
    Column("GPUS", is_right=True),
    Column("TIME", is_right=True),
    Column("WHERE OR WHY", least=12),
)
WIDE_COLUMNS = (Column("BAND"), Column("SUBMITTED"), Column("TRIES", is_right=True), Column("COMMAND"))
COMMAND_SHOWN_MAX = 200


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
    lines = job_lines(jobs, now, look) if jobs else [_nothing(with_finished=with_finished)]
    hidden = _hidden(answer.counts, jobs)
    if hidden > 0:
        lines.append(f"… and {words.counted(hidden, 'more job')}; see them with: gpuctl queue -o jsonl")
    return [*lines, "", *node_lines(nodes, look)]


def watch_screen(
    answer: scheduler_pb2.QueueResponse,
    nodes: Sequence[node_pb2.Node],
    now: datetime,
    look: Look,
    height: int,
    *,
    head: str,
    with_finished: bool,
) -> list[str]:
    """The screen of `gpuctl queue -w`: never taller than the terminal; what does not fit is counted."""
    counts = answer.counts
    waiting = counts.queued + counts.held
    running = counts.starting + counts.running + counts.stopping
    lines = [cut(f"{running} running, {waiting} waiting · {head}", look.width or WIDTH), ""]
    node_part = _fitting(node_lines(nodes, look), max(height // 3, 3), "node")
    jobs = job_lines(answer.jobs, now, look) if answer.jobs else [_nothing(with_finished=with_finished)]
    job_part = _fitting(jobs, max(height - len(lines) - len(node_part) - 1, 3), "job")
    return [*lines, *job_part, "", *node_part]


def _fitting(lines: list[str], room: int, noun: str) -> list[str]:
    if len(lines) <= room:
        return lines
    return [*lines[: room - 1], f"… {words.counted(len(lines) - room + 1, f'more {noun}')}"]


def job_lines(jobs: Sequence[job_pb2.Job], now: datetime, look: Look) -> list[str]:
    """The table of jobs."""
    columns = (*JOB_COLUMNS, *WIDE_COLUMNS) if look.is_wide else JOB_COLUMNS
    return draw(columns, [_row(job, now, look) for job in jobs], look)


def name_of(job: job_pb2.Job) -> str:
    """The job's name, else that of its command."""
    return job.spec.name or name_of_command(job.spec.argv)


def gpu_count(spec: job_pb2.JobSpec) -> int:
    """GPUs that the job asks for."""
    return spec.devices[0].count if spec.devices else 0


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


def where_or_why(job: job_pb2.Job) -> str:
    """Where it runs or ran, with its newest warning; why it waits; how it ended when that is not plain.

    Of an array, how its items do.
    """
    if job.HasField("array_counts"):
        counts = counts_in_words(job.array_counts)
        why = job.wait_reason.sentence if job.state == job_pb2.JOB_STATE_QUEUED else ""
        return f"{counts}: {why}" if why else counts
    if job.state in (job_pb2.JOB_STATE_QUEUED, job_pb2.JOB_STATE_HELD):
        why = job.wait_reason.sentence or job.wait_reason.reason
        grown = job.bound_sentence if job.HasField("latest_start_time") else ""
        return f"{why}; {grown}" if grown else why
    newest = job.attempts[-1] if job.attempts else None
    where = words.nodes_of(newest) if newest else ""
    if newest is not None and newest.is_unreachable:
        return f"{where} (unreachable)"
    if job.state == job_pb2.JOB_STATE_FAILED:
        return f"{where} {_how_it_failed(job)}".strip()
    if job.state == job_pb2.JOB_STATE_RUNNING and job.warnings:
        newest_warning = job.warnings[-1].kind.lower().replace("_", " ")
        return f"{where} ! {newest_warning}"
    return where


def _how_it_failed(job: job_pb2.Job) -> str:
    status = job.exit.WhichOneof("status")
    if job.exit_reason == "EXITED" and status == "code":
        return f"exit {job.exit.code}"
    return job.exit_reason or (f"signal {job.exit.signal}" if status == "signal" else "")


def _row(job: job_pb2.Job, now: datetime, look: Look) -> Row:
    row: list[Cell | str] = [
        str(job.id),
        name_of(job),
        job.user,
        words.job_state(job.state),
        gpus_in_words(job.spec),
        time_of(job, now),
        where_or_why(job),
    ]
    if look.is_wide:
        command = " ".join(job.spec.argv)
        row += [
            words.band(job.spec.band),
            words.full_clock(job.submit_time, now),
            str(job.attempt_count),
            command if len(command) <= COMMAND_SHOWN_MAX else command[:COMMAND_SHOWN_MAX] + "…",
        ]
    return row


def _hidden(counts: scheduler_pb2.QueueCounts, jobs: Sequence[job_pb2.Job]) -> int:
    live = counts.queued + counts.held + counts.starting + counts.running + counts.stopping
    return live - sum(map(_live_items, jobs)) if len(jobs) >= 1000 else 0


def _live_items(job: job_pb2.Job) -> int:
    """How many of the queue's counts a line stands for."""
    if not job.HasField("array_counts"):
        return 1
    items = job.array_counts
    return items.queued + items.held + items.starting + items.running + items.stopping


def _nothing(*, with_finished: bool) -> str:
    if with_finished:
        return "No jobs yet. Submit one with: gpuctl submit --gpus 1 -- python train.py"
    return "No jobs wait or run. Submit one: gpuctl submit -- COMMAND. Ended: queue -a"
