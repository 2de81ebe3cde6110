"""`logs`: the job's bytes, or lines with the job's id before them."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError, Reason
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


def test_one_attempt_or_all_are_asked_for_and_each_of_several_has_a_line_before_it(
    fake: FakeScheduler, gpuctl: Gpuctl
) -> None:
    fake.jobs[1] = job(1, attempt_count=2)
    fake.output[1] = [Piece(b"one\n", attempt=1), Piece(b"two\n", attempt=2)]
    done = gpuctl("logs", "1", "--all-attempts")
    assert (done.code, done.out, done.err) == (0, b"one\ntwo\n", "gpuctl: attempt 1:\ngpuctl: attempt 2:\n")
    assert gpuctl("logs", "1", "--all-attempts", "--raw").err == ""
    assert gpuctl("logs", "1", "--attempt", "1").err == ""
    asked = [(each.attempt, each.all_attempts) for each in fake.asked("StreamOutput")]
    assert asked == [(0, True), (0, True), (1, False)]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("1", "--attempt", "1", "--all-attempts"), "--all-attempts is given, too"),
        (("--program", "scheduler", "--attempt", "1"), "--attempt: a program's own log has no attempts"),
        (("--program", "scheduler", "--all-attempts"), "--all-attempts: a program's own log has no attempts"),
    ],
)
def test_attempts_that_make_no_sense_are_refused_before_anything_is_asked(
    fake: FakeScheduler, gpuctl: Gpuctl, arguments: tuple[str, ...], says: str
) -> None:
    done = gpuctl("logs", *arguments)
    assert done.code == 2 and says in done.err
    assert not fake.asked("StreamOutput")


def test_following_ends_with_the_job_and_its_code_is_no_failure_of_ours(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.jobs[1], fake.output[1] = ended(1, code=2), [*OUT, Break()]
    done = gpuctl("logs", "-f", "1")
    assert (done.code, done.out) == (0, b"a\n\xff\nb")
    assert done.err == "oops\ngpuctl: job 1 failed with exit code 2 (EXITED)\n"


def test_who_follows_is_told_new_warnings_and_none_that_is_old(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    def warn() -> None:
        fake.jobs[1].warnings.add(kind="THROTTLED", sentence="GPU 0 is slow.", attempt=1)
        fake.jobs[1].version += 1

    fake.jobs[1], fake.output[1] = job(1), [Piece(b"a\n"), warn, Break()]
    fake.output[1].append(lambda: fake.jobs.update({1: ended(1, warnings=fake.jobs[1].warnings)}))
    fake.jobs[1].warnings.add(kind="DEVICES_IDLE", sentence="GPU 0 is idle.", attempt=1)
    done = gpuctl("logs", "-f", "1")
    assert (done.out, done.err) == (b"a\n", "gpuctl: warning, job 1: GPU 0 is slow.\n")
    assert gpuctl("logs", "1").err == ""


def test_who_follows_is_told_that_the_output_is_blocked_why_and_that_it_goes_on(
    fake: FakeScheduler, gpuctl: Gpuctl
) -> None:
    def block(why: str) -> None:
        fake.jobs[1].output_blocked = why

    fake.jobs[1] = job(1, output_blocked="the disk is\x1b full")
    fake.output[1] = [Piece(b"a\n"), lambda: block(""), Break(), lambda: block("no room"), Break()]
    fake.output[1].append(lambda: fake.jobs.update({1: ended(1)}))
    done = gpuctl("logs", "-f", "1")
    assert (done.code, done.out) == (0, b"a\n")
    assert done.err.splitlines() == [
        "gpuctl: the output of job 1 is blocked: the disk is\ufffd full",
        "gpuctl: the output of job 1 goes on",
        "gpuctl: the output of job 1 is blocked: no room",
    ]
    assert gpuctl("logs", "1").err == ""


def test_that_the_output_of_an_item_of_an_array_is_blocked_is_told_once_with_its_name(
    fake: FakeScheduler, gpuctl: Gpuctl
) -> None:
    fake.faults["StreamOutput"].append(GpufleetError(Reason.IS_AN_ARRAY, "job 41 is an array"))
    fake.items = [scheduler_pb2.ArrayItem(index=3, job_id=2, attempt_count=1)]
    fake.jobs[2] = job(2, array_id=41, array_index=3, output_blocked="no room")
    fake.output[2] = [Piece(b"a\n"), Break(), Piece(b"b\n"), Break(), lambda: fake.jobs.update({2: ended(2)})]
    done = gpuctl("logs", "-f", "41")
    assert (done.out, done.err) == (b"41.3| a\n41.3| b\n", "gpuctl: 41.3: the output of job 2 is blocked: no room\n")


def test_several_jobs_have_their_ids_before_whole_lines(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.jobs = {1: ended(1), 2: ended(2)}
    fake.output = {1: [Piece(b"one a"), Piece(b"nd a half\nlast")], 2: [Piece(b"two\n"), Piece(b"rank\n", rank=1)]}
    done = gpuctl("logs", "-f", "1-2")
    assert sorted(done.out.splitlines()) == [b"1| last", b"1| one and a half", b"2[1]| rank", b"2| two"]


def test_raw_has_no_prefix_and_no_remark(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.jobs = {1: ended(1, code=1), 2: ended(2)}
    fake.output = {1: [Piece(b"1\n"), Gap(7)], 2: [Piece(b"2\n")]}
    done = gpuctl("logs", "--raw", "1", "2")
    assert (done.out, done.err) == (b"1\n2\n", "")


def test_tail_is_asked_once_and_offsets_and_since_again_after_a_lost_connection(
    fake: FakeScheduler, gpuctl: Gpuctl
) -> None:
    fake.jobs[1], fake.output[1] = ended(1), [Piece(b"x\n"), Break(), Piece(b"y\n")]
    assert gpuctl("logs", "-f", "--tail", "3", "--since", "10m", "--rank", "0", "1").out == b"x\ny\n"
    first, second = fake.asked("StreamOutput")
    assert (first.tail_lines, first.rank, first.HasField("since_time")) == (3, 0, True)
    assert second.positions[0].offset == 2
    assert not second.HasField("tail_lines") and second.HasField("rank")
    assert second.since_time == first.since_time, "for streams that were not heard of yet"


def test_since_is_a_span_back_from_now_or_a_time(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.jobs[1], fake.output[1] = job(1), list(OUT)
    before = datetime.now(UTC)
    for text in ("10m", "2026-01-31T12:00:00+01:00", "2026-01-31T11:00:00Z", "2026-01-31T11:00:00"):
        assert gpuctl("logs", "1", "--since", text).code == 0
    span, *times, local = (each.since_time.ToDatetime(UTC) for each in fake.asked("StreamOutput"))
    assert timedelta(0) <= span - (before - timedelta(minutes=10)) <= datetime.now(UTC) - before
    assert times == [datetime(2026, 1, 31, 11, tzinfo=UTC)] * 2
    assert local == datetime(2026, 1, 31, 11).astimezone(UTC), "a time without a zone is of this machine's"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is not a duration"),
        ("yesterday", "is not a duration"),
        ("10", "10 has no unit"),
        ("-5m", "is not a duration"),
        ("2026-02-31", "is not a duration"),
        ("9000-01-01", '"9000-01-01" is in the future'),
        ("0001-01-01T00:00:00+14:00", "is beyond the years 1 to 9999"),
    ],
)
def test_a_wrong_since_is_refused_before_anything_is_asked(
    fake: FakeScheduler, gpuctl: Gpuctl, text: str, why: str
) -> None:
    refused = gpuctl("logs", "1", f"--since={text}")
    assert refused.code == 2 and not fake.asked("StreamOutput")
    assert refused.err.startswith("gpuctl: --since: ") and why in refused.err
    assert "Write a span such as 10m, or a time such as 2026-01-31T12:00:00+01:00." in refused.err


def test_an_unknown_job_is_not_found(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    done = gpuctl("logs", "-f", "99")
    assert (done.code, done.err.splitlines()[0]) == (3, "gpuctl: there is no job 99")
    assert gpuctl("logs", "-f", "98", "99").code == 3


def test_what_makes_an_environment_is_asked_for_and_followed(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.jobs, fake.output = {1: ended(1)}, {1: [Piece(b"Successfully installed\n")]}
    assert gpuctl("logs", "--setup", "--tail", "5", "1").out == b"Successfully installed\n"
    (asked,) = fake.asked("StreamOutput")
    assert (asked.of_setup, asked.tail_lines) == (True, 5)
    assert gpuctl("logs", "--setup", "-f", "1").out == b"Successfully installed\n"
    asked = fake.asked("StreamOutput")[-1]
    assert (asked.of_setup, asked.follow) == (True, True)
    for option in (("--since", "1h"), ("--stderr",), ("--all-attempts",), ("--program", "scheduler")):
        refused = gpuctl("logs", "--setup", *option)
        assert refused.code == 2 and "Leave out --" in refused.err, refused.err


def test_a_programs_log(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.logs.append(b"10:00 INFO node n1 joined\nand a line without an end")
    assert gpuctl("logs", "--program", "agent:n1").out == b"10:00 INFO node n1 joined\nand a line without an end"
    assert fake.asked("StreamOutput")[0].program == scheduler_pb2.ProgramSelector(program="agent", node="n1")
    fake.logs.append(b"more\n")
    assert gpuctl("logs", "--program", "scheduler", "--since", "1h").code == 0
    assert fake.asked("StreamOutput")[1].HasField("since_time")
    refused = gpuctl("logs", "--program", "agent")
    assert refused.code == 2 and "agent:NODE" in refused.err


def test_a_gateways_log_is_read_on_its_own_machine_and_nobody_is_asked_for_it(
    fake: FakeScheduler, gpuctl: Gpuctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "edge"
    (folder / "logs").mkdir(parents=True)
    lines = [b"2026-03-04T15:00:00.001Z INFO a\n", b"2026-03-04T15:00:00.002Z INFO b\n"]
    (folder / "logs" / "gateway.log").write_bytes(b"".join(lines))
    assert gpuctl("logs", "--program", f"gateway:{folder}").out == b"".join(lines)
    monkeypatch.setenv("GPUCTL_GATEWAY_DATA", str(folder))
    found = gpuctl("logs", "--program", "gateway", "--tail", "1")
    assert (found.out, found.code) == (lines[1], 0)
    assert gpuctl("logs", "--program", f"gateway:{folder}", "--since", "2026-03-04T15:00:00.002Z").out == lines[1]
    assert not fake.asked("StreamOutput")
    missing = gpuctl("logs", "--program", f"gateway:{tmp_path}")
    assert missing.code == 3 and f"gateway has written a log in {tmp_path} on this machine" in missing.err
    assert "Type it on the gateway's own machine" in missing.err
    assert gpuctl("logs", "--program", "gateway", "7").code == 2


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
    done = gpuctl("logs", "--program", "scheduler", "-f", "--tail", "2")
    assert done.code == 4, "behind the third stream it is refused"
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


@pytest.mark.parametrize("options", [(), ("-f",)])
@pytest.mark.parametrize(
    ("stored", "says"),
    [
        ([], "the output of job 1 is gone, if it wrote any: nothing of it is stored; see: gpuctl job 1"),
        ([Piece(b"the beginning\n")], "the output of job 1 is not complete; see: gpuctl job 1"),
    ],
    ids=["nothing is stored", "some is stored"],
)
def test_output_of_an_ended_job_that_is_gone_is_told_in_any_case(
    fake: FakeScheduler, gpuctl: Gpuctl, options: tuple[str, ...], stored: list[Any], says: str
) -> None:
    """As of a job that a restored store lacked, and of which its node had thrown the output away."""
    fake.jobs[1], fake.output[1] = ended(output_is_complete=False), stored
    assert says in gpuctl("logs", "1", *options).err


def test_an_attempt_that_is_whole_is_not_told_to_lack_anything(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    of_two = ended(output_is_complete=False)
    del of_two.attempts[:]
    for number, is_complete in ((1, True), (2, False)):
        attempt = of_two.attempts.add(number=number, output_is_complete=is_complete)
        attempt.end_time.GetCurrentTime()
    of_two.attempt_count = 2
    fake.jobs[1], fake.output[1] = of_two, [Piece(b"done\n")]
    assert gpuctl("logs", "1", "--attempt", "1").err == ""
    assert "is not complete" in gpuctl("logs", "1", "--attempt", "2").err
