"""The lines of waiting jobs: an index of the state, by band, user and what they ask for, each in the order of age.

Jobs that ask for the same are one class of request: when one of them fits nowhere, none of them does, so that a pass
costs what there are classes and not what there are jobs.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from .equal_jobs import EqualJobs
from .ids import JobId, UserName
from .jobs import Asked, Band, Job
from .units import Instant

Entry = tuple[Instant, JobId]
"""A job's place in its line: from when its age counts, then its id."""

UserLines = dict[Asked, list[Entry]]
"""The lines of one user in one band, none of them empty."""


def _no_lines() -> dict[Band, dict[UserName, UserLines]]:
    return {band: {} for band in reversed(Band)}


@dataclass(slots=True)
class Lines:
    """Every waiting job once: the lines of each band, highest band first, and how many jobs stand in all."""

    of_band: dict[Band, dict[UserName, UserLines]] = field(default_factory=_no_lines)
    count: int = 0

    def add(self, job: Job) -> None:
        """Put a job in its place."""
        insort(self._line(job), (job.age_since, job.id))
        self.count += 1

    def add_equals(self, equal: EqualJobs) -> None:
        """Put all of them in their places at once; one that differed and waits again may stand between them."""
        line = self._line(equal.first)
        line.extend((equal.first.age_since, job_id) for job_id in equal.ids())
        line.sort()  # two sorted runs: as much as merging them
        self.count += len(equal)

    def remove(self, job: Job) -> None:
        """Take a job out of its line."""
        of_user = self.of_band[job.band]
        lines = of_user[job.user]
        line = lines[job.spec.asked]
        del line[bisect_left(line, (job.age_since, job.id))]
        self.count -= 1
        if not line:
            del lines[job.spec.asked]
        if not lines:
            del of_user[job.user]

    def holds(self, job: Job, band: Band) -> bool:
        """Whether a job stands in a line of a band: for checks."""
        line = self.of_band[band].get(job.user, {}).get(job.spec.asked, [])
        entry = (job.age_since, job.id)
        at = bisect_left(line, entry)
        return at < len(line) and line[at] == entry

    def _line(self, job: Job) -> list[Entry]:
        return self.of_band[job.band].setdefault(job.user, {}).setdefault(job.spec.asked, [])
