"""Which attempts are live, where, and until when a silent node's are waited for."""

from ..state.attempts import Attempt
from ..state.ids import JobId, NodeName, RankKey
from ..state.jobs import Job
from ..state.live import NodeLive
from ..state.state import State
from ..state.units import Instant, after


def live_attempt(state: State, node: NodeName, key: RankKey) -> tuple[Job, Attempt] | None:
    """The job and attempt that a node's report is about, if that rank is live and is on that node."""
    job, rank = state.durable.jobs.get(key.job), state.durable.live_rank(key)
    if job is None or job.attempt is None or rank is None or rank.placement.node != node:
        return None
    return job, job.attempt


def jobs_on(state: State, node: NodeName) -> list[Job]:
    """Jobs with a live rank on a node, by id."""
    ids: set[JobId] = {key.job for key in state.durable.hold(node).ranks}
    return [state.durable.jobs[job_id] for job_id in sorted(ids)]


def given_up_at(state: State, live: NodeLive, job: Job) -> Instant:
    """When an attempt on a silent node may be replaced, or, if it must not be, when it is given up."""
    if job.spec.serves:
        # Epochs keep a worker that is still there from doing anything, so that no fence has to pass.
        return after(live.heard_at, state.limits.node_lease)
    if not job.spec.is_requeueable:
        return after(live.heard_at, state.limits.unreachable_span)
    return after(live.heard_at, job.spec.requeue_fence or state.limits.requeue_fence)
