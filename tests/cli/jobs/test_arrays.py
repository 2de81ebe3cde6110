"""Arrays by the commands: what is typed, what is asked of the scheduler, and what is shown."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from gpufleet.v1 import job_pb2, scheduler_pb2

from cli.render.job import explain_screen, job_screen
from cli.render.jobs import counts_in_words, where_or_why
from cli.render.table import Look
from gpufleet.errors import GpufleetError, Reason
from gpufleet.fleet.named_jobs import ids_of, read_selection, selectors_of
from gpufleet.fleet.outcome import end_in_words, exit_code_of
from gpufleet.fleet.submitting.job_options import JobOptions
from gpufleet.fleet.submitting.job_spec import command_line_of, spec_of
from tests.cli.conftest import run_here

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
WIDTH = Look(width=80, is_wide=False, has_colour=False)


def spec(**options: object) -> job_pb2.JobSpec:
    return spec_of(JobOptions(**options), ["true"], {}, "/home")  # type: ignore[arg-type]


def array(**counts: int) -> job_pb2.Job:
    job = job_pb2.Job(id=41, user="ada", state=job_pb2.JOB_STATE_RUNNING, array_counts=job_pb2.ArrayCounts(**counts))
    job.spec.CopyFrom(spec(array="1-100%10", max_fails=3, name="sweep"))
    return job


def test_an_array_is_typed_with_its_cap_and_can_be_submitted_again_as_it_was() -> None:
    made = spec(array="1-9,12%3", max_fails=2)
    assert (made.array.indices, made.array.max_active_count, made.array.max_fails) == ("1-9,12", 3, 2)
    assert "--array 1-9,12%3 --max-fails 2 " in command_line_of(made)
    assert not spec().HasField("array")


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"array": "1-3%0"}, "--array"),
        ({"array": "1-3%"}, "--array"),
        ({"array": "1-3%x"}, "--array"),
        ({"array": "1-3%-1"}, "--array"),
        ({"max_fails": 1}, "--max-fails"),
        ({"array": "1-3", "max_fails": 0}, "--max-fails"),
    ],
)
def test_what_makes_no_array_is_refused_with_its_option(options: dict[str, object], option: str) -> None:
    with pytest.raises(GpufleetError) as refused:
        spec(**options)
    assert refused.value.reason is Reason.INVALID_ARGUMENT and option in refused.value.message
    assert refused.value.next_step


def test_a_session_with_one_job_takes_no_array() -> None:
    for command in (["run"], ["submit", "-i"]):
        refused = run_here(*command, "--array", "1-3", "--", "true")
        assert refused.code in (2, 125) and "--array: this stays with one job" in refused.err


def test_items_are_named_by_their_array_and_index() -> None:
    chosen = read_selection(["7", "41.3,41.5-9", "last"])
    assert (chosen.job_ids, chosen.items, chosen.asks_scheduler) == ((7,), ((41, 3, 3), (41, 5, 9)), True)
    assert not read_selection(["7"]).asks_scheduler
    for wrong in ("41.9-5", "0.3", "41.9999999999"):
        with pytest.raises(GpufleetError):
            read_selection([wrong])


class Asked:
    """A scheduler with array 41 of items 1 to 5, of which a page shows two."""

    class scheduler:
        ListArrayItems = "ListArrayItems"

    def call(self, method: str, request: scheduler_pb2.ListArrayItemsRequest) -> scheduler_pb2.ListArrayItemsResponse:
        assert (method, request.job_id) == ("ListArrayItems", 41)
        begin = int(request.page_token or request.first_index)
        shown = range(begin, min(begin + 2, request.last_index + 1, 6))
        more = str(shown[-1] + 1) if shown and shown[-1] < min(request.last_index, 5) else ""
        items = [scheduler_pb2.ArrayItem(index=index, job_id=41 + index) for index in shown]
        return scheduler_pb2.ListArrayItemsResponse(items=items, next_page_token=more)


def test_items_become_ids_page_by_page() -> None:
    client: object = Asked()
    assert ids_of(client, read_selection(["9", "41.2-5"])) == [9, 43, 44, 45, 46]  # type: ignore[arg-type]
    (selector,) = selectors_of(client, read_selection(["41.2"]))  # type: ignore[arg-type]
    assert list(selector.job_ids) == [43]
    with pytest.raises(GpufleetError) as missing:
        ids_of(client, read_selection(["41.6-9"]))  # type: ignore[arg-type]
    assert missing.value.reason is Reason.ITEM_NOT_FOUND and "array 41 has no items 6-9" in missing.value.message


def test_a_line_of_the_queue_counts_the_items() -> None:
    running = array(items=100, running=2, queued=97, failed=1)
    running.wait_reason.sentence = "its array runs 2 of at most 2 at a time"
    running.wait_reason.summary = "its array runs as many as it may"
    assert where_or_why(running, NOW) == "2 running, 97 queued, 1 failed"
    running.state = job_pb2.JOB_STATE_QUEUED
    assert where_or_why(running, NOW).endswith("1 failed · its array runs as many as it may")
    assert counts_in_words(job_pb2.ArrayCounts(items=9, held=1_000, timed_out=3, cancelled=5)) == (
        "1,000 held, 3 timed out, 5 cancelled"
    )


def test_the_screen_of_an_array_shows_what_runs_and_what_failed() -> None:
    items = [
        scheduler_pb2.ArrayItem(index=2, job_id=43, state=job_pb2.JOB_STATE_FAILED, nodes=["n1"], exit_reason="EXITED"),
        scheduler_pb2.ArrayItem(index=7, job_id=48, state=job_pb2.JOB_STATE_RUNNING, nodes=["n1"]),
    ]
    items[0].exit.code = 3
    lines = job_screen(array(items=100, running=2, queued=96, failed=2), NOW, WIDTH, items)
    text = "\n".join(lines)
    assert lines[0] == "Array 41 · sweep · running"
    for line in (
        "  array      100 items (1-100), at most 10 at a time, until 3 have failed",
        "  items      2 running, 96 queued, 2 failed",
        "ITEM  JOB  STATE    WHERE  RAN  END",
        "   2   43  failed   n1       -  exit code 3",
        "… and 2 more items that ran or failed",
        "One item: gpuctl job 41.1 · the output of all: gpuctl logs 41",
        "  gpuctl submit --rerun-failed 41",
    ):
        assert line in lines, text
    item = job_pb2.Job(id=43, array_id=41, array_index=2, spec=spec(name="sweep"))
    shown = job_screen(item, NOW, WIDTH)
    assert "  array      item 2 of array 41" in shown and "--array 2 -- true" in shown[-1]


def test_the_end_of_an_array_gives_the_highest_code() -> None:
    ended = array(items=3, failed=1, succeeded=2)
    ended.state, ended.exit_reason = job_pb2.JOB_STATE_FAILED, "ITEMS_ENDED"
    ended.exit.code, ended.exit_message = 130, "of 3 items 1 failed, 2 succeeded"
    assert exit_code_of(ended) == 130
    assert end_in_words(ended) == "array 41 failed: of 3 items 1 failed, 2 succeeded"


def test_why_an_array_waits_is_said_of_the_array() -> None:
    answer = scheduler_pb2.ExplainResponse(job=array(items=3, queued=3))
    answer.explanation.reason.sentence = "array 41 waits because node n1 has no free GPU"
    assert explain_screen(answer, NOW, WIDTH)[0] == "Array 41: waits because node n1 has no free GPU"
