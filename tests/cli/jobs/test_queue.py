"""`queue`: why each job waits in the fewest words, columns as there is room, and the keys of `queue -w`."""

from __future__ import annotations

import json
import os
from datetime import timedelta

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from gpufleet.v1 import job_pb2

import gpufleet
from cli.full_screen.view import View, Wish
from cli.queue_watch.picture import HELP, SORTS, QueueRows, Reading, frame
from cli.render.jobs import gpus_of, job_columns, job_lines, likely_start, start_of, time_left, totals, why_it_waits
from cli.render.table import Look, shown_width
from gpufleet.api.loop_thread import close_loop_thread
from tests.cli.cluster import NOW, ago, held, nodes, queue_answer, queued, running
from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import FakeScheduler
from tests.cli.golden import assert_golden
from tests.cli.terminal import Terminal

LOOK = Look()


def waiting(
    place: int, reason: str = "DEVICES_IN_USE", summary: str = "waits for 8 GPUs on n1", about: Timestamp | None = None
) -> job_pb2.Job:
    job = queued()
    job.id, job.queue_position = 100 + place, place
    job.wait_reason.reason, job.wait_reason.summary = reason, summary
    job.ClearField("estimated_start_time")
    if about is not None:
        job.estimated_start_time.CopyFrom(about)
    return job


def preferring(job: job_pb2.Job) -> job_pb2.Job:
    """One that does without its GPUs in half an hour."""
    job.spec.gpu_mode = job.gpu_choice.mode = job_pb2.GPU_MODE_PREFERRED
    job.gpu_choice.fall_back_time.CopyFrom(ago(-1800))
    return job


def test_the_gpus_of_a_job_are_those_that_it_does_without_and_those_that_it_has() -> None:
    job = preferring(waiting(1))
    assert gpus_of(job) == "8"
    job.gpu_choice.fell_back = True
    assert gpus_of(job) == "0/8"
    job.gpu_choice.Clear()
    job.gpu_choice.mode = job_pb2.GPU_MODE_NEVER
    assert gpus_of(job) == "-"


@pytest.mark.parametrize(
    ("job", "shown"),
    [
        (waiting(1), "next · waits for 8 GPUs on n1"),
        (waiting(247, about=ago(-1800)), "place 247 · about 15:30"),
        (waiting(1247), "place 1,247"),
        (waiting(3, "NODE_DRAINING", "n1 drains"), "place 3 · n1 drains"),
        (waiting(1, "USER_CAP", "ada has as much as one user may"), "place 1 · ada has as much as one user may"),
        (waiting(0, "DEPENDENCY", "after 41"), "after 41"),
        (waiting(2, about=ago(-86400)), "place 2 · about Mar 05 15:00"),
        (held(), "held"),
        (preferring(waiting(1)), "next · 8 GPUs, or none at 15:30"),
        (preferring(waiting(3)), "place 3 · 8 GPUs, or none at 15:30"),
    ],
)
def test_why_a_job_waits_in_the_fewest_words_that_are_true_for_it(job: job_pb2.Job, shown: str) -> None:
    assert why_it_waits(job, NOW) == shown


def test_no_two_waiting_jobs_of_a_long_queue_say_the_same_long_sentence() -> None:
    jobs = [waiting(place, about=ago(-60 * place)) for place in range(1, 292)]
    said = [why_it_waits(job, NOW) for job in jobs]
    assert len(set(said)) == len(said) and max(map(len, said)) < 32


def test_a_begin_time_is_told_as_people_read_it() -> None:
    job = waiting(0, "BEGIN_TIME", "begins later")
    job.spec.begin_time.CopyFrom(ago(-3600))
    assert why_it_waits(job, NOW) == "begins 16:00"


def test_what_is_left_of_a_limit_and_when_a_job_starts() -> None:
    runs, waits, ends = running(), queued(), running()
    for job in (runs, waits, ends):
        job.spec.time_limit.FromTimedelta(timedelta(hours=2))
    ran = NOW - runs.start_time.ToDatetime(NOW.tzinfo)
    assert time_left(waits, NOW) == "2h" and start_of(waits, NOW) == "~15:30"
    assert timedelta(hours=2) - ran == timedelta(minutes=55) and time_left(runs, NOW) == "55m"
    assert start_of(runs, NOW) == "13:55"
    ends.end_time.CopyFrom(ago(0))
    assert time_left(ends, NOW) == "-" == time_left(held(), NOW) == start_of(held(), NOW)
    runs.start_time.CopyFrom(ago(3 * 3600))
    assert time_left(runs, NOW) == "0s", "in its grace"


def test_the_wide_queue_has_the_range_in_which_nine_of_ten_such_jobs_start() -> None:
    job = queued()
    assert likely_start(job, NOW) == "-"
    job.likely_earliest_start_time.CopyFrom(ago(-600))
    job.likely_latest_start_time.CopyFrom(ago(-3000))
    assert likely_start(job, NOW) == "15:10–15:50"
    assert "15:10–15:50" in job_lines([job], NOW, Look(width=None, is_wide=True))[1]


def test_columns_are_there_where_there_is_room_and_none_is_cut_for_them() -> None:
    jobs = [running(), queued(), held()]
    titles = {width: job_lines(jobs, NOW, Look(width=width))[0].split() for width in (80, 100, 160)}
    assert "BAND" not in titles[80] and "START" not in titles[80]
    assert {"BAND", "LEFT", "START"} <= set(titles[160])
    assert titles[160] == [word for column in job_columns(NOW) for word in column.title.split()]
    for width in (80, 100, 160):
        assert all(shown_width(line) <= width for line in job_lines(jobs, NOW, Look(width=width)))


