"""Where an agent can make control groups: on this machine, and in folders that stand for others'."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpufleet.config.agent_settings import IsolationSettings
from node_agent.control_groups.files import CONTROLLERS, V1, V2, folder_of
from node_agent.control_groups.finding import SUBGROUP, GroupFacts, Places, find_groups
from node_agent.isolation.limits import Limiting


class Machine:
    """Folders that stand for a machine's hierarchies: what is written shows, and no kernel answers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.own: list[str] = []
        self.mounts: list[str] = []

    def mount(self, kind: str, names: str, path: str, root: str = "/") -> Path:
        """Mount a hierarchy in which the agent is at `path`; answers the folder of the agent's group."""
        place = self.folder / (names or "unified")
        own = place / path.removeprefix("/")
        own.mkdir(parents=True)
        self.own.append(f"{len(self.own)}:{names}:{root.rstrip('/')}{path}")
        self.mounts.append(f"30 20 0:2{len(self.mounts)} {root} {place} rw,relatime - {kind} {kind} rw,{names or 'x'}")
        return own

    def version_2(self, path: str) -> Path:
        own = self.mount("cgroup2", "", path)
        for name in ("cgroup.controllers", "cgroup.subtree_control", "cgroup.procs"):
            (own / name).write_text("cpu io memory pids\n" if name == "cgroup.controllers" else "")
        return own

    def rule(self) -> None:
        (self.folder / "systemd").mkdir()

    def look(self) -> GroupFacts:
        (self.folder / "own").write_text("\n".join(self.own))
        (self.folder / "mounts").write_text("\n".join([*self.mounts, "1 0 8:1 / / rw - ext4 /dev/root rw"]))
        return find_groups(
            Places(own=self.folder / "own", mounts=self.folder / "mounts", systemd=self.folder / "systemd")
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_version_1_has_a_group_of_the_agents_own_for_each_controller(machine: Machine) -> None:
    memory = machine.mount("cgroup", "memory", "/abc", root="/docker")
    machine.mount("cgroup", "cpu,cpuacct", "/")
    machine.mount("cgroup", "pids", "/agent")
    found = machine.look()
    assert (found.version, found.kind, found.controllers, found.why_not) == (V1, "cgroup v1", CONTROLLERS, "")
    assert found.folders["memory"] == str(memory)
    assert found.folders["cpu"] == str(machine.folder / "cpu,cpuacct")


def test_what_version_1_lacks_is_said_and_the_rest_holds(machine: Machine) -> None:
    machine.mount("cgroup", "memory", "/")
    found = machine.look()
    assert found.controllers == ("memory",)
    assert found.why_not == "of version 1, cpu: it is not mounted; pids: it is not mounted"
    limiting = Limiting(IsolationSettings(users="range"), isolates=True, find=lambda: found)
    assert limiting.held == ("memory",)


def test_version_2_gives_its_controllers_on_to_groups_below(machine: Machine) -> None:
    own = machine.version_2("/box")
    found = machine.look()
    # The kernel would list there what it gives on; here the last that was written shows.
    assert (own / "cgroup.subtree_control").read_text().startswith("+pids")
    assert found.version == 0
    (own / "cgroup.subtree_control").write_text("cpu memory pids\n")
    (own / "cgroup.controllers").write_text("io memory\n")
    found = machine.look()
    assert not (own / SUBGROUP).exists(), "nothing hindered it, so that nothing moved"
    assert found.why_not.startswith(f"{own} gives on no controller")


def test_an_agent_in_its_subgroup_makes_groups_beside_it(machine: Machine) -> None:
    own = machine.version_2(f"/box/{SUBGROUP}")
    (own.parent / "cgroup.controllers").write_text("")
    (own.parent / "cgroup.subtree_control").write_text("cpu memory pids\n")
    found = machine.look()
    assert (found.version, found.kind) == (V2, "cgroup v2")
    assert found.folders == dict.fromkeys(CONTROLLERS, str(own.parent))


def test_what_systemd_has_not_delegated_is_left_alone(machine: Machine) -> None:
    own = machine.version_2("/system.slice/agent.service")
    machine.rule()
    found = machine.look()
    assert (found.version, found.folders, found.kind) == (0, {}, "none")
    assert "Delegate=yes" in found.why_not
    assert (own / "cgroup.subtree_control").read_text() == ""


def test_a_unit_that_systemd_delegated_has_groups_beside_its_subgroup(machine: Machine) -> None:
    own = machine.version_2("/system.slice/agent.service/agent")
    (own.parent / "cgroup.controllers").write_text("")
    (own.parent / "cgroup.subtree_control").write_text("cpu memory pids\n")
    machine.rule()
    try:
        os.setxattr(own.parent, "user.delegate", b"1")
    except OSError as error:
        pytest.skip(f"files here have no attributes: {error}")
    assert machine.look().folders == dict.fromkeys(CONTROLLERS, str(own.parent))


def test_a_machine_without_control_groups_says_so(machine: Machine) -> None:
    assert machine.look().why_not == "no control groups are mounted where the agent sees them"


@pytest.mark.parametrize(
    ("root", "path", "folder"),
    [
        ("/", "/", "/c"),
        ("/", "/a/b", "/c/a/b"),
        ("/a", "/a", "/c"),
        ("/a", "/a/b", "/c/b"),
        ("/a", "/ab", None),
        ("/", "/../a", None),
    ],
)
def test_a_group_lies_below_where_its_hierarchy_is_mounted(root: str, path: str, folder: str | None) -> None:
    assert folder_of("/c", root, path) == folder


def test_groups_are_looked_for_only_where_limits_are_wanted() -> None:
    def find() -> GroupFacts:
        raise AssertionError("nobody wants any")

    off = Limiting(IsolationSettings(), isolates=False, find=find)
    assert (off.held, off.of(4, 1_000)) == ((), None)
    assert Limiting(IsolationSettings(users="range", limits=()), isolates=True, find=find).of(4, 1_000) is None


def test_a_job_is_kept_within_what_it_reserves_as_far_as_the_settings_want_it() -> None:
    facts = GroupFacts(version=V2, folders=dict.fromkeys(CONTROLLERS, "/base"))
    all_three = Limiting(IsolationSettings(processes_max=99), isolates=True, find=lambda: facts).of(4, 1_000)
    assert all_three is not None
    assert (all_three.cpus, all_three.memory_bytes, all_three.processes) == (4, 1_000, 99)
    some = Limiting(IsolationSettings(limits=("memory", "processes")), isolates=False, find=lambda: facts).of(4, 0)
    assert some is not None
    assert (some.cpus, some.memory_bytes, some.processes) == (0, 0, 4096)
    assert set(some.folders) == {"memory", "pids"}
