"""gpufleet.monitor as programs use it: the page's example, a real driver library, none, and children made by fork."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpufleet import monitor
from tests.devices.fake_nvml import DRIVER_NOT_LOADED, FakeNvml

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "monitor.md"


def python(code: str, environment: dict[str, str]) -> str:
    """What a program prints; it must say nothing on stderr and end well."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "gen")])
    environment = {**os.environ, "PYTHONPATH": paths, **environment}
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def example() -> str:
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def test_the_pages_example_runs(gpus: FakeNvml) -> None:
    gpus.set(0, memory_used=75_000_000_000, utilization=20)
    gpus.set(1, utilization=10, memory_used=1_000_000_000)
    first, second, best, watched, *used = python(example(), gpus.environment()).splitlines()
    assert first.startswith("GPU 0: 20 % busy, 4500 MB free, score 0.35")
    assert second.startswith("GPU 1: 10 % busy, 78500 MB free, score 0.94")
    assert best == "best: 1"  # the other one has less than 10 GB free
    assert re.fullmatch(r"watched for \d+\.\d s, [1-9]\d* samples", watched)
    assert [line.split()[0] for line in used] == ["0", "1"]
    assert "'max': 20.0" in used[0] and "NVIDIA H100" in used[0]


def test_the_pages_example_runs_where_there_is_no_driver_and_says_why(gpus: FakeNvml) -> None:
    gpus.fail(None, "nvmlInitWithFlags", DRIVER_NOT_LOADED)
    best, watched = python(example(), gpus.environment()).splitlines()
    assert best.startswith("best: the NVIDIA driver library does not start")
    assert re.fullmatch(r"watched for \d+\.\d s, [1-9]\d* samples", watched)  # of its processes


def test_one_device_by_index_or_uuid_and_none_where_there_is_none(gpus: FakeNvml) -> None:
    code = f"""
from gpufleet import monitor
print(monitor.device(1).uuid, monitor.device("{gpus.uuid(1)}").index, monitor.device(9))
print([gpu.index for gpu in monitor.free_devices()])
monitor.close()
print(len(monitor.fresh()))
"""
    assert python(code, gpus.environment()).splitlines() == [f"{gpus.uuid(1)} 1 None", "[0, 1]", "2"]


def test_a_device_with_somebody_elses_process_is_not_free(gpus: FakeNvml) -> None:
    gpus.start_process(1, 1, 1000)
    code = "from gpufleet import monitor; print([gpu.index for gpu in monitor.free_devices()])"
    assert python(code, gpus.environment()) == "[0]\n"


def test_a_child_made_by_fork_looks_for_itself_and_leaves_the_parents_monitor_alone(gpus: FakeNvml) -> None:
    code = """
import json, os
from gpufleet import monitor
reading, writing = os.pipe()
with monitor.start(interval_seconds=0.05) as watch:
    child = os.fork()
    if child == 0:
        told = {"seen": len(monitor.fresh()), "runs": watch.is_running}
        watch.stop()
        os.write(writing, json.dumps(told).encode())
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert watch.is_running
print(os.read(reading, 1000).decode())
"""
    # Newer Pythons warn of a fork beside threads; programs that load data do it all the same.
    told = python("import warnings; warnings.simplefilter('ignore', DeprecationWarning)\n" + code, gpus.environment())
    assert json.loads(told) == {"seen": 2, "runs": False}


def test_importing_it_loads_no_vendors_package_and_no_grpc() -> None:
    code = "import sys, gpufleet.monitor; print([name for name in ('pynvml', 'amdsmi', 'grpc') if name in sys.modules])"
    assert python(code, {}) == "[]\n"


def test_arguments_that_make_no_sense_are_refused_before_anything_is_opened() -> None:
    with pytest.raises(ValueError, match="max_utilization: 101 is not 0 to 100"):
        monitor.free_devices(max_utilization=101)
    with pytest.raises(ValueError, match='min_memory: the unit "G" has two meanings'):
        monitor.free_devices(min_memory="8G")
    with pytest.raises(ValueError, match="min_memory: -1 is less than nothing"):
        monitor.free_devices(min_memory=-1)
