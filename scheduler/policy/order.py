"""Which job is next: bands from urgent to low; in a band users take turns by what they have used; then age.

The next job of a band is the oldest of the user with the least usage, where each job that a user has ahead in the band
counts as TURN on top. So users with equal usage take turns, and who has used a GPU for an hour waits for sixty turns of
the others. Where there are groups, they take turns by what they have used over their shares, and users inside their
group: `groups/turns.py`. Turns alone could make a job wait for ever: one that is older than the age limit goes to the
front of its band, the oldest first, whoever's it is. A requeued job keeps its age; one that its own time
limit ended has had its turn, and its age counts anew.
"""

import heapq
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from ..state.durable import Durable
from ..state.groups.group import NO_GROUP, GroupId
from ..state.ids import JobId, UserName
from ..state.jobs import Job, Queued
from ..state.lines import Entry, Head, Line, LineKey, LineOwner, UserLines
from ..state.specs import Asked, Band
from ..state.state import State
from ..state.units import NEVER, Instant
from .gap import gap_hold
from .groups.turns import (
    OLD,
    TURN,
    BandLines,
    Turn,
    TurnTaker,
    all_takers,
    by_group,
    count_old,
    group_taker,
    has_groups,
    oldest_of,
    turn_at,
    turn_behind,
    usage,
    user_taker,
)
from .owners import as_its_users, asked_by

GivenUp = Collection[Asked | tuple[UserName, Asked] | tuple[GroupId, Asked] | JobId]
"""What fits nowhere any more: a class of request, that of a user or group over a cap, or items of an array at one."""

Found = tuple[LineOwner, Entry, int]
"""An entry, whose it is, and how many it stands for."""

NO_INSTANT = Instant(0)


def is_old(state: State, job: Job, at: Instant) -> bool:
    """Whether a waiting job has grown so old that it goes in front of its band."""
    return job.age_since < _old_before(state, at)


def _old_before(state: State, at: Instant) -> Instant:
    """Jobs whose age counts from before this instant are old."""
    age_limit = state.limits.age_limit
    return Instant(at - age_limit) if age_limit else Instant(0)


def queue_order(state: State, at: Instant, given_up: GivenUp = (), until: Job | None = None) -> Iterator[Job]:
    """Eligible jobs in the order in which they are tried.

    What is asked for in `given_up`, by anybody or by one user, is left out from the moment it stands there, at no cost
    for the jobs that wait with it. Those that wait since history was cut off are left out. `until` is the job before
    which it ends.
    """
    durable, old_before, hold = state.durable, _old_before(state, at), gap_hold(state, at)
    held_before = Instant(0) if hold is None else hold.all_before
    for band, lines in durable.lines.of_band.items():
        if until is not None and band < until.band:
            return
        end = _turn_of(state, until, at) if until is not None and band == until.band else None
        for turn, entry, _ in _band_order(durable, lines, at, old_before, given_up, held_before=held_before):
            if end is not None and turn >= end:
                return
            job = durable.jobs[entry[1]]
            if hold is None or not hold.holds(job):
                yield as_its_users(durable, job)


