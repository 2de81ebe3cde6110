"""Whose turn it is: groups by what they have used over their shares, and in a group its users by what they have used.

A user of no group stands beside the groups, with one share. Each job that a group or user has ahead counts as TURN, so
that a place can be counted and nothing has to be replayed. Rules: docs/rules/jobs.md 2.2 and 2.29.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ...state.durable import Durable
from ...state.groups.group import NO_GROUP, GroupId
from ...state.ids import JobId, UserName
from ...state.indexes.lines import Entry, LineOwner, UserLines
from ...state.units import MINUTE, SECOND, Instant
from ...state.usage import GPU_WEIGHT

TURN = GPU_WEIGHT * MINUTE
"""What a job ahead counts for, in CPU-microseconds: a GPU-minute."""

Turn = tuple[int, Entry, LineOwner]
"""Sorts the jobs of a band: usage with the turns before it, then who has the oldest job, then whose it is.

Of a job that is old: OLD, its own entry, whose it is.
"""

OLD = -1
"""Less than any usage."""

ANYBODY = UserName("")
"""In the owner of a group's turns, which are those of no single user."""

_FIRST: tuple[Entry, LineOwner] = ((Instant(0), JobId(0)), (NO_GROUP, ANYBODY))
"""What makes a turn the first of those with the same usage."""

BandLines = Mapping[LineOwner, UserLines]


class TurnTaker(NamedTuple):
    """A group, or a user, with the jobs that it has in a band: `begin` is what it has used, `step` what a turn adds."""

    begin: int
    step: int
    oldest: Entry
    owner: LineOwner
    old_count: int
    job_count: int

    def turn(self, jobs_before: int) -> Turn:
        """That of the job which has so many of its others before it."""
        return (self.begin + jobs_before * self.step, self.oldest, self.owner)

    def turns_before(self, end: Turn) -> int:
        """How many of its jobs come before a turn: those that are old, and those whose own turn is less."""
        turns, rest = divmod(end[0] - self.begin, self.step)
        is_before = rest > 0 or (self.oldest, self.owner) < end[1:]
        return min(max(self.old_count, turns + is_before), self.job_count)


def usage(durable: Durable, user: UserName, at: Instant) -> int:
    """What a user has used by an instant, decayed, in CPU-microseconds; what runs counts from its placement."""
    known, hold = durable.usage.get(user), durable.holds_of_user.get(user)
    ended = 0 if known is None else round(known.by(at) * SECOND)
    return ended + (0 if hold is None else hold.used_by(at))


def usage_of_group(durable: Durable, group: GroupId, at: Instant) -> int:
    """The same of all that was run in a group."""
    known, hold = durable.group_use.get(group), durable.holds_of_group.get(group)
    ended = 0 if known is None else round(known.by(at) * SECOND)
    return ended + (0 if hold is None else hold.total.used_by(at))


def oldest_of(lines: UserLines) -> Entry:
    """A user's oldest job in a band."""
    return lines.heads()[0][0]


def count_old(lines: UserLines, old_before: Instant) -> int:
    """How many of a user's jobs are old."""
    if oldest_of(lines)[0] >= old_before:
        return 0
    return sum(bisect_left(line, (old_before,)) for line in lines.values())


def has_groups(lines: BandLines) -> bool:
    """Whether a job of a group waits in a band."""
    return any(group for group, _ in lines)


def user_taker(durable: Durable, owner: LineOwner, lines: UserLines, at: Instant, old_before: Instant) -> TurnTaker:
    """A user's turns, in a group or beside the groups."""
    job_count = sum(map(len, lines.values()))
    used = usage(durable, owner[1], at)
    return TurnTaker(used, TURN, oldest_of(lines), owner, count_old(lines, old_before), job_count)


def group_taker(
    durable: Durable,
    group_id: GroupId,
    of_users: Iterable[UserLines],
    at: Instant,
    old_before: Instant,
    entry: Entry | None = None,
) -> TurnTaker:
    """A group's turns; `entry` is that of a job that stands there, or would."""
    lines = tuple(of_users)
    group = durable.groups.live(group_id)
    shares = 1 if group is None else group.shares
    return TurnTaker(
        usage_of_group(durable, group_id, at) // shares,
        TURN // shares,
        min((*map(oldest_of, lines), *(() if entry is None else (entry,)))),
        (group_id, ANYBODY),
        sum(count_old(each, old_before) for each in lines),
        sum(len(line) for each in lines for line in each.values()),
    )


def turn_behind(takers: Sequence[TurnTaker], job_count: int) -> Turn | None:
    """The turn that has so many of their jobs before it, those that are old counted; None where there are not more."""
    if job_count >= sum(each.job_count for each in takers):
        return None

    def before(used: int) -> int:
        return sum(each.turns_before((used, *_FIRST)) for each in takers)

    low = min(each.begin for each in takers)
    high = max(each.begin + each.job_count * each.step for each in takers)
    used = bisect_right(range(low, high + 1), job_count, key=before) + low - 1
    there = sorted(
        each.turn(count)
        for each in takers
        if (count := each.turns_before((used, *_FIRST))) < each.turns_before((used + 1, *_FIRST))
    )
    return there[job_count - before(used)]


def by_group(lines: BandLines) -> dict[GroupId, dict[LineOwner, UserLines]]:
    """The lines of each group, and under NO_GROUP those of users of none."""
    found: dict[GroupId, dict[LineOwner, UserLines]] = {}
    for owner, of_user in lines.items():
        found.setdefault(owner[0], {})[owner] = of_user
    return found


def all_takers(durable: Durable, lines: BandLines, at: Instant, old_before: Instant) -> list[TurnTaker]:
    """Who takes turns in a band: its groups, and users of no group."""
    found: list[TurnTaker] = []
    for group, of_group in by_group(lines).items():
        if group == NO_GROUP:
            found.extend(user_taker(durable, owner, each, at, old_before) for owner, each in of_group.items())
        else:
            found.append(group_taker(durable, group, of_group.values(), at, old_before))
    return found


def turn_at(
    durable: Durable, lines: BandLines, owner: LineOwner, entry: Entry, at: Instant, old_before: Instant
) -> Turn:
    """The turn of a job that stands in a band, or would stand there."""
    if entry[0] < old_before:
        return (OLD, entry, owner)
    of_user = lines.get(owner, UserLines())
    before = sum(bisect_left(line, entry) for line in of_user.values())
    oldest = min(oldest_of(of_user), entry) if of_user else entry
    own = (usage(durable, owner[1], at) + before * TURN, oldest, owner)
    if owner[0] == NO_GROUP:
        return own
    of_group = {each: theirs for each, theirs in lines.items() if each[0] == owner[0]}
    members = (user_taker(durable, each, theirs, at, old_before) for each, theirs in of_group.items())
    taker = group_taker(durable, owner[0], of_group.values(), at, old_before, entry)
    return taker.turn(sum(each.turns_before(own) for each in members))
