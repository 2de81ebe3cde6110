"""The lines of waiting jobs: an index of the state, by band, user and what they ask for, each in the order of age.

Jobs that ask for the same are one class of request: when one of them fits nowhere, none of them does, so that a pass
costs what there are classes and not what there are jobs.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple, overload

from ..groups.group import NO_GROUP, GroupId
from ..ids import JobId, UserName
from ..jobs import Job
from ..specs import Asked, Band
from ..units import Instant
from .equal_jobs import EqualJobs

Entry = tuple[Instant, JobId]
"""A job's place in its line: from when its age counts, then its id."""


@dataclass(frozen=True, slots=True)
class AlikeLine(Sequence[Entry]):
    """The line of an array's items that never differed: as long as they are, and as large as their spans.

    All of them have the age `since`. Their ids are one behind the other, so that nobody else stands between them.
    """

    since: Instant
    spans: tuple[tuple[JobId, JobId], ...]
    _offsets: list[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_offsets", list(accumulate((end - begin for begin, end in self.spans), initial=0)))

    def __len__(self) -> int:
        return self._offsets[-1]

    @overload
    def __getitem__(self, at: int) -> Entry: ...
    @overload
    def __getitem__(self, at: slice) -> list[Entry]: ...
    def __getitem__(self, at: int | slice) -> Entry | list[Entry]:
        if isinstance(at, slice):
            return [self[number] for number in range(*at.indices(len(self)))]
        number = at + len(self) if at < 0 else at
        if not 0 <= number < len(self):
            raise IndexError(at)
        span = bisect_right(self._offsets, number) - 1
        return (self.since, JobId(self.spans[span][0] + number - self._offsets[span]))

    def __contains__(self, entry: object) -> bool:
        if not isinstance(entry, tuple) or len(entry) != 2 or entry[0] != self.since:
            return False
        return any(begin <= entry[1] < end for begin, end in self.spans)


class LineKey(NamedTuple):
    """What a line is for: a class of request, and the array whose items that never differed have it for themselves."""

    asked: Asked
    array: JobId | None = None


LineOwner = tuple[GroupId, UserName]
"""Whose lines they are: a user's in a group, or in none."""

Line = Sequence[Entry]
Head = tuple[Entry, int, int]
"""The first of a line, its place there (0), and which of the user's lines it is."""


class UserLines(dict[LineKey, Line]):
    """The lines of one user in one band, none of them empty. Only `Lines` changes them."""

    __slots__ = ("_heads",)

    def __init__(self) -> None:
        super().__init__()
        self._heads: list[Head] | None = None

    def heads(self) -> list[Head]:
        """The first of each line, oldest first, which is a heap, too; for reading. Known until one is another."""
        if self._heads is None:
            self._heads = sorted((line[0], 0, number) for number, line in enumerate(self.values()))
        return self._heads

    def forget_heads(self) -> None:
        """The first of a line is another, or there are other lines."""
        self._heads = None

    def begin(self, first: Entry) -> None:
        """A line was added behind all others."""
        if self._heads is not None:
            insort(self._heads, (first, 0, len(self) - 1))

    def replace_head(self, old: Entry, new: Entry) -> None:
        """The first of a line is another now; no two lines have the same."""
        if self._heads is not None:
            at = bisect_left(self._heads, (old,))
            number = self._heads.pop(at)[2]
            insort(self._heads, (new, 0, number))


@dataclass(slots=True)
class Lines:
    """Every waiting job once: the lines of each band, highest band first, and how many jobs stand in all."""

    of_band: dict[Band, dict[LineOwner, UserLines]] = field(
        default_factory=lambda: {band: {} for band in reversed(Band)}
    )
    count: int = 0
    removed_groups: set[GroupId] = field(default_factory=set)

    def owner_of(self, job: Job) -> LineOwner:
        """In whose lines a job stands: one of a group that was removed stands as its user's of no group."""
        return (NO_GROUP if job.group in self.removed_groups else job.group, job.user)

    def end_group(self, group: GroupId) -> None:
        """A group was removed: its jobs stand among those that their users have in no group."""
        if group in self.removed_groups:
            return
        self.removed_groups.add(group)
        for lines in self.of_band.values():
            for owner in [each for each in lines if each[0] == group]:
                theirs = lines.pop(owner)
                own = lines.setdefault((NO_GROUP, owner[1]), UserLines())
                own.forget_heads()
                for key, line in theirs.items():
                    if key.array is None:
                        own[key] = sorted((*own.get(key, ()), *line))
                    else:
                        own[key] = line

    def forget_group(self, group: GroupId) -> None:
        """A group that was removed is not known any more, and has no job."""
        self.removed_groups.discard(group)

    def add(self, job: Job) -> None:
        """Put a job in its place; an item of an array that differs from the others stands among all jobs."""
        line, entry = self._line(job), (job.age_since, job.id)
        insort(line, entry)
        self.count += 1
        if line[0] == entry:
            lines = self.of_band[job.band][self.owner_of(job)]
            if len(line) == 1:
                lines.begin(entry)
            else:
                lines.replace_head(line[1], entry)

    def set_alike(self, equal: EqualJobs) -> None:
        """Make a line of the items of an array that never differed, in place of that there was; none left ends it."""
        first = equal.first
        key = LineKey(first.spec.asked, first.array)
        owner = self.owner_of(first)
        lines = self.of_band[first.band].setdefault(owner, UserLines())
        lines.forget_heads()
        old, line = lines.pop(key, ()), AlikeLine(first.age_since, equal.spans)
        self.count += len(line) - len(old)
        if line:
            lines[key] = line
        elif not lines:
            del self.of_band[first.band][owner]

    def add_equals(self, equal: EqualJobs) -> None:
        """Put all of them in their places at once; one that differed and waits again may stand between them."""
        line = self._line(equal.first)
        line.extend((equal.first.age_since, job_id) for job_id in equal.ids())
        line.sort()  # two sorted runs: as much as merging them
        self.of_band[equal.first.band][self.owner_of(equal.first)].forget_heads()
        self.count += len(equal)

    def remove(self, job: Job) -> None:
        """Take a job out of its line."""
        of_user = self.of_band[job.band]
        owner = self.owner_of(job)
        lines = of_user[owner]
        line = self._line(job)
        entry = (job.age_since, job.id)
        place = bisect_left(line, entry)
        del line[place]
        self.count -= 1
        if not line:
            del lines[LineKey(job.spec.asked)]
            lines.forget_heads()
        elif not place:
            lines.replace_head(entry, line[0])
        if not lines:
            del of_user[owner]

    def count_beside(self, job: Job) -> int:
        """How many stand in a job's line, with itself: its own band's and owner's, who ask for the same."""
        of_user = self.of_band[job.band].get(self.owner_of(job), UserLines())
        return sum(len(of_user.get(LineKey(job.spec.asked, array), ())) for array in {None, job.array})

    def holds(self, job: Job, band: Band) -> bool:
        """Whether a job stands in a line of a band: for checks."""
        lines = self.of_band[band].get(self.owner_of(job), UserLines())
        entry = (job.age_since, job.id)
        found = [line for line in (lines.get(LineKey(job.spec.asked, of)) for of in {None, job.array}) if line]
        places = [(line, bisect_left(line, entry)) for line in found]
        return any(at < len(line) and line[at] == entry for line, at in places)

    def _line(self, job: Job) -> list[Entry]:
        lines = self.of_band[job.band].setdefault(self.owner_of(job), UserLines())
        line = lines.setdefault(LineKey(job.spec.asked), [])
        assert isinstance(line, list)  # only an array has a line of another kind
        return line
