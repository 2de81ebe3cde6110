"""What the records say of a rank whose node brings what it left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpufleet.jobs.runs import ExitCode
from scheduler.state.attempts import Attempt, EndedAttempt, Placement, Rank, RankExit
from scheduler.state.ids import JobId, NodeName, RankKey, UserName
from scheduler.state.indexes.slots import slot_class
from scheduler.state.jobs import ATTEMPTS_KEPT, Job, Queued, Running
from scheduler.state.results import Claim, claim_of, due_with
from scheduler.state.specs import Band, JobSpec, Resources
from scheduler.state.units import Instant

N1, N2 = NodeName("n1"), NodeName("n2")
EXIT = RankExit(exit=ExitCode(code=0), reason="EXITED")
AT = Instant(7)


def rank_on(node: NodeName, *, ended: bool) -> Rank:
    placement = Placement(node=node, agent_id="a", boot_id="b")
    return Rank(placement=placement, started_at=Instant(2), exit=EXIT if ended else None)


GANG = Attempt(number=3, placed_at=Instant(1), ranks=(rank_on(N1, ended=False), rank_on(N2, ended=True)), lineage="x")


def over(number: int) -> EndedAttempt:
    ranks = (rank_on(N1, ended=True),)
    return EndedAttempt(number=number, placed_at=Instant(1), ended_at=AT, ranks=ranks, reason="EXITED", lineage="x")


def job(past: tuple[EndedAttempt, ...] = (), attempt: Attempt | None = None) -> Job:
    return Job(
        id=JobId(1),
        user=UserName("ann"),
        spec=JobSpec(argv=("true",), name="t", cwd="", resources=Resources(), results=("*",)),
        band=Band.NORMAL,
        submitted_at=Instant(0),
        state=Queued() if attempt is None else Running(attempt=attempt, started_at=Instant(2)),
        attempt_count=20,
        past=past,
    )


def key(attempt: int, rank: int = 0, lineage: str = "x") -> RankKey:
    return RankKey(JobId(1), attempt, rank, lineage)


@pytest.mark.parametrize(
    ("known", "node", "asked", "claim"),
    [
        (job(attempt=GANG), N2, key(3, 1), Claim.ENDED),
        (job(attempt=GANG), N1, key(3, 0), Claim.RUNS),
        (job(attempt=GANG), N1, key(3, 1), Claim.FOREIGN),
        (job(attempt=GANG), N2, key(3, 2), Claim.UNKNOWN),
        (job(attempt=GANG), N2, key(3, 1, "y"), Claim.UNKNOWN),
        (job(past=(over(2),)), N1, key(2), Claim.ENDED),
        (job(past=(over(2),)), N1, key(1), Claim.UNKNOWN),
        (job(past=tuple(over(2 + each) for each in range(ATTEMPTS_KEPT))), N1, key(1), Claim.PASSED),
        (None, N1, key(1), Claim.UNKNOWN),
    ],
)
def test_a_rank_is_known_by_what_the_records_say_of_it(
    known: Job | None, node: NodeName, asked: RankKey, claim: Claim
) -> None:
    assert claim_of(known, None, node, asked) is claim


def test_what_is_awaited_is_taken_however_many_newer_attempts_have_ended() -> None:
    old = over(1)
    due = due_with(None, JobId(1), old, (0,), AT)
    newer = job(past=tuple(over(2 + each) for each in range(ATTEMPTS_KEPT)))
    assert claim_of(newer, due, N1, key(1)) is Claim.ENDED
    assert claim_of(newer, due, N2, key(1)) is Claim.FOREIGN


def test_ranks_are_awaited_as_they_end_and_one_that_never_ran_is_not() -> None:
    first = due_with(None, JobId(1), GANG, (1,), AT)
    assert first is not None and first.ranks == (1,) and first.nodes == (N1, N2)
    both = due_with(first, JobId(1), GANG, (0,), AT)
    assert both is not None and both.ranks == (0, 1)
    never = replace(GANG, ranks=(replace(GANG.ranks[0], started_at=None), GANG.ranks[1]))
    assert due_with(None, JobId(1), never, (0,), AT) is None


def test_of_a_rank_that_its_node_was_told_to_forget_before_nothing_is_awaited() -> None:
    told = replace(GANG.ranks[1], exit=replace(EXIT, is_forgotten=True))
    assert due_with(None, JobId(1), replace(GANG, ranks=(GANG.ranks[0], told)), (1,), AT) is None


def test_a_job_that_keeps_files_waits_in_no_backlog() -> None:
    plain = JobSpec(argv=("true",), name="t", cwd="/", resources=Resources())
    assert slot_class(replace(job(), spec=plain)) is not None
    for leaves in (replace(plain, keep=("*",)), replace(plain, results=("*",))):
        assert slot_class(replace(job(), spec=leaves)) is None, "its files are to be laid out, or brought back"
