"""The scheduler's part of each job's trace, in the words of its spans.

submit                    from the request to its answer
├─ decide                 of each turn in which something of the job was decided
│  └─ commit              until that was durable
├─ launch                 the command to a rank's node leaves; the agent goes on below it
└─ exit                   of each attempt: from when its first rank's end was heard until that was durable
   ├─ output              until every byte of its output was stored, where that came later
   └─ decide
      └─ commit
"""

import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping

from gpufleet.telemetry.spans import Telemetry

from .state.attempts import EndedAttempt
from .state.durable import Durable
from .state.events import Event, OutputSynced, RankExited
from .state.ids import JobId, RankKey
from .state.jobs import Job
from .state.records import AttemptEnded, JobFinished, Record, job_of

EXITS_FOLLOWED_MAX = 10_000
"""Ranks whose end was heard and is not stored; the traces of more have no time of their exit."""

JOBS_TRACED_MAX = 100
"""Jobs of one turn that are traced: each costs some tens of microseconds, and thousands may be submitted at once."""


class JobTraces:
    """Follows ends, and tells what a turn did. To be called only where telemetry is on."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._exits: OrderedDict[RankKey, int] = OrderedDict()
        self._synced: dict[RankKey, int] = {}

    @property
    def is_on(self) -> bool:
        """Whether anybody is told."""
        return self._telemetry.is_on

    def heard(self, events: Iterable[Event]) -> None:
        """Note when ends, and the last bytes before them, came."""
        for event in events:
            if isinstance(event, RankExited):
                self._exits.setdefault(event.key, time.time_ns())
                if len(self._exits) > EXITS_FOLLOWED_MAX:
                    oldest, _ = self._exits.popitem(last=False)
                    self._synced.pop(oldest, None)
            elif isinstance(event, OutputSynced) and event.key in self._exits:
                self._synced[event.key] = time.time_ns()

    def stored(
        self, records: Iterable[Record], durable: Durable, finished: Mapping[JobId, Job], begin_ns: int, decided_ns: int
    ) -> None:
        """These records are durable since now: of a turn that began, and was decided, at these times."""
        ended: dict[JobId, EndedAttempt] = {}
        jobs: dict[JobId, Job] = {}
        for record in records:
            job_id = job_of(record)
            job = None if job_id is None else durable.jobs.get(job_id) or finished.get(job_id)
            if job is None or not job.spec.trace_context or (job.id not in jobs and len(jobs) >= JOBS_TRACED_MAX):
                continue
            jobs[job.id] = job
            if isinstance(record, AttemptEnded | JobFinished) and record.ended is not None:
                ended[job.id] = record.ended
        now_ns = time.time_ns()
        for job in jobs.values():
            parent = job.spec.trace_context
            if (attempt := ended.get(job.id)) is not None:
                parent = self._exit(job, attempt, begin_ns, now_ns)
            decided = self._telemetry.record("decide", begin_ns=begin_ns, end_ns=decided_ns, parent=parent, job=job.id)
            self._telemetry.record("commit", begin_ns=decided_ns, end_ns=now_ns, parent=decided, job=job.id)

    def _exit(self, job: Job, attempt: EndedAttempt, begin_ns: int, now_ns: int) -> str:
        """Tell the end of an attempt; answers its trace context."""
        keys = attempt.keys(job.id)
        heard_ns = min((self._exits.pop(key) for key in keys if key in self._exits), default=begin_ns)
        synced_ns = max((self._synced.pop(key) for key in keys if key in self._synced), default=0)
        span = self._telemetry.record(
            "exit",
            begin_ns=heard_ns,
            end_ns=now_ns,
            parent=job.spec.trace_context,
            job=job.id,
            attempt=attempt.number,
            finished=job.is_finished,
        )
        if synced_ns:
            self._telemetry.record("output", begin_ns=heard_ns, end_ns=synced_ns, parent=span, job=job.id)
        return span
