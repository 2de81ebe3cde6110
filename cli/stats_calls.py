"""What `stats` asks and shows."""

from __future__ import annotations

import json
import sys
from typing import Any

from gpufleet.v1 import capacity_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError

from . import screen
from .chosen import only_id
from .client import Client, connected
from .render.stats import stats_object, stats_screen
from .selectors import read_selection
from .settings import Settings
from .submission import in_options


def show_stats(settings: Settings, job: str, attempt: int) -> None:
    """Print what an attempt used."""
    selection = read_selection([job])
    with connected(settings) as client:
        job_id = only_id(client, selection)
        request = capacity_pb2.GetJobStatsRequest(job_id=job_id, attempt=attempt)
        try:
            answer = client.call(client.scheduler.GetJobStats, request)
        except GpufleetError as problem:
            raise in_options(problem, lambda field: "--attempt" if field == "attempt" else field) from None
        # A job that ended without ever having had devices waits for nothing any more.
        has_ended = not answer.attempt and _has_ended(client, job_id)
    match settings.format:
        case "json" | "jsonl":
            _print_json(stats_object(job_id, answer), is_one_line=settings.format == "jsonl")
        case "name":
            print(job_id)
        case form:
            screen.print_lines(stats_screen(job_id, answer, screen.look(form), has_ended=has_ended))


def _has_ended(client: Client, job_id: int) -> bool:
    job = client.call(client.scheduler.GetJob, scheduler_pb2.GetJobRequest(job_id=job_id)).job
    return job.HasField("end_time")


def _print_json(value: dict[str, Any], *, is_one_line: bool) -> None:
    text = json.dumps(value, indent=None if is_one_line else 2, ensure_ascii=False)
    sys.stdout.buffer.write(text.encode(errors="replace") + b"\n")
    sys.stdout.buffer.flush()
