"""Groups of users as tables: what they may have, what they have, and who is in them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.text.units import counted

from . import words
from .table import ABSENT, Column, Look, draw

MEMBERS_SHOWN = 3
"""Members that a line of the table names."""


def group_table(groups: Sequence[scheduler_pb2.UserGroup], look: Look) -> list[str]:
    """The whole screen of `gpuctl group list`."""
    if not groups:
        return ["No groups that you see. An admin makes one with: gpuctl group set NAME --add USER"]
    columns: list[Column[scheduler_pb2.UserGroup]] = [
        Column("NAME", lambda each: each.name, least=8),
        Column("GPUS", lambda each: _of(f"{each.gpus_milli / 1000:g}", each.gpus_max), is_right=True),
        Column("HOURS", lambda each: _of(f"{each.gpu_hours:,.1f}", each.gpu_hours_week), is_right=True),
        Column("MAX BAND", lambda each: _band_text(each.max_band) or ABSENT),
        Column("SHARES", lambda each: f"{each.shares:,}", is_right=True),
        Column("MEMBERS", lambda each: _members(each, is_wide=look.is_wide), least=12),
    ]
    return draw(columns, groups, look)


def member_table(group: scheduler_pb2.UserGroup, now: datetime, look: Look) -> list[str]:
    """The whole screen of `gpuctl group members`."""
    if not group.members:
        return [f"Nobody is in group {group.name}. Add somebody with: gpuctl group set {group.name} --add USER"]
    columns: list[Column[scheduler_pb2.GroupMember]] = [
        Column("USER", lambda each: each.user, least=8),
        Column("SINCE", lambda each: words.clock(each.join_time, now)),
        Column("DEFAULT", lambda each: "yes" if each.is_default else "no"),
        Column("GPUS", lambda each: f"{each.gpus_milli / 1000:g}", is_right=True),
        Column("HOURS", lambda each: f"{each.gpu_hours:,.1f}", is_right=True),
    ]
    return draw(columns, group.members, look)


def group_lines(group: scheduler_pb2.UserGroup) -> str:
    """What a group may have and who is in it, in one line."""
    rules = [
        f"{counted(group.gpus_max, 'GPU')} at once" if group.gpus_max else "",
        f"{counted(group.gpu_hours_week, 'GPU-hour')} a week" if group.gpu_hours_week else "",
        f"band {_band_text(group.max_band)} at most" if group.max_band else "",
        counted(group.shares, "share"),
        _members(group, is_wide=False) if group.members else "nobody in it",
    ]
    return ", ".join(filter(None, rules))


def _of(used: str, cap: int) -> str:
    return f"{used} of {cap:,}" if cap else used


def _band_text(band: int) -> str:
    return job_pb2.Band.Name(job_pb2.Band.ValueType(band)).removeprefix("BAND_").lower() if band else ""


def _members(group: scheduler_pb2.UserGroup, *, is_wide: bool) -> str:
    names = [each.user for each in group.members]
    shown = names if is_wide else names[:MEMBERS_SHOWN]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "") if names else ABSENT
