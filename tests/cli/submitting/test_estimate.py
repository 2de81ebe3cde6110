"""`estimate` and `submit --config`: what is asked, what is shown, and files that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpufleet.errors import invalid
from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import FakeScheduler


def test_the_line_stands_alone_on_stdout(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    Path("a.json").write_text('{"model": {}}')
    done = gpuctl("estimate", "a.json")
    assert (done.code, done.out, done.err) == (0, b"A line.\n", "gpuctl: not used: seed, dtype\n")
    assert [request.config_json for request in fake.asked("Estimate")] == ['{"model": {}}']
    assert gpuctl("estimate", "a.json", "-o", "name").out == b"4\n"
    assert json.loads(gpuctl("estimate", "a.json", "-o", "json").text)["min_memory_bytes"] == "20000000000"


def test_options_make_the_configuration(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    gpuctl("estimate", "--model", "llama-3-70b", "--tp", "1,2,4", "--dcp", "2")
    (request,) = fake.asked("Estimate")
    assert json.loads(request.config_json) == {
        "model": {"id_or_path": "llama-3-70b"},
        "parameters": {"tp": [1, 2, 4], "dcp": [2]},
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["no.json"], "CONFIG.json: no.json cannot be read: No such file or directory"),
        ([], "CONFIG.json: is missing"),
        (["a.json", "--tp", "4"], "--tp: a.json says it"),
        (["--tp", "four"], '--tp: "four" is not a number'),
        (["binary"], "CONFIG.json: binary is not UTF-8 text"),
    ],
)
def test_what_cannot_be_asked_is_told_before(
    fake: FakeScheduler, gpuctl: Gpuctl, arguments: list[str], expected: str
) -> None:
    Path("binary").write_bytes(b"\xff\xfe\x00")
    done = gpuctl("estimate", *arguments)
    assert done.code in (2, 3) and done.out == b""
    assert done.err.splitlines()[0] == f"gpuctl: {expected}"
    assert not fake.asked("Estimate")


def test_a_refusal_names_the_file(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.faults["Estimate"].append(invalid("config_json: parameters.TP", "is not known", next_step="Write tp."))
    Path("a.json").write_text("{}")
    done = gpuctl("estimate", "a.json")
    assert (done.code, done.err.splitlines()) == (2, ["gpuctl: a.json: parameters.TP: is not known", "Write tp."])


@pytest.mark.parametrize(
    ("typed", "count", "memory_bytes"),
    [
        ([], 4, 20 * 10**9),
        (["--gpus", "8"], 8, 20 * 10**9),
        (["--min-memory", "1GB"], 4, 10**9),
        (["--node-gpu-ids", "n1:0,1"], 2, 20 * 10**9),
    ],
)
def test_submit_asks_for_what_the_file_needs_and_what_is_typed_wins(
    fake: FakeScheduler, gpuctl: Gpuctl, typed: list[str], count: int, memory_bytes: int
) -> None:
    Path("a.json").write_text("{}")
    done = gpuctl("submit", "--config", "a.json", *typed, "--", "serve")
    assert (done.code, done.out) == (0, b"1\n")
    assert done.err == "gpuctl: A line.\ngpuctl: not used: seed, dtype\n"
    (device,) = fake.asked("Submit")[0].specs[0].devices
    assert (device.count, device.min_memory_bytes) == (count, memory_bytes)


def test_a_file_that_is_wrong_submits_nothing(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.faults["Estimate"].append(invalid("config_json", "is no JSON"))
    Path("a.json").write_text("{")
    done = gpuctl("submit", "--config", "a.json", "--", "serve")
    assert (done.code, done.err.splitlines()[0]) == (2, "gpuctl: --config: a.json: is no JSON")
    assert not fake.asked("Submit")
