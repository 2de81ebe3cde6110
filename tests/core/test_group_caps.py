"""Caps of groups, step by step: what no pass exceeds, what a week comes to, and what a loaded store has."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core import groups
from scheduler.core.decide import step
from scheduler.policy.groups.caps import used_of_group, used_of_members
from scheduler.state.durable import load
from scheduler.state.events import JobsSubmitted, RankExited, WantedJob
from scheduler.state.groups.changes import (
    GroupForgotten,
    GroupRemovalRequested,
    GroupRenameRequested,
    GroupSetRequested,
)
from scheduler.state.groups.group import NO_GROUP, GroupId, GroupName
from scheduler.state.groups.use import WEEK, hours_of, week_of
from scheduler.state.ids import ModelName, NodeName, UserName
from scheduler.state.jobs import Queued
from scheduler.state.records import JobQueued
from scheduler.state.replies import Refused
from scheduler.state.sessions.events import ServeRequested
from scheduler.state.sessions.session import Model
from scheduler.state.specs import Band
from scheduler.state.state import State
from scheduler.state.units import HOUR, SECOND, Instant
from tests.core.fleet import Fleet, assert_same, spec
from tests.core.words import Words, exit_of
from tests.rings.choosing import examples

ADMIN, ANA, BEN, EVA = (UserName(name) for name in ("admin", "ana", "ben", "eva"))
ML = GroupName("ml")
GROUPS_MAX, REMOVED_GROUPS_KEPT = 5, 3


def fleet_of(
    *, gpus: int = 8, gpus_max: int | None = None, gpu_hours_week: int | None = None, shares: int | None = None
) -> Fleet:
    """A node, and group ml of ana and ben with these rules."""
    fleet = Fleet()
    fleet.join(fleet.add_node("n1", gpus=gpus))
    wanted = GroupSetRequested(at=fleet.now, by=ADMIN, name=ML, added=(ANA, BEN))
    fleet.take_up(replace(wanted, gpus_max=gpus_max, gpu_hours_week=gpu_hours_week, shares=shares))
    return fleet


def held(fleet: Fleet, group: int = 1) -> int:
    jobs = fleet.state.durable.jobs.values()
    return sum(job.spec.resources.gpus for job in jobs if job.group == group and job.attempt is not None)


def used(fleet: Fleet) -> float:
    """GPU-hours of this week."""
    return hours_of(used_of_group(fleet.state.durable, GroupId(1), fleet.now))


def jump(fleet: Fleet, span: int) -> None:
    """Let time pass at once, in which nothing came but a beat in the end."""
    fleet.now = Instant(fleet.now + span)
    fleet.beat(NodeName("n1"))


def end(fleet: Fleet, job: int) -> None:
    attempt = fleet.job(job).attempt
    assert attempt is not None
    (key,) = attempt.keys(fleet.job(job).id)
    node = attempt.ranks[0].placement.node
    fleet.take_up(RankExited(at=fleet.now, node=node, key=key, exit=exit_of(Words.of("code=0"), 0)))


@settings(max_examples=examples(25))
@given(st.lists(st.tuples(st.sampled_from(("ana", "ben", "eva")), st.integers(0, 3)), max_size=6), st.integers(1, 6))
def test_no_pass_gives_a_group_more_than_its_cap(wanted: list[tuple[str, int]], cap: int) -> None:
    fleet = fleet_of(gpus_max=cap)
    for user, gpus in wanted:
        fleet.submit(spec(gpus=gpus), user=user)
        assert held(fleet) <= cap
    for job in list(fleet.state.durable.active):
        end(fleet, job)
        assert held(fleet) <= cap


def test_the_hours_of_a_week_are_those_of_its_attempts_and_begin_anew_on_monday() -> None:
    fleet = fleet_of(gpu_hours_week=4)
    jump(fleet, week_of(fleet.now) + WEEK - fleet.now - HOUR)
    fleet.submit(spec(gpus=2), user="ana")
    jump(fleet, 2 * HOUR)  # an hour of it is last week's
    assert used(fleet) == 2.0
    end(fleet, 1)
    assert used(fleet) == 2.0
    fleet.submit(spec(gpus=1), user="ben")
    jump(fleet, 2 * HOUR)
    assert used(fleet) == 4.0
    fleet.submit(spec(gpus=1), user="ana")
    assert isinstance(fleet.job(3).state, Queued)
    of_members = used_of_members(fleet.state.durable, GroupId(1), fleet.now)
    assert {user: hours_of(each) for user, each in of_members.items()} == {"ana": 2.0, "ben": 2.0}
    fleet.restart()
    assert used(fleet) == 4.0
    fleet.now = Instant(week_of(fleet.now) + WEEK + HOUR)
    assert used(fleet) == 1.0  # what still runs, since Monday


def test_a_store_that_is_loaded_again_has_the_same_groups_lines_and_holds() -> None:
    fleet = fleet_of(gpus=2, gpus_max=1, shares=3)
    for user in ("ana", "ben", "eva", "ana"):
        fleet.submit(spec(gpus=1), user=user)
    end(fleet, 1)
    fleet.take_up(GroupRenameRequested(at=fleet.now, by=ADMIN, name=ML, new_name=GroupName("vision")))
    fleet.take_up(GroupRemovalRequested(at=fleet.now, by=ADMIN, name=GroupName("vision")))
    assert {owner[0] for lines in fleet.state.durable.lines.of_band.values() for owner in lines} <= {NO_GROUP}
    assert not fleet.state.durable.group_use and not fleet.state.durable.member_use
    assert_same(load(fleet.state.durable.entities()), fleet.state.durable)
    fleet.restart()
    again = fleet.state.durable.groups
    assert again.named("vision") is None and again.name_of(GroupId(1)) == "vision"


def test_a_job_is_of_the_first_group_of_its_user_or_of_the_one_that_it_names() -> None:
    fleet = fleet_of()
    list(fleet.advance(SECOND))
    fleet.take_up(GroupSetRequested(at=fleet.now, by=ADMIN, name=GroupName("aa"), added=(ANA,)))

    def submitted(group: str) -> GroupId | Refused:
        wanted = WantedJob(spec=spec(), band=Band.NORMAL, group=group)
        turn = fleet.take_up(JobsSubmitted(at=fleet.now, user=ANA, jobs=(wanted,)))
        if isinstance(turn.reply, Refused):
            return turn.reply
        record = turn.records[0]
        assert isinstance(record, JobQueued)
        return record.job.group

    assert (submitted(""), submitted("ml"), submitted("aa")) == (1, 1, 2)
    refusal = submitted("bb")
    assert isinstance(refusal, Refused)
    assert (refusal.reason, refusal.field) == ("GROUP_NOT_FOUND", "specs[0].group")
    fleet.take_up(GroupSetRequested(at=fleet.now, by=ADMIN, name=ML, removed=(ANA,)))
    assert submitted("") == 2
    assert fleet.job(1).group == 1  # what they submitted stays the group's


def test_workers_of_a_model_are_of_their_owners_group() -> None:
    fleet = fleet_of(gpus_max=1)
    name = ModelName("demo")
    worker = spec(gpus=1, serves=name)
    model = Model(name=name, owner=ANA, entry_point="demo:Demo", worker=worker, min_workers=2, max_workers=2)
    fleet.take_up(ServeRequested(at=fleet.now, model=model))
    list(fleet.advance(SECOND))
    jobs = [job for job in fleet.state.durable.jobs.values() if job.spec.serves]
    assert len(jobs) == 2 and {job.group for job in jobs} == {GroupId(1)}
    assert held(fleet) == 1


def test_groups_are_bounded_and_one_that_was_removed_long_ago_is_forgotten_without_jobs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(groups, "GROUPS_MAX", GROUPS_MAX)
    monkeypatch.setattr(groups, "REMOVED_GROUPS_KEPT", REMOVED_GROUPS_KEPT)
    state, now = State(), Instant(1)
    for number in range(GROUPS_MAX):
        step(state, GroupSetRequested(at=now, by=ADMIN, name=GroupName(f"g{number}")))
    refused = step(state, GroupSetRequested(at=now, by=ADMIN, name=ML)).reply
    assert isinstance(refused, Refused) and refused.reason == "QUOTA_EXCEEDED"
    forgotten: list[GroupId] = []
    for number in range(REMOVED_GROUPS_KEPT + 1):
        name = GroupName("g0")
        decision = step(state, GroupRemovalRequested(at=Instant(now + number), by=ADMIN, name=name))
        forgotten += [each.group for each in decision.records if isinstance(each, GroupForgotten)]
        step(state, GroupSetRequested(at=now, by=ADMIN, name=name))
    assert forgotten == [GroupId(1)]
    assert state.durable.counters.next_group == GROUPS_MAX + REMOVED_GROUPS_KEPT + 2
