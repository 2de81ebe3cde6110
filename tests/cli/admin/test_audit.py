"""`audit`: its table, what it asks, how it follows, and what it says to wrong words."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from gpufleet.v1 import scheduler_pb2 as pb

from cli.render.audit import audit_line, audit_screen
from cli.render.table import Look
from tests.cli.cluster import NOW, ago
from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import FakeScheduler
from tests.cli.golden import assert_golden
from tests.e2e.processes import DEADLINE_SECONDS


def entry(sequence: int, action: str, **fields: object) -> pb.AuditEntry:
    plain = {"user": "ada", "role": "user", "token": "ab12", "peer": "10.0.0.7", "code": "OK", "count": 1}
    return pb.AuditEntry(sequence=sequence, time=ago(1_000 - sequence), action=action, **{**plain, **fields})  # type: ignore[arg-type]


ENTRIES = [
    entry(1, "Submit", target="jobs 41-50", sentence="train"),
    entry(2, "UpdateNode", user="grace", role="admin", target="node gpu-with-a-long-name", sentence="drain: disk"),
    entry(3, "ExecJob", target="job 41", is_open=True),
    entry(
        4,
        "Cancel",
        user="bob",
        target="job 41",
        code="PERMISSION_DENIED",
        reason="NOT_YOUR_JOB",
        message="job 41 belongs to ada",
        passed_on_by="gateway at 10.0.0.9",
    ),
    entry(5, "Queue", user="", role="", token="", code="UNAUTHENTICATED", reason="TOKEN_INVALID", count=1_280),
    entry(6, "Register", user="node n1", role="agent", node="n1", target="node n1", peer="2001:db8::7"),
    entry(7, "AttachJob", target="job 41", code="CANCELLED"),
]


def test_the_table_fits_80_columns_and_says_how_calls_ended() -> None:
    lines = audit_screen(ENTRIES, NOW, Look())
    assert max(map(len, lines)) <= 80
    assert_golden("audit", "".join(line + "\n" for line in lines))


def test_the_wide_table_tells_all_there_is() -> None:
    text = "".join(line + "\n" for line in audit_screen(ENTRIES, NOW, Look(width=None, is_wide=True)))
    assert_golden("audit_wide", text)
    for each in ENTRIES:
        for name in ("action", "target", "sentence", "role", "token", "peer", "passed_on_by", "reason", "message"):
            assert getattr(each, name) in text, name


def test_a_line_of_an_entry_says_the_same_in_a_sentence() -> None:
    assert_golden("audit_lines", "".join(audit_line(each, NOW) + "\n" for each in ENTRIES))


def test_the_newest_stand_last_and_pages_are_read_up_to_the_limit(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.audit = [entry(number, "Submit") for number in range(1, 1_500)]
    assert gpuctl("audit", "-n", "3", "-o", "name").text.splitlines() == ["1497", "1498", "1499"]
    assert len(gpuctl("audit", "-o", "jsonl").text.splitlines()) == 50
    told = json.loads(gpuctl("audit", "--limit", "1200", "-o", "json").text)["entries"]
    assert [int(each["sequence"]) for each in told] == list(range(300, 1_500))


def test_what_is_asked_is_what_was_typed(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    typed = "--by ada --call Submit --on job:41 --since 2d --refused -n 5"
    assert gpuctl("audit", *typed.split()).text == "Nothing was called like that. See everything with: gpuctl audit\n"
    (asked,) = fake.asked("ListAuditEntries")
    assert (asked.user, asked.call, asked.target) == ("ada", "Submit", "job:41")
    assert (asked.only_refused, asked.page_size) == (True, 5)
    assert asked.since_time.ToSeconds() > 0
    fake.server = pb.GetServerInfoResponse(user="grace")
    gpuctl("audit", "--by", "me")
    assert fake.asked("ListAuditEntries")[-1].user == "grace"


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["--on", "41"], '--on: "41" is nothing that calls are about'),
        (["--on", "job:x"], "Write job:41, node:n1"),
        (["--on", "house:1"], "is nothing that calls are about"),
        (["--since", "soon"], "--since"),
        (["-n", "0"], "-n"),
        (["-f", "-o", "json"], "Write -o jsonl"),
    ],
)
def test_a_wrong_word_is_refused_with_what_to_write(gpuctl: Gpuctl, typed: list[str], said: str) -> None:
    refused = gpuctl("audit", *typed)
    assert refused.code == 2 and said in refused.err, refused.err


def test_who_follows_is_shown_each_entry_once_until_ctrl_c(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.audit = [entry(1, "Submit")]
    command = [sys.executable, "-P", "-m", "gpufleet.cli", "audit", "-f", "-o", "name", "--scheduler", fake.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        fake.audit.append(entry(2, "Cancel"))
        assert process.stdout.readline() == "2\n"
        fake.audit += [entry(3, "Cancel"), entry(4, "Cancel")]
        assert [process.stdout.readline() for _ in range(2)] == ["3\n", "4\n"]
        process.send_signal(2)
        assert process.wait(DEADLINE_SECONDS) == 130
        assert process.stdout.read() == ""
