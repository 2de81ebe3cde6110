"""Arrays in the store: lists leave out items, an array is found by any of its items, and the story tells both."""

from __future__ import annotations

from dataclasses import replace

from scheduler.ports import Commit, FinishedQuery
from scheduler.state.ids import JobId, UserName
from scheduler.state.indexes.equal_jobs import EqualJobs
from scheduler.state.indices import Indices
from scheduler.state.jobs import Divided, Finished, Items, Job, Queued, Tally, items_alike
from scheduler.state.records import ItemsFinished, ItemsHeld, JobHeld, Record
from scheduler.state.specs import Outcome
from scheduler.store.store import SqlStore
from tests.store.samples import at, finish, finished, held, job, submit

A = JobId(10)


def array(count: int = 5) -> Job:
    items = Items(indices=Indices.of_ranges([range(count)]))
    return replace(job(A), state=Divided(rest=Queued()), items=items)


def item(number: int) -> Job:
    return replace(items_alike(array()), id=JobId(A + number))


def test_lists_of_what_has_ended_show_an_array_and_none_of_its_items(store: SqlStore) -> None:
    ends = [finished(item(1), 3, Outcome.FAILED), finished(item(2), 4), finished(item(4), 5, Outcome.TIMED_OUT)]
    store.commit(finish(1, *ends, finished(job(3), 2), finished(array(), 6), finished(job(20), 7), second=7))
    assert [each.id for each in store.finished_jobs(FinishedQuery())] == [20, A, 3]
    assert [each.id for each in store.finished_jobs(FinishedQuery(user=UserName("alice"), limit=2))] == [20, A]
    assert store.finished_items(A, JobId(A + 2), JobId(A + 4)) == ends[1:]
    assert store.failed_items(A, JobId(A + 5)) == [A + 1, A + 4]
    for number, found in ((A - 1, None), (A, None), (A + 1, A), (A + 5, A), (A + 6, None)):
        there = store.array_with(JobId(number))
        assert (None if there is None else there.id) == found
    assert store.finished_job(JobId(A + 1)) == ends[0]
    assert store.verify() == []
    while store.prune(at(100)):
        pass
    assert store.array_with(JobId(A + 1)) is None and store.finished_items(A, A, JobId(A + 5)) == []


def test_an_items_story_has_what_befell_all_of_them(store: SqlStore) -> None:
    alice = UserName("alice")
    end = Finished(outcome=Outcome.CANCELLED, at=at(4), reason="CANCELLED")
    shared: tuple[Record, ...] = (
        ItemsHeld(at=at(2), array=A, by=alice),
        ItemsFinished(at=at(4), array=A, spans=((JobId(A + 1), JobId(A + 6)),), finished=end),
    )
    store.commit(submit(1, array(), second=1))
    own = JobHeld(at=at(4), job=A, by=alice)
    store.commit(Commit(number=2, at=at(4), records=(*shared, held(A + 1, 4), own)))
    told = [type(each.record).__name__ for each in store.story(JobId(A + 1), 0, 10, A)]
    assert told == ["JobQueued", "ItemsHeld", "ItemsFinished", "JobHeld"]
    equals = [type(each.record).__name__ for each in store.story(JobId(A - 1), 0, 10, A)]
    assert equals == ["JobQueued"], "plain equal jobs share their first record alone"


def test_verify_counts_the_items_of_an_array(store: SqlStore) -> None:
    alike = EqualJobs(first=item(1), spans=((JobId(A + 2), JobId(A + 5)),))
    store.commit(Commit(number=1, at=at(1), upserts=(array(), alike, item(1), Tally(array=A, succeeded=1))))
    assert store.verify() == []
    store.commit(Commit(number=2, at=at(2), upserts=(Tally(array=A, succeeded=2),)))
    assert store.verify() == ["array 10 has 5 items, and 6 are stored as living or counted as ended"]
    store.commit(Commit(number=3, at=at(3), deletes=(("job", str(A)),)))
    assert store.verify() == ["array 10 has items, and is not stored"]
