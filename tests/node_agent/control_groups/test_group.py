"""A group in both versions: its files by their names, and what a real one of version 2 does without any controller."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from gpufleet.jobs.runs import JobId, RankKey
from node_agent.control_groups import kept
from node_agent.control_groups.files import V1, V2, limits_of, mounts_of, processes_in
from node_agent.control_groups.group import Group, make, remove
from node_agent.control_groups.kept import KeptGroups
from node_agent.core.launch import ControlGroup
from node_agent.core.outcome import Shortage

MB = 1_000_000


def test_limits_are_written_as_each_version_wants_them() -> None:
    def written(version: int) -> list[tuple[str, str]]:
        wanted = (("memory", 64 * MB), ("cpu", 3), ("pids", 40))
        return [(file, text) for name, value in wanted for file, text, _ in limits_of(version, name, value)]

    assert written(V1) == [
        ("memory.limit_in_bytes", "64000000"),
        ("memory.memsw.limit_in_bytes", "64000000"),
        ("cpu.cfs_period_us", "100000"),
        ("cpu.cfs_quota_us", "300000"),
        ("pids.max", "40"),
    ]
    assert written(V2) == [
        ("memory.max", "64000000"),
        ("memory.swap.max", "0"),
        ("cpu.max", "300000 100000"),
        ("pids.max", "40"),
    ]


@pytest.mark.parametrize(
    ("version", "files"),
    [
        (V1, {"memory.oom_control": "under_oom 0\noom_kill 2\n", "memory.max_usage_in_bytes": "63000000\n"}),
        (V2, {"memory.events": "oom 5\noom_kill 2\noom_group_kill 0\n", "memory.peak": "63000000\n"}),
    ],
)
def test_what_it_ran_out_of_is_read_where_each_version_has_it(
    tmp_path: Path, version: int, files: dict[str, str]
) -> None:
    for name, text in {**files, "pids.events": "max 7\n"}.items():
        (tmp_path / name).write_text(text)
    asked = ControlGroup(version=version, folders={}, memory_bytes=64 * MB, processes=40)
    group = Group(asked, dict.fromkeys(("memory", "pids"), str(tmp_path)))
    assert group.shortage() == Shortage(
        oom_kills=2, memory_bytes_peak=63 * MB, memory_bytes_max=64 * MB, forks_refused=7, processes_max=40
    )
    assert Group(asked, {"memory": f"{tmp_path}/none"}).shortage() is None


@pytest.fixture
def unified() -> str:
    """A real hierarchy of version 2, whatever controllers it has."""
    for place, root, names in mounts_of(Path("/proc/self/mountinfo").read_text()):
        if names == {""} and root == "/":
            probe = Path(place, f"gpufleet-test-{os.getpid()}")
            try:
                probe.mkdir()
                probe.rmdir()
            except OSError as error:
                pytest.skip(f"no group of version 2 can be made in {place}: {error.strerror}")
            return place
    pytest.skip("no control groups of version 2 are mounted")


def _child_in(group: Group) -> int:
    """A process that waits in the group, once it is there."""
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        for fd in group.entrances():
            os.write(fd, b"0")
        os.write(tell, b".")
        while True:
            signal.pause()
    os.close(tell)
    os.read(ready, 1)
    os.close(ready)
    return pid


def test_a_real_group_of_version_2_is_entered_ended_whole_and_removed(unified: str) -> None:
    group = make(ControlGroup(version=V2, folders={}), {"pids": unified}, f"gpufleet-test-{os.getpid()}")
    try:
        pid = _child_in(group)
        assert processes_in(group.places[0]) == [pid]
        assert not remove(group.places), "somebody is in it"
        group.end()
        _, status = os.waitpid(pid, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL
    finally:
        assert remove(group.places)


def test_what_is_left_of_a_keeper_is_found_by_what_it_wrote_down(unified: str, tmp_path: Path) -> None:
    calls: list[int] = []
    groups = KeptGroups(tmp_path, f"test-{os.getpid()}", lambda callback, at_us: calls.append(at_us), lambda: 1_000)
    group = groups.make(RankKey(JobId(1), 1, 0), ControlGroup(version=V2, folders={"pids": unified}))
    pid = _child_in(group)
    groups.remove(group)
    assert calls == [51_000], "somebody is in it: later once more"
    left = kept.left_by(tmp_path)
    assert left == (f"{unified}/gpufleet-test-{os.getpid()}",)
    assert kept.members_left(left) == {pid}
    kept.let_nothing_begin(left)
    os.waitpid(pid, 0)
    kept.remove_left(left)
    assert not Path(left[0]).exists()
    groups.close()


def test_limits_hold_in_version_2(unified: str) -> None:
    given = Path(unified, "cgroup.controllers").read_text().split()
    if not {"memory", "cpu", "pids"} <= set(given):
        pytest.skip(f"version 2 has no controllers here but {given or 'none'}: tests/node_agent/keeper has version 1")
    name = f"gpufleet-test-{os.getpid()}"
    parents = dict.fromkeys(("memory", "cpu", "pids"), unified)
    group = make(ControlGroup(version=V2, folders={}, memory_bytes=64 * MB, cpus=2, processes=40), parents, name)
    place = Path(group.places[0])
    try:
        assert (place / "pids.max").read_text() == "40\n"
        assert (place / "cpu.max").read_text() == "200000 100000\n"
        assert abs(int((place / "memory.max").read_text()) - 64 * MB) < 4096
    finally:
        assert remove(group.places)
