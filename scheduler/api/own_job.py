"""What a job may do with the token that it was given at its launch: the calls of its row, and of them on itself alone.

A call is let through only where the request names that job and nothing beside it, so that a way to name jobs that comes
later (by label, by user) is denied until somebody thought about it here.
"""

from collections.abc import Callable
from typing import Any

from gpufleet.v1 import scheduler_pb2

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.decoding import Refused
from gpufleet.net.refusing import checked

from ..state.ids import JobId


def _selected(request: Any) -> int:
    """The one job that a selector names by its id; 0 when it says anything else."""
    selector: scheduler_pb2.JobSelector = request.jobs
    ids = set(selector.job_ids)
    return ids.pop() if len(ids) == 1 and selector == scheduler_pb2.JobSelector(job_ids=selector.job_ids) else 0


def _named(request: Any) -> int:
    job_id: int = request.job_id
    return job_id


JOB_NAMED_BY: dict[str, Callable[[Any], int]] = {
    "Scheduler/StreamOutput": _named,
    "Scheduler/Cancel": _selected,
    "Scheduler/GetJob": _named,
    "Scheduler/GetStory": _named,
    "Scheduler/Explain": _named,
    "Scheduler/UpdateJob": _selected,
    "Scheduler/SignalJob": _selected,
    "Scheduler/RequeueJob": _selected,
    "Scheduler/GetJobStats": _named,
    "Scheduler/KeepFiles": _named,
    "Scheduler/ListFiles": _named,
    "Scheduler/DownloadFile": _named,
}
"""The calls that a job may make about itself, each with the job that a request names; 0 for none, or several."""


def for_own_job(handler: Any, method: str, own: JobId) -> Any:
    """The handler of a call as the job `own` may make it. `method` is in JOB_NAMED_BY, and takes one request."""
    named = JOB_NAMED_BY[method]
    not_its_own = GpufleetError(
        Reason.PERMISSION_DENIED,
        f"the token of job {own} is good for that job alone, named by its id",
        next_step=OTHERS_STEP,
    )

    def problem_of(request: Any) -> GpufleetError | None:
        is_refused_anyway = isinstance(request, Refused)
        return not_its_own if not is_refused_anyway and named(request) != own else None

    return checked(handler, problem_of)


OTHERS_STEP = "In a job, use a token of yours for anything else: --context NAME, or --token-file FILE."
