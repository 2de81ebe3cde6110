"""Jobs that take more than they were given, in real control groups: what happens is theirs alone."""

from __future__ import annotations

import os
import signal
from functools import cache
from pathlib import Path

import pytest

from gpufleet.jobs.runs import ExitCode, ExitSignal, JobId, RankKey, StopCause
from node_agent.control_groups.files import CONTROLLERS, V1
from node_agent.control_groups.finding import GroupFacts, find_groups
from node_agent.core.launch import ControlGroup, Isolation, Launch, Launched, Refusal, RefusalReason
from node_agent.core.outcome import AttemptPhase, AttemptView, Stream
from tests.node_agent.keeper.keeping import Node, is_alive, kill_with_supervisors, launch_with, read_all, until


@cache
def facts() -> GroupFacts:
    return find_groups()


def _why_not() -> str:
    if os.geteuid() != 0:
        return "only root makes control groups here"
    return "" if facts().controllers == CONTROLLERS else f"no control groups: {facts().why_not}"


pytestmark = pytest.mark.skipif(bool(_why_not()), reason=_why_not())

ALICE = 1_900_000_001
LIMIT_BYTES = 64 * 2**20
PROCESSES_MAX = 40

EATS = "exec tail /dev/zero"
"""It looks for the end of a line."""

FORKS = "while (1) { fork }"


def group(**limits: int) -> ControlGroup:
    return ControlGroup(version=facts().version, folders=facts().folders, **limits)


def bounded(node: Node, job_id: int, text: str, *, isolates: bool = False, **limits: int) -> Launch:
    """A shell within these limits."""
    isolation = Isolation(uid=ALICE, gid=ALICE, hidden=(str(node.state_dir),)) if isolates else None
    return node.shell(job_id, text, cwd="/", isolation=isolation, group=group(**limits))


def folders_of(view: AttemptView) -> list[Path]:
    return [Path(each, f"gpufleet-{view.keeper_id}", view.key.name) for each in dict.fromkeys(facts().folders.values())]


def made_of(node: Node, key: RankKey) -> list[Path]:
    places = [Path(folder, f"gpufleet-{keeper}") for folder in facts().folders.values() for keeper in node.keeper_ids]
    return [place / key.name for place in places if (place / key.name).exists()]


def processes_in(folder: Path) -> list[int]:
    return [int(word) for word in (folder / "cgroup.procs").read_text().split()]


async def are_gone(folders: list[Path]) -> None:
    await until(lambda: not any(folder.exists() for folder in folders), "the removal of its groups")


async def test_a_command_is_within_its_limits_from_its_first_instruction_and_its_keeper_is_not(node: Node) -> None:
    agent = await node.open()
    limits = {"memory_bytes": LIMIT_BYTES, "cpus": 2, "processes": PROCESSES_MAX}
    for job, isolates in enumerate((False, True), 1):
        view = await agent.start(bounded(node, job, "cat /proc/self/cgroup; sleep 1000", isolates=isolates, **limits))
        said = (await agent.output(view, 100)).decode()
        assert said.count(f"/gpufleet-{view.keeper_id}/{view.key.name}") == len(folders_of(view))
        for folder in folders_of(view):
            members = processes_in(folder)
            assert view.pid in members
            assert agent.keeper_pid not in members
        if facts().version == V1:
            memory, cpu, pids = (Path(facts().folders[each], f"gpufleet-{view.keeper_id}") for each in CONTROLLERS)
            assert int((memory / view.key.name / "memory.limit_in_bytes").read_text()) == LIMIT_BYTES
            assert int((cpu / view.key.name / "cpu.cfs_quota_us").read_text()) == 200_000
            assert int((pids / view.key.name / "pids.max").read_text()) == PROCESSES_MAX
        await agent.keepers.kill(view.key, StopCause.CANCELLED)
        assert (await agent.end(view)).shortage is None
        await are_gone(folders_of(view))


