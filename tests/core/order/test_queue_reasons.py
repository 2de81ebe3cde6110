"""A page of the queue says of each waiting job what `explain` says of it alone."""

import random
from collections.abc import Sequence

from scheduler.policy.explain import (
    ARRAY_CAP,
    KEPT_FILES,
    NEARNESS,
    NEXT_PASS,
    USER_CAP,
    WaitReason,
    explain,
    why_deferred,
)
from scheduler.policy.node_cache import NodeCache
from scheduler.policy.order.queue import queue_order
from scheduler.policy.page_reasons import PassReasons, passed_without_consequences
from scheduler.policy.summary import summary
from scheduler.state.ids import JobId, NodeName
from scheduler.state.jobs import Job
from scheduler.state.state import State
from scheduler.state.units import Instant
from tests.core.transcript import Transcript


def wait_reasons(
    state: State, jobs: Sequence[Job], at: Instant, known: NodeCache | None = None
) -> dict[JobId, WaitReason]:
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
    waiting = list(queue_order(state, at))
    assert len(waiting) >= 5
    reasons = wait_reasons(state, waiting, at)
    for job in waiting:
        alone = explain(state, job, at)
        assert reasons[job.id][0] == alone.reason
        assert alone.sentence == f"job {job.id} waits because {reasons[job.id][1]}"


def test_the_first_that_waits_is_told_the_node_on_which_it_starts_soonest() -> None:
    transcript = Transcript()
    for line in (
        "node n1 gpus=2",
        "node n2 gpus=2",
        "submit alice gpus=2 time-limit=5h",
        "submit alice gpus=2 time-limit=30m",
        "submit bob gpus=1",
        "submit carol gpus=1",
    ):
        transcript.answer(line)
    state, at = transcript.fleet.state, transcript.fleet.now
    first, second = queue_order(state, at)
    reasons = wait_reasons(state, [first, second], at)
    assert summary(first, reasons[first.id]) == "waits for 1 GPU on n2"
    assert reasons[first.id].clause == "node n2 has no free GPU (2 in use), and 1 other node takes it no sooner"
    assert explain(state, first, at).sentence.endswith(reasons[first.id].clause)
    assert explain(state, second, at).sentence.endswith(reasons[second.id].clause)


def test_what_a_walk_remembers_of_the_nodes_changes_no_reason() -> None:
    told = {reason for seed in range(12) for reason in reasons_told(random.Random(seed))}
    assert told >= {"DEVICES_IN_USE", "CPUS_IN_USE", "KEPT_FOR_ANOTHER", "NODE_DRAINING"}


def reasons_told(rng: random.Random) -> set[str]:
    """The reasons in a random story, each as `explain` gives it."""
    transcript, known = Transcript(), NodeCache()
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
        waiting = list(queue_order(state, at))
        reasons = wait_reasons(state, waiting, at, known)
        by_last_pass = transcript.fleet.reasons(waiting)
        for job in waiting:
            assert by_last_pass[job.id] == reasons[job.id]
            alone = explain(state, job, at)
            assert reasons[job.id][:2] == (alone.reason, alone.sentence.removeprefix(f"job {job.id} waits because "))
        told |= {reason.name for reason in reasons.values()}
    return told


SHORT_CHARS_MAX = 40


def test_each_reason_has_words_that_fit_a_column() -> None:
    transcript = Transcript()
    transcript.answer("node n1 gpus=4 cpus=8")
    transcript.answer("submit alice gpus=4 cpus=8 nodes=1 held")
    job = next(iter(transcript.fleet.state.durable.jobs.values()))
    names = (*NEARNESS, "HELD", "BEGIN_TIME", KEPT_FILES, "NO_NODES", "NEVER_FITS", NEXT_PASS, USER_CAP, ARRAY_CAP)
    told = {name: summary(job, WaitReason(name, "because", NodeName("n1"))) for name in names}
    assert all(told.values()) and max(map(len, told.values())) <= SHORT_CHARS_MAX
    in_line = {name for name, words in told.items() if words.startswith("waits for ")}
    in_use = {"DEVICES_IN_USE", "CPUS_IN_USE", "MEMORY_IN_USE", "DEVICE_MEMORY_IN_USE", "DISK_IN_USE"}
    assert in_line == {"KEPT_FOR_ANOTHER", *in_use}


def test_a_story_is_told_in_the_fewest_words() -> None:
    transcript = Transcript()
    for line in STORY.splitlines():
        if line:
            transcript.answer(line)
    transcript.answer("submit erin gpus=1 after=1,2,3:any")
    transcript.answer("submit erin gpus=4 nodes=2")
    state, at = transcript.fleet.state, transcript.fleet.now
    waiting = list(queue_order(state, at))
    reasons = wait_reasons(state, waiting, at)
    told = {summary(job, reasons[job.id]) for job in waiting}
    assert told >= {"waits for 4 GPUs on n1", "n2 drains", "waits for 8 CPUs on n1"}
    assert max(map(len, told)) <= SHORT_CHARS_MAX
    deferred = next(job for job in state.durable.jobs.values() if job.user == "erin" and job.unmet)
    assert summary(deferred, why_deferred(deferred)) == "after 1, 2 and 1 more"
