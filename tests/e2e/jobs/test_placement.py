"""Which devices a job gets, why one waits, and in which order they start."""

from __future__ import annotations

import sys

from google.protobuf.field_mask_pb2 import FieldMask
from gpufleet.v1 import job_pb2, scheduler_pb2

from tests.e2e.client import Client, refusal, select
from tests.e2e.fleet import Fleet
from tests.e2e.processes import until

RUNNING, QUEUED = job_pb2.JOB_STATE_RUNNING, job_pb2.JOB_STATE_QUEUED
SUCCEEDED = job_pb2.JOB_STATE_SUCCEEDED

UNTIL_TOLD = 'until test -e "$0"; do sleep 0.01; done'


def devices(job: job_pb2.Job) -> list[int]:
    return [index for rank in job.attempts[-1].ranks for index in rank.device_indices]


async def test_three_jobs_share_two_devices_and_none_is_given_twice(fleet: Fleet, admin: Client) -> None:
    await fleet.add_node("n1", "--virtual-gpus", "2", "--cpus", "8")
    ids = [await admin.submit("sh", "-c", UNTIL_TOLD, f"go {number}", gpus=1) for number in range(3)]
    first, second = [await admin.wait(job_id, RUNNING) for job_id in ids[:2]]
    assert sorted(devices(first) + devices(second)) == [0, 1]
    waiting = await admin.job(ids[2])
    assert waiting.state == QUEUED
    assert waiting.queue_position == 1
    explained = (await admin.stub.Explain(scheduler_pb2.ExplainRequest(job_id=ids[2]))).explanation
    assert [(verdict.node, verdict.fits) for verdict in explained.nodes] == [("n1", False)]
    assert explained.nodes[0].reason == "DEVICES_IN_USE"
    assert "n1" in explained.nodes[0].sentence or explained.nodes[0].sentence
    assert explained.reason.sentence == f"job {waiting.id} waits because {waiting.wait_reason.sentence}"
    (fleet.work / "go 1").touch()
    third = await admin.wait(ids[2], RUNNING)
    assert devices(third) == devices(second)
    for number in (0, 2):
        (fleet.work / f"go {number}").touch()
    for job_id in ids:
        assert (await admin.wait(job_id)).state == SUCCEEDED
    node = await admin.node("n1")
    assert not any(device.job_id for device in node.devices)


async def test_a_job_sees_its_own_devices_and_no_others(person: Client) -> None:
    script = "import os; print(os.environ.get('GPUFLEET_VIRTUAL_GPUS', ''), os.environ['GPUFLEET_GPUS_PER_NODE'])"
    one = await person.run(sys.executable, "-c", script, gpus=1)
    uuid = one.attempts[-1].ranks[0].device_uuids[0]
    assert await person.stdout(one.id) == f"{uuid} 1\n".encode()
    both = await person.run(sys.executable, "-c", script, gpus=2)
    assert await person.stdout(both.id) == f"{','.join(both.attempts[-1].ranks[0].device_uuids)} 2\n".encode()
    none = await person.run(sys.executable, "-c", script)
    assert await person.stdout(none.id) == b" 0\n"
    assert not none.attempts[-1].gpu_info.allocation_method


async def test_pins_give_exactly_the_named_devices(person: Client) -> None:
    pins = [job_pb2.NodePins(node="n1", device_indices=[1])]
    job = await person.run("true", pins=pins)
    assert devices(job) == [1]
    assert job.attempts[-1].gpu_info.allocation_method == "pinned"


async def test_a_job_without_devices_runs_beside_jobs_that_hold_them_all(fleet: Fleet, admin: Client) -> None:
    await fleet.add_node("n1", "--virtual-gpus", "2", "--cpus", "8")
    holder = await admin.submit("sh", "-c", UNTIL_TOLD, "go", gpus=2)
    await admin.wait(holder, RUNNING)
    assert (await admin.run("true")).state == SUCCEEDED
    (fleet.work / "go").touch()
    await admin.wait(holder)


async def test_a_node_without_devices_takes_jobs_that_need_none(fleet: Fleet, admin: Client) -> None:
    await fleet.add_node("n1")
    await fleet.add_node("bare", "--cpus", "3")
    assert (await admin.run("true")).attempts[-1].ranks[0].node == "bare"
    assert (await admin.run("true", gpus=1)).attempts[-1].ranks[0].node == "n1"
    node = await admin.node("bare")
    assert (len(node.devices), node.info.cpus) == (0, 3)


