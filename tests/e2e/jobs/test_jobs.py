"""What becomes of a job: exits, limits, cancelling, holding, requeueing, its environment, its story."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from gpufleet.v1 import job_pb2, scheduler_pb2

from tests.e2e.client import Client, refusal, select
from tests.e2e.fleet import Fleet
from tests.e2e.processes import until

IGNORES_SIGTERM = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: print("not yet", flush=True))
child = os.fork()
pathlib.Path(f"{sys.argv[1]}.{'child' if child == 0 else 'leader'}").write_text(str(os.getpid()))
while True:
    time.sleep(0.05)
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("code", [0, 1, 42, 255])
async def test_a_job_ends_with_the_code_of_its_command(person: Client, code: int) -> None:
    job = await person.run("sh", "-c", f"exit {code}")
    assert job.state == (job_pb2.JOB_STATE_FAILED if code else job_pb2.JOB_STATE_SUCCEEDED)
    assert job.exit.code == code
    assert job.exit_reason == "EXITED"
    assert job.attempts[-1].exit.code == code


async def test_a_job_that_a_signal_ends_says_which(person: Client) -> None:
    job = await person.run("sh", "-c", "kill -SEGV $$")
    assert (job.state, job.exit.signal) == (job_pb2.JOB_STATE_FAILED, signal.SIGSEGV)
    assert job.exit_reason == "SIGNALLED"


async def test_a_command_that_does_not_exist_fails_with_127_and_says_so(person: Client) -> None:
    job = await person.run("no-such-command-anywhere", "--flag")
    assert (job.state, job.exit.code) == (job_pb2.JOB_STATE_FAILED, 127)
    assert job.exit_reason == "COMMAND_NOT_FOUND"
    assert "no-such-command-anywhere" in job.exit_message


async def test_a_command_that_is_not_executable_fails_with_126(person: Client) -> None:
    script = person.cwd / "not-executable"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o644)
    job = await person.run(str(script))
    assert (job.state, job.exit.code) == (job_pb2.JOB_STATE_FAILED, 126), job


async def test_a_missing_working_directory_fails_the_job_and_names_it(person: Client) -> None:
    job = await person.run("true", cwd=str(person.cwd / "nowhere"))
    assert job.state == job_pb2.JOB_STATE_FAILED
    assert job.exit_reason == "CWD_MISSING"
    assert str(person.cwd / "nowhere") in job.exit_message
    assert not job.HasField("exit")


async def test_a_directory_with_a_newline_in_its_name_works(person: Client) -> None:
    folder = person.cwd / "two\nlines"
    folder.mkdir()
    job = await person.run("sh", "-c", "pwd", cwd=str(folder))
    assert await person.stdout(job.id) == f"{folder}\n".encode()


async def test_a_time_limit_ends_the_job_as_timed_out(person: Client) -> None:
    job = await person.run("sleep", "600", seconds=0.2, grace=60)
    assert job.state == job_pb2.JOB_STATE_TIMED_OUT
    assert job.exit_reason == "TIME_LIMIT"
    assert job.exit.signal == signal.SIGTERM


async def test_a_job_that_ends_cleanly_in_its_grace_has_still_timed_out(person: Client) -> None:
    # By then the shell has set its trap.
    job = await person.run("sh", "-c", "trap 'echo saved; exit 0' TERM; sleep 600 & wait", seconds=5, grace=60)
    assert job.state == job_pb2.JOB_STATE_TIMED_OUT
    assert await person.stdout(job.id) == b"saved\n"


async def test_cancel_gives_the_grace_and_then_kills_the_whole_group(person: Client) -> None:
    marker = person.cwd / "stubborn"
    job_id = await person.submit(sys.executable, "-c", IGNORES_SIGTERM, str(marker), grace=5)
    files = [marker.with_name(f"stubborn.{who}") for who in ("leader", "child")]
    await until("both processes run", lambda: all(file.exists() and file.read_text() for file in files))
    changes = await person.cancel(job_id, reason="enough")
    assert [(change.changed, change.state) for change in changes] == [(True, job_pb2.JOB_STATE_STOPPING)]
    job = await person.wait(job_id)
    assert job.state == job_pb2.JOB_STATE_CANCELLED
    assert "enough" in job.exit_message
    assert not any(is_alive(int(file.read_text())) for file in files)
    assert b"not yet" in await person.stdout(job_id)
    assert any("enough" in line for line in await person.story(job_id))


async def test_a_job_that_obeys_the_cancel_ends_within_its_grace(person: Client) -> None:
    job_id = await person.submit("sh", "-c", "trap 'echo bye; exit 3' TERM; echo hi; sleep 600 & wait", grace=60)
    await person.wait(job_id, job_pb2.JOB_STATE_RUNNING)

    async def has_begun() -> bool:
        return bool(await person.output(job_id, follow=False))

    await until("it has begun", has_begun)
    await person.cancel(job_id)
    job = await person.wait(job_id)
    assert job.state == job_pb2.JOB_STATE_CANCELLED
    assert await person.stdout(job_id) == b"hi\nbye\n"


async def test_a_waiting_job_is_cancelled_at_once(person: Client) -> None:
    job_id = await person.submit("true", is_held=True)
    changes = await person.cancel(job_id)
    assert changes[0].state == job_pb2.JOB_STATE_CANCELLED
    again = await person.cancel(job_id)
    assert (again[0].changed, again[0].state) == (False, job_pb2.JOB_STATE_CANCELLED)


async def test_a_held_job_waits_until_it_is_released(person: Client) -> None:
    job_id = await person.submit("true", is_held=True)
    job = await person.job(job_id)
    assert job.state == job_pb2.JOB_STATE_HELD
    assert job.wait_reason.sentence
    after = await person.run("true")
    assert after.state == job_pb2.JOB_STATE_SUCCEEDED
    assert (await person.job(job_id)).state == job_pb2.JOB_STATE_HELD
    request = scheduler_pb2.UpdateJobRequest(jobs=select(job_id), update_mask=FieldMask(paths=["is_held"]))
    assert (await person.stub.UpdateJob(request)).changes[0].changed
    assert (await person.wait(job_id)).state == job_pb2.JOB_STATE_SUCCEEDED


async def test_a_signal_reaches_the_running_job_once(person: Client) -> None:
    script = "trap 'echo usr1' USR1; trap 'exit 5' USR2; echo ready; while :; do sleep 0.02; done"
    job_id = await person.submit("sh", "-c", script)

    async def says(data: bytes) -> bool:
        return data in b"".join((await person.output(job_id, follow=False)).values())

    await until("it is ready", lambda: says(b"ready"))
    request = scheduler_pb2.SignalJobRequest(jobs=select(job_id), signal=signal.SIGUSR1, request_id="signal-once")
    assert (await person.stub.SignalJob(request)).changes[0].changed
    assert not (await person.stub.SignalJob(request)).changes[0].changed
    await until("the signal has come", lambda: says(b"usr1"))
    last = scheduler_pb2.SignalJobRequest(jobs=select(job_id), signal=signal.SIGUSR2)
    await person.stub.SignalJob(last)
    job = await person.wait(job_id)
    assert job.exit.code == 5
    assert (await person.stdout(job_id)).count(b"usr1") == 1


async def test_a_requeued_job_runs_again_under_the_next_number(person: Client) -> None:
    script = 'echo run $GPUFLEET_ATTEMPT; test "$GPUFLEET_ATTEMPT" = 2 || sleep 600'
    job_id = await person.submit("sh", "-c", script, grace=0.2)
    await person.wait(job_id, job_pb2.JOB_STATE_RUNNING)
    submitted = (await person.job(job_id)).submit_time
    request = scheduler_pb2.RequeueJobRequest(jobs=select(job_id), reason="again, please")
    assert (await person.stub.RequeueJob(request)).changes[0].changed
    job = await person.wait(job_id)
    assert (job.state, job.attempt_count, job.requeue_count) == (job_pb2.JOB_STATE_SUCCEEDED, 2, 1)
    assert job.submit_time == submitted
    assert await person.stdout(job_id) == b"run 2\n"


async def test_the_environment_is_the_submitters_choice_and_nothing_of_the_agents(person: Client) -> None:
    job_id = await person.submit(
        sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))", env={"GREETING": "hej=å"}
    )
    found = json.loads(await person.stdout(job_id))
    assert found["GREETING"] == "hej=å"
    assert found["PYTHONUNBUFFERED"] == "1"
    assert found["GPUFLEET_JOB_ID"] == str(job_id)
    assert (found["GPUFLEET_ATTEMPT"], found["GPUFLEET_NODE_RANK"], found["GPUFLEET_NNODES"]) == ("1", "0", "1")
    assert (found["NODE_RANK"], found["NNODES"], found["GPUFLEET_GPUS_PER_NODE"]) == ("0", "1", "0")
    assert int(found["MASTER_PORT"]) > 0
    assert {"HOME", "USER", "LANG", "PATH", "MASTER_ADDR"} <= set(found)
    assert not {name for name in found if name.startswith(("GPUCTL_", "GPUFLEET_TEST", "XDG_", "PYTEST"))}, found


async def test_a_trace_context_reaches_the_job(person: Client) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    job = await person.run("sh", "-c", "echo $TRACEPARENT", trace_context=f"00-{trace}-b7ad6b7169203331-01")
    assert trace in (await person.stdout(job.id)).decode()


async def test_the_story_tells_each_step_in_a_sentence(person: Client) -> None:
    job = await person.run("true", name="short story")
    assert await person.kinds(job.id) == ["JobQueued", "AttemptPlaced", "AttemptStarted", "JobFinished"]
    assert all(line and line[0] != "{" for line in await person.story(job.id))


async def test_a_job_is_found_by_name_and_as_the_last(person: Client) -> None:
    job = await person.run("true", name="the-named-one")
    by_name = await person.stub.GetJob(scheduler_pb2.GetJobRequest(name="the-named-one"))
    assert by_name.job.id == job.id
    assert (await person.stub.GetJob(scheduler_pb2.GetJobRequest(last=True))).job.id == job.id


async def test_a_name_that_two_jobs_have_is_no_selector(person: Client) -> None:
    ids = [await person.submit("true", name="twins", is_held=True) for _ in range(2)]
    request = scheduler_pb2.CancelRequest(jobs=scheduler_pb2.JobSelector(name="twins"))
    error = await refusal(person.stub.Cancel(request))
    assert error.reason.name == "SELECTOR_AMBIGUOUS"
    assert all(str(job_id) in error.message for job_id in ids)
    await person.cancel(*ids)


async def test_a_thousand_equal_jobs_are_one_submit_and_all_run(fleet: Fleet, admin: Client) -> None:
    await fleet.add_node("n1", "--cpus", "16")
    answer = await admin.submit_specs([admin.spec("sh", "-c", "echo $GPUFLEET_JOB_ID | tee -a runs")], count=300)
    assert answer.count == 300

    async def are_done() -> bool:
        counts = (await admin.queue(page_size=1)).counts
        return not (counts.queued or counts.starting or counts.running or counts.stopping)

    await until("all have ended", are_done)
    listed = await admin.queue(include_finished=True, page_size=1000)
    ended = {job.id: job for job in listed.jobs}
    assert sorted(ended) == list(range(answer.first_job_id, answer.first_job_id + 300))
    assert {job.state for job in ended.values()} == {job_pb2.JOB_STATE_SUCCEEDED}
    # On a busy machine one may wait on its node too long and be placed once more, but each runs once.
    assert sorted(map(int, (fleet.work / "runs").read_text().split())) == sorted(ended)
    for job_id in list(ended)[::37]:
        assert await admin.stdout(job_id) == b"%d\n" % job_id


async def test_a_dry_run_checks_and_changes_nothing(person: Client) -> None:
    before = await person.queue(include_finished=True)
    answer = await person.submit_specs([person.spec("true", gpus=1)], dry_run=True)
    assert (answer.first_job_id, answer.count) == (0, 1)
    assert (answer.job.id, list(answer.job.spec.argv)) == (0, ["true"])
    assert answer.job.wait_reason.sentence == "it would start now on node n1"
    after = await person.queue(include_finished=True)
    assert [job.id for job in after.jobs] == [job.id for job in before.jobs]
