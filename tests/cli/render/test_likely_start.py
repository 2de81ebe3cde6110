"""`explain` and `job` show the range in which a job is likely to start."""

from __future__ import annotations

import pytest
from gpufleet.v1 import job_pb2, scheduler_pb2

from cli.render import words
from cli.render.job import explain_screen, job_screen
from tests.cli.cluster import NOW, ago, queued
from tests.cli.render.test_screens import LOOK


@pytest.mark.parametrize(
    ("earliest", "latest", "shown"),
    [
        (600, 3000, "between 10m and 50m from now, 9 of 10 such jobs"),
        (0, 90, "within 1m30s, 9 of 10 such jobs"),
        (-30, -10, "within 0s, 9 of 10 such jobs"),
        (601, 605, "within 11m, 9 of 10 such jobs"),
    ],
)
def test_a_range_is_told_from_now_on(earliest: int, latest: int, shown: str) -> None:
    assert words.likely(ago(-earliest), ago(-latest), NOW) == shown


def test_a_job_and_its_explanation_show_the_range_where_one_is_known() -> None:
    job, explanation = queued(), job_pb2.Explanation()
    answer = scheduler_pb2.ExplainResponse(job=job, explanation=explanation)
    assert not any(
        "likely" in line.lower() for line in (*job_screen(job, NOW, LOOK), *explain_screen(answer, NOW, LOOK))
    )
    for message in (job, answer.explanation):
        message.likely_earliest_start_time.CopyFrom(ago(-600))
        message.likely_latest_start_time.CopyFrom(ago(-3000))
    told = "between 10m and 50m from now, 9 of 10 such jobs"
    assert any(line.split(maxsplit=1) == ["likely", told] for line in job_screen(job, NOW, LOOK))
    assert f"Likely start: {told}" in explain_screen(answer, NOW, LOOK)