def test_the_totals_count_the_whole_queue_and_the_whole_fleet() -> None:
    answer = queue_answer()
    assert totals(answer.counts, nodes()) == "1 running, 1 waiting, 1 held · 2 of 11 GPUs in use, 7 free"
    assert totals(answer.counts, []) == "1 running, 1 waiting, 1 held"


# --- queue -w


def watched(*jobs: job_pb2.Job, me: str = "ada") -> tuple[View[QueueRows], Reading]:
    rows = QueueRows(me)
    rows.put(jobs, NOW)
    view = View(rows, toggles={"m": rows.toggle_mine_first})
    return view, Reading(answer=queue_answer(*jobs), nodes=nodes())


def picture(view: View[QueueRows], reading: Reading, columns: int = 80, lines: int = 24) -> list[str]:
    return frame(view, reading, "15:00:00", NOW, LOOK, columns, lines)


def ids(view: View[QueueRows]) -> list[int]:
    return [job.id for job in view.rows.shown]


def test_the_watched_queue_fits_its_terminal() -> None:
    view, reading = watched(running(), *[waiting(place, about=ago(-60 * place)) for place in range(1, 40)])
    for columns, lines in ((80, 24), (160, 45), (40, 10)):
        shown = picture(view, reading, columns, lines)
        assert len(shown) == lines and all(shown_width(line) <= columns for line in shown)
    assert_golden("queue_watch", "".join(f"{line}\n" for line in picture(view, reading)))


def test_it_scrolls_and_says_how_much_is_above_and_below() -> None:
    view, reading = watched(*[waiting(place) for place in range(1, 101)])
    picture(view, reading)
    for key in ("page-down", "j"):
        view.press(key)
    shown = picture(view, reading)
    assert shown[2].split()[0] == str(100 + view.first + 1)
    assert f"{view.first} above, {100 - view.first - view.room} below" in shown[-1]
    view.press("end")
    assert "200" in picture(view, reading)[1 + view.room]


def test_it_is_filtered_by_words_of_a_row() -> None:
    view, _ = watched(running(), queued(), held())
    for key in "/grace":
        view.press(key)
    assert ids(view) == [13]
    view.press("escape")
    assert len(ids(view)) == 3


def test_it_is_sorted_by_each_of_its_columns_and_back() -> None:
    view, _ = watched(running(), queued(), held())
    for keys, wanted in (("oi", [12, 13, 14]), ("oI", [14, 13, 12]), ("og", [13, 12, 14]), ("ou", [12, 14, 13])):
        for key in keys:
            view.press(key)
        assert ids(view) == wanted, keys
    for key in SORTS:
        view.press("o")
        view.press(key)
        assert len(ids(view)) == 3, key
    assert view.press("q") is Wish.LEAVE


def test_ones_own_jobs_come_first_on_request_in_the_order_they_had() -> None:
    view, reading = watched(queued(), running(), held())
    view.press("m")
    assert ids(view) == [12, 14, 13] and "my jobs first" in picture(view, reading)[-1]
    view.press("m")
    assert ids(view) == [13, 12, 14]


def test_the_help_names_each_key_and_fits_a_small_terminal() -> None:
    view, reading = watched(running())
    view.press("h")
    shown = picture(view, reading)
    assert shown[2 : 2 + len(HELP.splitlines())] == HELP.splitlines()
    assert all(f"{key} " in HELP for key in (*SORTS, "m"))


def test_on_a_terminal_it_takes_keys_and_puts_the_terminal_back(fake: FakeScheduler) -> None:
    fake.jobs = {12: running(), 13: queued()}
    fake.nodes = nodes()
    terminal = Terminal("queue", "-w", environment={**os.environ, "GPUCTL_SCHEDULER": fake.address})
    try:
        at = terminal.wait_for("resnet")
        taken = terminal.modes()
        terminal.type("/grace\r")
        at = terminal.wait_for('filter "grace"', at)
        terminal.type("\x1b")
        at = terminal.wait_for("resnet", at)
        terminal.type("q")
        assert terminal.end() == 0 and terminal.modes() != taken, "echo and lines are back"
    finally:
        terminal.close()


def test_a_job_that_ends_between_two_pages_is_listed_once_as_it_ended(gpuctl: Gpuctl, fake: FakeScheduler) -> None:
    listed = [*range(1, 1_001), 1, 1_001]
    fake.jobs = {place: job_pb2.Job(id=job_id, state=job_pb2.JOB_STATE_RUNNING) for place, job_id in enumerate(listed)}
    fake.jobs[1_000].state = job_pb2.JOB_STATE_SUCCEEDED
    shown = json.loads(gpuctl("queue", "-a", "--limit", "2000", "-o", "json").text)["jobs"]
    with gpufleet.connect(fake.address) as fleet:
        jobs = fleet.jobs(with_ended=True, limit=2_000)
    close_loop_thread()
    once = [*range(2, 1_001), 1, 1_001]
    assert [int(each["id"]) for each in shown] == [each.id for each in jobs] == once
    assert (shown[-2]["state"], jobs[-2].state) == ("JOB_STATE_SUCCEEDED", "succeeded")
