"""`import gpufleet` with a real scheduler and a real node: jobs, calls of Python, and an executor."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpufleet
from gpufleet.api.loop_thread import close_loop_thread
from tests.e2e.fleet import Fleet

SERVER = str(Path(__file__).parents[1] / "inside" / "server.py")


@pytest.fixture
def fleet_here(shared_fleet: Fleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[gpufleet.Fleet]:
    """The shared fleet as a program finds it: by its variables."""
    monkeypatch.setenv("GPUCTL_SCHEDULER", shared_fleet.scheduler.address)
    monkeypatch.setenv("GPUCTL_TOKEN", shared_fleet.scheduler.token("admin"))
    monkeypatch.setenv("HOME", str(tmp_path))
    with gpufleet.connect() as fleet:
        yield fleet
    close_loop_thread()


def test_a_folder_goes_along_its_output_is_read_and_what_it_left_is_brought_here(
    fleet_here: gpufleet.Fleet, tmp_path: Path
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.sh").write_text("mkdir out; echo 0.25 > out/loss; echo done; echo why >&2\n")
    job = fleet_here.submit(["sh", "train.sh"], gpus=1, upload=tmp_path / "code", download="out/**", name="trains")
    assert sorted(job.logs(follow=True)) == ["done\n", "why\n"]
    assert (job.wait(), job.state, job.exit_code, job.nodes) == (0, "succeeded", 0, ["n1"])
    assert [(each.path, each.size_bytes) for each in job.files()] == [("out/loss", 5)]
    (place,) = job.download("out", target=tmp_path / "here")
    assert place.read_text() == "0.25\n"
    assert list(job.logs(stream="stderr")) == ["why\n"]
    assert fleet_here.job(job.id).name == fleet_here.job("last").name == "trains"
    assert job.id in [each.id for each in fleet_here.jobs(name="trains", with_ended=True)]


def test_what_the_items_of_an_array_left_is_listed_and_brought_here(fleet_here: gpufleet.Fleet, tmp_path: Path) -> None:
    job = fleet_here.submit("echo $GPUFLEET_ARRAY_INDEX >a", array="3-4", download="a")
    assert job.wait() == 0
    assert [(each.item, each.path) for each in job.files()] == [(3, "a"), (4, "a")]
    assert job.download(target=tmp_path) == [tmp_path / "item-3/a", tmp_path / "item-4/a"]
    assert job.items()[1].download("a", tmp_path / "b") == [tmp_path / "b"]
    assert (tmp_path / "b").read_text() == "4\n"


def test_a_models_configuration_says_what_a_job_needs(fleet_here: gpufleet.Fleet, tmp_path: Path) -> None:
    config = tmp_path / "model.json"
    config.write_text('{"model": {"id_or_path": "tiny-1b"}, "parameters": {"tp": [1]}}')
    job = fleet_here.submit("true", config=config, dry_run=True)
    (devices,) = job.record.spec.devices
    assert (devices.count, devices.min_memory_bytes > 0) == (1, True)
    (devices,) = fleet_here.submit("true", config=config, gpus=2, min_memory="1GB", dry_run=True).record.spec.devices
    assert (devices.count, devices.min_memory_bytes) == (2, 1_000_000_000), "what is said counts"
    config.write_text("[")
    with pytest.raises(gpufleet.GpufleetError, match=f"config: {config}") as refused:
        fleet_here.submit("true", config=config)
    assert refused.value.next_step
    with pytest.raises(gpufleet.GpufleetError, match="cannot be read"):
        fleet_here.submit("true", config="no-such.json")


def test_what_makes_an_environment_is_read_line_by_line(fleet_here: gpufleet.Fleet, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    job = fleet_here.submit("true", upload=tmp_path / "code", setup="echo one; sleep 0.7; echo two", download="out/**")
    assert list(job.logs(setup=True, follow=True)) == ["one\n", "two\n"]
    assert job.wait() == 0
    assert list(job.logs(setup=True, tail=1)) == ["two\n"]
    with pytest.raises(gpufleet.GpufleetError, match="one stream alone"):
        list(job.logs(setup=True, stream="stderr"))


def test_a_job_is_signalled_held_cancelled_and_its_failure_is_an_exception_where_that_is_wanted(
    fleet_here: gpufleet.Fleet,
) -> None:
    job = fleet_here.submit("trap 'exit 7' USR1; echo ready; while :; do sleep 0.1; done")
    assert next(job.logs(follow=True)) == "ready\n"
    job.signal("USR1")
    with pytest.raises(gpufleet.JobFailed, match=f"job {job.id} failed with exit code 7"):
        job.wait(check=True)
    held = fleet_here.submit("true", hold=True)
    assert held.state == "held"
    with pytest.raises(TimeoutError):
        held.wait(timeout_s=0.1)
    held.release()
    assert held.wait() == 0
    gone = fleet_here.submit("sleep 1000", hold=True)
    gone.cancel("not needed")
    assert (gone.wait(), gone.state) == (125, "cancelled")


def test_a_refusal_has_its_reason_its_option_and_what_to_do_next(fleet_here: gpufleet.Fleet) -> None:
    with pytest.raises(gpufleet.GpufleetError) as refused:
        fleet_here.submit("true", gpus=999)
    assert refused.value.reason.name == "NEVER_FITS"
    assert refused.value.violations[0].field == "gpus" and refused.value.next_step
    with pytest.raises(gpufleet.GpufleetError) as unreadable:
        fleet_here.submit("true", time_limit="soon")
    assert unreadable.value.violations[0].field == "time_limit"


def test_a_dry_run_changes_nothing_and_says_what_would_be(fleet_here: gpufleet.Fleet, tmp_path: Path) -> None:
    before = fleet_here.submit("true")
    would_be = fleet_here.submit("true", gpus=1, upload=tmp_path, name="would-be", dry_run=True)
    assert (would_be.id, would_be.name, would_be.state) == (0, "would-be", "queued")
    assert not isinstance(would_be, gpufleet.Job)
    with pytest.raises(gpufleet.GpufleetError, match="gpus"):
        fleet_here.submit("true", gpus=999, dry_run=True)
    assert fleet_here.submit("true").id == before.id + 1


def test_a_command_in_a_job_gives_what_it_wrote_and_a_job_that_ended_takes_none(fleet_here: gpufleet.Fleet) -> None:
    job = fleet_here.submit("echo ready; sleep 1000")
    assert next(job.logs(follow=True)) == "ready\n"
    large = bytes(range(256)) * 4096
    echoed = job.exec("cat; echo why >&2; exit 3", given=large)
    assert (echoed.exit_code, echoed.stdout == large, echoed.stderr, echoed.problem) == (3, True, b"why\n", "")
    assert job.exec(["sh", "-c", "kill -9 $$"]).exit_code == 137
    assert job.exec("cat").stdout == b"", "without input it reads an end at once"
    absent = job.exec(["/nowhere/program"])
    assert absent.exit_code == 127 and "/nowhere/program" in absent.problem
    with pytest.raises(gpufleet.GpufleetError) as refused:
        job.exec("head -c 70000000 /dev/zero")
    assert refused.value.reason.name == "MESSAGE_TOO_LARGE" and "gpuctl cp" in refused.value.next_step
    job.cancel()
    job.wait()
    with pytest.raises(gpufleet.GpufleetError) as ended:
        job.exec("true")
    assert ended.value.reason.name in ("JOB_NOT_RUNNING", "JOB_FINISHED")
    with pytest.raises(gpufleet.GpufleetError) as gone, job.forward(1):
        pass
    assert gone.value.reason.name == "JOB_FINISHED"


def test_a_port_of_a_job_is_here_as_long_as_the_block_lasts(fleet_here: gpufleet.Fleet) -> None:
    job = fleet_here.submit([sys.executable, SERVER])
    there = int(next(job.logs(follow=True)).split()[1])
    with job.forward(there) as port:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(b"echo\nhello\n")
            connection.shutdown(socket.SHUT_WR)
            assert b"".join(iter(lambda: connection.recv(4096), b"")) == b"hello\nbye"
        with pytest.raises(gpufleet.GpufleetError) as taken, job.forward(there, local=port):
            pass
        assert taken.value.reason.name == "PORT_TAKEN"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=10)
    with pytest.raises(gpufleet.GpufleetError) as wrong, job.forward(70_000):
        pass
    assert wrong.value.reason.name == "INVALID_ARGUMENT"
    job.cancel()


def test_calls_come_back_in_order_and_one_that_fails_costs_itself_alone(fleet_here: gpufleet.Fleet) -> None:
    def call(number: int) -> object:
        if number == 2:
            raise KeyError("two")
        if number == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return os.environ["GPUFLEET_ARRAY_INDEX"], bytes(3_000_000 if number == 4 else 3)

    gave = list(fleet_here.map(call, range(6), return_exceptions=True, name="calls"))
    assert [gave[each] for each in (0, 1, 4, 5)] == [
        ("0", bytes(3)),
        ("1", bytes(3)),
        ("4", bytes(3_000_000)),
        ("5", bytes(3)),
    ]
    assert isinstance(gave[2], KeyError) and "raise KeyError" not in str(gave[2])
    assert "in call" in str(gave[2].__cause__)
    assert isinstance(gave[3], gpufleet.TaskFailed) and "SIGKILL" in str(gave[3])
    with pytest.raises(KeyError):
        list(fleet_here.map(call, [2]))


def test_large_items_and_modules_beside_the_program_go_along(fleet_here: gpufleet.Fleet, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/beside_it.py").write_text("def size(data): return len(data)\n")
    items = [bytes(2_000_000), bytes(3_000_000)]

    def call(data: bytes) -> int:
        import beside_it  # type: ignore[import-not-found]

        answer: int = beside_it.size(data)
        return answer

    assert sorted(fleet_here.map(call, items, in_order=False, upload=tmp_path / "code")) == [2_000_000, 3_000_000]
    assert list(fleet_here.map(abs, [-1, -2, -3], chunk_size=2, cwd=tmp_path)) == [1, 2, 3]


def test_an_interpreter_that_is_not_there_is_told(fleet_here: gpufleet.Fleet) -> None:
    with pytest.raises(gpufleet.TaskFailed, match="COMMAND_NOT_FOUND"):
        list(fleet_here.map(abs, [-1], python="/nowhere/python"))


def test_an_interrupt_cancels_what_was_asked_for(fleet_here: gpufleet.Fleet) -> None:
    calls = fleet_here.map(time.sleep, [0, 1000, 1000, 1000], name="interrupted")
    assert next(calls) is None
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        next(calls)
    (array,) = fleet_here.jobs(name="interrupted", with_ended=True)
    array.wait(timeout_s=60)
    assert [each.state for each in array.items()] == ["succeeded", "cancelled", "cancelled", "cancelled"]


def test_an_executor_makes_calls_gives_futures_and_cancels_those_that_wait(fleet_here: gpufleet.Fleet) -> None:
    with gpufleet.Executor(fleet_here, max_workers=2) as executor:
        futures = [executor.submit(pow, 2, exponent) for exponent in range(4)]
        failing = executor.submit(int, "seven")
        assert [each.result() for each in futures] == [1, 2, 4, 8]
        assert isinstance(failing.exception(), ValueError)
        assert list(executor.map(len, ["a", "bb"])) == [1, 2]
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(abs, -1)


def test_a_call_that_cannot_be_pickled_costs_itself_alone(fleet_here: gpufleet.Fleet) -> None:
    with gpufleet.Executor(fleet_here) as executor:
        sound = executor.submit(abs, -1)
        refused = executor.submit(id, threading.Lock())
    assert sound.result() == 1
    with pytest.raises(gpufleet.GpufleetError, match="arguments: it cannot be pickled"):
        refused.result()


def test_an_executor_that_is_shut_down_has_cancelled_its_jobs_and_settled_its_futures(
    fleet_here: gpufleet.Fleet,
) -> None:
    executor = gpufleet.Executor(fleet_here, name="unsent")
    never_sent = executor.submit(time.sleep, 1000)
    executor.shutdown(cancel_futures=True)
    assert never_sent.done()
    executor = gpufleet.Executor(fleet_here, name="slow")
    future = executor.submit(time.sleep, 1000)
    until = time.monotonic() + 60
    while not (found := fleet_here.jobs(name="slow")) and time.monotonic() < until:
        time.sleep(0.05)
    executor.shutdown(cancel_futures=True)
    assert isinstance(future.exception(timeout=0), concurrent.futures.CancelledError)
    (item,) = found[0].items()
    item.wait(timeout_s=60)
    assert item.state == "cancelled"


LEAVES_ITS_EXECUTOR = """
import time, gpufleet
executor = gpufleet.Executor(name="left-behind")
executor.submit(time.sleep, 1000)
while not executor._fleet.jobs(name="left-behind"):
    time.sleep(0.05)
