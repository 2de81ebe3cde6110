"""What `queue` and `job` say in words: whose queue is empty, and when a job gives up."""

from __future__ import annotations

import pytest
from gpufleet.v1 import job_pb2

from cli.render.table import Column, Look, draw
from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import FakeScheduler, ended, job


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-a", "--user", "nobody"], "No jobs of nobody's. Everybody's, ended ones too: gpuctl queue -a"),
        (["--user", "nobody"], "No jobs of nobody's wait or run. "),
        (["--name", "x"], "No jobs like that wait or run. "),
        (["-a"], "No jobs yet. "),
        ([], "No jobs wait or run. "),
    ],
)
def test_an_empty_queue_says_whose_it_is(words: list[str], said: str, fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    assert gpuctl("queue", *words).text.startswith(said)


def test_a_job_shows_when_it_gives_up_and_that_this_rests_while_it_is_held(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    spec = job_pb2.JobSpec(argv=["train"])
    spec.queue_timeout.FromSeconds(7200)
    fake.jobs = {
        1: job(1, job_pb2.JOB_STATE_QUEUED, spec=spec),
        2: job(2, job_pb2.JOB_STATE_HELD, spec=spec),
        3: ended(3, spec=spec),
    }
    shown = [gpuctl("job", str(number)).text for number in fake.jobs]
    assert "  gives up   after 2h in the queue\n" in shown[0]
    assert "  gives up   after 2h in the queue; this rests while it is held\n" in shown[1]
    assert "gives up" not in shown[2]


def test_a_job_shows_the_sentence_of_a_command_that_was_not_found(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    message = "trian: not found in PATH '/bin'"
    fake.jobs = {1: ended(1, 127, exit_reason="COMMAND_NOT_FOUND", exit_message=message)}
    assert f"failed with exit code 127 (COMMAND_NOT_FOUND): {message}" in " ".join(gpuctl("job", "1").text.split())


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("1,000 queued · place 45 · about 02:39", 37, "1,000 queued · place 45 · about 02:39"),
        ("1,000 queued · place 45 · about 02:39", 36, "1,000 queued · place 45"),
        ("1,000 queued · place 45 · about 02:39", 23, "1,000 queued · place 45"),
        ("1,000 queued · place 45 · about 02:39", 22, "1,000 queued · place…"),
        ("1,000 queued · place 45 · about 02:39", 15, "1,000 queued…"),
        ("next · waits for 2 GPUs on a-node-with-a-name", 30, "next · waits for 2 GPUs on…"),
        ("next · waits for 2 GPUs on a-node-with-a-name", 27, "next · waits for 2 GPUs on…"),
        ("gpu-node-12:0,1,2,3", 12, "gpu-node-12…"),
    ],
)
def test_why_is_cut_between_its_clauses_and_words(text: str, width: int, shown: str) -> None:
    column: Column[str] = Column("WHY", str, least=1, of_clauses=True)
    assert draw([column], [text], Look(width=width))[1:] == [shown]


def test_no_time_and_no_place_of_a_narrow_queue_is_cut_in_two(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    spec = job_pb2.JobSpec(name="grid-search-of-everything", argv=["x"], devices=[job_pb2.DeviceRequest(count=16)])
    waiting = job(
        1191, job_pb2.JOB_STATE_QUEUED, spec=spec, queue_position=1045, array_counts=job_pb2.ArrayCounts(queued=1000)
    )
    waiting.wait_reason.reason = "DEVICES_IN_USE"
    waiting.estimated_start_time.FromSeconds(1_790_000_000)
    held = job(2, job_pb2.JOB_STATE_HELD, array_counts=job_pb2.ArrayCounts(held=5))
    held.wait_reason.reason = held.wait_reason.summary = "HELD"
    fake.jobs = {1191: waiting, 2: held}
    first, second = gpuctl("queue").text.splitlines()[1:3]
    assert first.endswith("  1,000 queued · place 1,045") and len(first) <= 80
    assert second.endswith("  5 held"), "once"


def test_that_the_output_is_blocked_has_room_beside_many_gpus_and_nodes(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    def running(number: int, *nodes: str) -> job_pb2.Job:
        made = job(number, output_blocked="no room")
        ranks = [job_pb2.PlacedRank(node=node, device_indices=range(8)) for node in nodes]
        made.attempts.add(number=1).ranks.extend(ranks)
        return made

    fake.jobs = {1: running(1, "gpu-node-12"), 2: running(2, "n1"), 3: running(3, "n1", "n2", "n3")}
    shown = [line.split("  ")[-1] for line in gpuctl("queue").text.splitlines()[1:4]]
    assert shown == ["gpu-node-12 ! output blocked", "n1 ! output blocked", "n[1-3] ! output blocked"]


def test_a_job_whose_output_is_blocked_says_so_and_why(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    why = "what it writes waits on its node, as the scheduler cannot store it: No space left on device"
    fake.jobs = {1: job(1, output_blocked=why), 2: job(2)}
    assert f"blocked its output: {why}" in " ".join(gpuctl("job", "1").text.split())
    assert "blocked" not in gpuctl("job", "2").text
    first, second = gpuctl("queue").text.splitlines()[1:3]
    assert first.endswith("! output blocked") and "blocked" not in second
    assert why in gpuctl("job", "1", "-o", "json").text and why in gpuctl("queue", "-o", "json").text
