"""The contract of the store, on every database that can be one."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import closing
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.core.story import sentence
from scheduler.ports import Commit, FinishedQuery, Store
from scheduler.state.durable import Entity, key_of
from scheduler.state.ids import JobId, UserName
from scheduler.state.indexes.equal_jobs import EqualJobs
from scheduler.state.records import JobWarned, NodeForgotten, NodeRegistered, SecretSet, TokenCreated
from scheduler.state.specs import Outcome
from scheduler.state.units import Instant
from scheduler.store import store as store_module
from scheduler.store.errors import StoreCorrupt, StoreLocked, StoreTooNew, TermSuperseded
from scheduler.store.opening import open_store
from scheduler.store.store import SqlStore
from tests.rings.choosing import examples
from tests.store.samples import (
    ONE_OF_EACH,
    START,
    at,
    behind_its_back,
    finish,
    finished,
    held,
    job,
    node,
    request,
    secret,
    submit,
    token,
)


def by_key(entities: object) -> dict[tuple[str, str], Entity]:
    return {key_of(entity): entity for entity in entities}  # type: ignore[attr-defined]


def test_a_new_store_is_empty_and_in_its_first_term(store: SqlStore, database_kind: str) -> None:
    port: Store = store
    assert (port.kind, port.term, port.newest_instant()) == (database_kind, 1, 0)
    assert list(port.load()) == []
    assert port.finished_job(JobId(1)) is None
    assert store.verify() == []


def test_a_record_of_a_kind_that_is_no_longer_written_is_read_as_what_is_written_now(url: str) -> None:
    payload = f'{{"v":1,"at":{at(1)},"job":1,"node":"n1","index":3,"reason":"XID 79"}}'
    with closing(open_store(url)) as store:
        store.commit(Commit(number=1, at=at(1), records=(held(1, 1),)))
    behind_its_back(url, f"UPDATE record SET kind = 'JobDeviceMarked', payload = '{payload}'")
    with closing(open_store(url)) as store:
        [stored] = store.story(JobId(1), 0, 10)
        assert isinstance(stored.record, JobWarned) and stored.record.warning.about == ("n1:3",)
        assert sentence(stored.record) == "GPU 3 of node n1, which it holds, is unhealthy: XID 79."
        assert store.verify() == []


def test_what_was_committed_is_loaded_after_reopening_in_a_higher_term(url: str) -> None:
    with closing(open_store(url)) as first:
        first.commit(Commit(number=1, at=at(1), upserts=ONE_OF_EACH))
        newest = replace(node(), version=2, is_draining=True)
        first.commit(Commit(number=2, at=at(2), upserts=(newest,), deletes=(key_of(token()),)))
    with closing(open_store(url)) as second:
        assert second.term == first.term + 1
        assert second.newest_instant() == at(2)
        expected = {**by_key(ONE_OF_EACH), key_of(newest): newest}
        del expected[key_of(token())]
        assert by_key(second.load()) == expected
        assert second.verify() == []


def test_commit_numbers_begin_at_one_in_every_term_and_sequences_go_on(url: str) -> None:
    for opening in range(3):
        with closing(open_store(url)) as store:
            store.commit(submit(1, job(opening + 1)))
            store.commit(submit(2, job(opening + 11)))
            assert store.story(JobId(opening + 1), 0, 10)[0].sequence == 2 * opening + 1


def test_the_newest_instant_never_falls(store: SqlStore) -> None:
    store.commit(submit(1, job(1), second=9))
    store.commit(submit(2, job(2), second=3))
    assert store.newest_instant() == at(9)


entities = st.one_of(
    st.builds(job, st.integers(1, 4), name=st.text(max_size=4)),
    st.builds(node, st.sampled_from(["n1", "n2"])),
    # Keys that only differ in what an encoding might confuse.
    st.builds(request, st.sampled_from(["", "a", "\x00", "%00", "%2500", "é"]), st.sampled_from(["a", "a%00"])),
)
changes = st.lists(
    st.tuples(st.lists(entities, max_size=4, unique_by=key_of), st.lists(entities.map(key_of), max_size=2)), max_size=5
)


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes)
def test_load_gives_what_the_commits_left(
    store: SqlStore, script: list[tuple[list[Entity], list[tuple[str, str]]]]
) -> None:
    model = by_key(store.load())
    number = store._number
    for upserts, deletes in script:
        gone = [key for key in deletes if key not in by_key(upserts)]
        number += 1
        store.commit(Commit(number=number, at=at(number), upserts=tuple(upserts), deletes=tuple(gone)))
        model.update(by_key(upserts))
        for key in gone:
            model.pop(key, None)
    assert by_key(store.load()) == model
    assert store.verify() == []


def test_a_finished_job_leaves_the_living_and_is_found_among_the_ended(store: SqlStore) -> None:
    ended = finished(job(1), second=5)
    store.commit(submit(1, job(1), job(2)))
    store.commit(finish(2, ended, second=5))
    assert list(store.load()) == [job(2)]
    assert store.finished_job(JobId(1)) == ended
    assert store.finished_job(JobId(2)) is None
    assert store.verify() == []


def test_finished_jobs_come_newest_end_first_and_page_without_gap_or_repeat(store: SqlStore) -> None:
    # Several end in the same microsecond: the id decides.
    ended = [finished(job(number), second=number // 3) for number in range(1, 11)]
    store.commit(finish(1, *ended))
    query = FinishedQuery(limit=4)
    pages = []
    while page := store.finished_jobs(query):
        pages.append([each.id for each in page])
        last = page[-1]
        query = replace(query, before=(last.state.at, last.id))  # type: ignore[union-attr]
    assert pages == [[10, 9, 8, 7], [6, 5, 4, 3], [2, 1]]


def test_finished_jobs_are_found_by_user_name_and_outcome(store: SqlStore) -> None:
    store.commit(
        finish(
            1,
            finished(job(1, user="alice", name="a"), 1, Outcome.FAILED),
            finished(job(2, user="bob", name="a"), 2),
            finished(job(3, user="alice", name="b\x00b"), 3, Outcome.CANCELLED),
            finished(job(4, user="alice", name="a"), 4),
        )
    )

    def found(query: FinishedQuery) -> list[int]:
        return [each.id for each in store.finished_jobs(query)]

    assert found(FinishedQuery(user=UserName("alice"))) == [4, 3, 1]
    assert found(FinishedQuery(name="a")) == [4, 2, 1]
    assert found(FinishedQuery(name="b\x00b")) == [3]
    assert found(FinishedQuery(user=UserName("alice"), name="a")) == [4, 1]
    assert found(FinishedQuery(outcomes=(Outcome.FAILED, Outcome.CANCELLED))) == [3, 1]
    assert found(FinishedQuery(user=UserName("carol"))) == []


def test_a_story_is_read_in_order_and_in_pieces(store: SqlStore) -> None:
    store.commit(submit(1, job(1), job(2)))
    store.commit(Commit(number=2, at=at(1), records=(held(1, 1), held(2, 1), held(1, 2))))
    whole = store.story(JobId(1), 0, 10)
    assert [type(each.record).__name__ for each in whole] == ["JobQueued", "JobHeld", "JobHeld"]
    assert [each.at for each in whole] == [at(0), at(1), at(2)]
    assert whole[0].record == submit(1, job(1)).records[0]
    assert store.story(JobId(1), whole[0].sequence, 1) == whole[1:2]
    assert store.story(JobId(3), 0, 10) == []


def test_records_of_some_kinds_come_newest_first(store: SqlStore) -> None:
    joined = NodeRegistered(at=at(1), node=node())
    made = TokenCreated(at=at(2), token=token(), by=UserName("root"))
    gone = NodeForgotten(at=at(3), node=node().name, by=UserName("root"))
    store.commit(Commit(number=1, at=at(3), records=(joined, held(1), made, held(1), gone)))
    kinds = ["NodeRegistered", "NodeForgotten", "TokenCreated"]
    newest = store.records_of_kinds(kinds, None, 2)
    assert [each.record for each in newest] == [gone, made]
    assert [each.record for each in store.records_of_kinds(kinds, newest[-1].sequence, 2)] == [joined]
    assert store.records_of_kinds([], None, 2) == []


def test_a_commit_is_done_once_however_often_it_is_called(store: SqlStore) -> None:
    commit = submit(1, job(1))
    for _ in range(3):
        store.commit(commit)
    store.commit(submit(2, job(2)))
    store.commit(commit)
    assert [each.sequence for number in (1, 2) for each in store.story(JobId(number), 0, 10)] == [1, 2]


def test_a_commit_that_skips_a_number_is_refused(store: SqlStore) -> None:
    store.commit(submit(1, job(1)))
    with pytest.raises(StoreCorrupt, match="commit 3 does not follow commit 1"):
        store.commit(submit(3, job(3)))
    assert list(store.load()) == [job(1)]


def test_a_commit_that_contradicts_the_store_changes_nothing_and_names_the_trouble(store: SqlStore) -> None:
    store.commit(finish(1, finished(job(1), 1)))
    twice = replace(finish(2, finished(job(1), 2)), upserts=(node(),))
    with pytest.raises(StoreCorrupt, match="finished_job"):
        store.commit(twice)
    assert list(store.load()) == []
    assert len(store.story(JobId(1), 0, 10)) == 1


def test_a_superseded_scheduler_can_change_nothing(store: SqlStore, url: str) -> None:
    store.commit(finish(1, finished(job(1), 1)))
    behind_its_back(url, "UPDATE meta SET term = term + 1, commit_number = 0")
    with pytest.raises(TermSuperseded, match="in term 2; the term of this one is 1"):
        store.commit(submit(2, job(2)))
    with pytest.raises(TermSuperseded):
        store.prune(at(100))
    assert list(store.load()) == []
    assert store.finished_job(JobId(1)) is not None


def test_a_second_scheduler_on_the_store_is_refused_and_told_who_holds_it(url: str) -> None:
    with closing(open_store(url)) as first:
        with pytest.raises(StoreLocked, match=rf"pid {os.getpid()} on {socket.gethostname()[:24]}"):
            open_store(url)
        first.commit(submit(1, job(1)))
    with closing(open_store(url)) as again:
        assert list(again.load()) == [job(1)]


@pytest.mark.parametrize(
    ("tampering", "complaint"),
    [
        ("UPDATE meta SET format = 99", "format 99 and this program knows 1"),
        (
            "UPDATE schema_revision SET version_num = '9999'",
            "a newer version of this program made the store's tables: .*9999.* or restore the backup",
        ),
    ],
)
def test_a_store_of_a_newer_version_is_left_alone(url: str, tampering: str, complaint: str) -> None:
    with closing(open_store(url)) as store:
        store.commit(submit(1, job(1)))
    behind_its_back(url, tampering)
    for _ in range(2):  # the refused opening has let go of the lock
        with pytest.raises(StoreTooNew, match=complaint):
            open_store(url)
    assert behind_its_back(url, "SELECT term FROM meta") == [(1,)]


def test_pruning_drops_old_ended_jobs_and_records_of_that_age_whose_job_is_gone(store: SqlStore) -> None:
    joined = NodeRegistered(at=at(1), node=node())
    store.commit(submit(1, job(1), job(2), job(3), second=1))
    store.commit(Commit(number=2, at=at(1), records=(joined,)))
    store.commit(finish(3, finished(job(1), 10), second=10))
    store.commit(finish(4, finished(job(2), 20), second=20))
    assert store.prune(at(20)) == 2
    assert store.prune(at(20)) == 0
    assert store.finished_job(JobId(1)) is None
    assert store.story(JobId(1), 0, 10) == []
    assert store.records_of_kinds(["NodeRegistered"], None, 10) == []
    assert store.finished_job(JobId(2)) is not None
    assert len(store.story(JobId(2), 0, 10)) == 2
    assert len(store.story(JobId(3), 0, 10)) == 1
    store.commit(submit(5, job(5)))
    assert store.verify() == []


def test_one_call_of_prune_is_bounded(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "PRUNED_JOBS_MAX", 2)
    store.commit(finish(1, *(finished(job(number), number) for number in range(1, 6))))
    assert [store.prune(at(100)) for _ in range(4)] == [2, 2, 1, 0]


def test_readers_see_whole_commits_while_others_are_made(store: SqlStore) -> None:
    torn: list[object] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen = list(store.load())
            if len({entity.version for entity in seen}) > 1:  # type: ignore[union-attr]
                torn.append(seen)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(1, 80):
        store.commit(submit(number, *(replace(job(each), version=number) for each in (1, 2, 3))))
    done.set()
    for reader in readers:
        reader.join()
    assert torn == []


@pytest.mark.parametrize(
    ("tampering", "complaint"),
    [
        ("UPDATE entity SET payload = '{\"v\":1}' WHERE kind = 'node'", "entity node n1: Node: missing field 'name'"),
        ("UPDATE entity SET id = '7' WHERE kind = 'job'", "entity job 7: its payload belongs to ('job', '8')"),
        ("UPDATE entity SET kind = 'robot' WHERE kind = 'node'", "entity robot n1: no class is stored under this kind"),
        ("UPDATE finished_job SET outcome = 'FAILED'", "finished_job 5: its columns differ from its payload"),
        ("UPDATE finished_job SET payload = '{'", "finished_job 5: Job: not JSON"),
        ("UPDATE record SET at_us = 3 WHERE seq = 1", "record 1: its columns differ from its payload"),
        ("UPDATE record SET kind = 'JobLost' WHERE seq = 1", "record 1 JobLost: no class is stored under this kind"),
        ("UPDATE meta SET record_seq = 1", "the newest sequence is 2, beyond that of the last commit, 1"),
        ("DELETE FROM meta", "meta: 0 rows instead of one"),
        ("UPDATE entity SET payload = '{\"v\":7}' WHERE kind = 'node'", "entity node n1: Node is of format 7"),
    ],
)
def test_verify_names_what_is_wrong(store: SqlStore, url: str, tampering: str, complaint: str) -> None:
    store.commit(Commit(number=1, at=at(1), upserts=ONE_OF_EACH))
    store.commit(submit(2, job(5), second=1))
    store.commit(finish(3, finished(job(5), 2), second=2))
    assert store.verify() == []
    behind_its_back(url, tampering)
    problems = store.verify()
    assert len(problems) == 1, problems
    assert complaint in problems[0]


def test_verify_finds_a_job_among_its_equals_that_has_come_to_differ(store: SqlStore) -> None:
    equal = EqualJobs(first=job(5), spans=((JobId(5), JobId(8)),))
    store.commit(Commit(number=1, at=at(1), upserts=(equal, job(9))))
    assert store.verify() == []
    assert set(store.load()) == {equal, job(9)}
    store.commit(submit(2, job(6), second=2))
    assert store.verify() == ["job 6 is stored by itself and among its equals"]


def test_verify_finds_a_job_that_lives_and_has_ended(store: SqlStore) -> None:
    store.commit(finish(1, finished(job(5), 2), second=2))
    store.commit(submit(2, job(5), second=2))
    assert store.verify() == ["job 5 is stored as living and as ended"]


def test_loading_what_cannot_be_read_names_the_row(store: SqlStore, url: str) -> None:
    store.commit(Commit(number=1, at=Instant(START), upserts=(node("n1"), node("n2"))))
    behind_its_back(url, "UPDATE entity SET payload = '[]' WHERE id = 'n2'")
    with pytest.raises(StoreCorrupt, match="entity node n2: Node: "):
        list(store.load())


def test_the_story_of_a_secret_has_nothing_of_what_was_sealed_and_a_removed_one_is_gone(store: SqlStore) -> None:
    kept = secret()
    told = SecretSet(at=at(1), secret=kept, by=kept.user)
    store.commit(Commit(number=1, at=at(1), records=(told,), upserts=(kept,)))
    assert list(store.load()) == [kept]
    (stored,) = store.records_of_kinds(["SecretSet"], None, 10)
    assert stored.record == SecretSet(at=at(1), secret=replace(kept, sealed=b""), by=kept.user)
    store.commit(Commit(number=2, at=at(2), deletes=(key_of(kept),)))
    assert list(store.load()) == []
