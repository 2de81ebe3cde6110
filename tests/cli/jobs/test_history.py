"""`history`: its table, its values, what it asks, and what it says to wrong words."""

from __future__ import annotations

import csv
import json

import pytest
from google.protobuf.duration_pb2 import Duration
from gpufleet.v1 import history_pb2 as pb
from gpufleet.v1 import job_pb2, scheduler_pb2

from cli.render.history import FIELDS, USUAL, history_screen, in_order
from cli.render.table import Look
from tests.cli.cluster import NOW, ago
from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import FakeScheduler
from tests.cli.golden import assert_golden

GB = 10**9


def ended(job_id: int, state: str = "SUCCEEDED", code: int | None = 0, **fields: object) -> pb.EndedJob:
    job = pb.EndedJob(
        job_id=job_id,
        user="ada",
        name="train",
        band=job_pb2.BAND_NORMAL,
        state=job_pb2.JobState.Value(f"JOB_STATE_{state}"),
        submit_time=ago(9_000),
        end_time=ago(600),
        wait=Duration(seconds=75),
        attempt_count=1,
        **fields,  # type: ignore[arg-type]
    )
    if code is not None:
        job.exit.code = code
    return job


def ran(job: pb.EndedJob, seconds: int, load: float, memory: int) -> pb.EndedJob:
    job.start_time.CopyFrom(ago(600 + seconds))
    job.elapsed.seconds, job.gpu_percent_mean, job.memory_bytes_max = seconds, load, memory
    job.nodes.append("n1")
    job.gpu_count, job.cpus, job.cpu_seconds, job.gpu_memory_bytes_max = 2, 4, seconds * 1.5, 12 * GB
    return job


ENDED = (
    ran(ended(41), 4_000, 91.4, 31 * GB),
    ran(ended(43, "FAILED", 137, array_id=42, array_index=3), 2, 0.0, 10**6),
    ended(7, "CANCELLED", None, exit_reason="CANCELLED", exit_message="cancelled by ada: a mistake"),
    ended(
        42,
        "FAILED",
        None,
        array_counts=job_pb2.ArrayCounts(items=100, succeeded=97, failed=1, cancelled=2),
    ),
)


def test_the_table_fits_80_columns_and_tells_what_is_not_known() -> None:
    lines = history_screen(ENDED, USUAL, NOW, Look())
    assert max(map(len, lines)) <= 80
    assert_golden("history", "".join(line + "\n" for line in lines))


def test_every_field_of_an_ended_job_has_a_column() -> None:
    lines = history_screen(ENDED, list(FIELDS), NOW, Look(width=None, is_wide=True))
    assert_golden("history_all", "".join(line + "\n" for line in lines))
    shown_elsewhere = {"array_id", "array_index", "job_id"}
    told = {
        "exit": "exit",
        "exit_reason": "reason",
        "exit_message": "message",
        "submit_time": "submit",
        "start_time": "start",
        "end_time": "end",
        "attempt_count": "attempts",
        "nodes": "node",
        "gpu_count": "gpus",
        "memory_bytes_max": "memory",
        "cpu_seconds": "cpu-time",
        "gpu_percent_mean": "gpu",
        "gpu_memory_bytes_max": "gpu-memory",
        "time_limit": "limit",
        "array_counts": "items",
    }
    columns = {told.get(field.name, field.name) for field in pb.EndedJob.DESCRIPTOR.fields} - shown_elsewhere
    assert columns | {"id"} == set(FIELDS)


def test_rows_are_sorted_by_a_column_and_what_has_no_value_there_comes_last() -> None:
    def sorted_by(sort: str) -> list[int]:
        return [job.job_id for job in in_order(list(ENDED), sort)]

    assert sorted_by("elapsed") == [43, 41, 7, 42]
    assert sorted_by("-elapsed") == [41, 43, 7, 42]
    assert sorted_by("-id") == [43, 42, 41, 7]
    assert [job_id for job_id in sorted_by("items") if job_id != 42] == [41, 43, 7]
    for name in FIELDS:
        assert sorted(sorted_by(name)) == sorted(sorted_by(f"-{name}")) == [7, 41, 42, 43]


def test_what_is_asked_is_what_was_typed_and_pages_are_read_to_the_end(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.ended = [
        pb.ListEndedJobsResponse(jobs=ENDED[:2], next_page_token="1"),
        pb.ListEndedJobsResponse(next_page_token="2"),
        pb.ListEndedJobsResponse(jobs=ENDED[2:]),
    ]
    typed = "--since 30d --until 1d --user ada --name train --state failed,timed-out --node n1 --items -o json"
    told = gpuctl("history", *typed.split())
    assert [job["job_id"] for job in json.loads(told.text)["jobs"]] == ["41", "43", "7", "42"]
    asked = fake.asked("ListEndedJobs")[0]
    assert (asked.user, asked.name, asked.node, asked.include_items) == ("ada", "train", "n1", True)
    assert list(asked.states) == [job_pb2.JOB_STATE_FAILED, job_pb2.JOB_STATE_TIMED_OUT]
    assert asked.end_time.ToSeconds() - asked.start_time.ToSeconds() == 29 * 86_400
    fake.server = scheduler_pb2.GetServerInfoResponse(user="grace")
    assert gpuctl("history", "--mine", "-o", "name").text.splitlines() == ["41", "42.3", "7", "42"]
    assert fake.asked("ListEndedJobs")[-1].user == "grace"
    assert len(gpuctl("history", "-o", "jsonl", "--limit", "3").text.splitlines()) == 3
    assert gpuctl("history", "--sort=-elapsed", "--limit", "1", "-o", "name").text == "41\n"


def test_csv_has_plain_values_and_a_line_of_names(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.ended = [pb.ListEndedJobsResponse(jobs=ENDED)]
    rows = list(csv.DictReader(gpuctl("history", "--csv").text.splitlines()))
    assert list(rows[0]) == list(FIELDS)
    first = rows[0]
    assert (first["id"], first["elapsed"], first["memory"], first["gpu"]) == ("41", "4000.0", str(31 * GB), "91.4")
    assert first["end"].endswith("Z") and rows[2]["message"] == "cancelled by ada: a mistake"
    assert rows[2]["elapsed"] == rows[2]["node"] == ""
    assert gpuctl("history", "--csv", "--columns", "id,exit").text.splitlines()[:3] == ["id,exit", "41,0", "42.3,137"]


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("--columns elapsd", 'there is no column "elapsd"; did you mean "elapsed"?'),
        ("--sort=-wiat", 'there is no column "wiat"; did you mean "wait"?'),
        ("--state running", '"running" is no end of a job'),
        ("--since 7", "--since"),
        ("--since 1d --until 2d", '--until: "2d" is not after --since'),
    ],
)
def test_a_wrong_word_is_named_with_what_there_is(gpuctl: Gpuctl, fake: FakeScheduler, typed: str, says: str) -> None:
    refused = gpuctl("history", *typed.split())
    assert refused.code == 2
    assert says in refused.err
    assert not fake.asked("ListEndedJobs")


def test_nothing_says_what_to_do_next(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.ended = [pb.ListEndedJobsResponse()]
    assert gpuctl("history").text == "Nothing ended like that. Look further back with: gpuctl history --since 90d\n"
