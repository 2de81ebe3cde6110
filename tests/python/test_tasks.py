"""How calls become files, what runs them, and how what they gave is read."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from gpufleet.v1 import job_pb2

from gpufleet.api import tasks
from gpufleet.api.failures import TaskFailed
from gpufleet.api.gathering import _failed, _outcome
from gpufleet.errors import GpufleetError


def made(folder: Path, calls: list[tasks.Call], chunk_size: int = 1) -> Path:
    (lot,) = tasks.lots(calls)
    tasks.write(lot, folder, chunk_size)
    return folder


def run(folder: Path, index: int = 0, *, isolated: bool = False) -> subprocess.CompletedProcess[str]:
    flags = ["-S"] if isolated else []
    return subprocess.run(
        [sys.executable, *flags, str(folder / "run.py")],
        env={"GPUFLEET_ARRAY_INDEX": str(index)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_call_is_made_and_leaves_its_value_also_where_nothing_is_installed(tmp_path: Path) -> None:
    folder = made(tmp_path, [(lambda number, by: number * by, (6,), {"by": 7})])
    done = run(folder, isolated=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert _outcome((folder / "left/0").read_bytes(), job_pb2.Job()).value == 42


def test_what_a_call_raises_costs_it_alone_and_comes_with_the_traceback_of_there(tmp_path: Path) -> None:
    def halve(number: int) -> float:
        return 1 / number

    folder = made(tmp_path, [(halve, (each,), {}) for each in (2, 0, 4)], chunk_size=3)
    assert run(folder).returncode == 1
    first, second, third = (_outcome((folder / f"left/{each}").read_bytes(), job_pb2.Job(id=41)) for each in range(3))
    assert (first.value, third.value) == (0.5, 0.25)
    assert isinstance(second.error, ZeroDivisionError)
    assert "in halve" in str(second.error.__cause__) and "job 41" in str(second.error.__cause__)


def test_an_exit_of_a_call_does_not_end_the_program_that_asked_for_it(tmp_path: Path) -> None:
    folder = made(tmp_path, [(sys.exit, (3,), {})])
    assert run(folder).returncode == 3
    error = _outcome((folder / "left/0").read_bytes(), job_pb2.Job(id=41)).error
    assert isinstance(error, TaskFailed) and "SystemExit: 3" in str(error)


def test_another_version_of_python_is_told_with_what_to_name(tmp_path: Path) -> None:
    folder = made(tmp_path, [(abs, (-1,), {})])
    calls = (folder / "calls").read_bytes()
    (folder / "calls").write_bytes(b"2.7 " + calls.partition(b" ")[2])
    done = run(folder)
    assert done.returncode == 1 and "the calls need 2.7" in done.stderr
    error = _outcome((folder / "left/0").read_bytes(), job_pb2.Job(id=41)).error
    assert isinstance(error, GpufleetError)
    assert error.violations[0].field == "python" and "python=" in error.next_step


def test_what_comes_back_and_is_nothing_that_was_left_is_an_error_of_its_call() -> None:
    for data in (
        b"",
        b"no json\n",
        b"{}\n",
        b'{"kind": "value"}\nno pickle',
        b'{"kind": "raised"}\n' + pickle.dumps(5),
    ):
        assert isinstance(_outcome(data, job_pb2.Job(id=41)).error, TaskFailed)


def test_calls_that_are_many_bytes_are_several_lots_and_a_function_lies_in_each_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "LOT_BYTES_MAX", 10_000)
    found = list(tasks.lots([(len, (bytes(4_000),), {}) for _ in range(5)]))
    assert [(lot.numbers, len(lot.calls), len(lot.functions)) for lot in found] == [
        ([0, 1], 2, 1),
        ([2, 3], 2, 1),
        ([4], 1, 1),
    ]
    assert [lot.job_count(2) for lot in found] == [1, 1, 1]


def test_what_cannot_be_pickled_is_refused_with_its_place() -> None:
    with pytest.raises(GpufleetError, match=r"items\[1\]: it cannot be pickled"):
        list(tasks.lots([(len, ([],), {}), (len, (iter(range(3)).__iter__(), (number for number in (1, 2))), {})]))


def test_what_cannot_be_pickled_is_left_out_where_the_others_are_to_go_on() -> None:
    refused: dict[int, GpufleetError] = {}
    calls: list[tasks.Call] = [
        (len, ((each for each in "ab"),), {}),
        (len, ("ab",), {}),
        (threading.Lock().acquire, (), {}),
    ]
    (lot,) = tasks.lots(calls, refused.__setitem__)
    assert (lot.numbers, len(lot.calls)) == ([1], 1)
    assert {number: error.violations[0].field for number, error in refused.items()} == {0: "arguments", 2: "function"}


class ExitsWhenItIsRead:
    """Its pickle ends whoever reads it."""

    def __reduce__(self) -> tuple[object, tuple[int]]:
        return sys.exit, (3,)


def test_what_ends_its_reader_is_an_error_of_its_call() -> None:
    error = _outcome(b'{"kind": "value"}\n' + pickle.dumps(ExitsWhenItIsRead()), job_pb2.Job(id=41)).error
    assert isinstance(error, TaskFailed) and "SystemExit: 3" in str(error)


def test_a_call_that_left_nothing_is_not_told_as_a_success() -> None:
    error = _failed(job_pb2.Job(id=41, state=job_pb2.JOB_STATE_SUCCEEDED))
    assert "job 41 succeeded, but what its call gave is not there" in str(error)
