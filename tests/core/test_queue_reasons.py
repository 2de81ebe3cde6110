"""A page of the queue says of each waiting job what `explain` says of it alone."""

import random

from scheduler.policy.explain import explain, wait_reasons
from scheduler.policy.known_nodes import KnownNodes
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


def test_what_a_walk_remembers_of_the_nodes_changes_no_reason() -> None:
    told = {reason for seed in range(12) for reason in reasons_told(random.Random(seed))}
    assert told >= {"DEVICES_IN_USE", "CPUS_IN_USE", "KEPT_FOR_ANOTHER", "NODE_DRAINING"}


def reasons_told(rng: random.Random) -> set[str]:
    """The reasons in a random story, each as `explain` gives it."""
    transcript, known = Transcript(), KnownNodes()
    for number in range(rng.randint(1, 3)):
        transcript.answer(f"node n{number} gpus={rng.randint(0, 4)} cpus={rng.randint(1, 8)}")
    told: set[str] = set()
    for _ in range(16):
        if rng.random() < 0.2:
            transcript.answer(f"{rng.choice(('drain', 'resume'))} n0")
        named = rng.choice(("", "", "nodelist=n0", "exclude=n0"))
        user = rng.choice(("alice", "bob"))
        transcript.answer(f"submit {user} gpus={rng.randint(0, 3)} cpus={rng.randint(2, 6)} {named}")
        state, at = transcript.fleet.state, transcript.fleet.now
        waiting = list(queue_order(state.durable, at))
        reasons = wait_reasons(state, waiting, at, known)
        assert reasons.keys() == {job.id for job in waiting}
        for job in waiting:
            alone = explain(state, job, at)
            assert reasons[job.id] == (alone.reason, alone.sentence.removeprefix(f"job {job.id} waits because "))
        told |= {reason for reason, _ in reasons.values()}
    return told


def test_a_job_that_does_not_wait_has_no_reason() -> None:
    transcript = Transcript()
    transcript.answer("node n1 gpus=1")
    transcript.answer("submit alice gpus=1")
    durable = transcript.fleet.state.durable
    running = [durable.jobs[job] for job in durable.active]
    assert len(running) == 1
    assert wait_reasons(transcript.fleet.state, running, transcript.fleet.now) == {}
