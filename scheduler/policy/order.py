"""Which job is next: bands from urgent to low; in a band users take turns by what they have used; then age.

The next job of a band is the oldest of the user with the least usage, where each job that a user has ahead in the band
counts as TURN on top. So users with equal usage take turns, and who has used a GPU for an hour waits for sixty turns of
the others. Turns alone could make a job wait for ever: one that is older than the age limit goes to the front of its
band, the oldest first, whoever's it is. A requeued job keeps its age; one that its own time
limit ended has had its turn, and its age counts anew.
"""

import heapq
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterator

from ..state.durable import Durable
from ..state.ids import JobId, UserName
from ..state.jobs import Job, Queued
from ..state.lines import Entry, Head, Line, LineKey, UserLines
from ..state.specs import Asked, Band
from ..state.state import State
from ..state.units import MINUTE, NEVER, SECOND, Instant
from ..state.usage import GPU_WEIGHT
from .gap import gap_hold
from .owners import as_its_users, asked_by

TURN = GPU_WEIGHT * MINUTE
"""What a job ahead counts for, in CPU-microseconds: a GPU-minute."""

GivenUp = Collection[Asked | tuple[UserName, Asked] | JobId]
"""What fits nowhere any more: a class of request, that of a user over a cap, or the items of an array at its cap."""

Turn = tuple[int, Entry, UserName]
"""Sorts the jobs of a band: usage with the turns before it, then who has the oldest job, then the name.

Of a job that is old: OLD, its own entry, the name.
"""

NO_INSTANT = Instant(0)

OLD = -1
"""Less than any usage."""


def is_old(state: State, job: Job, at: Instant) -> bool:
    """Whether a waiting job has grown so old that it goes in front of its band."""
    return job.age_since < _old_before(state, at)


def _old_before(state: State, at: Instant) -> Instant:
    """Jobs whose age counts from before this instant are old."""
    age_limit = state.limits.age_limit
    return Instant(at - age_limit) if age_limit else Instant(0)


def usage(durable: Durable, user: UserName, at: Instant) -> int:
    """What a user has used by an instant, decayed, in CPU-microseconds; what runs counts from its placement."""
    known, hold = durable.usage.get(user), durable.holds_of_user.get(user)
    ended = 0 if known is None else round(known.by(at) * SECOND)
    return ended + (0 if hold is None else hold.used_by(at))


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
    lines: dict[UserName, UserLines],
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
    old = {user: of_user for user, of_user in lines.items() if _oldest(of_user)[0] < old_before}
    if old:
        those = [(user, key, line) for user, of_user in old.items() for key, line in of_user.items()]
        first = sorted((line[0], 0, number) for number, (_, _, line) in enumerate(those) if line[0][0] < old_before)
        numbered = [(key, line) for _, key, line in those]
        users = [user for user, _, _ in those]
        for user, entry, weight in _merged(
            durable,
            first,
            numbered,
            users.__getitem__,
            given_up,
            passes_alike=passes_alike,
            before=old_before,
            held_before=held_before,
        ):
            yield (OLD, entry, user), entry, weight
    heads: list[tuple[Turn, int]] = []
    rests: list[Iterator[tuple[UserName, Entry, int]]] = []
    for number, (user, of_user) in enumerate(lines.items()):
        begin = _count_old(of_user, old_before) if user in old else 0
        heads.append(((usage(durable, user, at) + begin * TURN, _oldest(of_user), user), number))
        since = old_before if begin else None
        rests.append(
            _young(durable, user, of_user, since, given_up, passes_alike=passes_alike, held_before=held_before)
        )
    heapq.heapify(heads)
    while heads:
        turn, number = heads[0]
        found = next(rests[number], None)
        if found is None:
            heapq.heappop(heads)
            continue
        _, entry, weight = found
        yield turn, entry, weight
        heapq.heapreplace(heads, ((turn[0] + weight * TURN, *turn[1:]), number))


def _young(
    durable: Durable,
    user: UserName,
    lines: UserLines,
    old_before: Instant | None,
    given_up: GivenUp,
    *,
    passes_alike: bool,
    held_before: Instant,
) -> Iterator[tuple[UserName, Entry, int]]:
    """A user's entries by age, from that instant on; None: all."""
    numbered = list(lines.items())
    if old_before is None:
        heads = lines.heads().copy()
    else:
        begins = ((line, bisect_left(line, (old_before,)), number) for number, (_, line) in enumerate(numbered))
        heads = sorted((line[at], at, number) for line, at, number in begins if at < len(line))
    return _merged(
        durable, heads, numbered, lambda number: user, given_up, passes_alike=passes_alike, held_before=held_before
    )


