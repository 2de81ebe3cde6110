"""What people want of groups, checked: names, caps, shares and members. Errors: INVALID_ARGUMENT with the field."""

from collections.abc import Iterable

from gpufleet.v1 import scheduler_pb2

from gpufleet.errors import invalid

from ...state.groups.changes import GroupRemovalRequested, GroupRenameRequested, GroupSetRequested
from ...state.ids import UserName
from ...state.specs import Band
from ...state.units import Instant
from ..validate import USER_NAME, band_of
from .spec_group import group_name

GPUS_MAX = 100_000
GPU_HOURS_WEEK_MAX = 100_000_000
SHARES_MAX = 1_000
MEMBERS_CHANGED_MAX = 1_000
"""Users who come into a group, or leave it, by one request."""


def group_set_of(request: scheduler_pb2.SetGroupRequest, by: UserName, at: Instant) -> GroupSetRequested:
    """What a group is to be like."""
    name = group_name(request.name, "name")
    added, removed = _members(request.add_members, "add_members"), _members(request.remove_members, "remove_members")
    for number, user in enumerate(request.remove_members):
        if user in added:
            raise invalid(
                f"remove_members[{number}]", f"{user} is added and removed at once", next_step="name them in one list"
            )
    return GroupSetRequested(
        at=at,
        by=by,
        name=name,
        gpus_max=_number(request, "gpus_max", 0, GPUS_MAX, "a number of GPUs, or 0 for any number: --gpus 8"),
        gpu_hours_week=_number(
            request, "gpu_hours_week", 0, GPU_HOURS_WEEK_MAX, "whole GPU-hours, or 0 for any: --gpu-hours-week 500"
        ),
        max_band=_max_band(request),
        removes_max_band=request.HasField("max_band") and not request.max_band,
        shares=_number(request, "shares", 1, SHARES_MAX, "a whole number of shares: --shares 3"),
        added=added,
        removed=removed,
    )


def group_rename_of(request: scheduler_pb2.RenameGroupRequest, by: UserName, at: Instant) -> GroupRenameRequested:
    """Another name for a group."""
    name, new_name = group_name(request.name, "name"), group_name(request.new_name, "new_name")
    return GroupRenameRequested(at=at, by=by, name=name, new_name=new_name)


def group_removal_of(request: scheduler_pb2.RemoveGroupRequest, by: UserName, at: Instant) -> GroupRemovalRequested:
    """The end of a group."""
    return GroupRemovalRequested(at=at, by=by, name=group_name(request.name, "name"))


def _number(request: scheduler_pb2.SetGroupRequest, field: str, least: int, most: int, how: str) -> int | None:
    if not request.HasField(field):  # type: ignore[arg-type]
        return None
    number = int(getattr(request, field))
    if not least <= number <= most:
        raise invalid(field, f"is {number:,}; it must be {least:,} to {most:,}", next_step=f"give {how}")
    return number


def _max_band(request: scheduler_pb2.SetGroupRequest) -> Band | None:
    return band_of(request.max_band, "max_band") if request.HasField("max_band") and request.max_band else None


def _members(names: Iterable[str], path: str) -> tuple[UserName, ...]:
    known = list(names)
    if len(known) > MEMBERS_CHANGED_MAX:
        step = "say it again for the others"
        raise invalid(path, f"names {len(known):,}; it may name {MEMBERS_CHANGED_MAX:,} at once", next_step=step)
    for number, name in enumerate(known):
        if not USER_NAME.fullmatch(name):
            raise invalid(
                f"{path}[{number}]",
                f"{name[:80]!r} is not a user's name",
                next_step="name users as their tokens do: gpuctl token list",
            )
    return tuple(UserName(name) for name in dict.fromkeys(known))
