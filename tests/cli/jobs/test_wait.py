"""`wait`: until all have ended, and the highest of their codes."""

from __future__ import annotations

import json
import threading

from gpufleet.v1 import job_pb2, scheduler_pb2

from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import Break, FakeScheduler, Fault, Until, ended, job


def changed(final: job_pb2.Job) -> scheduler_pb2.WatchResponse:
    return scheduler_pb2.WatchResponse(event=scheduler_pb2.WATCH_EVENT_CHANGED, job=final, resume_token=f"{final.id}")


SYNCED = scheduler_pb2.WatchResponse(event=scheduler_pb2.WATCH_EVENT_SYNCED, resume_token="0")


def snapshot(known: job_pb2.Job) -> scheduler_pb2.WatchResponse:
    return scheduler_pb2.WatchResponse(event=scheduler_pb2.WATCH_EVENT_SNAPSHOT, job=known)


def test_jobs_that_have_ended_are_not_waited_for(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.jobs = {1: ended(1, code=3), 2: ended(2)}
    done = gpuctl("wait", "1-2")
    assert (done.code, done.out) == (3, b"")
    assert "job 1 failed with exit code 3" in done.err and not fake.asked("Watch")


def test_the_highest_code_of_all_is_ours(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.jobs = {1: job(1), 2: job(2), 3: ended(3, code=1)}
    cancelled = job(2, job_pb2.JOB_STATE_CANCELLED, exit_reason="CANCELLED")
    fake.watch = [snapshot(job(1)), snapshot(job(2)), SYNCED, changed(ended(1, code=4)), Break(), changed(cancelled)]
    assert gpuctl("wait", "1", "2", "3").code == 125
    assert fake.asked("Watch")[-1].resume_token == "1"


def test_a_job_that_ends_between_two_looks_is_found_in_its_record(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.jobs = {1: job(1)}

    def end() -> None:
        fake.jobs[1] = ended(1, code=7)

    fake.watch = [end, SYNCED]
    assert gpuctl("wait", "1").code == 7


def test_a_job_that_left_the_stream_is_looked_up(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.jobs = {1: job(1)}
    removed = scheduler_pb2.WatchResponse(event=scheduler_pb2.WATCH_EVENT_REMOVED, job=job(1))

    def end() -> None:
        fake.jobs[1] = ended(1, code=8)

    fake.watch = [snapshot(job(1)), SYNCED, end, removed]
    assert gpuctl("wait", "1").code == 8


def test_json_gives_each_job_as_it_ends(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.jobs = {1: ended(1, code=3)}
    shown = json.loads(gpuctl("wait", "-o", "jsonl", "1").out)
    assert (shown["id"], shown["exit"], shown["exit_reason"]) == ("1", {"code": 3}, "EXITED")


def test_an_unknown_job_is_a_failure_of_waiting(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    assert gpuctl("wait", "5").code == 125


def test_a_session_time_out_is_125_and_no_job_ends_by_it(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.jobs = {1: job(1)}
    fake.watch = [snapshot(job(1)), SYNCED, Until(threading.Event())]
    done = gpuctl("wait", "--session-timeout", "1s", "1")
    assert done.code == 125
    assert "job 1 goes on. Wait again with: gpuctl wait 1" in done.err


def test_a_scheduler_that_stays_away_is_given_up(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.jobs = {1: job(1)}
    fake.watch = [snapshot(job(1)), SYNCED, Until(threading.Event())]

    def hang_from_now_on(request: object) -> None:
        fake.faults["GetJob"] += [Fault.HANG] * 9

    fake.before["Watch"] = hang_from_now_on
    done = gpuctl(
        *("wait", "--max-wait-time", "1s", "--connection-timeout", "2s", "--max-consecutive-timeouts", "2", "1")
    )
    assert done.code == 125 and "did not answer for 4 s" in done.err


def test_names_and_last_are_asked_for(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.jobs = {1: ended(1, code=1, spec=job_pb2.JobSpec(argv=["x"], name="train")), 2: ended(2, code=2)}
    assert gpuctl("wait", "train").code == 1
    assert gpuctl("wait", "last").code == 2
