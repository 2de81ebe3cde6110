"""A job that prefers GPUs, on real nodes: it does without, is told so, and gets one where it says that it needs it."""

from __future__ import annotations

from gpufleet.v1 import job_pb2

from tests.e2e.fleet import Fleet
from tests.e2e.processes import until

PREFERRED, QUEUED = job_pb2.GPU_MODE_PREFERRED, job_pb2.JOB_STATE_QUEUED
TOLD = ("GPU_MODE", "FELL_BACK", "CONTENT_TYPE", "GPUS_PER_NODE")
TELLS = f'echo "{",".join(f"$GPUFLEET_{name}" for name in TOLD)},$CUDA_VISIBLE_DEVICES."'
NEEDS_ONE = f'{TELLS}; test -z "$GPUFLEET_FELL_BACK" || exit 75'


async def test_a_job_falls_back_is_told_so_and_gets_a_gpu_that_it_needs_after_all(fleet: Fleet) -> None:
    await fleet.add_node("n1", "--virtual-gpus", "0", "--cpus", "4")
    async with fleet.client() as person:
        asked = {"gpus": 1, "gpu_mode": job_pb2.GPU_MODE_AUTO, "content_type": "audio/mpeg"}
        # What a job's own environment says of it is not passed on to a job that it submits.
        done = await person.submit("sh", "-c", TELLS, env={"GPUFLEET_FELL_BACK": "no"}, **asked)
        assert (await person.wait(done)).state == job_pb2.JOB_STATE_SUCCEEDED
        assert await person.stdout(done) == b"preferred,1,audio/mpeg,0,.\n"
        story = await person.kinds(done)
        assert story.index("JobQueued") < story.index("JobFellBack") < story.index("AttemptPlaced")
        job = await person.job(done)
        assert (job.spec.gpu_mode, job.spec.devices[0].count) == (job_pb2.GPU_MODE_AUTO, 1)
        assert (job.gpu_choice.mode, job.gpu_choice.fell_back) == (PREFERRED, True)
        assert job.gpu_choice.fell_back_reason == "NO_GPU_NODE" and "audio/*" in job.gpu_choice.sentence
        other = await person.submit("true", cpu_argv=["echo", "on a CPU"], **asked)
        assert (await person.wait(other)).state == job_pb2.JOB_STATE_SUCCEEDED
        assert await person.stdout(other) == b"on a CPU\n" and (await person.job(other)).spec.argv == ["true"]
        needs = await person.submit("sh", "-c", NEEDS_ONE, **asked)

        async def has_said_so() -> bool:
            job = await person.job(needs)
            return job.attempt_count == 1 and job.state == QUEUED

        await until("it waits for its GPU", has_said_so)
        waits = await person.job(needs)
        assert waits.gpu_choice.mode == job_pb2.GPU_MODE_REQUIRED and not waits.gpu_choice.fell_back
    fleet.scheduler.kill()
    await fleet.scheduler.start()
    await fleet.add_node("n2", "--virtual-gpus", "1", "--cpus", "4")
    async with fleet.client() as person:
        ended = await person.wait(needs)
        assert (ended.state, ended.attempt_count, ended.retries_used) == (job_pb2.JOB_STATE_SUCCEEDED, 2, 0)
        assert ended.attempts[-1].ranks[0].node == "n2"
        assert (await person.stdout(needs)).endswith(b"required,,audio/mpeg,1,.\n")
