"""The entries of one band: merged by age, taken in turns, and left out where a pass has given up what they ask for."""

import heapq
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator

from ...state.durable import Durable
from ...state.groups.group import NO_GROUP, GroupId
from ...state.ids import JobId, UserName
from ...state.indexes.lines import Entry, Head, Line, LineKey, LineOwner, UserLines
from ...state.specs import Asked
from ...state.units import NEVER, Instant
from ..groups.turns import (
    OLD,
    TURN,
    BandLines,
    Turn,
    TurnTaker,
    by_group,
    count_old,
    group_taker,
    has_groups,
    oldest_of,
    usage,
    user_taker,
)
from ..owners import asked_by

GivenUp = Collection[Asked | tuple[UserName, Asked] | tuple[GroupId, Asked] | JobId]
"""What fits nowhere any more: a class of request, that of a user or group over a cap, or items of an array at one."""

Found = tuple[LineOwner, Entry, int]
"""An entry, whose it is, and how many it stands for."""

NO_INSTANT = Instant(0)


def band_order(
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
        return by_turns(heads, rests, [TURN] * len(heads))

    if not has_groups(lines):
        yield from in_turns(lines)
        return
    of_groups = by_group(lines)
    alone = of_groups.pop(NO_GROUP, {})
    takers = [group_taker(durable, group, of.values(), at, old_before) for group, of in of_groups.items()]
    orders = [in_turns(of) for of in of_groups.values()]
    if passes_alike:
        members = [[user_taker(durable, *each, at, old_before) for each in of.items()] for of in of_groups.values()]
        counted = [with_turns_of(*each) for each in zip(takers, members, orders, strict=True)]
        yield from heapq.merge(in_turns(alone), *counted)
        return
    singles = [user_taker(durable, *each, at, old_before) for each in alone.items()]
    heads = [(each.turn(each.old_count), number) for number, each in enumerate((*takers, *singles))]
    rests = [
        *map(_whose, orders),
        *(_whose(in_turns({owner: of_user})) for owner, of_user in alone.items()),
    ]
    yield from by_turns(heads, rests, [each.step for each in (*takers, *singles)])


def by_turns(
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


def with_turns_of(
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
    return by_age(durable, owner, heads, lines, given_up, passes_alike=passes_alike, held_before=held_before)


def by_age(
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


def count_jobs(lines: BandLines) -> int:
    """How many jobs wait in a band."""
    return sum(len(line) for of_user in lines.values() for line in of_user.values())
