"""A page of the queue says of each waiting job what `explain` says of it alone."""

import random
from collections.abc import Sequence

from scheduler.policy.explain import Reason, explain
from scheduler.policy.known_nodes import KnownNodes
from scheduler.policy.order import queue_order
from scheduler.policy.page_reasons import PassReasons, passed_without_consequences
from scheduler.state.ids import JobId
from scheduler.state.jobs import Job
from scheduler.state.state import State
from scheduler.state.units import Instant
from tests.core.transcript import Transcript


def wait_reasons(
    state: State, jobs: Sequence[Job], at: Instant, known: KnownNodes | None = None
) -> dict[JobId, Reason]:
    """The reasons by a pass without consequences."""
    reasons = PassReasons(passed_without_consequences(state, at, known))
    return {job.id: reasons.of(job, reasons.trial.caps) for job in jobs}


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
        by_last_pass = transcript.fleet.reasons(waiting)
        for job in waiting:
            assert by_last_pass[job.id] == reasons[job.id]
            alone = explain(state, job, at)
            assert reasons[job.id] == (alone.reason, alone.sentence.removeprefix(f"job {job.id} waits because "))
        told |= {reason for reason, _ in reasons.values()}
    return told
