"""Equal jobs are shown as the jobs they are, whatever happened to some of them, and cost one entity."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from scheduler.state.apply import apply
from scheduler.state.durable import Durable, load
from scheduler.state.ids import JobId, UserName
from scheduler.state.indexes.equal_jobs import EqualJobs, Jobs
from scheduler.state.jobs import Finished, Held, Job, Queued
from scheduler.state.records import JobFinished, JobHeld, JobQueued, JobReleased
from scheduler.state.specs import Band, JobSpec, Outcome
from scheduler.state.units import Instant

NOW = Instant(1_000_000)
MANY = 10_000


def job(number: int) -> Job:
    return Job(
        id=JobId(number),
        user=UserName("alice"),
        spec=JobSpec(argv=("true",), name="true", cwd="/"),
        band=Band.NORMAL,
        submitted_at=NOW,
        state=Queued(),
    )


@given(st.lists(st.integers(1, 12), max_size=12), st.lists(st.tuples(st.integers(1, 9), st.booleans()), max_size=30))
def test_the_mapping_shows_each_job_as_if_it_were_stored_by_itself(
    sizes: list[int], parted: list[tuple[int, bool]]
) -> None:
    jobs, model, begin = Jobs(), dict[JobId, Job](), 1
    for size in sizes:
        if size == 1:
            jobs.put(job(begin))
        else:
            jobs.put_equals(EqualJobs(first=job(begin), spans=((JobId(begin), JobId(begin + size)),)))
        model |= {JobId(number): job(number) for number in range(begin, begin + size)}
        begin += size
    for step, ends in parted:
        job_id = JobId(1 + step * 7 % begin)
        jobs.part(job_id)
        jobs.pop(job_id)
        known = model.pop(job_id, None)
        if known is not None and not ends:
            model[job_id] = replace(known, state=Held())
            jobs.put(model[job_id])
    assert jobs == model
    assert len(jobs) == len(model) == len(list(jobs))
    assert [number in jobs for number in range(begin + 2)] == [number in model for number in range(begin + 2)]
    for entity in jobs.entities():
        if isinstance(entity, EqualJobs):
            assert entity.spans, "what has nobody left is dropped"
            assert all(one[1] < other[0] for one, other in zip(entity.spans, entity.spans[1:], strict=False))


def test_many_equal_jobs_are_one_entity_and_each_that_differs_one_more() -> None:
    state = Durable()
    apply(state, JobQueued(at=NOW, job=job(1), count=MANY))
    assert set(state.touched) == {("counters", "jobs"), ("equal_jobs", "1")}
    assert (len(state.jobs), state.lines.count, state.counters.next_job) == (MANY, MANY, MANY + 1)
    state.touched.clear()
    apply(state, JobHeld(at=NOW, job=JobId(500), by=UserName("alice")))
    assert set(state.touched) == {("equal_jobs", "1"), ("job", "500")}
    assert (len(state.jobs), state.lines.count, list(state.held)) == (MANY, MANY - 1, [500])
    apply(state, JobReleased(at=NOW, job=JobId(500), by=UserName("alice")))
    assert len(list(state.jobs.entities())) == 2, "a job that differed once stands for itself for good"
    again = load(state.entities())
    assert (again.jobs, again.lines) == (state.jobs, state.lines)


def test_the_entity_is_gone_with_the_last_of_them() -> None:
    state = Durable()
    apply(state, JobQueued(at=NOW, job=job(1), count=3))
    cancelled = Finished(outcome=Outcome.CANCELLED, at=NOW, reason="CANCELLED")
    for number in (2, 1, 3):
        apply(state, JobFinished(at=NOW, job=JobId(number), finished=cancelled))
    assert state.touched["equal_jobs", "1"] is None
    assert (len(state.jobs), state.lines.count, set(state.finished)) == (0, 0, {1, 2, 3})
