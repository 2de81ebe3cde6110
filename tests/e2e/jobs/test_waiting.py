"""Jobs that wait for others or for a time, that are tried again, and that give up: with real processes."""

from __future__ import annotations

import shlex
import time
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp
from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import Reason
from tests.e2e.client import Client, refusal, select
from tests.e2e.fleet import Fleet
from tests.e2e.processes import until

OK, ANY, FAIL = (
    job_pb2.DEPENDENCY_CONDITION_OK,
    job_pb2.DEPENDENCY_CONDITION_ANY,
    job_pb2.DEPENDENCY_CONDITION_FAIL,
)


@pytest.fixture
async def node(fleet: Fleet) -> None:
    await fleet.add_node("n1", "--cpus", "2")


def after(job_id: int, condition: job_pb2.DependencyCondition.ValueType = OK) -> list[job_pb2.Dependency]:
    return [job_pb2.Dependency(job_id=job_id, condition=condition)]


@pytest.mark.usefixtures("node")
async def test_a_chain_runs_in_order_across_a_restart_of_the_scheduler(
    fleet: Fleet, admin: Client, tmp_path: Path
) -> None:
    log = tmp_path / "order"
    say = "echo {} >> " + shlex.quote(str(log))
    first = await admin.submit("sh", "-c", say.format("first"), is_held=True)
    second = await admin.submit("sh", "-c", say.format("second") + "; exit 3", after=after(first))
    third = await admin.submit("sh", "-c", say.format("third"), after=after(second, FAIL))
    never = await admin.submit("sh", "-c", say.format("never"), after=after(second))
    told = (await admin.job(second)).wait_reason
    assert (told.reason, told.sentence) == ("DEPENDENCY", f"it runs after the success of job {first}")
    fleet.scheduler.kill()
    await fleet.scheduler.start()
    mask = FieldMask(paths=["is_held"])
    await admin.stub.UpdateJob(scheduler_pb2.UpdateJobRequest(jobs=select(first), update_mask=mask))
    assert (await admin.wait(third)).state == job_pb2.JOB_STATE_SUCCEEDED
    cancelled = await admin.wait(never)
    assert (cancelled.state, cancelled.exit_reason) == (job_pb2.JOB_STATE_CANCELLED, "DEPENDENCY_FAILED")
    assert f"job {second}" in cancelled.exit_message
    assert log.read_text().split() == ["first", "second", "third"]
    late = await refusal(admin.submit("true", after=after(second)))
    assert late.reason is Reason.DEPENDENCY_FAILED
    assert (await admin.run("true", after=after(second, ANY))).exit.code == 0


@pytest.mark.usefixtures("node")
async def test_a_failing_command_is_tried_again_as_often_as_was_asked(admin: Client, tmp_path: Path) -> None:
    tries = tmp_path / "tries"
    script = f"echo x >> {shlex.quote(str(tries))}; test $(wc -l < {shlex.quote(str(tries))}) -ge 3"
    job = await admin.run("sh", "-c", script, retries=5)
    assert (job.state, job.attempt_count, job.retries_used) == (job_pb2.JOB_STATE_SUCCEEDED, 3, 2)
    job = await admin.run("sh", "-c", "exit 7", retries=1)
    assert (job.exit.code, job.attempt_count, job.requeue_count) == (7, 2, 0)
    job = await admin.run("there-is-no-such-command", retries=5)
    assert (job.exit_reason, job.attempt_count) == ("COMMAND_NOT_FOUND", 1)


async def test_a_higher_band_takes_the_place_of_a_preemptible_job(tmp_path: Path) -> None:
    settings = tmp_path / "scheduler.toml"
    settings.write_text("[policy]\npreemptible_after = '1s'\n")
    async with Fleet(tmp_path / "fleet", "--config", str(settings)) as fleet, fleet.client() as admin:
        await fleet.add_node("n1", "--cpus", "1")
        told, notices = tmp_path / "told", tmp_path / "notices"
        # A job that is gone before its preemption was told has nothing told of it.
        stopped = f"echo stopped >> {told}; until grep -q preemption {notices}; do sleep 0.05; done; exit 1"
        script = f"trap {shlex.quote(stopped)} TERM; while :; do echo; sleep 0.05; done"
        notify = f"echo $GPUFLEET_ATTEMPT $GPUFLEET_NOTICE >> {shlex.quote(str(notices))}"
        victim = await admin.submit("sh", "-c", script, is_preemptible=True, notify=notify, grace=60)
        await admin.wait(victim, job_pb2.JOB_STATE_RUNNING)

        async def has_begun() -> bool:
            return bool(await admin.output(victim, follow=False))

        await until("it would hear a SIGTERM", has_begun)
        claimant = await admin.run("true", band=job_pb2.BAND_HIGH)
        assert claimant.state == job_pb2.JOB_STATE_SUCCEEDED
        again = await admin.wait(victim, job_pb2.JOB_STATE_RUNNING)
        assert (again.attempt_count, again.requeue_count, again.retries_used) == (2, 1, 0)
        assert again.attempts[0].exit_reason == "PREEMPTED"
        assert told.read_text() == "stopped\n"
        # Each attempt's notices are told in their order, and those of two attempts side by side.
        await until("it was told", lambda: len(notices.read_text().splitlines()) == 4)
        told_of = notices.read_text().splitlines()
        assert [line for line in told_of if line.startswith("1 ")] == ["1 start", "1 preemption", "1 end"]
        assert [line for line in told_of if line.startswith("2 ")] == ["2 start"]
        assert any(f"job {claimant.id} of band high needs its place" in line for line in await admin.story(victim))
        await admin.cancel(victim)
        await admin.wait(victim)
        await until("its end was told", lambda: "2 end" in notices.read_text())


@pytest.mark.usefixtures("node")
async def test_a_job_begins_at_its_time_and_another_gives_up_at_its_own(admin: Client) -> None:
    begin = Timestamp()
    begin.FromNanoseconds(time.time_ns() + 1_500_000_000)
    later = await admin.submit("true", begin_time=begin)
    wide = await admin.submit("sleep", "60", cpus=2)
    waits = await admin.submit("true", cpus=2, queue_timeout=Duration(nanos=500_000_000))
    given_up = await admin.wait(waits)
    assert (given_up.state, given_up.exit_reason) == (job_pb2.JOB_STATE_FAILED, "NO_CAPACITY")
    assert "CPU" in given_up.exit_message
    await admin.cancel(wide)
    started = (await admin.wait(later)).start_time
    assert started.ToNanoseconds() >= begin.ToNanoseconds()
