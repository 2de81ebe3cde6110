"""A folder or a program below /tmp is on no node that isolates jobs: submit says so where no other node is suitable."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpufleet.jobs.runs import private_folder_above
from scheduler.state.ids import NodeName
from scheduler.state.nodes import JobAccounts, RunsAs
from scheduler.state.replies import Refused
from scheduler.state.specs import GpuChoice, GpuMode, JobSpec, Resources
from tests.core.fleet import Fleet


def refused(spec: JobSpec, *accounts: RunsAs | None) -> str:
    """Why it is refused, with nodes n1, n2 … that run jobs so; the first has GPUs."""
    fleet = Fleet(passes=False)
    for number, runs_as in enumerate(accounts, 1):
        node = fleet.add_node(f"n{number}", gpus=2 if number == 1 else 0)
        node.info = replace(node.info, job_accounts=JobAccounts(runs_as=runs_as))
        for _ in fleet.join(node):
            pass
    turn = fleet.submit(spec, user="ada")
    if not isinstance(turn.reply, Refused):
        return ""
    assert not turn.records
    return f"{turn.reply.field}: {turn.reply.message}; {turn.reply.next_step}"


def spec(cwd: str = "/data", program: str = "python", **more: object) -> JobSpec:
    asked: dict[str, Any] = {"resources": Resources(), **more}
    return JobSpec(argv=(program, "train.py"), name="train", cwd=cwd, **asked)


def test_it_is_refused_where_every_node_isolates() -> None:
    said = refused(spec("/tmp/ada/project"), RunsAs.RANGE, RunsAs.ACCOUNTS)
    assert said.startswith("specs[0].cwd: /tmp/ada/project is in /tmp, which is private to each job on every node")
    assert "(n1, n2)" in said and "--upload ." in said


@pytest.mark.parametrize("other", [None, RunsAs.SHARED, RunsAs.OWNER])
def test_it_is_taken_where_one_node_does_not_isolate(other: RunsAs | None) -> None:
    accounts = (RunsAs.RANGE, other)
    if other is not RunsAs.OWNER:
        assert not refused(spec("/tmp/project"), *accounts)
    else:  # such a node takes the jobs of its owner alone
        assert refused(spec("/tmp/project"), *accounts)


def test_only_nodes_that_could_hold_the_job_count() -> None:
    gpus = Resources(gpus=1)
    assert refused(spec("/tmp/project", resources=gpus), RunsAs.RANGE, RunsAs.SHARED)
    named = Resources(nodelist=(NodeName("n2"),))
    assert not refused(spec("/tmp/project", resources=named), RunsAs.RANGE, RunsAs.SHARED)
    choice = GpuChoice(asked=GpuMode.PREFERRED, mode=GpuMode.PREFERRED)
    assert not refused(spec("/tmp/project", resources=gpus, gpu_choice=choice), RunsAs.RANGE, RunsAs.SHARED)
    assert not refused(spec("/tmp/project")), "no node is known yet"


@pytest.mark.parametrize(
    ("cwd", "program", "field"),
    [
        ("/var/tmp/x", "python", "cwd"),
        ("/dev/shm/x", "python", "cwd"),
        ("/home/../tmp//x", "python", "cwd"),
        ("/data", "/tmp/venv/bin/python", "argv"),
        ("/tmp", "./train.sh", "argv"),
        ("", "/tmp/x", "argv"),
        ("/tmp", "python", ""),
        ("/tmpfiles", "python", ""),
        ("", "./train.sh", ""),
        ("", "tmp/train.sh", ""),
        ("tmp/x", "python", ""),
        ("/tmp/..", "./train.sh", ""),
    ],
)
def test_what_lies_in_a_private_folder(cwd: str, program: str, field: str) -> None:
    said = refused(spec(cwd, program), RunsAs.RANGE)
    assert said.partition(": ")[0].removeprefix("specs[0].") == field


def test_a_container_has_its_own_folders() -> None:
    assert "private" not in refused(spec("/tmp/x", resources=Resources(in_container=True)), RunsAs.RANGE)


def test_the_folder_itself_is_there() -> None:
    assert [private_folder_above(each) for each in ("/tmp", "/tmp/", "/tmp/a", "tmp/a")] == ["", "", "/tmp", ""]
