"""Which job is next: bands from urgent to low; inside a band users take turns by what they have used; then age.

The next job of a band is the oldest of the user with the least usage, where each job that a user has ahead in the band
counts as TURN on top. So users with equal usage take turns, and who has used a GPU for an hour waits for sixty turns of
the others. A requeued job keeps its age.
"""

import heapq
from bisect import bisect_left
from collections import deque
from collections.abc import Collection, Iterator

from ..state.durable import Durable
from ..state.ids import JobId, UserName
from ..state.jobs import Job, Queued
from ..state.lines import Entry, UserLines
from ..state.specs import Asked, Band
from ..state.units import MINUTE, SECOND, Instant
from ..state.usage import GPU_WEIGHT

TURN = GPU_WEIGHT * MINUTE
"""What a job ahead counts for, in CPU-microseconds: a GPU-minute."""

GivenUp = Collection[Asked | tuple[UserName, Asked] | JobId]
"""What fits nowhere any more: a class of request, that of a user over a cap, or the items of an array at its cap."""

Turn = tuple[int, Entry, UserName]
"""Sorts the jobs of a band: usage with the turns before it, then who has the oldest job, then the name."""


def usage(durable: Durable, user: UserName, at: Instant) -> int:
    """What a user has used by an instant, decayed, in CPU-microseconds; what runs counts from its placement."""
    known, hold = durable.usage.get(user), durable.holds_of_user.get(user)
    ended = 0 if known is None else round(known.by(at) * SECOND)
    return ended + (0 if hold is None else hold.used_by(at))


def queue_order(durable: Durable, at: Instant, given_up: GivenUp = (), until: Job | None = None) -> Iterator[Job]:
    """Eligible jobs in the order in which they are tried.

    What is asked for in `given_up`, by anybody or by one user, is left out from the moment it stands there, at no cost
    for the jobs that wait with it. `until` is the job before which it ends.
    """
    for band, lines in durable.lines.of_band.items():
        if until is not None and band < until.band:
            return
        end = _turn_of(durable, until, at) if until is not None and band == until.band else None
        for turn, entry, _ in _band_order(durable, lines, at, given_up):
            if end is not None and turn >= end:
                return
            yield durable.jobs[entry[1]]


def _band_order(
    durable: Durable,
    lines: dict[UserName, UserLines],
    at: Instant,
    given_up: GivenUp,
    *,
    passes_alike: bool = False,
) -> Iterator[tuple[Turn, Entry, int]]:
    """The entries of a band, each with its turn and how many it stands for: more than 1 with `passes_alike` only."""
    heads: list[tuple[Turn, int]] = []
    rests = [_merged(user, of_user, given_up, passes_alike=passes_alike) for user, of_user in lines.items()]
    for number, (user, of_user) in enumerate(lines.items()):
        heads.append(((usage(durable, user, at), _oldest(of_user), user), number))
    heapq.heapify(heads)
    while heads:
        turn, number = heads[0]
        found = next(rests[number], None)
        if found is None:
            heapq.heappop(heads)
            continue
        entry, weight = found
        yield turn, entry, weight
        heapq.heapreplace(heads, ((turn[0] + weight * TURN, *turn[1:]), number))


def _merged(user: UserName, lines: UserLines, given_up: GivenUp, *, passes_alike: bool) -> Iterator[tuple[Entry, int]]:
    """A user's entries by age; a heap of the first of each class that was not given yet."""
    of_number, heads = list(lines.items()), lines.heads().copy()
    while heads:
        entry, at, number = heads[0]
        (asked, array), line = of_number[number]
        if given_up and (asked in given_up or (user, asked) in given_up or array in given_up):
            heapq.heappop(heads)
            continue
        if passes_alike and array is not None:
            # Nobody stands between the items of an array but others of them, that have come to differ.
            yield entry, len(line)
            heapq.heappop(heads)
            continue
        yield entry, 1
        if at + 1 < len(line):
            heapq.heapreplace(heads, (line[at + 1], at + 1, number))
        else:
            heapq.heappop(heads)


def order_from(durable: Durable, at: Instant, after: tuple[Band, UserName, Entry] | None) -> Iterator[tuple[int, Job]]:
    """Waiting jobs behind a place in the order, or all, each with its own place, from 1.

    Of an array's items that never differed the first stands for all of them; the others are passed at no cost.
    """
    ahead = 0
    for band, lines in durable.lines.of_band.items():
        if after is not None and band > after[0]:
            ahead += _count(lines)
            continue
        of_user = lines.get(after[1], UserLines()) if after is not None else UserLines()
        begin = _turn_at(durable, of_user, *after[1:], at) if after and band == after[0] else None
        stands = after is not None and any(after[2] in line for line in of_user.values())
        places = _Places(ahead)
        for turn, entry, weight in _band_order(durable, lines, at, (), passes_alike=True):
            place = places.next(turn, weight)
            if begin is None or turn > begin or (turn == begin and not stands):
                yield place, durable.jobs[entry[1]]
        ahead += _count(lines)


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


def position(durable: Durable, job: Job, at: Instant) -> int:
    """A waiting job's place in the order, from 1; 0 for a job that does not wait in it.

    A job that is not submitted yet is told the place that it would get.
    """
    return _count_ahead(durable, job, at) + 1 if isinstance(job.state, Queued) else 0


def jobs_ahead(durable: Durable, job: Job, limit: int, at: Instant) -> tuple[list[JobId], int]:
    """The nearest `limit` jobs ahead of a waiting job, nearest first, and how many there are in all."""
    if not isinstance(job.state, Queued):
        return [], 0
    nearest = deque((each.id for each in queue_order(durable, at, until=job)), maxlen=limit)
    return list(reversed(nearest)), _count_ahead(durable, job, at)


def may_go_ahead(durable: Durable, job: Job) -> int:
    """How many of the jobs that wait now may be tried before this one, whatever users come to have used meanwhile."""
    count = 0
    for band, lines in durable.lines.of_band.items():
        if band >= job.band:
            count += _count(lines)
    own = durable.lines.of_band[job.band].get(job.user, UserLines())
    entry = (job.age_since, job.id)
    return count - sum(len(line) - bisect_left(line, entry) for line in own.values())


def _count_ahead(durable: Durable, job: Job, at: Instant) -> int:
    count = 0
    end = _turn_of(durable, job, at)
    for band, lines in durable.lines.of_band.items():
        if band > job.band:
            count += _count(lines)
        elif band == job.band:
            for user, of_user in lines.items():
                turns, rest = divmod(end[0] - usage(durable, user, at), TURN)
                is_before = rest > 0 or (_oldest(of_user), user) < end[1:]
                count += min(max(0, turns + is_before), sum(map(len, of_user.values())))
    return count


def _turn_of(durable: Durable, job: Job, at: Instant) -> Turn:
    lines = durable.lines.of_band[job.band].get(job.user, UserLines())
    return _turn_at(durable, lines, job.user, (job.age_since, job.id), at)


def _turn_at(durable: Durable, lines: UserLines, user: UserName, entry: Entry, at: Instant) -> Turn:
    before = sum(bisect_left(line, entry) for line in lines.values())
    oldest = min(_oldest(lines), entry) if lines else entry
    return (usage(durable, user, at) + before * TURN, oldest, user)


def _oldest(lines: UserLines) -> Entry:
    return lines.heads()[0][0]


def _count(lines: dict[UserName, UserLines]) -> int:
    return sum(len(line) for of_user in lines.values() for line in of_user.values())