def _band_order(
    durable: Durable,
    lines: BandLines,
    at: Instant,
    old_before: Instant,
    given_up: GivenUp,
    *,
    passes_alike: bool = False,
    held_before: Instant = NO_INSTANT,
) -> Iterator[tuple[Turn, Entry, int]]:
    """The entries of a band, each with its turn and how many it stands for: more than 1 with `passes_alike` only.

    Those of before `held_before` are passed at no cost.
    """
    old = {owner: of_user for owner, of_user in lines.items() if oldest_of(of_user)[0] < old_before}
    if old:
        those = [(owner, key, line) for owner, of_user in old.items() for key, line in of_user.items()]
        first = sorted((line[0], 0, number) for number, (_, _, line) in enumerate(those) if line[0][0] < old_before)
        numbered = [(key, line) for _, key, line in those]
        owners = [owner for owner, _, _ in those]
        for owner, entry, weight in _merged(
            durable,
            first,
            numbered,
            owners.__getitem__,
            given_up,
            passes_alike=passes_alike,
            before=old_before,
            held_before=held_before,
        ):
            yield (OLD, entry, owner), entry, weight

    def in_turns(of_users: BandLines) -> Iterator[tuple[Turn, Entry, int]]:
        heads: list[tuple[Turn, int]] = []
        rests: list[Iterator[Found]] = []
        for number, (owner, of_user) in enumerate(of_users.items()):
            begin = count_old(of_user, old_before) if owner in old else 0
            heads.append(((usage(durable, owner[1], at) + begin * TURN, oldest_of(of_user), owner), number))
            since = old_before if begin else None
            rests.append(
                _young(durable, owner, of_user, since, given_up, passes_alike=passes_alike, held_before=held_before)
            )
        return _by_turns(heads, rests, [TURN] * len(heads))

    if not has_groups(lines):
        yield from in_turns(lines)
        return
    of_groups = by_group(lines)
    alone = of_groups.pop(NO_GROUP, {})
    takers = [group_taker(durable, group, of.values(), at, old_before) for group, of in of_groups.items()]
    orders = [in_turns(of) for of in of_groups.values()]
    if passes_alike:
        members = [[user_taker(durable, *each, at, old_before) for each in of.items()] for of in of_groups.values()]
        counted = [_with_turns_of(*each) for each in zip(takers, members, orders, strict=True)]
        yield from heapq.merge(in_turns(alone), *counted)
        return
    singles = [user_taker(durable, *each, at, old_before) for each in alone.items()]
    heads = [(each.turn(each.old_count), number) for number, each in enumerate((*takers, *singles))]
    rests = [
        *map(_whose, orders),
        *(_whose(in_turns({owner: of_user})) for owner, of_user in alone.items()),
    ]
    yield from _by_turns(heads, rests, [each.step for each in (*takers, *singles)])


def _by_turns(
    heads: list[tuple[Turn, int]], rests: list[Iterator[Found]], steps: list[int]
) -> Iterator[tuple[Turn, Entry, int]]:
    """The entries of several who take turns, each in its own order; `heads` are the turns of the first of each."""
    heapq.heapify(heads)
    while heads:
        turn, number = heads[0]
        found = next(rests[number], None)
        if found is None:
            heapq.heappop(heads)
            continue
        _, entry, weight = found
        yield turn, entry, weight
        heapq.heapreplace(heads, ((turn[0] + weight * steps[number], *turn[1:]), number))


def _whose(order: Iterator[tuple[Turn, Entry, int]]) -> Iterator[Found]:
    return ((turn[2], entry, weight) for turn, entry, weight in order)


def _with_turns_of(
    group: TurnTaker, members: Collection[TurnTaker], order: Iterator[tuple[Turn, Entry, int]]
) -> Iterator[tuple[Turn, Entry, int]]:
    """A group's entries with its turns, in place of those of its users: counted, as one may stand for several."""
    for turn, entry, weight in order:
        yield group.turn(sum(each.turns_before(turn) for each in members)), entry, weight


def _young(
    durable: Durable,
    owner: LineOwner,
    lines: UserLines,
    old_before: Instant | None,
    given_up: GivenUp,
    *,
    passes_alike: bool,
    held_before: Instant,
) -> Iterator[Found]:
    """A user's entries by age, from that instant on; None: all."""
    if old_before is None:
        heads = lines.heads().copy()
    else:
        begins = ((line, bisect_left(line, (old_before,)), number) for number, line in enumerate(lines.values()))
        heads = sorted((line[at], at, number) for line, at, number in begins if at < len(line))
    return _by_age(durable, owner, heads, lines, given_up, passes_alike=passes_alike, held_before=held_before)


