"""Jobs that are chosen by what they are: counted before a person is asked, read by pages, told in lots."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from gpufleet.v1 import job_pb2, scheduler_pb2

from tests.cli.cluster import spec
from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import FakeScheduler

MANY = 100_000
STATES = {name[10:].lower(): number for name, number in job_pb2.JobState.items()}


def job(job_id: int, state: str = "queued", user: str = "ada", name: str = "sweep", **counts: int) -> job_pb2.Job:
    made = job_pb2.Job(id=job_id, user=user, spec=spec("true", name=name), state=STATES[state])
    made.spec.labels["team"] = "vision" if job_id % 2 else "audio"
    if counts:
        made.array_counts.CopyFrom(job_pb2.ArrayCounts(items=sum(counts.values()), **counts))
    return made


@pytest.fixture
def people(fake: FakeScheduler) -> FakeScheduler:
    """Ada's jobs 1 to 4, her array 10 of 101 items, of which one runs, and grace's job 5."""
    jobs = [job(1), job(2), job(3, "running"), job(4, name="other"), job(5, user="grace")]
    jobs.append(job(10, "running", queued=99, running=1, succeeded=1))
    fake.jobs = {each.id: each for each in jobs}
    fake.server = scheduler_pb2.GetServerInfoResponse(user="ada")
    fake.items = [
        scheduler_pb2.ArrayItem(index=number, job_id=11 + number, state=STATES["queued"]) for number in range(2, 101)
    ]
    return fake


def ids(fake: FakeScheduler, method: str) -> list[int]:
    return [job_id for request in fake.asked(method) for job_id in request.jobs.job_ids]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("--name sweep", [1, 2, 3, 10]),
        ("--name sweep --label team=vision", [1, 3]),
        ("--state running", [3]),
        ("--user grace", [5]),
        ("--array 10", [10]),
        ("--state queued --name sweep", [1, 2, *range(13, 112)]),
        ("--array 10 --state queued", list(range(13, 112))),
        ("--array 10 --state queued,running", [10]),
        ("--name nobody", []),
    ],
)
def test_those_are_meant_that_all_filters_let_through_and_an_array_as_a_whole_where_all_of_it_is(
    gpuctl: Gpuctl, people: FakeScheduler, typed: str, meant: list[int]
) -> None:
    if "--state running" in typed:
        people.items = []  # its running item has ended meanwhile
    assert gpuctl("cancel", *typed.split(), "--yes").code == 0
    assert ids(people, "Cancel") == meant


@pytest.mark.parametrize(
    ("typed", "method"),
    [
        ("hold", "UpdateJob"),
        ("release", "UpdateJob"),
        ("requeue", "RequeueJob"),
        ("signal USR1", "SignalJob"),
        ("band low", "UpdateJob"),
    ],
)
def test_every_command_that_changes_jobs_takes_filters(
    gpuctl: Gpuctl, people: FakeScheduler, typed: str, method: str
) -> None:
    people.changes = [scheduler_pb2.JobChange(job_id=1, state=STATES["running"], message="job 1 cannot be")]
    done = gpuctl(*typed.split(), "--name", "other", "--yes")
    # Of those that are chosen so, those that can be changed are meant.
    assert (done.code, ids(people, method)) == (0, [4])


def test_a_job_that_must_not_run_twice_refuses_to_be_queued_again(gpuctl: Gpuctl, people: FakeScheduler) -> None:
    people.changes = [scheduler_pb2.JobChange(job_id=3, state=STATES["running"], message="job 3 must not run twice")]
    refused = gpuctl("requeue", "3")
    assert (refused.code, refused.text) == (4, "job 3 must not run twice\n")
    people.changes = [scheduler_pb2.JobChange(job_id=1, state=STATES["queued"], message="job 1 waits already")]
    assert gpuctl("requeue", "1").code == 0


def test_off_a_terminal_it_needs_a_yes_and_asks_nobody(gpuctl: Gpuctl, people: FakeScheduler) -> None:
    refused = gpuctl("cancel", "--name", "sweep")
    assert refused.code == 2 and "Say --yes if that is meant." in refused.err and not people.calls


def test_a_hundred_thousand_jobs_are_read_by_pages_and_told_in_lots(gpuctl: Gpuctl, fake: FakeScheduler) -> None:
    fake.server = scheduler_pb2.GetServerInfoResponse(user="ada")
    fake.jobs = {number: job(number) for number in range(1, MANY + 1)}
    assert gpuctl("cancel", "--name", "sweep", "--yes").code == 0
    assert len(fake.asked("Queue")) == MANY // 1_000
    assert [len(request.jobs.job_ids) for request in fake.asked("Cancel")] == [10_000] * 10
    assert ids(fake, "Cancel") == list(range(1, MANY + 1))
    refused = gpuctl("wait", "--name", "sweep")
    assert refused.code == 125 and "100,000 jobs are more than 10,000 at once" in refused.err


def over(job_id: int, code: int, *, age_s: int = 60, **how: Any) -> job_pb2.Job:
    """A job that ended so long ago."""
    made = job(job_id, "failed" if code else "succeeded", **how)
    made.exit.code = code
    made.end_time.FromDatetime(datetime.now(UTC) - timedelta(seconds=age_s))
    return made


@pytest.mark.parametrize(
    ("typed", "code", "says"),
    [
        ("--name train", 3, "waiting for 2 jobs, 2 of which have ended"),
        ("--label team=audio --name train", 3, "waiting for 1 job, 1 of which has ended"),
        ("--name train --since 30d", 9, "waiting for 3 jobs, 3 of which have ended"),
        ("--name train --user grace", 0, "waiting for 1 job, 1 of which has ended"),
        ("--array 10", 4, "waiting for 3 jobs, 3 of which have ended"),
    ],
)
def test_wait_counts_what_ended_before_it_was_asked(
    gpuctl: Gpuctl, fake: FakeScheduler, typed: str, code: int, says: str
) -> None:
    fake.server = scheduler_pb2.GetServerInfoResponse(user="ada")
    array = over(10, 4, name="sweep")
    array.array_counts.CopyFrom(job_pb2.ArrayCounts(items=3, failed=1, succeeded=2))
    jobs = [
        over(5, 0, user="grace", name="train"),
        over(1, 0, name="train"),
        over(2, 3, name="train"),
        over(4, 1, name="other"),
        array,
        over(3, 9, age_s=86_400 * 2, name="train"),
    ]
    fake.jobs = {each.id: each for each in jobs}
    done = gpuctl("wait", *typed.split())
    assert (done.code, done.out) == (code, b"") and says in done.err


@pytest.mark.parametrize("typed", ["--name nobody", "--label team=nobody", "--user nobody", "--array 12 --user nobody"])
def test_to_find_no_job_to_wait_for_is_an_error(gpuctl: Gpuctl, people: FakeScheduler, typed: str) -> None:
    people.jobs[12] = job(12, "running", running=1)
    refused = gpuctl("wait", *typed.split())
    assert refused.code == 125 and "no job is chosen by these options" in refused.err
    assert not people.asked("Watch")


@pytest.mark.parametrize("typed", ["--array 10 --since 1d", "--user ada --since 1d", "1 --since 1d"])
def test_how_far_back_ended_jobs_count_is_for_names_and_labels(
    gpuctl: Gpuctl, people: FakeScheduler, typed: str
) -> None:
    refused = gpuctl("wait", *typed.split())
    assert refused.code == 125 and "--since: is for jobs that are chosen by --name or --label" in refused.err


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("cancel", "no job is named"),
        ("cancel 41 --name sweep", '"41" is named, and jobs are chosen by what they are, too'),
        ("hold --state failed --yes", "a job that has ended stays as it is"),
        ("hold --state runing --yes", '"runing" is no state of a job; did you mean "running"?'),
        ("release --label team --yes", '"team" is not NAME=VALUE'),
        ("cancel --array 4 --yes", "job 4 is no array"),
    ],
)
def test_what_does_not_go_together_is_refused_and_changes_nothing(
    gpuctl: Gpuctl, people: FakeScheduler, typed: str, says: str
) -> None:
    refused = gpuctl(*typed.split())
    assert refused.code in (2, 4) and says in refused.err
    assert not people.asked("Cancel") and not people.asked("UpdateJob")


def test_all_that_wait_since_the_database_was_put_back_are_released_by_one_line(
    people: FakeScheduler, gpuctl: Gpuctl
) -> None:
    assert gpuctl("release", "--restored", "--yes").code == 0
    assert not people.asked("UpdateServer"), "no job waits so"
    people.server.store_gap.jobs_below = 41
    unsure = gpuctl("release", "--restored")
    assert unsure.code == 2 and "done twice" in unsure.err and "--yes" in unsure.err
    both = gpuctl("release", "3", "--restored", "--yes")
    assert both.code == 2 and "--restored" in both.err
    assert not people.asked("UpdateServer")
    done = gpuctl("release", "--restored", "--yes")
    assert done.code == 0 and done.text == "jobs below 41 wait for no node any more\n"
    assert [each.releases_gap for each in people.asked("UpdateServer")] == [True]
