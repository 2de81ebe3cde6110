"""The order from a place on, as pages show it: each job with its place, and no replay of what stands before."""

import heapq
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...state.durable import Durable
from ...state.groups.group import NO_GROUP
from ...state.indexes.lines import Entry, Line, LineKey, LineOwner, UserLines
from ...state.jobs import Job
from ...state.specs import Band
from ...state.state import State
from ...state.units import Instant
from ..groups.turns import (
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
    turn_at,
    turn_behind,
    user_taker,
)
from .band import Found, band_order, by_age, by_turns, count_jobs, with_turns_of
from .queue import age_cutoff


def order_from(state: State, at: Instant, after: tuple[Band, LineOwner, Entry] | None) -> Iterator[tuple[int, Job]]:
    """Waiting jobs behind a place in the order, or all, each with its own place, from 1.

    Of an array's items that never differed the first stands for all of them; the others are passed at no cost. So is
    what stands before the place, where that is not among those who are old.
    """
    durable, old_before = state.durable, age_cutoff(state, at)
    ahead = 0
    for band, lines in durable.lines.of_band.items():
        if after is not None and band > after[0]:
            ahead += count_jobs(lines)
            continue
        of_user = lines.get(after[1], UserLines()) if after is not None else UserLines()
        begin = turn_at(durable, lines, *after[1:], at, old_before) if after and band == after[0] else None
        stands = after is not None and any(after[2] in line for line in of_user.values())
        takers = all_takers(durable, lines, at, old_before) if has_groups(lines) else []
        of_old = sum(count_old(each, old_before) for each in lines.values())
        places, old_places = _Places(ahead + of_old), _OldPlaces(ahead)
        if begin is None or begin[0] == OLD:
            entries = band_order(durable, lines, at, old_before, (), passes_alike=True)
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
        ahead += count_jobs(lines)


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
            orders.append(with_turns_of(taker, members, order))
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
        rests.append(by_age(durable, owner, rest, of_user, passes_alike=True))
    return by_turns(heads, rests, [TURN] * len(heads))


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