"""


def test_a_program_that_ends_with_calls_under_way_tells_so_and_cancels_them(fleet_here: gpufleet.Fleet) -> None:
    done = subprocess.run([sys.executable, "-c", LEAVES_ITS_EXECUTOR], capture_output=True, text=True, check=True)
    assert "before calls of an executor were done (1)" in done.stderr
    (array,) = fleet_here.jobs(name="left-behind", with_ended=True)
    array.wait(timeout_s=60)
    assert [each.state for each in array.items()] == ["cancelled"]


async def test_the_same_on_asyncio_also_through_an_executor(
    shared_fleet: Fleet, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GPUCTL_SCHEDULER", shared_fleet.scheduler.address)
    monkeypatch.setenv("GPUCTL_TOKEN", shared_fleet.scheduler.token("admin"))
    monkeypatch.setenv("HOME", str(tmp_path))
    async with gpufleet.connect_async() as fleet:
        job = await fleet.submit([sys.executable, "-c", "print('hello')"])
        assert [line async for line in job.logs(follow=True)] == ["hello\n"]
        assert await job.wait() == 0
        listens = await fleet.submit([sys.executable, SERVER])
        there = int((await anext(listens.logs(follow=True))).split()[1])
        async with listens.forward(there) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"echo\nhello\n")
            writer.write_eof()
            assert await reader.read() == b"hello\nbye"
            writer.close()
        assert (await listens.exec("echo $GPUFLEET_JOB_ID")).stdout == f"{listens.id}\n".encode()
        await listens.cancel()
        assert (await fleet.submit("true", dry_run=True)).id == 0
        assert [each async for each in fleet.map(abs, [-1, -2])] == [1, 2]
    loop = asyncio.get_running_loop()

    def use() -> gpufleet.Executor:
        return gpufleet.Executor()

    executor = await asyncio.to_thread(use)
    assert await asyncio.gather(*(loop.run_in_executor(executor, abs, -each) for each in range(3))) == [0, 1, 2]
    await asyncio.to_thread(executor.shutdown)
    await asyncio.to_thread(close_loop_thread)
