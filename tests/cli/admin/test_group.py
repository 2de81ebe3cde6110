"""`group`: what is asked of the scheduler, what is shown, and what is refused before it is asked."""

from __future__ import annotations

import json

import pytest
from gpufleet.v1 import job_pb2, scheduler_pb2

from cli.render.groups import group_lines
from cli.render.table import ABSENT
from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import FakeScheduler


def test_a_group_is_made_and_only_what_is_named_is_asked_for(gpuctl: Gpuctl, fake: FakeScheduler) -> None:
    done = gpuctl(
        *("group", "set", "ml", "--gpus", "8", "--gpu-hours-week", "500", "--max-band", "high"),
        *("--shares", "3", "--add", "ana,ben", "--add", "eva", "--remove", "zoe"),
    )
    text = "group ml is made: 8 GPUs at once, 500 GPU-hours a week, band high at most, 3 shares, ana, ben, eva\n"
    assert (done.code, done.text) == (0, text)
    (asked,) = fake.asked("SetGroup")
    assert asked == scheduler_pb2.SetGroupRequest(
        name="ml",
        gpus_max=8,
        gpu_hours_week=500,
        max_band=job_pb2.BAND_HIGH,
        shares=3,
        add_members=["ana", "ben", "eva"],
        remove_members=["zoe"],
    )
    gpuctl("group", "set", "ml", "--gpus", "none", "--max-band", "none")
    assert fake.asked("SetGroup")[1] == scheduler_pb2.SetGroupRequest(
        name="ml", gpus_max=0, max_band=job_pb2.BAND_UNSPECIFIED
    )


def test_one_of_a_kind_is_told_in_the_singular() -> None:
    group = scheduler_pb2.UserGroup(name="solo", gpus_max=1, gpu_hours_week=1, shares=1)
    assert group_lines(group) == "1 GPU at once, 1 GPU-hour a week, 1 share, nobody in it"


def test_groups_and_members_are_tables_and_json(gpuctl: Gpuctl, fake: FakeScheduler) -> None:
    assert gpuctl("group", "list").text == (
        "No groups that you see. An admin makes one with: gpuctl group set NAME --add USER\n"
    )
    member = scheduler_pb2.GroupMember(user="ana", is_default=True, gpus_milli=2500, gpu_hours=12.34)
    fake.groups["ml"] = scheduler_pb2.UserGroup(
        name="ml", gpus_max=8, gpus_milli=2500, gpu_hours=12.34, shares=3, members=[member]
    )
    rows = [row.split() for row in gpuctl("group", "list").text.splitlines()]
    assert rows[1] == ["ml", "2.5", "of", "8", "12.3", ABSENT, "3", "ana"]
    (row,) = [row.split() for row in gpuctl("group", "members", "ml").text.splitlines()[1:]]
    assert (row[0], *row[-3:]) == ("ana", "yes", "2.5", "12.3")
    assert json.loads(gpuctl("group", "list", "-o", "json").text)["groups"][0]["gpus_max"] == 8
    assert gpuctl("group", "members", "ml", "-o", "name").text == "ana\n"
    missing = gpuctl("group", "members", "vision")
    assert missing.code == 3 and "gpuctl group list" in missing.err


@pytest.mark.parametrize(
    "wrong",
    [
        "--gpus=-1",
        "--gpus=0",
        "--gpus=many",
        "--gpus=1.5",
        "--gpu-hours-week=-1",
        "--gpu-hours-week=",
        "--max-band=top",
    ],
)
def test_what_no_cap_can_be_is_refused_with_the_option(gpuctl: Gpuctl, fake: FakeScheduler, wrong: str) -> None:
    done = gpuctl("group", "set", "ml", wrong)
    assert done.code == 2 and wrong.partition("=")[0] in done.err
    assert not fake.groups


def test_a_group_is_renamed_and_removed(gpuctl: Gpuctl, fake: FakeScheduler) -> None:
    fake.groups["ml"] = scheduler_pb2.UserGroup(name="ml")
    assert gpuctl("group", "rename", "ml", "speech").text == "group ml is called speech\n"
    assert gpuctl("group", "remove", "ml").text.startswith("group ml is removed;")
    assert gpuctl("group", "remove", "nobody").code == 3
