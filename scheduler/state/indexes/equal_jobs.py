"""Equal jobs are one entity until they first differ, and a mapping that shows them as the jobs they are."""

from bisect import bisect_right, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ..ids import JobId
from ..jobs import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualJobs:
    """Jobs of one submit that are alike but for their ids.

    `first` is the first of them as it is now, whether or not it is still one of them. `spans` are those that are:
    (begin, end) each, `end` not among them, in rising order and never touching. A job that changes leaves for good; the
    items of an array may also change all together.
    """

    first: Job
    spans: tuple[tuple[JobId, JobId], ...]

    def __len__(self) -> int:
        return sum(end - begin for begin, end in self.spans)

    def __contains__(self, job_id: object) -> bool:
        return isinstance(job_id, int) and any(begin <= job_id < end for begin, end in self.spans)

    def ids(self) -> Iterator[JobId]:
        """The ids of those that are still alike, in rising order."""
        for begin, end in self.spans:
            yield from map(JobId, range(begin, end))

    def jobs(self) -> Iterator[Job]:
        """Those that are still alike, in the order of their ids."""
        return map(self.job, self.ids())

    def job(self, job_id: JobId) -> Job:
        """One of them."""
        return replace(self.first, id=job_id)

    def without(self, job_id: JobId) -> "EqualJobs":
        """The others, when one has come to differ."""
        spans: list[tuple[JobId, JobId]] = []
        for begin, end in self.spans:
            if begin <= job_id < end:
                left, right = (begin, job_id), (JobId(job_id + 1), end)
                spans.extend(span for span in (left, right) if span[0] < span[1])
            else:
                spans.append((begin, end))
        return replace(self, spans=tuple(spans))


class Jobs(Mapping[JobId, Job]):
    """Jobs by id, each as if it were stored by itself. Only the state's own functions change it."""

    __slots__ = ("_begins", "_equal", "_equal_count", "_own")

    def __init__(self) -> None:
        self._own: dict[JobId, Job] = {}
        self._equal: dict[JobId, EqualJobs] = {}
        self._equal_count = 0
        self._begins: list[JobId] = []

    def __getitem__(self, job_id: JobId) -> Job:
        own = self._own.get(job_id)
        if own is not None:
            return own
        equal = self.equals_of(job_id)
        if equal is None:
            raise KeyError(job_id)
        return equal.job(job_id)

    def __len__(self) -> int:
        return len(self._own) + self._equal_count

    def __iter__(self) -> Iterator[JobId]:
        yield from self._own
        for equal in self._equal.values():
            yield from equal.ids()

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._own or (isinstance(job_id, int) and self.equals_of(JobId(job_id)) is not None)

    def entities(self) -> Iterator[Job | EqualJobs]:
        """Jobs that stand for themselves, then those that are alike, as they are stored."""
        yield from self._own.values()
        yield from self._equal.values()

    def wholes(self) -> Iterator[Job]:
        """All but the items of arrays, and the arrays themselves."""
        for entity in tuple(self.entities()):
            if isinstance(entity, Job):
                if entity.array is None:
                    yield entity
            elif entity.first.array is None:
                yield from entity.jobs()

    def equals_of(self, job_id: JobId) -> EqualJobs | None:
        """The equal jobs that this one is among; None for one that stands for itself, or that is not known."""
        at = bisect_right(self._begins, job_id)
        equal = self._equal[self._begins[at - 1]] if at else None
        return equal if equal is not None and job_id in equal else None

    def equals_from(self, first: JobId) -> EqualJobs | None:
        """The equal jobs of which this was the first when they were queued."""
        return self._equal.get(first)

    def put(self, job: Job) -> None:
        """Keep a job that stands for itself and is among no equal ones."""
        self._own[job.id] = job

    def pop(self, job_id: JobId) -> Job | None:
        """Take out a job that stands for itself."""
        return self._own.pop(job_id, None)

    def put_equals(self, equal: EqualJobs) -> None:
        """Keep jobs that are alike; none left drops them."""
        key = equal.first.id
        old = self._equal.pop(key, None)
        self._equal_count += len(equal) - (0 if old is None else len(old))
        if equal.spans:
            self._equal[key] = equal
            if old is None:
                insort(self._begins, key)
        elif old is not None:
            self._begins.remove(key)

    def part(self, job_id: JobId) -> EqualJobs | None:
        """Take a job from among its equals, because it comes to differ; what is left of them, None without any."""
        equal = self.equals_of(job_id)
        if equal is None:
            return None
        left = equal.without(job_id)
        self.put_equals(left)
        return left
