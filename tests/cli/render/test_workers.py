"""`workers`: its screen in 80 columns and wide, and what it makes of several pages."""

from __future__ import annotations

import json

from gpufleet.v1 import inference_pb2, job_pb2, node_pb2, status_pb2

from cli.render.table import Look, shown_width
from cli.render.workers import workers_screen
from tests.cli.cluster import NOW, ago
from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import FakeScheduler
from tests.cli.golden import assert_golden


def working() -> status_pb2.ListWorkersResponse:
    """A GPU node that works, a CPU node that was not heard, a model with a worker and one that loads, one without."""
    answer = status_pb2.ListWorkersResponse(
        gpu_queue=status_pb2.WorkQueue(waiting_count=12, running_count=2),
        cpu_queue=status_pb2.WorkQueue(waiting_count=1, running_count=1),
    )
    for job_id in range(20, 30):
        answer.gpu_queue.first.add(job_id=job_id, name="resnet", user="ada", gpu_count=1)
    answer.cpu_queue.first.add(job_id=31, user="grace", fell_back=True)
    busy = answer.nodes.add(
        node="n1", state=node_pb2.NODE_STATE_READY, gpu_count=8, gpus_held=3, cpu_count=64, cpus_held=9, job_count=2
    )
    busy.last_contact_time.CopyFrom(ago(seconds=2))
    running = job_pb2.JOB_STATE_RUNNING
    busy.jobs.add(job_id=12, name="resnet", gpu_count=2, start_time=ago(seconds=3900), state=running, user="ada")
    busy.jobs.add(job_id=14, name="canvas", gpu_count=1, serves="canvas", state=running, user="ada")
    answer.nodes.add(node="cpu1", state=node_pb2.NODE_STATE_LOST, cpu_count=16)
    canvas = answer.models.add(model="canvas", gpu_count=1, cpu_model="canvas-cpu", request_count=1_234)
    ready = canvas.workers.add(
        worker_start="4f2a9c01d3", job_id=14, state=inference_pb2.WORKER_STATE_READY, seats=4, taken_seats=3
    )
    ready.last_contact_time.CopyFrom(ago(seconds=5))
    canvas.workers.add(
        job_id=20,
        state=inference_pb2.WORKER_STATE_QUEUED,
        message="waits: node n1 has 0 of 2 CPUs free, and cpu1 is lost since this morning",
    )
    answer.models.add(model="canvas-cpu")
    return answer


def test_the_workers_with_their_queues() -> None:
    lines = workers_screen(working(), NOW, Look())
    assert max(map(shown_width, lines)) <= 80
    assert_golden("workers", "\n".join(lines) + "\n")


def test_the_wide_workers() -> None:
    assert_golden("workers_wide", "\n".join(workers_screen(working(), NOW, Look(width=None, is_wide=True))) + "\n")


def test_a_fleet_without_nodes_says_what_to_do(gpuctl: Gpuctl) -> None:
    assert_golden("workers_empty", gpuctl("workers").text)


def test_several_pages_are_one_answer_in_json_and_names_are_of_nodes_then_models(
    fake: FakeScheduler, gpuctl: Gpuctl
) -> None:
    first = working()
    first.next_page_token = "1"
    second = status_pb2.ListWorkersResponse(nodes=[status_pb2.NodeWork(node="n2")])
    fake.working = [first, second]
    whole = json.loads(gpuctl("workers", "-o", "json").text)
    assert [each["node"] for each in whole["nodes"]] == ["n1", "cpu1", "n2"] and whole["next_page_token"] == ""
    assert whole["gpu_queue"]["waiting_count"] == "12" and len(whole["gpu_queue"]["first"]) == 10
    assert gpuctl("workers", "-o", "name").text.split() == ["n1", "cpu1", "n2", "canvas", "canvas-cpu"]
    lines = [json.loads(line) for line in gpuctl("workers", "-o", "jsonl").text.splitlines()]
    assert [each.get("node") or each["model"] for each in lines] == ["n1", "cpu1", "n2", "canvas", "canvas-cpu"]
