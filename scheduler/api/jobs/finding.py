"""The job that a request means, as people see it, and who may change it."""

from gpufleet.v1 import job_pb2

from gpufleet.errors import GpufleetError, Reason

from ...engine import Engine
from ...policy.explain import why_in_slot
from ...policy.order.place import position
from ...ports import FinishedQuery
from ...state.ids import JobId, UserName
from ...state.jobs import Job, index_of
from ...wire.convert_jobs import wait_reason_proto
from ..answers import Calls
from ..roles import caller
from ..server_facts import ServerFacts
from ..sight import Sight
from .arrays import find_job, who_waits
from .reasons import WaitReasons
from .shown import shown_job

ARRAYS_KEPT = 1_000
"""Arrays that have ended and are remembered for the indices of their items."""


class JobsFound(Calls):
    """What every call about jobs begins with."""

    engine: Engine
    reasons: WaitReasons
    facts: ServerFacts
    _arrays: dict[JobId, Job]

    async def find(self, job_id: int) -> Job:
        """A live or ended job. Errors: JOB_NOT_FOUND."""
        found = await find_job(self.engine, JobId(job_id))
        if found is None:
            raise GpufleetError(Reason.JOB_NOT_FOUND, f"there is no job {job_id}")
        if found.array is not None and found.array not in self.engine.view.durable.jobs:
            array = await find_job(self.engine, found.array)
            if array is not None:
                self._arrays[array.id] = array
                while len(self._arrays) > ARRAYS_KEPT:
                    del self._arrays[next(iter(self._arrays))]
        return found

    async def newest(self, user: UserName, name: str | None) -> Job:
        """The job, or array, that this user submitted last, of this name if there is one. Errors: JOB_NOT_FOUND."""

        def is_meant(job: Job) -> bool:
            return job.user == user and job.array is None and (name is None or job.spec.name == name)

        live = [job for job in self.engine.view.durable.jobs.wholes() if is_meant(job)]
        recent = [job for job in self.engine.recently_finished.values() if is_meant(job)]
        newest = max(live + recent, key=lambda job: job.id, default=None)
        if newest is None:
            query = FinishedQuery(user=user, name=name, limit=1)
            stored = await self.engine.on_store_thread(lambda: self.engine.store.finished_jobs(query))
            newest = stored[0] if stored else None
        if newest is None:
            what = "have no job yet" if name is None else f"have no job called {name!r}"
            raise GpufleetError(Reason.JOB_NOT_FOUND, f"you {what}")
        return newest

    def check_owner(self, job: Job) -> None:
        """Only its owner and admins change a job, or type to it. Errors: NOT_YOUR_JOB."""
        if job.user != caller().user and not caller().is_admin:
            raise GpufleetError(Reason.NOT_YOUR_JOB, f"job {job.id} belongs to {job.user}")

    def check_may_read(self, job: Job) -> None:
        """Who may read what a job writes, and how it runs: `[privacy] output`. Errors: OUTPUT_PRIVATE."""
        Sight.of_caller(self.facts).check_reads(job.id, job.user)

    def check_has_output(self, job: Job) -> None:
        """An array has no output, and nothing to type to, of its own. Errors: IS_AN_ARRAY."""
        if job.items is not None:
            raise GpufleetError(
                Reason.IS_AN_ARRAY,
                f"job {job.id} is an array, and its output is that of its items",
                next_step=f"name one, such as {job.id}.{job.items.indices.at(0)}",
            )

    def job_now(self, job: Job) -> job_pb2.Job:
        """A job with its place and the reason why it waits, as of an array its first item does."""
        durable = self.engine.view.durable
        waits = who_waits(durable, job)
        place = position(self.engine.view, waits, self.engine.now())
        sight = Sight.of_caller(self.facts)
        message = shown_job(job, self.engine.view, self.facts.output_error(), sight, position=place)
        array = None if job.array is None else durable.jobs.get(job.array) or self._arrays.get(job.array)
        if array is not None:
            message.array_index = index_of(array, job)
        reason = self.reasons.of([waits]).get(waits.id) or why_in_slot(durable, waits)
        if reason is not None:
            message.wait_reason.CopyFrom(wait_reason_proto(waits, reason))
            sight.hide_caps(durable.groups, job.group, message.wait_reason, message)
        return message
