"""`doctor --run`: the self-test as a job on every node that takes work."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Iterator

from gpufleet.v1 import job_pb2, node_pb2, scheduler_pb2

from gpufleet.fleet.client import Client
from gpufleet.fleet.finding import Finding, failed, ok, warning
from gpufleet.fleet.outcome import end_in_words, exit_code_of, has_ended
from gpufleet.fleet.settings import Settings
from gpufleet.fleet.submitting.job_spec import variables

from ..nodes.node_calls import all_nodes

TEST_S_MAX = 300
"""The time limit of one self-test, in seconds."""

START_S_MAX = 30.0
"""A node that is too busy to begin in this time is left untested."""

POLL_S = 0.2
LAST_LINES = 3


def test_nodes(settings: Settings, client: Client, python: str) -> Iterator[Finding]:
    """Submit to all nodes at once, then a finding for each."""
    nodes = [node for node in all_nodes(client) if node.state == node_pb2.NODE_STATE_READY]
    jobs = {node.name: _submit(client, node, python or sys.executable) for node in nodes}
    submitted_at = time.monotonic()
    for name, job in jobs.items():
        yield _await(client, name, job, submitted_at)


def _submit(client: Client, node: node_pb2.Node, python: str) -> int:
    spec = job_pb2.JobSpec(
        argv=[python, "-P", "-m", "gpufleet.selftest"],
        name="selftest",
        nodelist=[node.name],
        cwd="/",
        env=variables((), os.environ, pass_all=False),
        band=job_pb2.BAND_HIGH,
        no_requeue=True,
        labels={"gpuctl": "doctor"},
    )
    spec.time_limit.FromSeconds(TEST_S_MAX)
    if node.devices:
        # Small enough for any device: the test is of the device, not of its memory.
        spec.devices.add(count=1, min_memory_bytes=10**9)
    request = scheduler_pb2.SubmitRequest(specs=[spec], request_id=uuid.uuid4().hex)
    return client.call_again(client.scheduler.Submit, request).first_job_id


def _await(client: Client, node: str, job_id: int, submitted_at: float) -> Finding:
    what = f"test {node}"
    deadline = submitted_at + START_S_MAX
    while True:
        job = client.call(client.scheduler.GetJob, scheduler_pb2.GetJobRequest(job_id=job_id)).job
        if has_ended(job):
            return _judge(client, what, job)
        has_begun = job.state not in (job_pb2.JOB_STATE_QUEUED, job_pb2.JOB_STATE_HELD)
        if not has_begun and time.monotonic() >= deadline:
            request = scheduler_pb2.CancelRequest(reason="gpuctl doctor: the node is busy")
            request.jobs.job_ids.append(job_id)
            client.call_again(client.scheduler.Cancel, request)
            return warning(what, f"not tested: {job.wait_reason.sentence or 'the node is busy'}", "Try again later.")
        time.sleep(POLL_S)


def _judge(client: Client, what: str, job: job_pb2.Job) -> Finding:
    if exit_code_of(job) == 0:
        return ok(what, _last_line(client, job.id) or "passed")
    said = _last_line(client, job.id)
    sentence = end_in_words(job) + (f": {said}" if said else "")
    return failed(what, sentence, f"See all of it: gpuctl logs {job.id}")


def _last_line(client: Client, job_id: int) -> str:
    request = scheduler_pb2.StreamOutputRequest(job_id=job_id, tail_lines=LAST_LINES)
    lines = [line.strip() for line in client.output(request).splitlines() if line.strip()]
    return lines[-1] if lines else ""
