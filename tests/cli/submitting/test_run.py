"""`run` against a scheduler that fails where it hurts: every byte once, the job's code, and a way back."""

from __future__ import annotations

import threading
import time

import pytest
from gpufleet.v1 import job_pb2

from cli.submitting import first_moments
from gpufleet.errors import GpufleetError, Reason
from gpufleet.fleet.client import BegunCall
from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import Break, FakeScheduler, Fault, Gap, Piece, Until, ended, job

BYTES = bytes(range(256)) * 40
"""No text in any encoding."""


def finish(fake: FakeScheduler, final: job_pb2.Job) -> None:
    fake.jobs[final.id] = final


def test_output_comes_through_unchanged_and_the_jobs_code_is_ours(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.output[1] = [
        Piece(BYTES),
        Piece("warning ½\n".encode(), job_pb2.STREAM_STDERR),
        Piece(b"last line without an end"),
        lambda: finish(fake, ended(code=3)),
    ]
    done = gpuctl("run", "--", "train")
    assert done.out == BYTES + b"last line without an end"
    assert done.err == "warning ½\ngpuctl: job 1 failed with exit code 3 (EXITED)\n"
    assert done.code == 3


def test_a_lost_connection_is_resumed_at_the_very_byte(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.output[1] = [
        Piece(b"one\n"),
        Break(),
        Piece(b"two\n"),
        Piece(b"err\n", job_pb2.STREAM_STDERR),
        Break(),
        Break(),
        Piece(b"three\n"),
        lambda: finish(fake, ended()),
    ]
    done = gpuctl("run", "--", "train")
    assert (done.code, done.out, done.err) == (0, b"one\ntwo\nthree\n", "err\n")
    resumed = fake.asked("StreamOutput")[-1].positions
    assert [(each.attempt, each.rank, each.stream, each.offset) for each in resumed] == [(1, 0, 1, 8), (1, 0, 2, 4)]


def test_a_job_that_outlasts_its_first_moments_is_followed_on_at_the_very_byte(
    fake: FakeScheduler, gpuctl: Gpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_moments, "FIRST_S_MAX", 0.2)
    is_followed_on = threading.Event()
    fake.before["StreamOutput"] = lambda asked: is_followed_on.set() if asked.positions else None
    fake.output[1] = [Piece(BYTES), Until(is_followed_on), Piece(b"last\n"), lambda: finish(fake, ended(code=3))]
    done = gpuctl("run", "--", "train")
    assert (done.code, done.out) == (3, BYTES + b"last\n")
    assert done.err == "gpuctl: job 1 failed with exit code 3 (EXITED)\n"
    first, second = fake.asked("StreamOutput")
    assert not first.positions and [each.offset for each in second.positions] == [len(BYTES)]


def test_a_gap_is_told_and_the_rest_is_shown(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.output[1] = [Piece(b"head\n"), Gap(1_000_000), Piece(b"tail\n"), lambda: finish(fake, ended())]
    done = gpuctl("run", "--", "train")
    assert done.out == b"head\ntail\n"
    assert "1,000,000 bytes are left out here (offsets 5 to 1000005)" in done.err


def test_a_submit_whose_answer_is_lost_is_sent_again_and_made_once(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.faults["Submit"] += [Fault.UNAVAILABLE, Fault.LOST_ANSWER, Fault.LOST_ANSWER]
    fake.output[1] = [lambda: finish(fake, ended())]
    done = gpuctl("run", "--", "true")
    assert done.code == 0
    assert len(fake.asked("Submit")) == 4
    assert len({request.request_id for request in fake.asked("Submit")}) == 1
    assert list(fake.jobs) == [1]


@pytest.mark.parametrize(
    ("final", "code", "said"),
    [
        (ended(code=0), 0, ""),
        (
            ended(code=127, exit_reason="COMMAND_NOT_FOUND", exit_message="no such program: trian"),
            127,
            "(COMMAND_NOT_FOUND): no such program: trian",
        ),
        (job(1, job_pb2.JOB_STATE_FAILED, exit=job_pb2.ExitStatus(signal=9), exit_reason="KILLED"), 137, "SIGKILL"),
        (job(1, job_pb2.JOB_STATE_FAILED, exit=job_pb2.ExitStatus(signal=2), exit_reason="KILLED"), 130, "SIGINT"),
        (
            job(1, job_pb2.JOB_STATE_TIMED_OUT, exit=job_pb2.ExitStatus(signal=15), exit_reason="TIME_LIMIT"),
            124,
            "TIME",
        ),
        (job(1, job_pb2.JOB_STATE_CANCELLED, exit_reason="CANCELLED"), 125, "CANCELLED"),
        (job(1, job_pb2.JOB_STATE_FAILED, exit_reason="NODE_LOST"), 125, "NODE_LOST"),
        (job(1, job_pb2.JOB_STATE_FAILED, exit_reason="EXIT_UNKNOWN"), 125, "EXIT_UNKNOWN"),
    ],
)
def test_the_exit_code_and_its_reason(
    fake: FakeScheduler, gpuctl: Gpuctl, final: job_pb2.Job, code: int, said: str
) -> None:
    fake.output[1] = [lambda: finish(fake, final)]
    done = gpuctl("run", "--", "train")
    assert done.code == code
    assert said in done.err and bool(said) == bool(done.err)


def warn(fake: FakeScheduler, sentence: str) -> None:
    """A warning more, as the scheduler tells it."""
    fake.jobs[1].warnings.add(kind="DEVICES_IDLE", sentence=sentence, attempt=1)
    fake.jobs[1].version += 1


def test_a_warning_is_told_once_on_stderr_as_it_comes(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.output[1] = [
        Piece(b"1\n"),
        lambda: warn(fake, "GPU 0 is idle.\x1b[2J"),
        Break(),
        Piece(b"2\n"),
        Break(),
        lambda: warn(fake, "GPU 1 is slow."),
        lambda: finish(fake, ended(warnings=fake.jobs[1].warnings)),
    ]
    done = gpuctl("run", "--", "train")
    assert (done.code, done.out) == (0, b"1\n2\n")
    assert done.err == "gpuctl: warning, job 1: GPU 0 is idle.\ufffd[2J\ngpuctl: warning, job 1: GPU 1 is slow.\n"


def block(fake: FakeScheduler, why: str) -> None:
    """Its output gets no further from here on, or does again."""
    fake.jobs[1].output_blocked = why


def test_that_the_output_is_blocked_and_why_is_told_once_and_again_when_it_changes(
    fake: FakeScheduler, gpuctl: Gpuctl
) -> None:
    full = "it is held in its write until there is room on node n1: the disk is\x1b full"
    fake.output[1] = [
        Piece(b"1\n"),
        lambda: block(fake, full),
        Break(),
        lambda: warn(fake, "GPU 0 is idle."),
        Piece(b"2\n"),
        Break(),
        lambda: block(fake, "the scheduler's disk is full"),
        Break(),
        Piece(b"3\n"),
        lambda: block(fake, ""),
        Break(),
        Piece(b"4\n"),
        lambda: block(fake, full),
        Break(),
        lambda: finish(fake, ended(warnings=fake.jobs[1].warnings)),
    ]
    done = gpuctl("run", "--", "train")
    assert (done.code, done.out) == (0, b"1\n2\n3\n4\n")
    held = "gpuctl: the output of job 1 is blocked: it is held in its write until there is room on node n1: "
    assert done.err.splitlines() == [
        f"{held}the disk is\ufffd full",
        "gpuctl: warning, job 1: GPU 0 is idle.",
        "gpuctl: the output of job 1 is blocked: the scheduler's disk is full",
        "gpuctl: the output of job 1 goes on",
        f"{held}the disk is\ufffd full",
    ]


def test_who_interrupts_while_the_submit_is_sent_is_told_how_to_find_out(
    fake: FakeScheduler, gpuctl: Gpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(BegunCall, "__init__", interrupted)
    done = gpuctl("run", "--", "train")
    assert done.code == 130
    assert done.err.endswith("before the scheduler answered; whether there is a job: gpuctl queue --mine\n")


def test_a_refused_submit_is_gpuctls_own_failure(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.faults["Submit"].append(GpufleetError(Reason.QUEUE_FULL))
    assert gpuctl("run", "--", "train").code == 125


def test_an_incomplete_output_is_told(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.output[1] = [lambda: finish(fake, ended(output_is_complete=False))]
    assert "the output of job 1 is not complete; see: gpuctl job 1" in gpuctl("run", "--", "train").err


def test_a_silent_job_that_lives_is_followed_on(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    quiet = threading.Event()
    fake.output[1] = [Until(quiet), Piece(b"at last\n"), lambda: finish(fake, ended())]
    fake.before["GetJob"] = lambda request: quiet.set() if len(fake.asked("GetJob")) == 2 else None
    done = gpuctl("run", "--max-wait-time", "1s", "--max-consecutive-timeouts", "1", "--", "train")
    assert (done.code, done.out) == (0, b"at last\n")
    assert len(fake.asked("GetJob")) >= 2


def test_a_scheduler_that_answers_nothing_is_given_up_and_the_job_goes_on(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.output[1] = [Until(threading.Event())]
    fake.faults["GetJob"] += [Fault.HANG] * 5
    done = gpuctl(
        *("run", "--max-wait-time", "1s", "--connection-timeout", "2s", "--max-consecutive-timeouts", "3"),
        *("--", "train"),
    )
    assert done.code == 125
    assert "did not answer for 6 s; giving up; job 1 goes on. Follow it with: gpuctl logs -f 1" in done.err
    assert len(fake.asked("GetJob")) == 3 and not fake.asked("Cancel")


def test_a_session_ends_at_its_time_out_and_the_job_goes_on(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.output[1] = [Piece(b"working\n"), Until(threading.Event(), sends_keepalives=True)]
    done = gpuctl("run", "--session-timeout", "5s", "--", "train")
    assert (done.code, done.out) == (125, b"working\n")
    assert "the session reached its 5 s; job 1 goes on. Follow it with: gpuctl logs -f 1" in done.err
    assert not fake.asked("Cancel")


def test_the_first_moments_last_no_longer_than_the_session(
    fake: FakeScheduler, gpuctl: Gpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_moments, "FIRST_S_MAX", 40.0)
    fake.output[1] = [Piece(b"working\n"), Until(threading.Event(), sends_keepalives=True)]
    done = gpuctl("run", "--session-timeout", "5s", "--", "train")
    assert (done.code, done.out) == (125, b"working\n")
    assert "the session reached its 5 s; job 1 goes on. Follow it with: gpuctl logs -f 1" in done.err
    assert len(fake.asked("StreamOutput")) == 1


def test_a_session_begins_with_its_first_moments(
    fake: FakeScheduler, gpuctl: Gpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_moments, "FIRST_S_MAX", 0.2)
    monkeypatch.setattr(first_moments, "monotonic", lambda: time.monotonic() - 3000)
    fake.output[1] = [Piece(b"working\n"), Until(threading.Event(), sends_keepalives=True)]
    done = gpuctl("run", "--session-timeout", "3000s", "--", "train")
    assert done.code == 125
    assert "the session reached its 3000 s; job 1 goes on. Follow it with: gpuctl logs -f 1" in done.err
    assert len(fake.asked("StreamOutput")) < 2


def test_who_runs_a_held_job_is_told_that_it_waits_for_its_release(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.jobs[1] = job(1, job_pb2.JOB_STATE_HELD)
    fake.output[1] = [Piece(b"late\n"), lambda: finish(fake, ended())]
    done = gpuctl("run", "--hold", "--", "train")
    assert (done.code, done.out) == (0, b"late\n")
    assert done.err == "gpuctl: job 1 is held and waits for its release: gpuctl release 1\n"