@pytest.mark.parametrize("isolates", [False, True])
async def test_what_takes_more_memory_than_it_was_given_is_ended_alone_and_told_so(node: Node, isolates: bool) -> None:
    agent = await node.open()
    bystander = await agent.start(bounded(node, 2, "exec sleep 1000", memory_bytes=LIMIT_BYTES))
    view = await agent.start(bounded(node, 1, EATS, isolates=isolates, memory_bytes=LIMIT_BYTES))
    end = await agent.end(view)
    assert end.status == ExitSignal(signal=signal.SIGKILL)
    assert end.shortage is not None
    assert (end.shortage.oom_kills, end.shortage.memory_bytes_max) == (1, LIMIT_BYTES)
    assert LIMIT_BYTES // 2 < end.shortage.memory_bytes_peak <= LIMIT_BYTES
    assert (await agent.view(bystander.key)).phase is AttemptPhase.RUNNING
    await are_gone(folders_of(view))


@pytest.mark.parametrize("isolates", [False, True])
async def test_a_fork_bomb_meets_its_own_bound_and_is_gone_with_its_job(node: Node, isolates: bool) -> None:
    agent = await node.open()
    bystander = await agent.start(bounded(node, 2, "exec sleep 1000", processes=PROCESSES_MAX))
    launch = bounded(node, 1, "", isolates=isolates, processes=PROCESSES_MAX)
    (pids,) = {Path(facts().folders["pids"], f"gpufleet-{bystander.keeper_id}", launch.key.name)}
    # The shell forks nothing itself: it would be refused that.
    until_refused = f'until read -r word count < {pids}/pids.events && [ "$count" != 0 ]; do :; done'
    view = await agent.start(
        launch_with(launch, argv=("/bin/sh", "-c", f"perl -e '{FORKS}' & {until_refused}; exit 3"))
    )
    end = await agent.end(view)
    assert (end.status, end.processes_left) == (ExitCode(code=3), 0)
    assert end.shortage is not None
    assert end.shortage.forks_refused
    assert end.shortage.processes_max == PROCESSES_MAX
    assert (await agent.view(bystander.key)).phase is AttemptPhase.RUNNING
    await are_gone(folders_of(view))


async def test_what_a_killed_keeper_left_is_known_by_its_group_alone(node: Node) -> None:
    agent = await node.open()
    daemon = "(env -i setsid sh -c 'echo ready; exec sleep 1000 >/dev/null 2>&1' &)"
    view = await agent.start(bounded(node, 1, f"{daemon}; sleep 1000", memory_bytes=LIMIT_BYTES))
    await agent.output(view, len("ready\n"))
    members = [pid for folder in folders_of(view) for pid in processes_in(folder)]
    assert len(members) >= 2
    kill_with_supervisors(agent.keeper_pid)
    (lost,) = (await agent.death()).attempts
    assert lost.phase is AttemptPhase.LOST
    assert not any(map(is_alive, members))
    assert not [folder for folder in folders_of(view) if folder.parent.exists()]
    agent.note_keepers()


async def test_a_job_that_is_root_changes_no_limit(node: Node) -> None:
    agent = await node.open()
    launch = bounded(node, 1, "", processes=PROCESSES_MAX)
    pids = facts().folders["pids"]
    own = f"set -- {pids}/gpufleet-*/{launch.key.name}/pids.max"
    text = f"{own}; (echo max > $1); (echo $$ > {pids}/cgroup.procs); echo tried"
    root = Isolation(uid=0, gid=0, hidden=(str(node.state_dir),))
    view = await agent.start(launch_with(launch, argv=("/bin/sh", "-c", text), isolation=root))
    end = await agent.end(view)
    assert end.status == ExitCode(code=0)
    assert read_all(view, Stream.STDOUT) == b"tried\n"
    assert read_all(view, Stream.STDERR).count(b"Read-only file system") == 2


async def test_a_group_that_cannot_be_made_refuses_the_launch_and_leaves_nothing(node: Node) -> None:
    agent = await node.open()
    folders = {**facts().folders, "pids": str(node.cwd)}
    asked = ControlGroup(version=facts().version, folders=folders, memory_bytes=LIMIT_BYTES, processes=PROCESSES_MAX)
    answer = await agent.keepers.launch(node.shell(1, "true", group=asked))
    assert isinstance(answer, Refusal)
    assert answer.reason is RefusalReason.ISOLATION_FAILED
    assert "control group" in answer.detail
    assert not made_of(node, RankKey(JobId(1), 1, 0))
    assert isinstance(await agent.keepers.launch(bounded(node, 1, "true", memory_bytes=LIMIT_BYTES)), Launched)
