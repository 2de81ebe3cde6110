"""`logs`: the job's bytes, or lines with the job's id before them."""

from __future__ import annotations

import threading

from gpufleet.v1 import job_pb2, scheduler_pb2

from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import Break, FakeScheduler, Fault, Gap, Piece, Until, ended, job

OUT = [Piece(b"a\n\xff\n"), Piece(b"oops\n", job_pb2.STREAM_STDERR), Piece(b"b")]


def test_what_there_is_is_shown_and_left(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.jobs[1], fake.output[1] = job(1), list(OUT)
    done = gpuctl("logs", "1")
    assert (done.code, done.out, done.err) == (0, b"a\n\xff\nb", "oops\n")
    assert not fake.asked("StreamOutput")[0].follow


def test_without_a_job_the_newest_is_meant(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.jobs = {1: job(1), 7: job(7)}
    fake.output = {1: [Piece(b"old")], 7: [Piece(b"new")]}
    assert gpuctl("logs").out == b"new"


def test_one_stream_alone(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.jobs[1], fake.output[1] = job(1), list(OUT)
    done = gpuctl("logs", "1", "--stderr")
    assert (done.out, done.err) == (b"", "oops\n")


def test_following_ends_with_the_job_and_its_code_is_no_failure_of_ours(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.jobs[1], fake.output[1] = ended(1, code=2), [*OUT, Break()]
    done = gpuctl("logs", "-f", "1")
    assert (done.code, done.out) == (0, b"a\n\xff\nb")
    assert done.err == "oops\ngpuctl: job 1 failed with exit code 2 (EXITED)\n"


def test_several_jobs_have_their_ids_before_whole_lines(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.jobs = {1: ended(1), 2: ended(2)}
    fake.output = {1: [Piece(b"one a"), Piece(b"nd a half\nlast")], 2: [Piece(b"two\n"), Piece(b"rank\n", rank=1)]}
    done = gpuctl("logs", "-f", "1-2")
    assert sorted(done.out.splitlines()) == [b"1| last", b"1| one and a half", b"2.1| rank", b"2| two"]


def test_raw_has_no_prefix_and_no_remark(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.jobs = {1: ended(1, code=1), 2: ended(2)}
    fake.output = {1: [Piece(b"1\n"), Gap(7)], 2: [Piece(b"2\n")]}
    done = gpuctl("logs", "--raw", "1", "2")
    assert (done.out, done.err) == (b"1\n2\n", "")


def test_tail_and_since_are_asked_once_and_offsets_after_a_lost_connection(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.jobs[1], fake.output[1] = ended(1), [Piece(b"x\n"), Break(), Piece(b"y\n")]
    assert gpuctl("logs", "-f", "--tail", "3", "--since", "10m", "--rank", "0", "1").out == b"x\ny\n"
    first, second = fake.asked("StreamOutput")
    assert (first.tail_lines, first.rank, first.HasField("since_time")) == (3, 0, True)
    assert second.positions[0].offset == 2
    assert not second.HasField("tail_lines") and not second.HasField("since_time") and second.HasField("rank")


def test_an_unknown_job_is_not_found(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    done = gpuctl("logs", "-f", "99")
    assert (done.code, done.err.splitlines()[0]) == (3, "gpuctl: there is no job 99")
    assert gpuctl("logs", "-f", "98", "99").code == 3


def test_a_programs_log(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.logs.append(b"10:00 INFO node n1 joined\nand a line without an end")
    assert gpuctl("logs", "--program", "agent:n1").out == b"10:00 INFO node n1 joined\nand a line without an end"
    assert fake.asked("StreamOutput")[0].program == scheduler_pb2.ProgramSelector(program="agent", node="n1")
    refused = gpuctl("logs", "--program", "agent")
    assert refused.code == 2 and "agent:NODE" in refused.err


def test_a_log_that_is_followed_goes_on_after_a_restart_and_shows_each_line_once(
    fake: FakeScheduler, gpuctl: Gpuctl
) -> None:
    lines = [
        b"2026-03-04T15:00:00.001Z INFO a\n",
        b"2026-03-04T15:00:00.002Z ERROR b\n    a traceback\n    of two lines\n",
        b"2026-03-04T15:00:00.002Z INFO c, in the same millisecond\n",
        b'{"time": "2026-03-04T15:00:00.003Z", "message": "d, as JSON"}\n',
        b"2026-03-04T15:00:00.004Z INFO e, cut in the mid",
    ]
    fake.logs += [b"".join(lines[:2]), b"".join(lines), b"".join(lines) + b"dle\n"]
    done = gpuctl("logs", "--program", "scheduler", "-f", "--tail", "2", "--session-timeout", "2s")
    assert done.out == b"".join(lines) + b"dle\n"
    asked = fake.asked("StreamOutput")
    assert [request.tail_lines for request in asked[:3]] == [2, 1000, 1000]


def test_giving_up_is_125_and_says_how_to_come_back(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.jobs[1], fake.output[1] = job(1), [Until(threading.Event())]
    fake.faults["GetJob"] += [Fault.HANG] * 3
    done = gpuctl(
        *("logs", "-f", "--max-wait-time", "1s", "--connection-timeout", "100ms"),
        *("--max-consecutive-timeouts", "2", "1"),
    )
    assert done.code == 125 and "Come back with: gpuctl logs -f 1" in done.err
