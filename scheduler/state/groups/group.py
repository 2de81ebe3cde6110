"""A group of users, as an entity, and all of them by id, by name and by member."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NewType

from ..ids import UserName
from ..specs import Band
from ..units import Instant

GroupId = NewType("GroupId", int)
"""Never given twice. A job of no group has NO_GROUP."""
GroupName = NewType("GroupName", str)

NO_GROUP = GroupId(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """A user in a group, since an instant."""

    user: UserName
    since: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class UserGroup:
    """A group of users. A cap of 0 is none; without a `max_band` its jobs may have any band that their users may.

    `gpus_max` is what all of its jobs hold of GPUs at once, `gpu_hours_week` what they use from Monday 00:00 UTC on.
    A group with twice the `shares` of another gets twice as much. One that was removed is kept for its name.
    """

    id: GroupId
    name: GroupName
    created_at: Instant
    members: tuple[Membership, ...] = ()
    gpus_max: int = 0
    gpu_hours_week: int = 0
    max_band: Band | None = None
    shares: int = 1
    removed_at: Instant | None = None
    version: int = 1

    @property
    def is_removed(self) -> bool:
        """Whether it is no group any more."""
        return self.removed_at is not None

    def has(self, user: UserName) -> bool:
        """Whether a user is in it."""
        return any(each.user == user for each in self.members)

    def removed(self, at: Instant) -> "UserGroup":
        """The same without members and caps, for its name."""
        return UserGroup(
            id=self.id, name=self.name, created_at=self.created_at, removed_at=at, version=self.version + 1
        )

    def renamed(self, name: GroupName) -> "UserGroup":
        """The same by another name."""
        return replace(self, name=name, version=self.version + 1)


@dataclass(slots=True)
class UserGroups:
    """All groups by id, and those that were not removed by name and by member. Only the state changes it."""

    by_id: dict[GroupId, UserGroup] = field(default_factory=dict)
    by_name: dict[GroupName, GroupId] = field(default_factory=dict)
    _of_user: dict[UserName, tuple[tuple[Instant, GroupId], ...]] = field(default_factory=dict)

    def put(self, group: UserGroup) -> None:
        """Keep a group, in place of what it was."""
        self.drop(group.id)
        self.by_id[group.id] = group
        if group.is_removed:
            return
        self.by_name[group.name] = group.id
        for each in group.members:
            self._of_user[each.user] = tuple(sorted((*self._of_user.get(each.user, ()), (each.since, group.id))))

    def drop(self, group_id: GroupId) -> None:
        """Forget a group."""
        old = self.by_id.pop(group_id, None)
        if old is None or old.is_removed:
            return
        del self.by_name[old.name]
        for each in old.members:
            left = tuple(known for known in self._of_user[each.user] if known[1] != group_id)
            if left:
                self._of_user[each.user] = left
            else:
                del self._of_user[each.user]

    def live(self, group_id: GroupId) -> UserGroup | None:
        """A group that was not removed."""
        group = self.by_id.get(group_id) if group_id else None
        return None if group is None or group.is_removed else group

    def named(self, name: str) -> UserGroup | None:
        """The group that has this name now."""
        group_id = self.by_name.get(GroupName(name))
        return None if group_id is None else self.by_id[group_id]

    def all_live(self) -> Iterator[UserGroup]:
        """Those that were not removed, in the order of their names."""
        return (self.by_id[self.by_name[name]] for name in sorted(self.by_name))

    def of_user(self, user: UserName) -> tuple[UserGroup, ...]:
        """The groups of a user; first the one that they were added to first, which is where their jobs belong."""
        return tuple(self.by_id[group_id] for _, group_id in self._of_user.get(user, ()))

    def default_of(self, user: UserName) -> GroupId:
        """Where a job of this user belongs that names no group."""
        known = self._of_user.get(user)
        return known[0][1] if known else NO_GROUP

    def name_of(self, group_id: GroupId) -> str:
        """What a group is called, or was; empty for none, and for one that was forgotten."""
        group = self.by_id.get(group_id)
        return "" if group is None else group.name
