"""What has ended, asked of a real scheduler with a real node: how it ended, how long it took, and what it used."""

from __future__ import annotations

import time

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from gpufleet.v1 import history_pb2, job_pb2

from gpufleet.errors import Reason
from scheduler.api.jobs.ended_jobs import ended_job
from scheduler.state.attempts import EndedAttempt, Placement, Rank
from scheduler.state.ids import JobId, NodeName, UserName
from scheduler.state.jobs import ATTEMPTS_KEPT, Finished, Job
from scheduler.state.specs import Band, JobSpec, Outcome, Resources
from scheduler.state.units import Instant
from tests.e2e.client import Client, refusal

pytestmark = pytest.mark.slow


async def history(client: Client, **fields: object) -> list[history_pb2.EndedJob]:
    request = history_pb2.ListEndedJobsRequest(**fields)  # type: ignore[arg-type]
    jobs: list[history_pb2.EndedJob] = []
    while True:
        answer = await client.stub.ListEndedJobs(request)
        jobs += answer.jobs
        if not answer.next_page_token:
            return jobs
        request.page_token = answer.next_page_token


async def test_what_ended_is_told_with_its_times_its_exit_and_what_it_used(admin: Client) -> None:
    begin = Timestamp()
    begin.GetCurrentTime()
    ok = await admin.run("sh", "-c", "sleep 1.2", gpus=1, name="history-ok", seconds=60)
    failed = await admin.run("sh", "-c", "exit 7", name="history-failed")
    cancelled = await admin.submit("true", is_held=True, name="history-cancelled")
    await admin.cancel(cancelled, reason="a mistake")
    spec = admin.spec("sh", "-c", "exit $GPUFLEET_ARRAY_INDEX", name="history-array")
    spec.array.indices = "0-2"
    array = (await admin.submit_specs([spec])).first_job_id
    await admin.wait(array)
    told = {job.job_id: job for job in await history(admin, start_time=begin, page_size=2)}
    assert list(told)[-3:] == [cancelled, failed.id, ok.id] and array in told
    one = told[ok.id]
    assert (one.state, one.exit.code, one.attempt_count, one.gpu_count) == (job_pb2.JOB_STATE_SUCCEEDED, 0, 1, 1)
    assert 1 <= one.elapsed.ToTimedelta().total_seconds() <= 60
    assert one.HasField("wait") and one.end_time.ToMicroseconds() >= one.start_time.ToMicroseconds()
    assert (list(one.nodes), one.time_limit.seconds) == (["n1"], 60)
    assert one.memory_bytes_max > 0 and one.HasField("gpu_percent_mean")
    assert told[failed.id].exit.code == 7
    never = told[cancelled]
    assert not never.HasField("elapsed") and not never.nodes and never.exit_message.endswith("a mistake")
    assert (told[array].array_counts.succeeded, told[array].array_counts.failed) == (1, 2)
    items = await history(admin, start_time=begin, include_items=True, states=[job_pb2.JOB_STATE_FAILED])
    assert {(job.array_id, job.array_index, job.exit.code) for job in items if job.array_id} == {
        (array, 1, 1),
        (array, 2, 2),
    }
    assert {job.job_id for job in await history(admin, start_time=begin, node="n1")} >= {ok.id, failed.id}
    assert [job.job_id for job in await history(admin, start_time=begin, name="history-failed")] == [failed.id]
    assert not await history(admin, start_time=begin, node="n2")


async def test_a_job_that_could_never_run_waited_for_nothing_that_is_counted(admin: Client) -> None:
    """Not for its begin, and not for another job: `wait` is that for devices."""
    held = await admin.submit("true", is_held=True)
    later = Timestamp()
    later.FromSeconds(int(time.time()) + 3_600)
    begins = await admin.submit("true", begin_time=later)
    follows = await admin.submit("true", after=[job_pb2.Dependency(job_id=held)])
    both = await admin.submit("true", after=[job_pb2.Dependency(job_id=held)], begin_time=later)
    waits = await admin.submit("true", gpus=2, nodelist=["n1"], exclude=[])
    await admin.wait(waits)
    await admin.cancel(begins, follows, both, held)
    told = {job.job_id: job for job in await history(admin)}
    assert [told[each].HasField("wait") for each in (begins, follows, both, waits)] == [False, False, False, True]


@pytest.mark.parametrize(("kept", "is_told"), [(1, True), (ATTEMPTS_KEPT - 1, True), (ATTEMPTS_KEPT, False)])
def test_the_wait_of_a_job_is_told_where_a_node_had_refused_its_first_attempt(kept: int, *, is_told: bool) -> None:
    ranks = (Rank(placement=Placement(node=NodeName("n1"), agent_id="a", boot_id="b"), started_at=Instant(7)),)
    past = tuple(
        EndedAttempt(number=number, placed_at=Instant(5), ended_at=Instant(9), ranks=ranks, reason="EXITED")
        for number in range(2, 2 + kept)
    )
    job = Job(
        id=JobId(1),
        user=UserName("ann"),
        spec=JobSpec(argv=("true",), name="t", cwd="/", resources=Resources()),
        band=Band.NORMAL,
        submitted_at=Instant(1),
        state=Finished(outcome=Outcome.SUCCEEDED, at=Instant(9), reason="EXITED"),
        attempt_count=1 + kept,
        past=past,
    )
    told = ended_job(job)
    assert told.HasField("wait") == is_told
    assert not is_told or told.wait.ToMicroseconds() == 4


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"states": [job_pb2.JOB_STATE_RUNNING]}, "states[0]"),
        ({"start_time": Timestamp(seconds=200), "end_time": Timestamp(seconds=100)}, "start_time"),
        ({"node": "a b"}, "node"),
        ({"page_size": -1}, "page_size"),
    ],
)
async def test_a_wrong_question_is_named_by_its_field(admin: Client, fields: dict[str, object], field: str) -> None:
    error = await refusal(history(admin, **fields))
    assert (error.reason, error.violations[0].field) == (Reason.INVALID_ARGUMENT, field)