def _merged(
    durable: Durable,
    heads: list[Head],
    numbered: list[tuple[LineKey, Line]],
    user_of: Callable[[int], UserName],
    given_up: GivenUp,
    *,
    passes_alike: bool,
    before: Instant = NEVER,
    held_before: Instant,
) -> Iterator[tuple[UserName, Entry, int]]:
    """The entries of lines by age, those from before an instant; a heap of the first of each that was not given yet."""
    while heads:
        entry, at, number = heads[0]
        (asked, array), line = numbered[number]
        user = user_of(number)
        if entry[0] < held_before:
            at = bisect_left(line, (held_before,), at)
            if at < len(line) and line[at][0] < before:
                heapq.heapreplace(heads, (line[at], at, number))
            else:
                heapq.heappop(heads)
            continue
        if given_up and (asked_by(durable, user, asked) in given_up or (user, asked) in given_up or array in given_up):
            heapq.heappop(heads)
            continue
        if passes_alike and array is not None:
            # Nobody stands between the items of an array but others of them, that have come to differ.
            yield user, entry, len(line)
            heapq.heappop(heads)
            continue
        yield user, entry, 1
        if at + 1 < len(line) and line[at + 1][0] < before:
            heapq.heapreplace(heads, (line[at + 1], at + 1, number))
        else:
            heapq.heappop(heads)


def order_from(state: State, at: Instant, after: tuple[Band, UserName, Entry] | None) -> Iterator[tuple[int, Job]]:
    """Waiting jobs behind a place in the order, or all, each with its own place, from 1.

    Of an array's items that never differed the first stands for all of them; the others are passed at no cost.
    """
    durable, old_before = state.durable, _old_before(state, at)
    ahead = 0
    for band, lines in durable.lines.of_band.items():
        if after is not None and band > after[0]:
            ahead += _count(lines)
            continue
        of_user = lines.get(after[1], UserLines()) if after is not None else UserLines()
        begin = _turn_at(state, of_user, *after[1:], at) if after and band == after[0] else None
        stands = after is not None and any(after[2] in line for line in of_user.values())
        of_old = sum(_count_old(each, old_before) for each in lines.values())
        places, old_places = _Places(ahead + of_old), _OldPlaces(ahead)
        for turn, entry, weight in _band_order(durable, lines, at, old_before, (), passes_alike=True):
            job = durable.jobs[entry[1]]
            if turn[0] == OLD:
                place = old_places.next(entry, lines[turn[2]][LineKey(job.spec.asked, job.array)] if weight > 1 else ())
            else:
                place = places.next(turn, weight)
            if begin is None or turn > begin or (turn == begin and not stands):
                yield place, job
        ahead += _count(lines)


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
        self._several: dict[UserName, tuple[Turn, int]] = {}

    def next(self, turn: Turn, weight: int) -> int:
        """The place of the next entry, which stands for `weight`."""
        user = turn[2]
        self._ahead += self._several.pop(user, (turn, 0))[1]
        between = sum(_turns_before(begin, turn, count) for begin, count in self._several.values())
        place = self._ahead + between + 1
        if weight == 1:
            self._ahead += 1
        else:
            self._several[user] = (turn, weight)
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
    own = durable.lines.of_band[job.band].get(job.user, UserLines())
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
            for user, of_user in lines.items():
                turns, rest = divmod(end[0] - usage(durable, user, at), TURN)
                is_before = rest > 0 or (_oldest(of_user), user) < end[1:]
                least = _count_old(of_user, old_before)
                count += min(max(least, turns + is_before), sum(map(len, of_user.values())))
    return count


def _turn_of(state: State, job: Job, at: Instant) -> Turn:
    lines = state.durable.lines.of_band[job.band].get(job.user, UserLines())
    return _turn_at(state, lines, job.user, (job.age_since, job.id), at)


def _turn_at(state: State, lines: UserLines, user: UserName, entry: Entry, at: Instant) -> Turn:
    if entry[0] < _old_before(state, at):
        return (OLD, entry, user)
    before = sum(bisect_left(line, entry) for line in lines.values())
    oldest = min(_oldest(lines), entry) if lines else entry
    return (usage(state.durable, user, at) + before * TURN, oldest, user)


def _count_old(lines: UserLines, old_before: Instant) -> int:
    """How many of a user's jobs are old."""
    if _oldest(lines)[0] >= old_before:
        return 0
    return sum(bisect_left(line, (old_before,)) for line in lines.values())


def _oldest(lines: UserLines) -> Entry:
    return lines.heads()[0][0]


def _count(lines: dict[UserName, UserLines]) -> int:
    return sum(len(line) for of_user in lines.values() for line in of_user.values())
