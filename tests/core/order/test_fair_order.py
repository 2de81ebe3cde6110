"""The order, a job's place in it and its pages say the same; usage decays by half in seven days."""

from __future__ import annotations

from bisect import insort

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.policy.groups.turns import TURN
from scheduler.policy.order.page import order_from
from scheduler.policy.order.place import jobs_ahead, position
from scheduler.policy.order.queue import queue_order
from scheduler.state.apply import apply
from scheduler.state.durable import Durable, load
from scheduler.state.groups.changes import GroupRemoved, GroupSet
from scheduler.state.groups.group import NO_GROUP, GroupId, GroupName, UserGroup
from scheduler.state.groups.use import GroupUse, week_of
from scheduler.state.ids import JobId, UserName
from scheduler.state.jobs import Job, Queued
from scheduler.state.limits import Limits
from scheduler.state.records import JobQueued
from scheduler.state.specs import Band, JobSpec, Resources
from scheduler.state.state import State
from scheduler.state.units import SECOND, Instant, Span
from scheduler.state.usage import HALF_LIFE, Usage

NOW = Instant(1_000_000_000_000)
USERS = ("alice", "bob", "carol")

Wanted = tuple[int, int, int, int, int]
WANTED = st.tuples(st.integers(0, 2), st.integers(1, 2), st.integers(0, 2), st.integers(0, 3), st.integers(1, 3))


LIMITS = Limits(age_limit=Span(0))


def state_of(
    wanted: list[Wanted], used: list[int], limits: Limits = LIMITS, groups: tuple[GroupId, ...] = (), removed: int = 0
) -> State:
    """Waiting jobs of three users who have used so many turns, in halves; by default nobody grows old.

    `groups` are those that the jobs are of, by turns; one of them has 3 shares, and has used a turn. The group of the
    number `removed` is removed in the end.
    """
    state = Durable()
    for group in sorted({*groups} - {NO_GROUP}):
        shares = 3 if group == 1 else 1
        made = UserGroup(id=group, name=GroupName(f"g{group}"), created_at=NOW, shares=shares)
        apply(state, GroupSet(at=NOW, group=made, by=UserName("admin"), is_new=True))
        if group == 1:
            use = GroupUse(group=group, cpu_seconds=TURN / SECOND, at=NOW, week=week_of(NOW))
            state.group_use[group] = use
    number = 1
    for index, (user, band, cpus, seconds, count) in enumerate(wanted):
        job = Job(
            id=JobId(number),
            user=UserName(USERS[user]),
            spec=JobSpec(argv=("true",), name="true", cwd="/", resources=Resources(cpus=1 + cpus)),
            band=Band(band),
            submitted_at=Instant(NOW - seconds * SECOND),
            state=Queued(),
            group=groups[index % len(groups)] if groups else NO_GROUP,
        )
        apply(state, JobQueued(at=NOW, job=job, count=count))
        number += count
    for name, halves in zip(USERS, used, strict=True):
        usage = Usage(user=UserName(name), cpu_seconds=halves * TURN / SECOND / 2, at=NOW)
        state.usage[usage.user] = usage
    if removed in state.groups.by_id:
        group = GroupId(removed)
        apply(state, GroupRemoved(at=NOW, group=group, name=state.groups.by_id[group].name, by=UserName("admin")))
    return State(durable=state, limits=limits)


GROUPS = st.lists(st.sampled_from((NO_GROUP, GroupId(1), GroupId(2), GroupId(3))), max_size=4).map(tuple)


@given(
    st.lists(WANTED, max_size=12),
    st.lists(st.integers(0, 5), min_size=3, max_size=3),
    st.sampled_from((0, 1, 2, 9)),
    GROUPS,
    st.integers(0, 3),
)
def test_a_jobs_place_and_who_is_ahead_of_it_are_those_of_the_order(
    wanted: list[Wanted], used: list[int], age_seconds: int, groups: tuple[GroupId, ...], removed: int
) -> None:
    state = state_of(wanted, used, Limits(age_limit=Span(age_seconds * SECOND)), groups, removed)
    assert load(state.durable.entities()).lines == state.durable.lines
    order = list(queue_order(state, NOW))
    assert len(order) == state.durable.lines.count
    for place, job in enumerate(order, 1):
        assert position(state, job, NOW) == place
        assert list(queue_order(state, NOW, until=job)) == order[: place - 1]
        nearest = [each.id for each in reversed(order[: place - 1])]
        assert jobs_ahead(state, job, 4, NOW) == (nearest[:4], place - 1)
        owner = state.durable.lines.owner_of(job)
        rest = list(order_from(state, NOW, (job.band, owner, (job.age_since, job.id))))
        assert rest == list(enumerate(order[place:], place + 1))


@given(st.lists(WANTED, min_size=1, max_size=12), st.lists(st.integers(0, 5), min_size=3, max_size=3))
def test_the_order_is_the_least_used_users_oldest_job_again_and_again(wanted: list[Wanted], used: list[int]) -> None:
    state = state_of(wanted, used)
    order = list(queue_order(state, NOW))
    for band in sorted({job.band for job in order}, reverse=True):
        of_band = [job for job in order if job.band == band]
        waiting: dict[UserName, list[tuple[Instant, JobId]]] = {}
        for job in of_band:
            insort(waiting.setdefault(job.user, []), (job.age_since, job.id))
        oldest = {user: line[0] for user, line in waiting.items()}
        turns = dict(zip(map(UserName, USERS), (halves * TURN // 2 for halves in used), strict=True))
        for job in of_band:
            user = min((each for each, line in waiting.items() if line), key=lambda each: (turns[each], oldest[each]))
            assert (job.user, job.id) == (user, waiting[user].pop(0)[1])
            turns[user] += TURN


@given(
    st.lists(WANTED, min_size=1, max_size=12), st.lists(st.integers(0, 5), min_size=3, max_size=3), st.integers(1, 3)
)
def test_who_is_older_than_the_limit_stands_in_front_of_the_band_the_oldest_first(
    wanted: list[Wanted], used: list[int], age_seconds: int
) -> None:
    limit = Span(age_seconds * SECOND)
    state = state_of(wanted, used, Limits(age_limit=limit))
    order, without = list(queue_order(state, NOW)), list(queue_order(state_of(wanted, used), NOW))
    for band in {job.band for job in order}:
        of_band = [job for job in order if job.band == band]
        old = sorted((job for job in of_band if NOW - job.age_since > limit), key=lambda job: (job.age_since, job.id))
        assert of_band[: len(old)] == old
        # The others stand as they would: those in front of them count as theirs all the same.
        ids = {job.id for job in old}
        assert of_band[len(old) :] == [job for job in without if job.band == band and job.id not in ids]


def test_usage_decays_by_half_in_a_half_life_and_charges_add_up() -> None:
    usage = Usage(user=UserName("alice"), cpu_seconds=800.0, at=NOW)
    later = Instant(NOW + HALF_LIFE)
    assert usage.by(NOW) == 800.0
    assert usage.by(later) == pytest.approx(400.0)
    assert usage.charged(100.0, later).by(Instant(later + HALF_LIFE)) == pytest.approx(250.0)
    assert usage.by(Instant(NOW - SECOND)) == 800.0, "a clock that was slewed makes no usage grow"
