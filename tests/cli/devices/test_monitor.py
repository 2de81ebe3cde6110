"""`monitor`: a command as if gpuctl were not there, the live table, and what was used behind both."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from gpufleet.v1 import node_pb2, scheduler_pb2

from cli.devices.node_monitor import NodeWatch
from cli.render.stats import monitor_lines
from cli.render.table import Look
from gpufleet.devices.device import Device, DeviceProcess, DeviceSample, Trouble, TroubleKind, Vendor
from gpufleet.devices.snapshots import snapshot_of
from tests.cli.conftest import run_here
from tests.cli.golden import assert_golden
from tests.cli.terminal import Terminal
from tests.devices.fake_nvml import DRIVER_NOT_LOADED, FakeNvml, compiler

WAIT_SECONDS = 60.0
GB = 10**9
LOAD = (
    {"seconds": 0, "utilization_percent": 20, "memory_used_bytes": 3 * GB, "power_mw": 90_000},
    {"seconds": 0, "gpu": 1, "utilization_percent": 95, "memory_used_bytes": 12 * GB, "temperature_c": 66},
)
GPUCTL = [sys.executable, "-P", "-m", "gpufleet.cli", "monitor"]


@pytest.fixture
def load(tmp_path: Path) -> list[str]:
    """Two virtual GPUs, read often."""
    file = tmp_path / "load.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in LOAD))
    return ["--virtual-load", str(file), "--interval", "100ms"]


def shell(script: str) -> list[str]:
    return ["--", "/bin/sh", "-c", script]


def ran(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [*GPUCTL, *arguments]
    environment = {**os.environ, **(environment or {})}
    return subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, env=environment, check=False)


def wait_for_file(file: Path) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not file.exists():
        assert time.monotonic() < deadline, f"{file.name} does not come"
        time.sleep(0.01)


def test_a_command_has_its_own_output_and_exit_code_and_its_statistics_come_behind(load: list[str]) -> None:
    done = ran(*load, *shell("echo out; echo err >&2; sleep 0.5; exit 3"))
    assert (done.returncode, done.stdout) == (3, "out\n")
    first, head, *rest = done.stderr.splitlines()
    assert first == "err" and re.fullmatch(r"/bin/sh: watched for \S+, \d+ samples?\.", head)
    assert [line.split()[0] for line in rest if line[:1].isdigit() and "virtual GPU" in line] == ["0", "1"]
    assert rest[-1].startswith("Processes: ")


def test_the_statistics_are_those_of_a_job_as_json_in_a_file(load: list[str], tmp_path: Path) -> None:
    used = tmp_path / "used.json"
    done = ran(*load, "-o", "json", "--to", str(used), *shell("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    told = json.loads(used.read_text())
    assert told["gpu_stats"]["1"]["utilization"].keys() == {"min", "max", "mean", "samples"}
    assert told["gpu_stats"]["1"]["memory_usage_percent"] == {"min": 75.0, "max": 75.0, "mean": 75.0}
    assert "temperature_c" not in told["gpu_stats"]["0"]
    assert told["energy_wh"] > 0 and told["idle_share"] == 0
    # What a shell has counted is known at its end, however short it was.
    assert told["process_stats"]["0"]["cpu_seconds"] > 0


def test_the_end_by_a_signal_is_told_as_a_shell_tells_it() -> None:
    assert ran(*shell("kill -KILL $$")).returncode == 128 + signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_for_gpuctl_is_the_commands(tmp_path: Path, number: signal.Signals) -> None:
    ready, got = tmp_path / "ready", tmp_path / "got"
    name = number.name.removeprefix("SIG")
    script = f"trap 'echo {name} >> {shlex.quote(str(got))}; exit 9' {name}; touch {shlex.quote(str(ready))}; "
    process = subprocess.Popen([*GPUCTL, *shell(script + "while :; do sleep 0.05; done")], stderr=subprocess.DEVNULL)
    try:
        wait_for_file(ready)
        process.send_signal(number)
        assert process.wait(WAIT_SECONDS) == 9
        assert got.read_text() == f"{name}\n"
    finally:
        process.kill()
        process.wait()


def test_ctrl_c_on_a_terminal_reaches_the_command_once(tmp_path: Path) -> None:
    got = tmp_path / "got"
    script = f"trap 'echo INT >> {shlex.quote(str(got))}' INT; echo re''ady; while [ ! -e {got} ]; do sleep 0.05; done"
    terminal = Terminal("monitor", *shell(f"{script}; sleep 0.3; exit 4"))
    try:
        terminal.wait_for("ready")
        terminal.type("\x03")
        terminal.wait_for("watched for")
        assert terminal.end() == 4
        assert got.read_text() == "INT\n"
    finally:
        terminal.close()


def test_a_command_that_cannot_be_run_gives_the_code_of_a_shell(load: list[str]) -> None:
    missing, no_program = ran(*load, "--", "no-such-command"), ran(*load, "--", "/etc/passwd")
    assert (missing.returncode, missing.stderr) == (127, "gpuctl: no-such-command: there is no such command\n")
    assert no_program.returncode == 126 and "/etc/passwd: Permission denied" in no_program.stderr


def test_on_a_terminal_the_gpus_are_shown_live_until_ctrl_c_and_then_what_they_did(load: list[str]) -> None:
    terminal = Terminal("monitor", *load)
    try:
        at = terminal.wait_for("Ctrl-C ends it")
        for text in ("LOAD", "20%", "95%", "66°C", "gpufleet virtual GPU"):
            terminal.wait_for(text)
        terminal.wait_for("20%", at)
        terminal.type("\x03")
        at = terminal.wait_for("watched for")
        terminal.wait_for("12,000 MB", at)
        assert terminal.end() == 0
    finally:
        terminal.close()


def test_as_json_lines_each_look_is_told_and_then_the_whole(load: list[str]) -> None:
    process = subprocess.Popen([*GPUCTL, *load, "-o", "jsonl"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        looks = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        *_, last = process.stdout.read().splitlines()
        assert process.wait(WAIT_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    assert [device["availability_score"] for device in looks[2]["devices"]] == [0.8075, 0.17]
    assert json.loads(last)["gpu_stats"]["0"]["utilization"]["samples"] >= 1


@pytest.fixture
def without_driver(tmp_path: Path) -> dict[str, str]:
    if compiler() is None:
        pytest.skip("the NVML test library needs gcc; Debian, Ubuntu: apt-get install gcc libc6-dev")
    gpus = FakeNvml(tmp_path)
    gpus.fail(None, "nvmlInitWithFlags", DRIVER_NOT_LOADED)
    return gpus.environment()


def test_without_a_gpu_it_says_why_and_a_command_runs_all_the_same(without_driver: dict[str, str]) -> None:
    done = ran(environment=without_driver)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no GPU to watch: the NVIDIA driver library does not start" in done.stderr
    assert "run nvidia-smi" in done.stderr
    done = ran("-o", "jsonl", *shell("echo out"), environment=without_driver)
    assert (done.returncode, done.stdout) == (0, "out\n")
    why, told = done.stderr.splitlines()
    assert why.startswith("gpuctl: no GPU was watched: ")
    assert json.loads(told)["gpu_stats"] == {}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--interval", "1ms"], "--interval: 1ms is not 50ms to 1h"),
        (["--interval", "1"], "has no unit"),
        (["--node", "n1", "--", "true"], "--node: is another machine"),
        (["--virtual-load", "/nowhere"], "--virtual-load: [Errno 2]"),
        (["--to", "/", "--", "true"], "--to: /: Is a directory"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_runs(arguments: list[str], said: str) -> None:
    done = run_here("monitor", *arguments)
    assert done.code == 2 and said in done.err


@pytest.mark.parametrize(("age_seconds", "looks_counted"), [(1, 3), (60, 0)])
async def test_of_a_node_that_is_not_heard_nothing_is_summed_up(age_seconds: int, looks_counted: int) -> None:
    told = node_pb2.NodeDevice(node="n1", device=node_pb2.Device(uuid="GPU-a", name="H200", is_healthy=True))
    told.sample.CopyFrom(node_pb2.DeviceSample(uuid="GPU-a", utilization_percent=97, is_healthy=True))
    told.sample.age.FromSeconds(age_seconds)
    client: Any = None  # nothing is asked of it
    watch = NodeWatch(client, "n1", 1.0)
    watch.take(scheduler_pb2.WatchDevicesResponse(is_whole=True, devices=[told]))
    for _ in range(3):
        (shown,) = (await watch.look()).devices
        assert shown.utilization_percent == 97
    assert watch.message().sample_count == looks_counted


def test_the_table() -> None:
    busy = Device(uuid="GPU-a", index=0, name="NVIDIA H200", memory_bytes=141 * GB, vendor=Vendor.NVIDIA)
    gone = Device(uuid="GPU-b", index=1, name="NVIDIA H200", memory_bytes=141 * GB, vendor=Vendor.NVIDIA)
    reading = DeviceSample(
        uuid="GPU-a",
        utilization_percent=97,
        memory_used_bytes=91 * GB,
        memory_free_bytes=50 * GB,
        temperature_c=66,
        power_mw=690_400,
        processes=(DeviceProcess(pid=7), DeviceProcess(pid=8)),
        throttle_reasons=("sw_power_cap",),
    )
    lost = DeviceSample(uuid="GPU-b", troubles=(Trouble(kind=TroubleKind.VANISHED, detail="it fell off the bus"),))
    shown = [snapshot_of(busy, reading), snapshot_of(gone, lost)]
    lines = [*monitor_lines(shown, ["", ""], Look()), "", *monitor_lines(shown, ["job 12, ann", ""], Look())]
    assert_golden("monitor", "".join(f"{line}\n" for line in lines))