def _by_age(
    durable: Durable,
    owner: LineOwner,
    heads: list[Head],
    lines: UserLines,
    given_up: GivenUp = (),
    *,
    passes_alike: bool,
    held_before: Instant = NO_INSTANT,
) -> Iterator[Found]:
    """A user's entries by age; `heads` are the first of each line."""
    numbered = list(lines.items())
    return _merged(
        durable, heads, numbered, lambda number: owner, given_up, passes_alike=passes_alike, held_before=held_before
    )


def _merged(
    durable: Durable,
    heads: list[Head],
    numbered: list[tuple[LineKey, Line]],
    owner_of: Callable[[int], LineOwner],
    given_up: GivenUp,
    *,
    passes_alike: bool,
    before: Instant = NEVER,
    held_before: Instant,
) -> Iterator[Found]:
    """The entries of lines by age, those from before an instant; a heap of the first of each that was not given yet."""
    while heads:
        entry, at, number = heads[0]
        (asked, array), line = numbered[number]
        owner = owner_of(number)
        if entry[0] < held_before:
            at = bisect_left(line, (held_before,), at)
            if at < len(line) and line[at][0] < before:
                heapq.heapreplace(heads, (line[at], at, number))
            else:
                heapq.heappop(heads)
            continue
        if given_up and _is_given_up(durable, owner, asked, array, given_up):
            heapq.heappop(heads)
            continue
        if passes_alike and array is not None:
            # Nobody stands between the items of an array but others of them, that have come to differ.
            yield owner, entry, len(line)
            heapq.heappop(heads)
            continue
        yield owner, entry, 1
        if at + 1 < len(line) and line[at + 1][0] < before:
            heapq.heapreplace(heads, (line[at + 1], at + 1, number))
        else:
            heapq.heappop(heads)


def _is_given_up(durable: Durable, owner: LineOwner, asked: Asked, array: JobId | None, given_up: GivenUp) -> bool:
    group, user = owner
    if asked_by(durable, user, asked) in given_up or (user, asked) in given_up or array in given_up:
        return True
    return group != NO_GROUP and (group, asked) in given_up


def order_from(state: State, at: Instant, after: tuple[Band, LineOwner, Entry] | None) -> Iterator[tuple[int, Job]]:
    """Waiting jobs behind a place in the order, or all, each with its own place, from 1.

    Of an array's items that never differed the first stands for all of them; the others are passed at no cost. So is
    what stands before the place, where that is not among those who are old.
    """
    durable, old_before = state.durable, _old_before(state, at)
    ahead = 0
    for band, lines in durable.lines.of_band.items():
        if after is not None and band > after[0]:
            ahead += _count(lines)
            continue
        of_user = lines.get(after[1], UserLines()) if after is not None else UserLines()
        begin = turn_at(durable, lines, *after[1:], at, old_before) if after and band == after[0] else None
        stands = after is not None and any(after[2] in line for line in of_user.values())
        takers = all_takers(durable, lines, at, old_before) if has_groups(lines) else []
        of_old = sum(count_old(each, old_before) for each in lines.values())
        places, old_places = _Places(ahead + of_old), _OldPlaces(ahead)
        if begin is None or begin[0] == OLD:
            entries = _band_order(durable, lines, at, old_before, (), passes_alike=True)
        else:
            entries = _order_from_turn(durable, lines, at, old_before, begin, places)
        for turn, entry, weight in entries:
            job = durable.jobs[entry[1]]
            if turn[0] == OLD:
                place = old_places.next(entry, lines[turn[2]][LineKey(job.spec.asked, job.array)] if weight > 1 else ())
            elif takers:
                place = ahead + sum(each.turns_before(turn) for each in takers) + 1
            else:
                place = places.next(turn, weight)
            if begin is None or turn > begin or (turn == begin and not stands):
                yield place, job
        ahead += _count(lines)


