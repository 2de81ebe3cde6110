"""CPUs and memory of the machine, against the real one and against /proc and cgroup files that a test writes."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from gpufleet.devices.host import HostReader, HostSample, host_facts

GIB = 2**30


class Machine:
    """A root directory with the files that are read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("proc/meminfo", "MemTotal: 16777216 kB\nMemFree: 1024 kB\nMemAvailable: 12582912 kB\n")
        self.cpu_ticks(busy=100, idle=100)

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def cpu_ticks(self, *, busy: int, idle: int) -> None:
        self.write("proc/stat", f"cpu  {busy - 10} 4 6 {idle - 20} 20 0 0 0 0 0\ncpu0 1 1 1 1 1 0 0 0 0 0\n")

    def cgroup(self, path: str, **files: str) -> None:
        self.write("proc/self/cgroup", f"0::{path}\n")
        self.write("sys/fs/cgroup/cgroup.controllers", "cpu memory\n")
        for name, text in files.items():
            self.write(f"sys/fs/cgroup{path}/{name.replace('_', '.', 1)}", text + "\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_the_real_machine_has_the_memory_that_psutil_sees() -> None:
    facts = host_facts()
    assert 1 <= facts.cpus <= len(os.sched_getaffinity(0))
    assert 0 < facts.memory_bytes <= psutil.virtual_memory().total
    used = HostReader().sample().memory_used_bytes
    assert used is not None
    assert 0 < used < facts.memory_bytes


def test_the_count_of_cpus_can_be_given_up_or_down() -> None:
    assert host_facts(cpus=1).cpus == 1
    assert host_facts(cpus=500).cpus == 500


@pytest.mark.parametrize("cpus", [0, -3, 16_385])
def test_an_absurd_count_of_cpus_is_refused(cpus: int) -> None:
    with pytest.raises(ValueError, match=f"cpus: {cpus} is not between 1 and 16384"):
        host_facts(cpus=cpus)


def test_cpu_affinity_counts(machine: Machine) -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert host_facts(root=machine.root).cpus == 1
    finally:
        os.sched_setaffinity(0, allowed)


def test_without_a_cgroup_limit_the_machine_counts(machine: Machine) -> None:
    machine.cgroup("/system.slice/agent.service", cpu_max="max 100000", memory_max="max")
    facts = host_facts(root=machine.root)
    assert facts.cpus == len(os.sched_getaffinity(0))
    assert facts.memory_bytes == 16 * GIB
    assert HostReader(machine.root).sample() == HostSample(cpu_percent=None, memory_used_bytes=4 * GIB)


def test_a_cpu_quota_rounds_down_and_leaves_at_least_one(machine: Machine) -> None:
    machine.cgroup("/agent", cpu_max="150000 100000")
    assert host_facts(root=machine.root).cpus == 1
    machine.cgroup("/agent", cpu_max="20000 100000")
    assert host_facts(root=machine.root).cpus == 1


def test_the_tightest_limit_of_all_groups_above_counts(machine: Machine) -> None:
    machine.cgroup("/pod/agent", memory_max=str(12 * GIB))
    machine.cgroup("/pod", memory_max=str(8 * GIB), memory_current=str(3 * GIB), memory_stat=f"inactive_file {GIB}")
    machine.cgroup("/pod/agent")
    assert host_facts(root=machine.root).memory_bytes == 8 * GIB
    # Its use is measured where the limit is, without the cache that it would give back.
    assert HostReader(machine.root).sample().memory_used_bytes == 2 * GIB


def test_a_limit_above_the_machines_memory_is_no_limit(machine: Machine) -> None:
    machine.cgroup("/agent", memory_max=str(999 * GIB))
    assert host_facts(root=machine.root).memory_bytes == 16 * GIB


def test_in_a_container_the_limits_at_the_top_of_the_mount_count(machine: Machine) -> None:
    machine.cgroup("/", memory_max=str(2 * GIB))
    assert host_facts(root=machine.root).memory_bytes == 2 * GIB
    # The path may be one of the host, outside of what is mounted here.
    machine.write("proc/self/cgroup", "0::/../../kubepods/pod1/box\n")
    assert host_facts(root=machine.root).memory_bytes == 2 * GIB


def test_cpu_use_is_the_share_since_the_last_reading(machine: Machine) -> None:
    reader = HostReader(machine.root)
    assert reader.sample().cpu_percent is None
    machine.cpu_ticks(busy=175, idle=125)
    assert reader.sample().cpu_percent == 75
    assert reader.sample().cpu_percent is None
    machine.cpu_ticks(busy=175, idle=225)
    assert reader.sample().cpu_percent == 0


def test_a_machine_that_tells_nothing_gives_absent_figures_and_no_error(tmp_path: Path) -> None:
    assert HostReader(tmp_path).sample() == HostSample()
    assert host_facts(root=tmp_path).memory_bytes > 0
