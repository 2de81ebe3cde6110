"""Real processes: Ctrl-C on a terminal and without one, signals, pipes that close, and views that stay."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from gpufleet.v1 import job_pb2, scheduler_pb2

from tests.cli import cluster
from tests.cli.conftest import RUN_S_MAX, start_gpuctl
from tests.cli.fake_scheduler import Break, FakeScheduler, Fault, Piece, Serving, Until, ended, job
from tests.cli.terminal import Terminal
from tests.ports import kept_port

NOT_YET = threading.Event()


@pytest.fixture
def terminals() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def open_terminal(*arguments: str, is_patient: bool = False) -> Terminal:
        opened.append(Terminal(*arguments, is_patient=is_patient))
        return opened[-1]

    yield open_terminal
    for terminal in opened:
        terminal.close()


@pytest.fixture(autouse=True)
def _at_the_fake(fake: FakeScheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUCTL_SCHEDULER", fake.address)


def wait_until(is_so: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + RUN_S_MAX
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def cancelled(fake: FakeScheduler, end: threading.Event) -> Callable[[Any], None]:
    def cancel(request: Any) -> None:
        fake.jobs[1] = job(1, job_pb2.JOB_STATE_CANCELLED, exit_reason="CANCELLED")
        end.set()

    return cancel


def test_ctrl_c_is_sent_to_the_job_a_second_cancels_it_and_we_stay_for_its_end(
    fake: FakeScheduler, terminals: Callable[..., Terminal]
) -> None:
    end = threading.Event()
    fake.output[1] = [Piece(b"training\n"), Until(end), Piece(b"cleaned up\n")]
    fake.before["Cancel"] = cancelled(fake, end)
    terminal = terminals("run", "--", "train", is_patient=True)
    terminal.wait_for("training")
    terminal.type("\x03")
    terminal.wait_for("sent SIGINT to job 1; Ctrl-C again within 3 s cancels it")
    terminal.type("\x03")
    terminal.wait_for("cancelling job 1; Ctrl-C once more leaves")
    assert terminal.end() == 130
    assert b"cleaned up" in terminal.shown
    assert [request.signal for request in fake.asked("SignalJob")] == [signal.SIGINT]
    assert len(fake.asked("Cancel")) == 1


def test_a_third_ctrl_c_leaves_a_job_that_does_not_end(fake: FakeScheduler, terminals: Callable[..., Terminal]) -> None:
    fake.output[1] = [Piece(b"training\n"), Until(NOT_YET)]
    terminal = terminals("run", "--", "train", is_patient=True)
    after = terminal.wait_for("training")
    for said in ("sent SIGINT", "cancelling job 1", "left; job 1 is being cancelled"):
        terminal.type("\x03")
        after = terminal.wait_for(said, after)
    assert terminal.end() == 130


def test_on_a_terminal_progress_is_told_before_the_job_runs(
    fake: FakeScheduler, terminals: Callable[..., Terminal]
) -> None:
    running = job(1, spec=job_pb2.JobSpec(argv=["x"]))
    running.attempts.add(number=1).ranks.add(node="n1", device_indices=[0, 1])
    running.attempt_count = 1
    waits = job(1, job_pb2.JOB_STATE_QUEUED, wait_reason=job_pb2.WaitReason(sentence="2 jobs are ahead of it"))

    is_seen = threading.Event()

    def start() -> None:
        fake.jobs[1] = running

    def finish() -> None:
        fake.jobs[1] = ended(1, code=7)

    fake.jobs[1] = waits
    fake.output[1] = [start, Break(), Until(is_seen), finish]
    terminal = terminals("run", "--", "train")
    terminal.wait_for("job 1 is queued: 2 jobs are ahead of it")
    terminal.wait_for("job 1 runs on n1:0,1")
    is_seen.set()
    assert terminal.end() == 7


def test_without_a_terminal_the_first_sigint_cancels(fake: FakeScheduler) -> None:
    end = threading.Event()
    fake.output[1] = [Piece(b"training\n"), Until(end)]
    fake.before["Cancel"] = cancelled(fake, end)
    with start_gpuctl("run", "--", "train") as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"training\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(RUN_S_MAX) == 130
        assert b"cancelling job 1\n" in process.stderr.read()
    assert not fake.asked("SignalJob")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_cancels_and_leaves_at_once_has_cancelled(fake: FakeScheduler, number: signal.Signals) -> None:
    fake.output[1] = [Piece(b"training\n"), Until(NOT_YET)]
    with start_gpuctl("run", "--", "train") as process:
        assert process.stdout is not None and process.stderr is not None
        fake.before["Cancel"] = lambda asked: process.send_signal(number)
        assert process.stdout.readline() == b"training\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(RUN_S_MAX) == 128 + number
        end = "job 1 is being cancelled. Wait for its end with: gpuctl wait 1\n"
        assert process.stderr.read().decode().endswith(end)
    assert len(fake.asked("Cancel")) == 1


def test_who_leaves_before_a_cancel_is_answered_is_told_that_it_is_not_known(
    fake: FakeScheduler, terminals: Callable[..., Terminal]
) -> None:
    fake.output[1] = [Piece(b"training\n"), Until(NOT_YET)]
    fake.faults["Cancel"] += [Fault.HANG]
    terminal = terminals("run", "--", "train", is_patient=True)
    after = terminal.wait_for("training")
    for said in ("sent SIGINT", "cancelling job 1", "left; whether job 1 is cancelled is not known"):
        terminal.type("\x03")
        after = terminal.wait_for(said, after)
    assert terminal.end() == 130


def test_who_interrupts_before_the_scheduler_has_answered_is_told_how_to_find_out(fake: FakeScheduler) -> None:
    is_asked = threading.Event()
    fake.before["Submit"] = lambda asked: is_asked.set()
    fake.faults["Submit"] += [Fault.HANG]
    with start_gpuctl("run", "--", "train") as process:
        assert process.stderr is not None
        assert is_asked.wait(RUN_S_MAX)
        process.send_signal(signal.SIGINT)
        assert process.wait(RUN_S_MAX) == 130
        said = "gpuctl: interrupted before the scheduler answered; whether there is a job: gpuctl queue --mine\n"
        assert process.stderr.read().decode() == said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_and_sighup_leave_and_the_job_goes_on(fake: FakeScheduler, number: signal.Signals) -> None:
    fake.output[1] = [Piece(b"training\n"), Until(NOT_YET)]
    with start_gpuctl("run", "--", "train") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.send_signal(number)
        assert process.wait(RUN_S_MAX) == 128 + number
        assert f"left by {number.name}; job 1 goes on".encode() in process.stderr.read()
    assert not fake.asked("Cancel")


def test_a_reader_that_goes_away_ends_us_quietly_and_not_the_job(fake: FakeScheduler) -> None:
    fake.output[1] = [Piece(b"y\n" * 1000) for _ in range(200)]
    fake.jobs[1] = job(1)
    with start_gpuctl("logs", "1") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(RUN_S_MAX) == 141
        assert process.stderr.read() == b""


def test_a_reader_that_leaves_run_is_told_how_to_follow_the_job(fake: FakeScheduler) -> None:
    fake.output[1] = [Piece(b"y\n" * 1000) for _ in range(200)]
    with start_gpuctl("run", "--", "yes") as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(RUN_S_MAX) == 141
        assert process.stderr.read() == b"gpuctl: left; job 1 goes on. Follow it with: gpuctl logs -f 1\n"
    assert not fake.asked("Cancel")


def test_ctrl_c_in_logs_and_wait_leaves_and_says_how_to_come_back(
    fake: FakeScheduler, terminals: Callable[..., Terminal]
) -> None:
    fake.jobs[1] = job(1)
    fake.output[1] = [Piece(b"training\n"), Until(NOT_YET)]
    for arguments, seen, said in (
        (("logs", "-f", "1"), "training", "left. Come back with: gpuctl logs -f 1"),
        (("wait", "1"), "waiting for 1 job", "left; job 1 goes on. Wait again with: gpuctl wait 1"),
    ):
        terminal = terminals(*arguments)
        terminal.wait_for(seen)
        terminal.type("\x03")
        terminal.wait_for(said)
        assert terminal.end() == 130
    assert not fake.asked("Cancel") and not fake.asked("SignalJob")


def test_the_watched_queue_is_drawn_again_on_a_change_and_is_marked_stale_without_a_scheduler(
    terminals: Callable[..., Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    change = threading.Event()
    fake = FakeScheduler()  # type: ignore[abstract]  # what the CLI does not call is left out
    fake.jobs[12] = cluster.running()
    fake.nodes = cluster.nodes()
    fake.watch = [Until(change), scheduler_pb2.WatchResponse(event=scheduler_pb2.WATCH_EVENT_CHANGED)]
    serving = Serving(fake, kept_port())
    try:
        terminal = terminals("queue", "-w", "--scheduler", fake.address)
        terminal.wait_for("resnet")
        terminal.wait_for("8 × NVIDIA H200")
        wait_until(lambda: fake.asked("Watch"), "nobody watches")
        fake.jobs[13] = cluster.queued()
        change.set()
        terminal.wait_for("a-rather-long")
    finally:
        serving.close()
    after = terminal.wait_for(f"STALE: {fake.address} is away")
    again = Serving(fake, serving.port)
    try:
        terminal.wait_for("running, 1 waiting", after)
        terminal.type("\x03")
        terminal.wait_for("left. Come back with: gpuctl queue -w")
        assert terminal.end() == 130
    finally:
        again.close()
    # The screen is given back, and the last picture is left on it.
    assert terminal.shown.count(b"\x1b[?1049h") == terminal.shown.count(b"\x1b[?1049l") == 1
    assert b"resnet" in terminal.shown.rpartition(b"\x1b[?1049l")[2]


def test_the_watched_queue_as_json_gives_one_object_a_change(fake: FakeScheduler) -> None:
    change = threading.Event()
    fake.watch = [
        scheduler_pb2.WatchResponse(event=scheduler_pb2.WATCH_EVENT_SNAPSHOT, job=cluster.running()),
        scheduler_pb2.WatchResponse(event=scheduler_pb2.WATCH_EVENT_KEEPALIVE),
        scheduler_pb2.WatchResponse(event=scheduler_pb2.WATCH_EVENT_CHANGED, node=cluster.nodes()[0]),
        Until(change),
    ]
    with start_gpuctl("queue", "-w", "-o", "json") as process:
        assert process.stdout is not None
        first, second = (json.loads(process.stdout.readline()) for _ in range(2))
        process.send_signal(signal.SIGINT)
        assert process.wait(RUN_S_MAX) == 130
    assert (first["event"], first["job"]["id"]) == ("WATCH_EVENT_SNAPSHOT", "12")
    assert (second["event"], second["node"]["name"]) == ("WATCH_EVENT_CHANGED", "n1")


def test_cancel_all_asks_on_a_terminal(fake: FakeScheduler, terminals: Callable[..., Terminal]) -> None:
    fake.jobs = {number: job_pb2.Job(id=number, state=job_pb2.JOB_STATE_QUEUED) for number in (1, 2)}
    terminal = terminals("cancel", "all")
    terminal.wait_for("Cancel 2 jobs of yours? [y/N]")
    terminal.type("n\n")
    assert terminal.end() == 1 and not fake.asked("Cancel")
    terminal = terminals("cancel", "all")
    terminal.wait_for("[y/N]")
    terminal.type("y\n")
    assert terminal.end() == 0 and fake.asked("Cancel")[0].jobs.all_mine


def test_who_is_at_a_terminal_is_asked_with_the_number_and_whose_they_are(
    fake: FakeScheduler, terminals: Callable[..., Terminal]
) -> None:
    queued = job_pb2.JOB_STATE_QUEUED
    jobs = [
        job_pb2.Job(id=1, user="ada", state=queued, spec=cluster.spec("true", name="sweep")),
        job_pb2.Job(id=2, user="ada", state=queued),
        job_pb2.Job(id=5, user="grace", state=queued),
        job_pb2.Job(
            id=10,
            user="ada",
            state=job_pb2.JOB_STATE_RUNNING,
            spec=cluster.spec("true", name="sweep"),
            array_counts=job_pb2.ArrayCounts(items=101, queued=99, running=1, succeeded=1),
        ),
    ]
    fake.jobs = {job.id: job for job in jobs}
    fake.server = scheduler_pb2.GetServerInfoResponse(user="ada")
    for typed, asked in (
        (("cancel", "--name", "sweep"), "Cancel 101 jobs of yours? [y/N]"),
        (("cancel", "all"), "Cancel 102 jobs of yours? [y/N]"),
        (("hold", "--user", "grace"), "Hold 1 job of grace? [y/N]"),
    ):
        terminal = terminals(*typed)
        terminal.wait_for(asked)
        terminal.type("n\n")
        assert terminal.end() == 1
    assert not fake.asked("Cancel") and not fake.asked("UpdateJob")
    terminal = terminals("cancel", "--array", "10")
    terminal.wait_for("Cancel 100 jobs of yours? [y/N]")
    terminal.type("y\n")
    assert terminal.end() == 0 and list(fake.asked("Cancel")[0].jobs.job_ids) == [10]


def test_on_a_terminal_an_error_is_broken_between_words(terminals: Callable[..., Terminal]) -> None:
    terminal = terminals("queue", "--scheduler", "127.0.0.1:1")
    terminal.wait_for("gpuctl doctor")
    assert terminal.end() == 5
    lines = terminal.shown.decode().split("\r\n")
    assert lines[1].startswith("Start one here with: gpuctl up") and lines[2] and not lines[2].startswith(" ")
    assert all(len(line) <= 80 for line in lines)


def test_a_job_that_wrote_nothing_is_said_to_on_a_terminal(
    fake: FakeScheduler, terminals: Callable[..., Terminal]
) -> None:
    fake.jobs = {1: ended(1), 2: job(2)}
    terminal = terminals("logs", "1")
    terminal.wait_for("gpuctl: job 1 wrote nothing of what was asked for; see: gpuctl job 1")
    assert terminal.end() == 0
    terminal = terminals("logs", "2")
    terminal.wait_for("asked for so far;")
    assert terminal.end() == 0


def test_colour_is_on_the_terminal_unless_no_color_is_set(
    fake: FakeScheduler, terminals: Callable[..., Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.jobs[12] = cluster.running()
    monkeypatch.setenv("TERM", "xterm")
    terminal = terminals("queue")
    assert terminal.end() == 0 and b"\x1b[32mrunning" in terminal.shown
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = terminals("queue")
    assert terminal.end() == 0 and b"\x1b[" not in terminal.shown


def test_a_name_that_the_terminal_cannot_show_is_no_traceback(fake: FakeScheduler) -> None:
    fake.jobs[1] = ended(1, spec=job_pb2.JobSpec(argv=["x"], name="模型"))
    environment = {**os.environ, "PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    command = ["-P", "-m", "gpufleet.cli", "queue", "-a"]
    import sys

    done = subprocess.run([sys.executable, *command], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"??" in done.stdout