def _order_from_turn(
    durable: Durable, lines: BandLines, at: Instant, old_before: Instant, begin: Turn, places: "_Places"
) -> Iterator[tuple[Turn, Entry, int]]:
    """The entries of a band from a turn on; those of before it are counted in `places`, where no groups take turns."""
    of_groups = by_group(lines)
    orders = [_users_from_turn(durable, of_groups.pop(NO_GROUP, {}), at, old_before, begin, places)]
    for group, of in of_groups.items():
        taker = group_taker(durable, group, of.values(), at, old_before)
        members = [user_taker(durable, *each, at, old_before) for each in of.items()]
        own = turn_behind(members, taker.turns_before(begin))
        if own is not None:
            order = _users_from_turn(durable, of, at, old_before, own, places)
            orders.append(_with_turns_of(taker, members, order))
    return heapq.merge(*orders)


def _users_from_turn(
    durable: Durable, lines: BandLines, at: Instant, old_before: Instant, begin: Turn, places: "_Places"
) -> Iterator[tuple[Turn, Entry, int]]:
    """The same of users that take turns with each other."""
    heads: list[tuple[Turn, int]] = []
    rests: list[Iterator[Found]] = []
    for number, (owner, of_user) in enumerate(lines.items()):
        taker = user_taker(durable, owner, of_user, at, old_before)
        parts = _parts(of_user, old_before)
        begins = _skip(parts, taker.turns_before(begin) - taker.old_count)
        skipped = [(now - part.begin, part) for now, part in zip(begins, parts, strict=True)]
        job_count = sum(count * part.weight for count, part in skipped)
        newest = max(
            ((part.line[part.begin + count - 1], part.weight) for count, part in skipped if count), default=None
        )
        places.skip(taker, job_count, newest[1] if newest else 0)
        rest = sorted(
            (part.line[now], now, of_part)
            for of_part, (now, part) in enumerate(zip(begins, parts, strict=True))
            if now < part.end
        )
        heads.append((taker.turn(taker.old_count + job_count), number))
        rests.append(_by_age(durable, owner, rest, of_user, passes_alike=True))
    return _by_turns(heads, rests, [TURN] * len(heads))


class _Part(NamedTuple):
    """The entries of a user's line that are not old: from `begin` to `end`, each of which stands for `weight` jobs."""

    line: Line
    begin: int
    end: int
    weight: int


def _parts(lines: UserLines, old_before: Instant) -> list[_Part]:
    """The first of an array's items that never differed stands for all of them, which are of one age."""
    parts = []
    for (_, array), line in lines.items():
        begin = bisect_left(line, (old_before,))
        if array is None:
            parts.append(_Part(line, begin, len(line), 1))
        else:
            parts.append(_Part(line, begin, min(begin + 1, len(line)), len(line)))
    return parts


