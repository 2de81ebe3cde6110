"""Who works at what: a line for each queue, each node and each worker of a served model."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from google.protobuf.timestamp_pb2 import Timestamp
from gpufleet.v1 import inference_pb2, sessions_pb2, status_pb2

from gpufleet.text.units import counted

from . import words
from .sessions import SHOWN_OF_START, WORKER_STATES
from .table import ABSENT, Cell, Colour, Column, Look, draw

QueueOf = tuple[str, status_pb2.WorkQueue]
WorkerOf = tuple[status_pb2.ModelWork, sessions_pb2.WorkerInfo | None]
"""A worker of a model; None of a model that has none."""


def workers_screen(answer: status_pb2.ListWorkersResponse, now: datetime, look: Look) -> list[str]:
    """The whole screen of `gpuctl workers`."""
    lines = draw(_queue_columns(look), [("GPUs", answer.gpu_queue), ("CPUs", answer.cpu_queue)], look)
    if answer.nodes:
        lines += ["", *draw(_node_columns(now, look), answer.nodes, look)]
    else:
        lines += ["", "No nodes. Start an agent on a machine: gpuctl agent --scheduler HOST:PORT"]
    rows: list[WorkerOf] = [(model, worker) for model in answer.models for worker in (model.workers or [None])]
    if rows:
        lines += ["", *draw(_worker_columns(now), rows, look)]
    return lines


def _jobs_in_words(jobs: Sequence[status_pb2.Work], count: int, look: Look, now: datetime | None = None) -> str:
    """`12 resnet, 13 (fell back), 4 more`; wide with whose it is, and with `now` since when it runs."""
    parts = []
    for job in jobs:
        notes = [job.user] if look.is_wide else []
        if job.fell_back:
            notes.append("fell back")
        if look.is_wide and now is not None and job.HasField("start_time"):
            notes.append(words.since(job.start_time, now))
        name = f" {job.name}" if job.name else ""
        parts.append(f"{job.job_id}{name}" + (f" ({', '.join(notes)})" if notes else ""))
    if count > len(jobs):
        parts.append(f"{count - len(jobs):,} more")
    return ", ".join(parts) or ABSENT


def _queue_columns(look: Look) -> list[Column[QueueOf]]:
    return [
        Column("QUEUE FOR", lambda of: of[0]),
        Column("WAITING", lambda of: f"{of[1].waiting_count:,}", is_right=True),
        Column("RUNNING", lambda of: f"{of[1].running_count:,}", is_right=True),
        Column("NEXT", lambda of: _jobs_in_words(of[1].first, of[1].waiting_count, look), least=12),
    ]


def _node_columns(now: datetime, look: Look) -> list[Column[status_pb2.NodeWork]]:
    return [
        Column("NODE", lambda node: node.node, least=8),
        Column("STATE", lambda node: words.node_state(node.state)),
        Column("GPUS", lambda node: f"{node.gpus_held}/{node.gpu_count}" if node.gpu_count else ABSENT, is_right=True),
        Column("CPUS", lambda node: f"{node.cpus_held}/{node.cpu_count}", is_right=True),
        Column("HEARD", lambda node: _heard(node, now), is_right=True),
        Column("RUNS", lambda node: _jobs_in_words(node.jobs, node.job_count, look, now), least=12),
    ]


def _worker_columns(now: datetime) -> list[Column[WorkerOf]]:
    return [
        Column("MODEL", lambda of: of[0].model, least=8),
        Column("ON", lambda of: counted(of[0].gpu_count, "GPU") if of[0].gpu_count else "CPUs"),
        Column("REQUESTS", lambda of: f"{of[0].request_count:,}", is_right=True),
        Column("WORKER", lambda of: of[1].worker_start[:SHOWN_OF_START] or ABSENT if of[1] is not None else ABSENT),
        Column("JOB", lambda of: f"{of[1].job_id}" if of[1] is not None and of[1].job_id else ABSENT, is_right=True),
        Column("TAKEN", _taken, is_right=True),
        Column("HEARD", lambda of: ABSENT if of[1] is None else _heard(of[1], now), is_right=True),
        Column("STATE", _state, least=12),
    ]


def _taken(of: WorkerOf) -> str:
    return ABSENT if of[1] is None else f"{of[1].taken_seats}/{of[1].seats}"


def _state(of: WorkerOf) -> Cell:
    if of[1] is None:
        return Cell("no worker", Colour.WARNING)
    text, colour = WORKER_STATES.get(of[1].state, ("?", None))
    is_queued = of[1].state == inference_pb2.WORKER_STATE_QUEUED  # whose message says that it waits, and for what
    return Cell(of[1].message if is_queued and of[1].message else f"{text} {of[1].message}".rstrip(), colour)


def _heard(of: status_pb2.NodeWork | sessions_pb2.WorkerInfo, now: datetime) -> str:
    if not of.HasField("last_contact_time"):
        return ABSENT
    heard: Timestamp = of.last_contact_time
    return f"{words.since(heard, now)} ago"
