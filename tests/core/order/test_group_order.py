"""The order of groups and of who is in none: what is counted is what taking turns one by one comes to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduler.policy.groups.turns import TURN
from scheduler.policy.order.page import order_from
from scheduler.policy.order.place import position
from scheduler.policy.order.queue import queue_order
from scheduler.state.apply import apply
from scheduler.state.durable import Durable
from scheduler.state.groups.changes import GroupSet
from scheduler.state.groups.group import NO_GROUP, GroupId, GroupName, UserGroup
from scheduler.state.groups.use import GroupUse, week_of
from scheduler.state.ids import JobId, UserName
from scheduler.state.indices import Indices
from scheduler.state.jobs import Divided, Items, Job, Queued
from scheduler.state.limits import Limits
from scheduler.state.records import JobQueued
from scheduler.state.specs import Band, JobSpec, Resources
from scheduler.state.state import State
from scheduler.state.units import SECOND, Instant, Span
from scheduler.state.usage import Usage

NOW = Instant(1_000_000_000_000)
ADMIN = UserName("admin")
USERS = ("ana", "ben", "eva")
SHARES = {GroupId(1): 1, GroupId(2): 2, GroupId(3): 7}
WANTED = st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 1), st.integers(0, 3), st.integers(0, 3))
USED = st.lists(st.integers(0, 5), min_size=6, max_size=6)


def state_of(wanted: list[tuple[int, int, int, int, int]], used: list[int]) -> State:
    """Jobs of three users in three groups or none, some of them arrays; `used` are turns in halves."""
    durable, number = Durable(), 1
    for group, shares in SHARES.items():
        made = UserGroup(id=group, name=GroupName(f"g{group}"), created_at=NOW, shares=shares)
        apply(durable, GroupSet(at=NOW, group=made, by=ADMIN, is_new=True))
        seconds = used[group - 1] * TURN / SECOND / 2
        durable.group_use[group] = GroupUse(group=group, cpu_seconds=seconds, at=NOW, week=week_of(NOW))
    for name, halves in zip(USERS, used[3:], strict=True):
        user = UserName(name)
        durable.usage[user] = Usage(user=user, cpu_seconds=halves * TURN / SECOND / 2, at=NOW)
    for whose, of_group, cpus, seconds, items in wanted:
        job = Job(
            id=JobId(number),
            user=UserName(USERS[whose]),
            spec=JobSpec(argv=("true",), name="true", cwd="/", resources=Resources(cpus=1 + cpus)),
            band=Band.NORMAL,
            submitted_at=Instant(NOW - seconds * SECOND),
            state=Divided(rest=Queued()) if items else Queued(),
            items=Items(indices=Indices.of_numbers(list(range(items)))) if items else None,
            group=GroupId(of_group),
        )
        apply(durable, JobQueued(at=NOW, job=job))
        number += 1 + items
    return State(durable=durable, limits=Limits(age_limit=Span(0)))


def by_turns(state: State) -> list[JobId]:
    """One job after the other: of the group, or user of none, that has the least; in a group of the user with least."""
    durable = state.durable
    waiting = [job for job in durable.jobs.values() if isinstance(job.state, Queued)]
    waiting.sort(key=lambda job: (job.age_since, job.id))
    taken: dict[tuple[GroupId, str], int] = {}
    first: dict[tuple[GroupId, str], tuple[Instant, JobId]] = {}

    def whose(job: Job) -> tuple[GroupId, str]:
        return (job.group, job.user if job.group == NO_GROUP else "")

    for job in waiting:
        for each in {whose(job), (job.group, str(job.user))}:
            first.setdefault(each, (job.age_since, job.id))

    def stands(job: Job) -> tuple[int, tuple[Instant, JobId], int, tuple[Instant, JobId], Instant, JobId]:
        own, outer = (job.group, str(job.user)), whose(job)
        used = round(durable.usage[job.user].by(NOW) * SECOND) + taken.get(own, 0) * TURN
        if job.group == NO_GROUP:
            return (used, first[outer], used, first[own], job.age_since, job.id)
        shares = SHARES[job.group]
        of_group = round(durable.group_use[job.group].by(NOW) * SECOND) // shares + taken.get(outer, 0) * (
            TURN // shares
        )
        return (of_group, first[outer], used, first[own], job.age_since, job.id)

    order: list[JobId] = []
    while waiting:
        job = min(waiting, key=stands)
        waiting.remove(job)
        order.append(job.id)
        for each in {whose(job), (job.group, str(job.user))}:
            taken[each] = taken.get(each, 0) + 1
    return order


@given(st.lists(WANTED, max_size=10), USED)
def test_the_order_is_that_of_groups_and_their_users_who_take_turns_one_by_one(
    wanted: list[tuple[int, int, int, int, int]], used: list[int]
) -> None:
    state = state_of(wanted, used)
    order = by_turns(state)
    assert [job.id for job in queue_order(state, NOW)] == order
    assert [position(state, state.durable.jobs[job], NOW) for job in order] == list(range(1, len(order) + 1))


@given(st.lists(WANTED, max_size=10), USED)
def test_a_page_says_the_places_of_the_order_and_passes_the_items_of_an_array(
    wanted: list[tuple[int, int, int, int, int]], used: list[int]
) -> None:
    state = state_of(wanted, used)
    places = {job: place for place, job in enumerate(by_turns(state), 1)}
    shown = [(place, job.id) for place, job in order_from(state, NOW, None)]
    assert shown == sorted(shown)
    assert all(places[job] == place for place, job in shown)
    for number, (_, job) in enumerate(shown, 1):
        found = state.durable.jobs[job]
        place = (found.band, state.durable.lines.owner_of(found), (found.age_since, found.id))
        assert [(at, each.id) for at, each in order_from(state, NOW, place)] == shown[number:]
    others = {job for array in state.durable.arrays for job in _alike(state, array)[1:]}
    assert {job for _, job in shown} == places.keys() - others


def _alike(state: State, array: JobId) -> list[JobId]:
    alike = state.durable.items_alike(array)
    return [] if alike is None else list(alike.ids())


def test_a_group_with_twice_the_shares_has_twice_the_turns() -> None:
    wanted = [*((0, 1, 0, 0, 0) for _ in range(20)), *((1, 2, 0, 0, 0) for _ in range(20))]
    order = by_turns(state := state_of(wanted, [0] * 6))
    first = [state.durable.jobs[job].group for job in order[:15]]
    assert [job.id for job in queue_order(state, NOW)] == order
    assert (first.count(GroupId(1)), first.count(GroupId(2))) == (5, 10)
