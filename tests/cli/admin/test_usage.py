"""`usage`: its tables, what it asks, and what it says to wrong times."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from gpufleet.v1 import capacity_pb2 as pb
from gpufleet.v1 import scheduler_pb2

from cli.admin.usage_calls import usage_request
from cli.render.table import Look
from cli.render.usage import usage_screen
from gpufleet.errors import GpufleetError, Reason
from tests.cli.cluster import NOW, ago
from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import FakeScheduler
from tests.cli.golden import assert_golden


def row(name: str, hours: float, jobs: int, failed: int = 0, *, is_read: bool = True) -> pb.UsageRow:
    found = pb.UsageRow(
        name=name, gpu_seconds=hours * 3600, job_count=jobs, failed_job_count=failed, start_count=jobs + 1
    )
    if is_read:
        found.utilization_percent, found.energy_wh = 61.6, hours * 412
        found.wait_seconds.CopyFrom(pb.Statistic(min=0.2, max=7_300, mean=75.5, count=jobs + 1))
    return found


def used(*rows: pb.UsageRow) -> pb.ListUsageResponse:
    answer = pb.ListUsageResponse(rows=rows, start_time=ago(7 * 86_400), known_since_time=ago(40 * 86_400))
    total = row("", sum(each.gpu_seconds for each in rows) / 3600, sum(each.job_count for each in rows), 3)
    answer.total.CopyFrom(total)
    return answer


PEOPLE = (
    row("ada", 1234.5, 300, 2),
    row("grace", 20.25, 12),
    row("a-user-with-a-name-that-is-longer-than-what-fits-in-any-table", 1, 1, 1),
    row("linus", 1 / 60, 1),
    row("no-gpus", 0, 7, is_read=False),
)


def text(answer: pb.ListUsageResponse, look: Look, by: str = "user") -> str:
    return "".join(line + "\n" for line in usage_screen(by, answer, NOW, look))


def test_usage_by_user() -> None:
    shown = text(used(*PEOPLE), Look())
    assert max(map(len, shown.splitlines())) <= 80
    assert_golden("usage", shown)


def test_wide_usage_by_model_of_which_the_beginning_is_not_known() -> None:
    answer = used(row("NVIDIA H200", 900, 10), row("", 0, 3, is_read=False))
    answer.known_since_time.CopyFrom(ago(2 * 86_400))
    assert_golden("usage_wide", text(answer, Look(width=None, is_wide=True), "model"))


def test_one_row_needs_no_sum_and_no_row_says_what_to_do_next() -> None:
    assert "all " not in text(used(row("n1", 5, 1)), Look(), "node")
    assert_golden("usage_empty", text(used(), Look()))
    (head, *_) = usage_screen("user", used(*PEOPLE), NOW, Look(), ago(3 * 86_400))
    assert head.endswith("GPU hours from Feb 25 15:00 to Mar 01 15:00.")


def test_what_is_asked_is_what_was_typed(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.usage = used(*PEOPLE)
    told = gpuctl("usage", "--by", "node", "--since", "30d", "--until", "1d", "--user", "ada", "-o", "json")
    assert [each["name"] for each in json.loads(told.text)["rows"]] == [each.name for each in PEOPLE]
    (asked,) = fake.asked("ListUsage")
    assert (asked.group, asked.user) == (pb.USAGE_GROUP_NODE, "ada")
    assert asked.end_time.ToSeconds() - asked.start_time.ToSeconds() == 29 * 86_400
    fake.server = scheduler_pb2.GetServerInfoResponse(user="grace")
    gpuctl("usage", "--user", "me")
    assert fake.asked("ListUsage")[-1].user == "grace"
    names = gpuctl("usage", "-o", "name").text.splitlines()
    assert names == [each.name for each in PEOPLE]
    assert len(gpuctl("usage", "-o", "jsonl").text.splitlines()) == len(PEOPLE)
    assert "1,234.5" in gpuctl("usage").text


@pytest.mark.parametrize(
    ("since", "until", "option"),
    [
        ("7", None, "--since"),
        ("2999-01-01", None, "--since"),
        ("7d", "soon", "--until"),
        ("1d", "2d", "--until"),
        ("0s", None, "--until"),
    ],
)
def test_wrong_times_are_named(since: str, until: str | None, option: str) -> None:
    with pytest.raises(GpufleetError) as caught:
        usage_request("user", since, until, "", datetime.now(UTC))
    assert caught.value.reason is Reason.INVALID_ARGUMENT
    assert [violation.field for violation in caught.value.violations] == [option]
    assert caught.value.next_step


def test_a_group_that_is_none_is_named_with_what_may_be_meant() -> None:
    with pytest.raises(GpufleetError) as caught:
        usage_request("nodes", "7d", None, "", datetime.now(UTC))
    assert 'did you mean "node"?' in caught.value.message
