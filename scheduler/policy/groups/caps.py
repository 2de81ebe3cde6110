"""What a group may hold of GPUs at once, and use of them in a week; and who holds or used it, for who waits.

Both are counted of what the store has, and of what runs: a scheduler that starts again counts the same. A week begins
on Monday at 00:00 UTC. What runs when the hours of a week are used up goes on; nothing with GPUs starts then. Rules:
docs/rules/jobs.md 2.30 and 2.31.
"""

from typing import NamedTuple

from ...state.durable import Durable
from ...state.groups.group import GroupId, UserGroup
from ...state.groups.use import GroupHold, hours_of, week_of, week_text
from ...state.ids import UserName
from ...state.jobs import Job
from ...state.shares import WHOLE_MILLI, share_text
from ...state.units import HOUR, Instant

GROUP_CAP = "GROUP_CAP"
"""The reason of a job whose group holds as many GPUs as it may at once."""
GROUP_HOURS = "GROUP_HOURS"
"""The reason of a job whose group has used its GPU-hours of the week."""
USERS_NAMED = 3
"""Users of a group of whom a reason says what they have."""


class GroupCap(NamedTuple):
    """The cap that keeps a job back: a stable name, and a clause for people."""

    reason: str
    clause: str


class GroupCaps:
    """What each group holds as a pass goes on, against its caps."""

    def __init__(self, durable: Durable, at: Instant) -> None:
        self._durable = durable
        self._at = at
        self._gpu_milli: dict[GroupId, int] = {}
        self._hours_are_used: dict[GroupId, bool] = {}

    def take(self, job: Job, sign: int) -> None:
        """Count a placed job in, or one that ended out with the sign −1."""
        self._gpu_milli[job.group] = self._gpu_milli.get(job.group, 0) + sign * job.spec.resources.gpu_milli

    def is_over(self, job: Job) -> bool:
        """Whether the job's group may not have it too."""
        return self._over(job) is not None

    def refusal(self, job: Job) -> GroupCap | None:
        """The cap that keeps a job back, with who has what and the line that raises it; None when nothing does."""
        reason = self._over(job)
        group = self._durable.groups.live(job.group)
        if reason is None or group is None:
            return None
        hold = self._durable.holds_of_group.get(group.id) or GroupHold()
        if reason == GROUP_CAP:
            held, asked = self._held(group), job.spec.resources.gpu_milli
            wanted = -(-(held + asked) // WHOLE_MILLI)
            have = _named({user: share_text(milli) for user, milli in _most_first(hold.milli_of_users())})
            clause = (
                f"group {group.name} holds {share_text(held)} of the {group.gpus_max} GPUs that it may hold at once"
            )
            return GroupCap(reason, f"{clause}{have}; an admin raises it with: {_set(group)} --gpus {wanted}")
        week = week_of(self._at)
        used = used_of_group(self._durable, group.id, self._at)
        of_users = used_of_members(self._durable, group.id, self._at)
        have = _named({user: f"{hours_of(each):,.1f}" for user, each in _most_first(of_users)})
        clause = (
            f"group {group.name} has used {hours_of(used):,.1f} of its {group.gpu_hours_week:,} GPU-hours of the week"
            f"{have}, which ends on {week_text(week)}"
        )
        wanted = int(hours_of(used)) + max(1, group.gpu_hours_week // 10)
        return GroupCap(reason, f"{clause}; an admin raises it with: {_set(group)} --gpu-hours-week {wanted}")

    def _over(self, job: Job) -> str | None:
        group = self._durable.groups.live(job.group)
        asked = job.spec.resources.gpu_milli
        if group is None or not asked:
            return None
        if group.gpus_max and self._held(group) + asked > group.gpus_max * WHOLE_MILLI:
            return GROUP_CAP
        if not group.gpu_hours_week:
            return None
        is_used = self._hours_are_used.get(group.id)
        if is_used is None:
            used = used_of_group(self._durable, group.id, self._at)
            is_used = self._hours_are_used[group.id] = used >= group.gpu_hours_week * WHOLE_MILLI * HOUR
        return GROUP_HOURS if is_used else None

    def _held(self, group: UserGroup) -> int:
        hold = self._durable.holds_of_group.get(group.id)
        return (0 if hold is None else hold.total.gpu_milli) + self._gpu_milli.get(group.id, 0)


def used_of_group(durable: Durable, group: GroupId, at: Instant) -> int:
    """What a group used of GPUs in the week of an instant, in thousandths of a GPU-microsecond."""
    week, known, hold = week_of(at), durable.group_use.get(group), durable.holds_of_group.get(group)
    ended = 0 if known is None else known.in_week(week)
    return ended + (0 if hold is None else hold.used_in_week(week, at))


def used_of_members(durable: Durable, group: GroupId, at: Instant) -> dict[UserName, int]:
    """The same by user, of all who used any."""
    week, hold = week_of(at), durable.holds_of_group.get(group)
    found = {} if hold is None else hold.used_by_users(week, at)
    for user, known in durable.member_use.get(group, {}).items():
        used = known.in_week(week)
        if used:
            found[user] = found.get(user, 0) + used
    return found


def _most_first(of_users: dict[UserName, int]) -> list[tuple[UserName, int]]:
    return sorted(of_users.items(), key=lambda each: (-each[1], each[0]))


def _named(of_users: dict[UserName, str]) -> str:
    """Who has what: (ana 6, ben 2, and 3 more)."""
    shown = [f"{user} {much}" for user, much in list(of_users.items())[:USERS_NAMED]]
    more = len(of_users) - len(shown)
    return f" ({', '.join(shown)}{f', and {more} more' if more else ''})" if shown else ""


def _set(group: UserGroup) -> str:
    return f"gpuctl group set {group.name}"
