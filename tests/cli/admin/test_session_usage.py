"""`usage --sessions`: its table, what it asks, and options that do not go together."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from gpufleet.v1 import sessions_pb2 as pb

from cli.admin.usage_calls import refuse_usage_options, session_usage_request
from cli.render.table import Look
from cli.render.usage import session_usage_screen
from gpufleet.errors import GpufleetError, Reason
from tests.cli.cluster import NOW, ago
from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import FakeScheduler
from tests.cli.golden import assert_golden

DAY = 86_400


def row(model: str, days: int, people: int, turns: int, give_ups: int = 0, wait: float = 12.4) -> pb.SessionUsage:
    found = pb.SessionUsage(
        model=model, people=people, visits=turns + give_ups, turns=turns, give_ups=give_ups, start_time=ago(days * DAY)
    )
    found.turn_time.FromSeconds(turns * 70)
    if turns:
        found.wait_p50.FromMilliseconds(round(wait * 1_000))
        found.wait_p95.FromMilliseconds(round(wait * 9_000))
    found.ends.add(reason="TURN_ENDED", count=turns)
    found.ends.add(reason="LEFT", count=give_ups)
    return found


def told() -> pb.ListSessionUsageResponse:
    answer = pb.ListSessionUsageResponse(
        rows=[row("canvas", 2, 120, 300, 14), row("a-model-with-a-long-name-indeed", 2, 1, 0, 1)],
        steps=[
            row("canvas", 1, 70, 180, 2),
            row("canvas", 2, 60, 120, 12, 65),
            row("a-model-with-a-long-name-indeed", 1, 1, 0, 1),
        ],
        start_time=ago(2 * DAY),
        known_since_time=ago(40 * DAY),
    )
    answer.step.FromSeconds(DAY)
    return answer


def text(answer: pb.ListSessionUsageResponse, look: Look) -> str:
    return "".join(line + "\n" for line in session_usage_screen(answer, NOW, look))


def test_sessions_by_day_and_model_and_all_of_each_model() -> None:
    shown = text(told(), Look())
    assert max(map(len, shown.splitlines())) <= 80
    assert_golden("session_usage", shown)
    assert_golden("session_usage_wide", text(told(), Look(width=None, is_wide=True)))


def test_nobody_came_says_what_to_do_next_and_since_when_it_is_known() -> None:
    answer = pb.ListSessionUsageResponse(start_time=ago(7 * DAY), known_since_time=ago(DAY))
    assert_golden("session_usage_empty", text(answer, Look()))


def test_what_is_asked_is_whole_days_of_this_time_zone(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.session_usage = told()
    shown = json.loads(gpuctl("usage", "--sessions", "--since", "3d", "--model", "canvas", "-o", "json").text)
    assert [each["model"] for each in shown["rows"]] == [each.model for each in told().rows]
    (asked,) = fake.asked("ListSessionUsage")
    assert (asked.model, asked.step.ToSeconds()) == ("canvas", DAY)
    assert len(gpuctl("usage", "--sessions", "-o", "jsonl").text.splitlines()) == 3
    assert "canvas" in gpuctl("usage", "--sessions").text
    now = datetime(2026, 3, 4, 15, 0, tzinfo=UTC)
    request = session_usage_request("2d", None, "", now)
    assert request.start_time.ToDatetime(UTC) == datetime(2026, 3, 2, tzinfo=UTC)
    assert request.end_time.ToDatetime(UTC) == now


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"sessions": True, "by": "user"}, "--by"),
        ({"sessions": True, "user": "ann"}, "--user"),
        ({"sessions": True, "requests": True}, "--requests"),
        ({"requests": True, "by": "user"}, "--by"),
        ({"model": "canvas"}, "--model"),
    ],
)
def test_options_of_the_other_table_are_refused(options: dict[str, object], named: str) -> None:
    given = {"sessions": False, "requests": False, "by": None, "user": "", "model": ""} | options
    with pytest.raises(GpufleetError) as caught:
        refuse_usage_options(**given)  # type: ignore[arg-type]
    assert caught.value.reason is Reason.INVALID_ARGUMENT
    assert [each.field for each in caught.value.violations] == [named]
    assert caught.value.next_step
