"""`check`: the answer, its exit code, and waiting that asks once."""

from __future__ import annotations

import json

import pytest
from gpufleet.v1 import capacity_pb2

from gpufleet.errors import GpufleetError, Reason
from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import FakeScheduler, Fault

NOT_YET = capacity_pb2.CheckCapacityResponse(message="free now: 2 of 4 GPUs", reason="DEVICES_IN_USE")
FREE = capacity_pb2.CheckCapacityResponse(is_available=True, message="4 GPUs would start now on node n1")


def test_room_is_exit_code_0_and_none_is_1(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.capacity = [FREE]
    done = gpuctl("check", "--gpus", "4", "--min-memory", "10GB")
    assert (done.code, done.text) == (0, "available: 4 GPUs would start now on node n1\n")
    fake.capacity = [NOT_YET]
    done = gpuctl("check", "--gpus", "4", "--min-memory", "10GB")
    assert (done.code, done.text) == (1, "not available: free now: 2 of 4 GPUs\n")
    request = fake.asked("CheckCapacity")[0]
    assert (request.spec.devices[0].count, request.spec.devices[0].min_memory_bytes) == (4, 10**10)
    assert not request.spec.env and request.wait.ToSeconds() == 0


@pytest.mark.parametrize(
    ("words", "wait_s"), [(["--wait"], 300), (["--wait", "2m"], 120), (["--wait", "--every", "7s"], 300)]
)
def test_a_wait_asks_once_and_is_5m_alone(fake: FakeScheduler, gpuctl: Gpuctl, words: list[str], wait_s: int) -> None:
    fake.capacity = [NOT_YET, FREE]
    done = gpuctl("check", "--gpus", "4", *words)
    assert (done.code, done.text) == (0, "available: 4 GPUs would start now on node n1\n")
    (request,) = fake.asked("CheckCapacity")
    assert wait_s - 5 < request.wait.ToTimedelta().total_seconds() <= wait_s


def test_json_is_the_last_answer_and_jsonl_is_each(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.capacity = [NOT_YET, FREE]
    assert json.loads(gpuctl("check", "--gpus", "4", "-o", "json").text)["is_available"] is True
    lines = gpuctl("check", "--gpus", "4", "-o", "jsonl").text.splitlines()
    assert [json.loads(line)["is_available"] for line in lines] == [False, True]


def test_a_scheduler_that_goes_away_is_asked_again_while_there_is_time(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.faults["CheckCapacity"] += [Fault.UNAVAILABLE]
    fake.capacity = [FREE]
    assert gpuctl("check", "--gpus", "4", "--wait", "1m").code == 0
    fake.faults["CheckCapacity"] += [Fault.UNAVAILABLE]
    assert gpuctl("check", "--gpus", "4").code == 5


def test_what_no_node_could_ever_hold_is_refused(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.faults["CheckCapacity"].append(GpufleetError(Reason.NEVER_FITS, "no node has 64 GPUs"))
    assert gpuctl("check", "--gpus", "64", "--wait").code == 4


@pytest.mark.parametrize("words", [["--every", "5s"], ["--wait", "soon"], ["--wait", "--every", "1ms"]])
def test_wrong_spans_are_named(fake: FakeScheduler, gpuctl: Gpuctl, words: list[str]) -> None:
    done = gpuctl("check", "--gpus", "1", *words)
    assert done.code == 2 and not fake.asked("CheckCapacity")
    assert done.err.startswith("gpuctl: --")
