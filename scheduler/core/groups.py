"""Groups of users: made, changed, renamed and removed; and which of them a job is of.

Rules: docs/rules/jobs.md 2.29 to 2.34.
"""

from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches

from ..state.events import WantedJob
from ..state.groups.changes import (
    GroupEvent,
    GroupForgotten,
    GroupRecord,
    GroupRemovalRequested,
    GroupRemoved,
    GroupRenamed,
    GroupRenameRequested,
    GroupSet,
    GroupSetRequested,
)
from ..state.groups.group import NO_GROUP, GroupId, GroupName, Membership, UserGroup
from ..state.ids import JobId, UserName
from ..state.replies import GroupChanged, Refused
from ..state.specs import Band
from ..state.state import State
from .decision import Decision, refused

GROUPS_MAX = 1_000
"""Groups at once."""
MEMBERS_MAX = 1_000
"""Users in one group."""
REMOVED_GROUPS_KEPT = 1_000
"""Groups that were removed and are known by name; an older one is forgotten once none of its jobs is left."""


def decide_group(state: State, event: GroupEvent) -> Decision:
    """What follows from what an admin wants of a group."""
    match event:
        case GroupSetRequested():
            return _on_set(state, event)
        case GroupRenameRequested():
            return _on_rename(state, event)
        case GroupRemovalRequested():
            return _on_removal(state, event)


def _on_set(state: State, event: GroupSetRequested) -> Decision:
    """Make the group, or change what is said of it. The same again changes nothing."""
    groups = state.durable.groups
    known = groups.named(event.name)
    if known is None and len(groups.by_name) >= GROUPS_MAX:
        return refused(
            "QUOTA_EXCEEDED",
            f"there are {GROUPS_MAX:,} groups, as many as there may be",
            field="name",
            next_step="remove one that nobody needs any more: gpuctl group remove NAME",
        )
    group = known or UserGroup(id=GroupId(state.durable.counters.next_group), name=event.name, created_at=event.at)
    missing = [user for user in event.removed if not group.has(user)]
    if missing:
        return refused(
            "INVALID_ARGUMENT",
            f"{missing[0]} is not in group {group.name}",
            field="remove_members",
            next_step=f"see who is in it with: gpuctl group members {group.name}",
        )
    stay = tuple(each for each in group.members if each.user not in event.removed)
    added = tuple(Membership(user=user, since=event.at) for user in event.added if not group.has(user))
    if len(stay) + len(added) > MEMBERS_MAX:
        return refused(
            "QUOTA_EXCEEDED",
            f"group {group.name} would have {len(stay) + len(added):,} members, and may have {MEMBERS_MAX:,}",
            field="add_members",
            next_step="make another group for some of them: gpuctl group set NAME --add USERS",
        )
    changed = replace(
        group,
        members=(*stay, *added),
        gpus_max=group.gpus_max if event.gpus_max is None else event.gpus_max,
        gpu_hours_week=group.gpu_hours_week if event.gpu_hours_week is None else event.gpu_hours_week,
        max_band=None if event.removes_max_band else event.max_band or group.max_band,
        shares=group.shares if event.shares is None else event.shares,
    )
    notes = _notes(state, added)
    if known is not None and changed == known:
        return Decision(reply=GroupChanged(group=known, changed=False, notes=notes))
    if known is not None:
        changed = replace(changed, version=known.version + 1)
    record = GroupSet(at=event.at, group=changed, by=event.by, is_new=known is None)
    return Decision(records=(record,), reply=GroupChanged(group=changed, is_new=known is None, notes=notes))


def _notes(state: State, added: tuple[Membership, ...]) -> tuple[str, ...]:
    """That nobody can be whom a group was given, so that a slip of the pen shows."""
    users = {token.user for token in state.durable.tokens.values() if token.revoked_at is None}
    unknown = [each.user for each in added if each.user not in users]
    return tuple(f"no token is {user}'s yet (make one with: gpuctl token create --user {user})" for user in unknown)


def _on_rename(state: State, event: GroupRenameRequested) -> Decision:
    groups = state.durable.groups
    group = groups.named(event.name)
    if group is None:
        return Decision(reply=no_such_group(state, event.name, "name"))
    if event.new_name == event.name:
        return Decision(reply=GroupChanged(group=group, changed=False))
    if event.new_name in groups.by_name:
        return refused(
            "GROUP_NAME_TAKEN",
            f"there is a group {event.new_name}",
            field="new_name",
            next_step="choose another name, or see the groups with: gpuctl group list",
        )
    renamed = GroupRenamed(at=event.at, group=group.id, old_name=group.name, name=event.new_name, by=event.by)
    return Decision(records=(renamed,), reply=GroupChanged(group=group.renamed(event.new_name)))


