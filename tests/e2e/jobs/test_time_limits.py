"""What comes before a time limit and behind it: a signal, another attempt, and all of it over restarts."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from google.protobuf.duration_pb2 import Duration
from gpufleet.v1 import job_pb2, scheduler_pb2

from tests.e2e.client import Client, select, span
from tests.e2e.fleet import Fleet
from tests.e2e.processes import until

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "checkpoint.py"
USR1, USR2 = 10, 12


def before_limit(number: int, seconds: float, *, leader_only: bool = False) -> job_pb2.LimitSignal:
    return job_pb2.LimitSignal(signal=number, before=span(seconds), leader_only=leader_only)


async def test_the_example_survives_three_limits(fleet: Fleet, admin: Client, tmp_path: Path) -> None:
    """Each attempt has 4 s and is told at 2 s, so that it saves at most 5 of its 20 steps of half a second."""
    await fleet.add_node()
    state = tmp_path / "checkpoint"
    words = [sys.executable, str(EXAMPLE), "--steps", "20", "--step-seconds", "0.5", "--checkpoint", str(state)]
    job = await admin.submit(
        # USR1 is ignored until it has a handler, however late Python is.
        *("sh", "-c", f"trap '' USR1; exec {shlex.join(words)}"),
        seconds=4,
        limit_signal=before_limit(USR1, 2),
        requeue_on_timeout=True,
        output_file="train-%j.log",
        retries=1,
    )
    ended = await admin.wait(job)
    assert ended.state == job_pb2.JOB_STATE_SUCCEEDED, await admin.story(job)
    assert ended.attempt_count >= 4
    assert (ended.requeue_count, ended.retries_used) == (ended.attempt_count - 1, 0)
    assert {each.exit_reason for each in list(ended.attempts)[:-1]} == {"TIME_LIMIT"}
    assert state.read_text() == "20\n"
    again = [line for line in await admin.story(job) if "waits again, behind those that wait" in line]
    assert len(again) == ended.attempt_count - 1
    log = (fleet.work / f"train-{job}.log").read_text()
    for attempt in range(1, ended.attempt_count + 1):
        whole = (await admin.output(job, attempt=attempt, follow=False))[attempt, 0, job_pb2.STREAM_STDOUT].decode()
        assert whole and whole in log, "each attempt's output stands behind that of the one before"
    assert log.endswith("done\n")


async def test_the_signal_comes_though_agent_and_scheduler_are_away(
    fleet: Fleet, admin: Client, tmp_path: Path
) -> None:
    agent = await fleet.add_node()
    said = tmp_path / "said"
    script = f"trap 'echo near >> {said}' USR1; trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done"
    job = await admin.submit(
        "sh", "-c", script, seconds=600, limit_signal=before_limit(USR1, 594), grace=5, requeue_on_timeout=True
    )
    await admin.wait(job, job_pb2.JOB_STATE_RUNNING)
    agent.kill()
    fleet.scheduler.kill()
    await until("the keeper alone has sent it", said.exists)
    await fleet.scheduler.start()
    agent.spawn()
    await fleet.node_is_ready("n1")
    async with fleet.client() as person:
        assert (await person.job(job)).state == job_pb2.JOB_STATE_RUNNING
        assert said.read_text() == "near\n"
        await person.cancel(job)
        assert (await person.wait(job)).state == job_pb2.JOB_STATE_CANCELLED


async def test_a_signal_for_the_leader_spares_what_it_started(fleet: Fleet, admin: Client) -> None:
    """As Slurm's B:USR1 does: a shell with a trap, and under it a program that would die of it."""
    await fleet.add_node()
    script = "trap 'echo near' USR1; sleep 3 & echo ready; wait $!; wait $! && echo slept"
    for leader_only in (True, False):
        job = await admin.submit(
            "sh", "-c", script, seconds=60, limit_signal=before_limit(USR1, 58.5, leader_only=leader_only)
        )
        await admin.wait(job)
        expected = b"ready\nnear\nslept\n" if leader_only else b"ready\nnear\n"
        assert await admin.stdout(job) == expected


async def test_a_job_that_is_cancelled_at_its_limit_is_cancelled(fleet: Fleet, admin: Client) -> None:
    """Told to stop by its limit first, and by a person while it takes its leave."""
    await fleet.add_node()
    script = "trap 'echo leaving' TERM; echo ready; while :; do sleep 0.05; done"
    job = await admin.submit("sh", "-c", script, seconds=1, grace=20, requeue_on_timeout=True)

    async def leaves() -> bool:
        return b"leaving" in await admin.stdout(job, follow=False)

    await admin.wait(job, job_pb2.JOB_STATE_RUNNING)
    await until("its limit has come", leaves)
    await admin.cancel(job, abandon=False)
    await admin.stub.SignalJob(scheduler_pb2.SignalJobRequest(jobs=select(job), signal=9))
    ended = await admin.wait(job)
    assert (ended.state, ended.attempt_count) == (job_pb2.JOB_STATE_CANCELLED, 1)


async def test_what_was_asked_for_is_told_and_given_back(fleet: Fleet, admin: Client) -> None:
    """Also by a scheduler that has started anew: it is stored."""
    asked = {
        "limit_signal": before_limit(USR2, 30, leader_only=True),
        "requeue_on_timeout": True,
        "output_file": "/tmp/%x.%j.log",
        "submit_cwd": "/somewhere",
    }
    job = await admin.submit("true", seconds=60, is_held=True, **asked)
    await fleet.scheduler.stop()
    await fleet.scheduler.start()
    async with fleet.client() as person:
        spec = (await person.job(job)).spec
        assert {name: getattr(spec, name) for name in asked} == asked
        plain = await person.submit("true", seconds=90, is_held=True, limit_signal=job_pb2.LimitSignal(signal=USR1))
        assert (await person.job(plain)).spec.limit_signal.before == Duration(seconds=60), "the default is filled in"
