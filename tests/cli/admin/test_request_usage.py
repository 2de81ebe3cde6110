"""`usage --requests`: its table, and what it asks."""

from __future__ import annotations

import json

from gpufleet.v1 import scheduler_pb2
from gpufleet.v1 import sessions_pb2 as pb

from cli.render.request_usage import request_usage_screen
from cli.render.table import Look
from tests.cli.cluster import NOW, ago
from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import FakeScheduler
from tests.cli.golden import assert_golden

DAY = 86_400


def row(user: str, model: str, requests: int, tokens: int, failed: int = 0, unknown: int = 0) -> pb.CountedRequests:
    found = pb.CountedRequests(
        user=user,
        model=model,
        request_count=requests,
        failed_count=failed,
        prompt_tokens=tokens * 3,
        completion_tokens=tokens,
        unknown_count=unknown,
    )
    found.duration.FromMilliseconds(requests * 1_234)
    return found


def told(*rows: pb.CountedRequests) -> pb.ListRequestUsageResponse:
    answer = pb.ListRequestUsageResponse(rows=rows, start_time=ago(7 * DAY), known_since_time=ago(40 * DAY))
    answer.total.CopyFrom(row("", "", 1_406, 1_234_580, 4, 2))
    return answer


ROWS = (
    row("ada", "chat", 1_200, 1_234_567, 3, 2),
    row("a-user-with-a-name-that-is-longer-than-what-fits", "a-model-with-a-long-name-indeed", 200, 13),
    row("", "open", 6, 0, 1),
)


def text(answer: pb.ListRequestUsageResponse, look: Look) -> str:
    return "".join(line + "\n" for line in request_usage_screen(answer, NOW, look))


def test_requests_and_tokens_by_user_and_program() -> None:
    shown = text(told(*ROWS), Look())
    assert max(map(len, shown.splitlines())) <= 80
    assert_golden("request_usage", shown)
    assert_golden("request_usage_wide", text(told(*ROWS), Look(width=None, is_wide=True)))


def test_nobody_asked_says_what_to_do_next_and_since_when_it_is_known() -> None:
    answer = pb.ListRequestUsageResponse(start_time=ago(7 * DAY), known_since_time=ago(DAY))
    assert_golden("request_usage_empty", text(answer, Look()))


def test_what_is_asked_is_a_span_a_user_and_a_program(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.request_usage = told(*ROWS)
    fake.server = scheduler_pb2.GetServerInfoResponse(user="grace")
    given = ("usage", "--requests", "--since", "2d", "--until", "1d", "--user", "me", "--model", "chat", "-o", "json")
    shown = json.loads(gpuctl(*given).text)
    assert [each["prompt_tokens"] for each in shown["rows"][:2]] == ["3703701", "39"]
    (asked,) = fake.asked("ListRequestUsage")
    assert (asked.model, asked.end_time.ToMicroseconds() - asked.start_time.ToMicroseconds()) == ("chat", DAY * 10**6)
    assert asked.user == "grace"
    assert len(gpuctl("usage", "--requests", "-o", "jsonl").text.splitlines()) == 3
    assert gpuctl("usage", "--requests", "-o", "name").text.splitlines()[0] == "ada chat"
    assert "UNKNOWN" in gpuctl("usage", "--requests").text
