"""A page of the queue says of each waiting job what `explain` says of it alone."""

from scheduler.policy.explain import explain, wait_reasons
from scheduler.policy.order import queue_order
from tests.core.transcript import Transcript

STORY = """
node n1 gpus=4 cpus=8
node n2 gpus=2 cpus=4
submit alice gpus=4
submit alice gpus=1
submit bob gpus=4
submit bob gpus=2
submit carol gpus=4 nodelist=n1
submit carol cpus=8
submit carol gpus=1
drain n2
submit dave gpus=1 nodelist=n2
submit dave band=high gpus=4
"""


def test_each_waiting_job_of_a_page_has_the_reason_that_explain_gives_it() -> None:
    transcript = Transcript()
    for line in STORY.splitlines():
        if line:
            transcript.answer(line)
    state, at = transcript.fleet.state, transcript.fleet.now
    waiting = list(queue_order(state.durable, at))
    assert len(waiting) >= 5
    reasons = wait_reasons(state, waiting, at)
    for job in waiting:
        alone = explain(state, job, at)
        assert reasons[job.id][0] == alone.reason
        assert alone.sentence == f"job {job.id} waits because {reasons[job.id][1]}"


def test_a_job_that_does_not_wait_has_no_reason() -> None:
    transcript = Transcript()
    transcript.answer("node n1 gpus=1")
    transcript.answer("submit alice gpus=1")
    durable = transcript.fleet.state.durable
    running = [durable.jobs[job] for job in durable.active]
    assert len(running) == 1
    assert wait_reasons(transcript.fleet.state, running, transcript.fleet.now) == {}