async def test_min_memory_keeps_a_job_off_devices_that_are_too_small(person: Client) -> None:
    assert (await person.run("true", gpus=1, min_memory_bytes=16_000_000_000)).state == SUCCEEDED
    spec = person.spec("true", gpus=1, min_memory_bytes=16_000_000_001)
    error = await refusal(person.stub.Submit(scheduler_pb2.SubmitRequest(specs=[spec])))
    assert error.reason.name == "NEVER_FITS"
    assert "16 GB" in error.message


async def test_higher_bands_start_first_and_equal_ones_by_age(fleet: Fleet, admin: Client) -> None:
    await fleet.add_node("n1", "--cpus", "1")
    blocker = await admin.submit("sh", "-c", UNTIL_TOLD, "go")
    await admin.wait(blocker, RUNNING)
    bands = [job_pb2.BAND_NORMAL, job_pb2.BAND_LOW, job_pb2.BAND_URGENT, job_pb2.BAND_HIGH, job_pb2.BAND_NORMAL]
    script = "echo $GPUFLEET_JOB_ID >> order"
    ids = [await admin.submit("sh", "-c", script, band=band) for band in bands]
    request = scheduler_pb2.UpdateJobRequest(
        jobs=select(ids[4]), update_mask=FieldMask(paths=["band"]), band=job_pb2.BAND_HIGH
    )
    assert (await admin.stub.UpdateJob(request)).changes[0].changed
    expected = [ids[2], ids[3], ids[4], ids[0], ids[1]]
    assert [job.id for job in (await admin.queue()).jobs] == [blocker, *expected]
    (fleet.work / "go").touch()
    for job_id in ids:
        await admin.wait(job_id)
    assert [int(line) for line in (fleet.work / "order").read_text().split()] == expected


async def test_a_draining_node_finishes_its_work_and_takes_no_more(fleet: Fleet, admin: Client) -> None:
    await fleet.add_node("n1", "--virtual-gpus", "2", "--cpus", "8")
    running = await admin.submit("sh", "-c", UNTIL_TOLD, "go", gpus=1)
    await admin.wait(running, RUNNING)
    drain = scheduler_pb2.UpdateNodeRequest(node="n1", is_draining=True, reason="new fans")
    assert (await admin.stub.UpdateNode(drain)).changed
    assert not (await admin.stub.UpdateNode(drain)).changed
    waiting = await admin.submit("true")
    explained = (await admin.stub.Explain(scheduler_pb2.ExplainRequest(job_id=waiting))).explanation
    assert "new fans" in explained.nodes[0].sentence
    (fleet.work / "go").touch()
    assert (await admin.wait(running)).state == SUCCEEDED
    assert (await admin.job(waiting)).state == QUEUED
    resumed = await admin.stub.UpdateNode(scheduler_pb2.UpdateNodeRequest(node="n1"))
    assert resumed.changed and not resumed.node.is_draining
    assert (await admin.wait(waiting)).state == SUCCEEDED


async def test_a_job_that_came_before_any_node_starts_with_the_first(fleet: Fleet, admin: Client) -> None:
    answer = await admin.submit_specs([admin.spec("true", gpus=2)])
    assert answer.job.state == QUEUED
    assert "node" in answer.job.wait_reason.sentence
    await fleet.add_node("n1", "--virtual-gpus", "2", "--cpus", "8")
    assert (await admin.wait(answer.first_job_id)).state == SUCCEEDED


async def test_nodes_show_what_runs_on_them(fleet: Fleet, admin: Client) -> None:
    await fleet.add_node("n1", "--virtual-gpus", "2", "--label", "room=4b")
    job_id = await admin.submit("sh", "-c", UNTIL_TOLD, "go", gpus=1, node_labels={"room": "4b"})
    await admin.wait(job_id, RUNNING)

    async def is_shown() -> bool:
        node = await admin.node("n1")
        return [device.job_id for device in node.devices].count(job_id) == 1

    await until("the device shows its job", is_shown)
    node = await admin.node("n1")
    assert dict(node.info.labels) == {"room": "4b"}
    assert all(device.device.is_virtual and device.device.memory_bytes == 16_000_000_000 for device in node.devices)
    (fleet.work / "go").touch()
    await admin.wait(job_id)
