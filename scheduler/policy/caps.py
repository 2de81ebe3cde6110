"""How much a user may hold at once, how many items of an array may be active, and what a group may have.

Who is over a cap is skipped and never reserved: the fleet does not wait for it.
"""

from ..state.ids import JobId, UserName
from ..state.jobs import Job
from ..state.shares import WHOLE_MILLI, share_text
from ..state.state import State
from ..state.units import Instant
from .groups.caps import GroupCaps


class Caps:
    """What each user holds as a pass goes on, against the caps of the settings; `of_groups` is what each group does."""

    def __init__(self, state: State, at: Instant) -> None:
        self.of_groups = GroupCaps(state.durable, at)
        self._limits = state.limits
        self._holds = state.durable.holds_of_user
        self._gpu_milli: dict[UserName, int] = {}
        self._jobs: dict[UserName, int] = {}
        self._durable = state.durable
        self._items: dict[JobId, int] = {}

    def refusal(self, job: Job) -> str:
        """Why the job's user may not have it too, in a clause; empty when they may."""
        gpus_max, jobs_max = self._limits.user_gpus_max, self._limits.user_jobs_max
        hold = self._holds.get(job.user)
        gpu_milli = (hold.gpu_milli if hold is not None else 0) + self._gpu_milli.get(job.user, 0)
        jobs = (hold.jobs if hold is not None else 0) + self._jobs.get(job.user, 0)
        asked_milli = job.spec.resources.gpu_milli
        if gpus_max and asked_milli and gpu_milli + asked_milli > gpus_max * WHOLE_MILLI:
            return f"{job.user} holds {share_text(gpu_milli)} of the {gpus_max} GPUs that one user may hold at once"
        if jobs_max and jobs >= jobs_max:
            return f"{job.user} has {jobs} of the {jobs_max} active jobs that one user may have at once"
        return ""

    def array_refusal(self, job: Job) -> str:
        """Why the array of an item may not have it active too, in a clause; empty when it may."""
        if job.array is None:
            return ""
        array, live = self._durable.jobs.get(job.array), self._durable.arrays.get(job.array)
        most = 0 if array is None or array.items is None else array.items.active_max
        active = (0 if live is None else live.active) + self._items.get(job.array, 0)
        return f"its array runs {active} of at most {most} at a time" if most and active >= most else ""

    def take(self, job: Job, sign: int = 1) -> None:
        """Count a placed job in, or one that ended out with the sign −1."""
        self._gpu_milli[job.user] = self._gpu_milli.get(job.user, 0) + sign * job.spec.resources.gpu_milli
        self._jobs[job.user] = self._jobs.get(job.user, 0) + sign
        if job.group:
            self.of_groups.take(job, sign)
        if job.array is not None:
            self._items[job.array] = self._items.get(job.array, 0) + sign
