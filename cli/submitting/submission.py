"""`submit`: one request, its id made once and kept over every retry, so that a job is never made twice."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime

from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError, invalid
from gpufleet.fleet.client import Client, connected
from gpufleet.fleet.settings import Settings
from gpufleet.fleet.submitting.job_options import JobOptions
from gpufleet.fleet.submitting.requests import in_options, new_request_id, outcome_unknown
from gpufleet.text.units import counted

from .tracing import tracing

STARTS_NOW = "NEXT_PASS"
"""The reason of a dry run's job that would not wait."""


def refuse_many(request: scheduler_pb2.SubmitRequest) -> None:
    """Refuse an array where a session stays with one job: an array is many, which run at the same time."""
    if any(spec.HasField("array") for spec in request.specs):
        raise invalid(
            "--array",
            "this stays with one job, and an array is many that run at the same time",
            next_step="Submit it with gpuctl submit, then: gpuctl wait ID · gpuctl logs -f ID",
        )


def rerun_of(
    settings: Settings,
    which: str,
    options: JobOptions,
    command: Sequence[str],
    *,
    request_id: str | None,
    dry_run: bool,
) -> scheduler_pb2.SubmitRequest:
    """The request to submit again what failed of a job. Raises INVALID_ARGUMENT where more is asked for."""
    if command or options != JobOptions():
        raise invalid(
            "--rerun-failed",
            "it runs what failed again as it was, and takes no command and no other option of a job",
            next_step=f"Write: gpuctl submit --rerun-failed {which}",
        )
    from gpufleet.fleet.named_jobs import only_id, read_selection

    with connected(settings) as client:
        job_id = only_id(client, read_selection([which]))
    return scheduler_pb2.SubmitRequest(
        rerun_failed_job_id=job_id, request_id=request_id or new_request_id(), dry_run=dry_run
    )


def submit_job(settings: Settings, request: scheduler_pb2.SubmitRequest) -> None:
    """Submit, and print the id alone on stdout; what is worth knowing goes to a terminal's stderr."""
    with tracing() as trace, connected(settings) as client:
        try:
            with trace.submitting("gpuctl submit", request) as metadata:
                answer = client.call_again(client.scheduler.Submit, request, metadata)
        except GpufleetError as problem:
            raise in_options(outcome_unknown(problem, request.request_id)) from None
        if settings.format in ("json", "jsonl"):
            from ..printing import print_message

            print_message(answer, settings.format)
        elif request.dry_run:
            _tell_dry_run(request, answer)
        else:
            waits = answer.job.state == job_pb2.JOB_STATE_QUEUED
            _print_ids(answer, _explained(client, answer.job.id) if waits and sys.stderr.isatty() else None)


def _explained(client: Client, job_id: int) -> scheduler_pb2.ExplainResponse | None:
    """When it starts, for a person who looks on; the job is submitted, so that a failure to ask is none."""
    try:
        return client.call(client.scheduler.Explain, scheduler_pb2.ExplainRequest(job_id=job_id))
    except GpufleetError:
        return None


def _print_ids(answer: scheduler_pb2.SubmitResponse, explained: scheduler_pb2.ExplainResponse | None) -> None:
    for job_id in range(answer.first_job_id, answer.first_job_id + answer.count):
        print(job_id)
    sys.stdout.flush()
    for note in answer.notes:
        print(f"gpuctl: {note}", file=sys.stderr)
    if sys.stderr.isatty():
        from ..render.job import when

        job = answer.job
        if job.wait_reason.sentence:
            place = f" in place {job.queue_position:,}" if job.queue_position else ""
            print(f"Job {job.id} waits{place}: {job.wait_reason.sentence}", file=sys.stderr)
            for line in [] if explained is None else when(explained.explanation, datetime.now().astimezone()):
                print(line, file=sys.stderr)
        why = f" · gpuctl explain {job.id}" if job.state == job_pb2.JOB_STATE_QUEUED else ""
        print(f"Next: gpuctl logs -f {job.id} · gpuctl wait {job.id}{why}", file=sys.stderr)


def _tell_dry_run(request: scheduler_pb2.SubmitRequest, answer: scheduler_pb2.SubmitResponse) -> None:
    from .. import screen
    from ..render.job import request_lines
    from ..render.table import Look

    reason = answer.job.wait_reason.sentence
    waits = answer.job.queue_position and answer.job.wait_reason.reason != STARTS_NOW
    place = f", in place {answer.job.queue_position:,}" if waits else ""
    what = counted(answer.job.array_counts.items, "item") if answer.job.HasField("array_counts") else ""
    what = f"An array of {what}" if what else "The job"
    spec = request.specs[0] if request.specs else answer.job.spec
    look = screen.look("table") if sys.stdout.isatty() else Look(width=None)  # a line each for grep
    screen.print_lines(
        [
            f"Nothing was changed. {what} would be accepted{place}{': ' + reason.rstrip('.') if reason else ''}.",
            *(f"Note: {note}" for note in answer.notes),
            "It asks for:",
            *request_lines(spec, screen.local_now(), look),
        ]
    )
