"""What people want of groups, as events, and what follows from it, as records."""

from dataclasses import dataclass

from ..ids import UserName
from ..specs import Band
from ..units import Instant
from .group import GroupId, GroupName, UserGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSetRequested:
    """An admin makes a group, or changes it: what is None stays as it is. `removes_max_band`: it has none any more."""

    at: Instant
    by: UserName
    name: GroupName
    gpus_max: int | None = None
    gpu_hours_week: int | None = None
    max_band: Band | None = None
    removes_max_band: bool = False
    shares: int | None = None
    added: tuple[UserName, ...] = ()
    removed: tuple[UserName, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRenameRequested:
    """An admin gives a group another name."""

    at: Instant
    by: UserName
    name: GroupName
    new_name: GroupName


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRemovalRequested:
    """An admin removes a group."""

    at: Instant
    by: UserName
    name: GroupName


GroupEvent = GroupSetRequested | GroupRenameRequested | GroupRemovalRequested


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSet:
    """A group is like this from now on; `is_new`: there was none."""

    at: Instant
    group: UserGroup
    by: UserName
    is_new: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRenamed:
    """A group has another name from now on. `old_name` is for people."""

    at: Instant
    group: GroupId
    old_name: GroupName
    name: GroupName
    by: UserName


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRemoved:
    """A group is none any more: its jobs go on as of no group."""

    at: Instant
    group: GroupId
    name: GroupName
    by: UserName


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupForgotten:
    """A group that was removed is not known by name any more; none of its jobs is left."""

    at: Instant
    group: GroupId
    name: GroupName


GroupRecord = GroupSet | GroupRenamed | GroupRemoved | GroupForgotten