def _skip(parts: Sequence[_Part], job_count: int) -> list[int]:
    """Where each part goes on behind the entries, by age, that have less than so many jobs before them.

    Halves what is left of the longest until nothing is, which is some 20 times for 100,000 jobs.
    """
    most = max(0, job_count)
    begins, ends = [part.begin for part in parts], [min(part.end, part.begin + most) for part in parts]
    while True:
        number = max(range(len(parts)), key=lambda each: ends[each] - begins[each])
        if begins[number] == ends[number]:
            return begins
        middle = parts[number].line[(begins[number] + ends[number]) // 2]
        split = [bisect_left(part.line, middle, *each) for part, *each in zip(parts, begins, ends, strict=True)]
        if sum((at - part.begin) * part.weight for at, part in zip(split, parts, strict=True)) < job_count:
            split[number] += 1
            begins = split
        else:
            ends = split


class _OldPlaces:
    """Places of those who are old, by age alone; an entry may stand for a line of several."""

    def __init__(self, ahead: int) -> None:
        self._ahead = ahead
        self._several: list[Line] = []

    def next(self, entry: Entry, line: Line) -> int:
        """The place of the next entry, and the line that it stands for, if it does."""
        place = self._ahead + sum(bisect_left(each, entry) for each in self._several) + 1
        if line:
            self._several.append(line)
        else:
            self._ahead += 1
        return place


class _Places:
    """Places in the order of a band, where an entry may stand for several with one turn after the other."""

    def __init__(self, ahead: int) -> None:
        self._ahead = ahead
        self._several: dict[LineOwner, tuple[Turn, int]] = {}

    def skip(self, taker: TurnTaker, job_count: int, newest: int) -> None:
        """Count what a user has before the first entry; `newest` of it are what the last entry stands for."""
        if newest > 1:
            job_count -= newest
            self._several[taker.owner] = (taker.turn(taker.old_count + job_count), newest)
        self._ahead += job_count

    def next(self, turn: Turn, weight: int) -> int:
        """The place of the next entry, which stands for `weight`."""
        owner = turn[2]
        self._ahead += self._several.pop(owner, (turn, 0))[1]
        between = sum(_turns_before(begin, turn, count) for begin, count in self._several.values())
        place = self._ahead + between + 1
        if weight == 1:
            self._ahead += 1
        else:
            self._several[owner] = (turn, weight)
        return place


def _turns_before(begin: Turn, end: Turn, most: int) -> int:
    """How many of a user's turns from one on, `most` of them, come before another's."""
    turns, rest = divmod(end[0] - begin[0], TURN)
    return min(max(0, turns + (rest > 0 or begin[1:] < end[1:])), most)


def position(state: State, job: Job, at: Instant) -> int:
    """A waiting job's place in the order, from 1; 0 for a job that does not wait in it.

    A job that is not submitted yet is told the place that it would get.
    """
    return _count_ahead(state, job, at) + 1 if isinstance(job.state, Queued) else 0


def jobs_ahead(state: State, job: Job, limit: int, at: Instant) -> tuple[list[JobId], int]:
    """The nearest `limit` jobs ahead of a waiting job, nearest first, and how many there are in all."""
    if not isinstance(job.state, Queued):
        return [], 0
    nearest = deque((each.id for each in queue_order(state, at, until=job)), maxlen=limit)
    return list(reversed(nearest)), _count_ahead(state, job, at)


def may_go_ahead(durable: Durable, job: Job) -> int:
    """How many of the jobs that wait now may be tried before this one, whatever users come to have used meanwhile."""
    count = 0
    for band, lines in durable.lines.of_band.items():
        if band >= job.band:
            count += _count(lines)
    own = durable.lines.of_band[job.band].get(durable.lines.owner_of(job), UserLines())
    entry = (job.age_since, job.id)
    return count - sum(len(line) - bisect_left(line, entry) for line in own.values())


def _count_ahead(state: State, job: Job, at: Instant) -> int:
    durable, old_before = state.durable, _old_before(state, at)
    count = 0
    end = _turn_of(state, job, at)
    for band, lines in durable.lines.of_band.items():
        if band > job.band:
            count += _count(lines)
        elif band == job.band and end[0] == OLD:
            count += sum(bisect_left(line, end[1]) for of_user in lines.values() for line in of_user.values())
        elif band == job.band:
            count += sum(each.turns_before(end) for each in all_takers(durable, lines, at, old_before))
    return count


def goes_before(state: State, job: Job, other: Job, at: Instant) -> bool:
    """Whether a job that waits in line stands before another one that does not, stood that in line, too."""
    if job.band != other.band:
        return job.band > other.band
    return _turn_of(state, job, at) < _turn_of(state, other, at)


def _turn_of(state: State, job: Job, at: Instant) -> Turn:
    durable = state.durable
    entry = (job.age_since, job.id)
    lines = durable.lines.of_band[job.band]
    return turn_at(durable, lines, durable.lines.owner_of(job), entry, at, _old_before(state, at))


def _count(lines: BandLines) -> int:
    return sum(len(line) for of_user in lines.values() for line in of_user.values())