def _on_removal(state: State, event: GroupRemovalRequested) -> Decision:
    """What runs in it runs on, what waits stands as its users' of no group, and who was in it is in it no more."""
    group = state.durable.groups.named(event.name)
    if group is None:
        return Decision(reply=no_such_group(state, event.name, "name"))
    records: list[GroupRecord] = [GroupRemoved(at=event.at, group=group.id, name=group.name, by=event.by)]
    removed = [each for each in state.durable.groups.by_id.values() if each.is_removed]
    if len(removed) >= REMOVED_GROUPS_KEPT:
        with_jobs = {job.group for job in state.durable.jobs.wholes()}
        with_jobs |= {state.durable.jobs[job].group for job in state.durable.active}
        oldest = min((each for each in removed if each.id not in with_jobs), key=_removed_at, default=None)
        if oldest is not None:
            records.append(GroupForgotten(at=event.at, group=oldest.id, name=oldest.name))
    return Decision(records=tuple(records), reply=GroupChanged(group=group))


def _removed_at(group: UserGroup) -> tuple[int, int]:
    return (group.removed_at or 0, group.id)


def no_such_group(state: State, name: str, field: str) -> Refused:
    """That no group has this name. What the others are called is for who may know all of them."""
    near = get_close_matches(name, list(state.durable.groups.by_name), n=1)
    step = f"did you mean {near[0]}? See all with: gpuctl group list" if near else "see them with: gpuctl group list"
    return Refused(reason="GROUP_NOT_FOUND", message=f"no group is called {name!r}", field=field, next_step=step)


def in_its_group(state: State, user: UserName, wanted: WantedJob, field: str) -> tuple[GroupId, Band] | Refused:
    """The group that a job of a user is of, and its band: the group that is named, else the first of the user.

    `field` is the path of its spec. Of a group that the user is not in it is not said whether there is one.
    """
    name, band = wanted.group, wanted.band
    groups = state.durable.groups
    mine = groups.of_user(user)
    if name:
        group = next((each for each in mine if each.name == name), None)
        if group is None:
            names = ", ".join(each.name for each in mine)
            step = f"choose one of yours: {names}" if mine else "leave out --group: you are in no group"
            return Refused(
                reason="GROUP_NOT_FOUND",
                message=f"{user} is in no group {GroupName(name)!r}",
                field=f"{field}.group",
                next_step=f"{step}; or ask an admin for: gpuctl group set {name} --add {user}",
            )
    elif mine:
        group = mine[0]
    else:
        return NO_GROUP, band
    if wanted.band_may_fall:
        band = band_in(group, band)
    return band_refusal(group, band, f"{field}.band") or (group.id, band)


def band_in(group: UserGroup | None, band: Band) -> Band:
    """A band that nobody asked for, or the highest one that a group may have where that is lower."""
    return band if group is None or group.max_band is None else min(band, group.max_band)


def band_refusal(group: UserGroup | None, band: Band, field: str) -> Refused | None:
    """Why a job of a group may not be in a band, if so."""
    if group is None or group.max_band is None or band <= group.max_band:
        return None
    most, wanted = group.max_band.name.lower(), band.name.lower()
    return Refused(
        reason="BAND_REFUSED",
        message=f"jobs of group {group.name} may have band {most} at most, and {wanted} is above it",
        field=field,
        next_step=f"choose --band {most}, or ask an admin for: gpuctl group set {group.name} --max-band {wanted}",
    )


def band_refusal_of_jobs(state: State, jobs: Iterable[JobId], band: Band | None) -> Refused | None:
    """The same for jobs that are to be moved, and for items of arrays: down they may always go."""
    if band is None or not state.durable.groups.by_name:
        return None
    for job_id in jobs:
        job = state.durable.jobs.get(job_id)
        if job is not None and (job.band < band or job.items is not None):
            refusal = band_refusal(state.durable.groups.live(job.group), band, "band")
            if refusal is not None:
                return replace(refusal, message=f"job {job_id}: {refusal.message}")
    return None
