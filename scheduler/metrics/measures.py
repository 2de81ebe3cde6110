"""What the engine measures as it goes: passes, commits, waits, ends. Off, each call is one comparison."""

from collections.abc import Iterable, Mapping

from gpufleet.telemetry.metrics import OFF, SECONDS, WAITS, Metrics

from ..state.attempts import Attempt
from ..state.durable import Durable
from ..state.ids import JobId
from ..state.jobs import Finished, Job
from ..state.records import AttemptPlaced, AttemptStarted, ItemsFinished, JobFinished, JobWarned, NodeLost, Record
from ..state.specs import Band
from ..state.units import SECOND, Instant


class EngineMeasures:
    """The engine's counters and histograms: the port of that name."""

    def __init__(self, metrics: Metrics = OFF) -> None:
        self.is_on = metrics.is_on
        self._pass = metrics.histogram("gpufleet.pass.duration", "s", "How long a pass over the queue took.", SECONDS)
        self._commit = metrics.histogram(
            "gpufleet.commit.duration", "s", "How long a commit took until it was durable.", SECONDS
        )
        self._events = metrics.counter("gpufleet.events", "{event}", "Events that were decided.")
        self._wait = metrics.histogram(
            "gpufleet.job.wait", "s", "From when a job could run, or came back, until it had its devices.", WAITS
        )
        self._ended = metrics.counter("gpufleet.job.ends", "{job}", "Jobs that ended for good, by how.")
        self._warned = metrics.counter("gpufleet.job.warnings", "{warning}", "Warnings that jobs were given, by kind.")
        self._lost = metrics.counter("gpufleet.node.losses", "{node}", "Nodes that were lost.")

    def passed(self, seconds: float) -> None:
        """A pass took so long."""
        self._pass.record(seconds)

    def committed(self, seconds: float, events: int) -> None:
        """A commit took so long; a turn of so many events led to it."""
        self._commit.record(seconds)
        self._events.add(events)

    def decided(self, records: Iterable[Record], durable: Durable, finished: Mapping[JobId, Job]) -> None:
        """These records were stored; `durable` holds them, and `finished` the jobs that ended lately."""
        for record in records:
            match record:
                case AttemptPlaced(job=job_id, attempt=Attempt(slot=None), at=at):
                    self._end_wait(durable.jobs.get(job_id), at)
                case AttemptStarted(key=key, started_at=at):
                    job = durable.jobs.get(key.job) or finished.get(key.job)  # a short one may have ended since
                    if job is not None and _was_in_backlog(job, key.attempt):
                        self._end_wait(job, at)
                case JobFinished(finished=end):
                    self._count_end(end, 1)
                case ItemsFinished(finished=end, spans=spans):
                    self._count_end(end, sum(last - first + 1 for first, last in spans))
                case JobWarned(warning=warning):
                    self._warned.add(kind=warning.kind.value.lower())
                case NodeLost():
                    self._lost.add()
                case _:
                    pass

    def _end_wait(self, job: Job | None, at: Instant) -> None:
        if job is not None:
            since = max(job.waits_since or job.age_since, job.age_since)
            self._wait.record(max(0, at - since) / SECOND, band=band_word(job.band))

    def _count_end(self, finished: Finished, number: int) -> None:
        self._ended.add(number, outcome=finished.outcome.value.lower())


def _was_in_backlog(job: Job, number: int) -> bool:
    """Whether this attempt waited in its node's backlog, where its devices are its own only when it has started."""
    attempts = (job.attempt, *job.past)
    return any(each is not None and each.number == number and each.slot is not None for each in attempts)


def band_word(band: Band) -> str:
    """A band as people write it."""
    return band.name.lower()
