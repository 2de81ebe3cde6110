"""`submit`: the id alone on stdout, made once, and refusals in the words of the options."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest
from gpufleet.v1 import job_pb2

from gpufleet.errors import FieldViolation, GpufleetError, Reason, invalid
from tests.cli.conftest import Gpuctl, run_here
from tests.cli.fake_scheduler import FakeScheduler, Fault, job


def test_the_id_stands_alone_on_stdout(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    done = gpuctl("submit", "--gpus", "1", "--", "python", "train.py")
    assert (done.code, done.out, done.err) == (0, b"1\n", "")


def test_a_request_that_the_scheduler_may_have_had_is_sent_again_under_the_same_id(
    fake: FakeScheduler, gpuctl: Gpuctl
) -> None:
    fake.faults["Submit"] += [Fault.LOST_ANSWER, Fault.UNAVAILABLE]
    assert gpuctl("submit", "--", "true").out == b"1\n"
    ids = [request.request_id for request in fake.asked("Submit")]
    assert len(ids) == 3 and len(set(ids)) == 1 and len(ids[0]) == 32


def test_two_submits_are_two_requests(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    assert [gpuctl("submit", "--", "true").out for _ in range(2)] == [b"1\n", b"2\n"]


def test_an_outcome_that_stays_unknown_names_the_request_id_to_repeat(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.faults["Submit"] += [Fault.HANG] * 20
    done = gpuctl("submit", "--connection-timeout", "300ms", "--", "true")
    used = fake.asked("Submit")[0].request_id
    assert done.code == 5 and done.out == b""
    assert "whether the job was stored is not known" in done.err
    assert f"--request-id {used}" in done.err


def test_a_request_id_of_ones_own_is_used(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    assert [gpuctl("submit", "--request-id", "nightly", "--", "true").out for _ in range(2)] == [b"1\n", b"1\n"]


def test_a_scheduler_that_is_not_there_is_told_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run_here("submit", "--scheduler", address, "--", "true")
    assert done.code == 5
    first, second = done.err.splitlines()
    assert first == f"gpuctl: no scheduler answers at {address} (--scheduler): nothing listens there"
    assert second.startswith("Start one here with: gpuctl up")


def test_a_store_that_cannot_be_written_is_told_and_not_called_unknown(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.faults["Submit"] += [GpufleetError(Reason.STORE_UNAVAILABLE, "the disk is full")] * 30
    done = gpuctl("submit", "--", "true")
    assert (done.code, done.err.splitlines()[0]) == (5, "gpuctl: the disk is full")


def test_a_refusal_names_the_option_that_was_typed(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.faults["Submit"].append(invalid("specs[0].time_limit", "is negative"))
    done = gpuctl("submit", "--time-limit", "1h", "--", "true")
    assert done.code == 2
    assert done.err.splitlines()[0] == "gpuctl: --time-limit: is negative"


def test_a_refusal_of_several_fields_names_them_all(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    violations = [FieldViolation("specs[0].devices[0].count", "is 9"), FieldViolation("specs[0].strange", "is odd")]
    fake.faults["Submit"].append(GpufleetError(Reason.NEVER_FITS, "no node has 9 GPUs", violations=violations))
    done = gpuctl("submit", "--gpus", "9", "--", "true")
    assert done.code == 4
    assert done.err.splitlines()[:3] == ["gpuctl: no node has 9 GPUs", "  --gpus: is 9", "  specs[0].strange: is odd"]


def test_a_dry_run_says_that_nothing_was_changed(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    done = gpuctl("submit", "--dry-run", "--", "true")
    assert done.text.startswith("Nothing was changed. The job would be accepted.\nNote: a note\nIt asks for:\n")
    assert fake.asked("Submit")[0].dry_run and not fake.jobs


@pytest.mark.parametrize(
    ("reason", "sentence", "told"),
    [
        ("DEVICES_IN_USE", "it would wait because no GPU is free", "in place 3: it would wait because no GPU is free."),
        ("NEXT_PASS", "it would start now on node n1", "accepted: it would start now on node n1."),
    ],
)
def test_a_dry_run_says_in_which_place_it_would_wait(
    fake: FakeScheduler, gpuctl: Gpuctl, reason: str, sentence: str, told: str
) -> None:
    foretold = job(0, job_pb2.JOB_STATE_QUEUED, queue_position=3)
    foretold.wait_reason.reason, foretold.wait_reason.sentence = reason, sentence
    fake.foretold = foretold
    assert gpuctl("submit", "--dry-run", "--", "true").text.splitlines()[0].endswith(told)


def test_a_dry_run_shows_the_request_whole_and_what_is_missing_in_it(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    bare = gpuctl("submit", "--dry-run", "--", "true").text
    assert re.search(r"^  --gpus +none: it sees no GPU$", bare, re.MULTILINE)
    assert re.search(r"^  --time-limit +none: it may run for ever$", bare, re.MULTILINE)
    Path("train.sh").write_text("#!/bin/sh\n#gpuctl --gpus 2 --time-limit 4h --hold\n")
    shown = gpuctl("submit", "--dry-run", "--label", "team=vision", "./train.sh", "a b").text
    told = {line.split()[0]: " ".join(line.split()[1:]) for line in shown.partition("It asks for:\n")[2].splitlines()}
    expected = {"command": "./train.sh 'a b'", "--gpus": "2", "--time-limit": "4h", "--hold": "yes"}
    assert told.items() >= {**expected, "--label": "team=vision", "--cwd": str(Path.cwd())}.items()
    assert told["passed"].startswith("on PATH")


def test_json_is_the_answer_in_the_protos_own_names(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    answer = json.loads(gpuctl("submit", "-o", "json", "--", "true").out)
    assert (answer["first_job_id"], answer["job"]["state"], answer["job"]["queue_position"]) == (
        "1",
        "JOB_STATE_QUEUED",
        0,
    )


def test_in_json_mode_an_error_is_json_on_stderr(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.faults["Submit"].append(invalid("specs[0].cpus", "is absurd", next_step="Ask for less."))
    done = gpuctl("submit", "-o", "json", "--", "true")
    error = json.loads(done.err)["error"]
    assert (done.code, error["exit_code"], error["reason"], error["next_step"]) == (
        2,
        2,
        "INVALID_ARGUMENT",
        "Ask for less.",
    )
    assert error["fields"] == [{"field": "--cpus", "why": "is absurd"}]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["submit"], "the job has no command"),
        (["submit", "--gpus", "two", "--", "x"], "'--gpus' / '-g': 'two' is not a whole number"),
        (["submit", "--gpsu", "2", "--", "x"], "--gpus"),
        (["submit", "--max-fails", "1", "--", "x"], "--max-fails: it counts the items of an array"),
        (["sumbit"], 'did you mean "submit"?'),
        (["submit", "--", "\udcff"], "the command: it holds bytes that are not UTF-8"),
        (["submit", "--name", "\udcff", "--", "x"], "--name: it holds bytes that are not UTF-8"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error_with_a_next_step(arguments: list[str], said: str) -> None:
    done = run_here(*arguments)
    assert done.code == 2 and said.lower() in done.err.lower()
    assert len(done.err.splitlines()) == 2
