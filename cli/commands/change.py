"""`cancel`, `signal`, `hold`, `release`, `band`, `requeue`: change jobs that were submitted."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from ..completion import complete_jobs
from ..options import Connection, Output

Which = Annotated[
    list[str],
    Argument(metavar="JOB…", help="Ids, 40-45, items 41.3-7, last, all, or names.", autocompletion=complete_jobs),
]
Reason = Annotated[str, Option("--reason", metavar="TEXT", help="Why, for the job's story.")]
Yes = Annotated[bool, Option("--yes", "-y", help="Do not ask before changing all.")]


def cancel(
    jobs: Which,
    output: Output,
    connection: Connection,
    reason: Reason = "",
    abandon: Annotated[
        bool, Option("--abandon", help="End the record now, also where the node cannot be reached.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Stop jobs: SIGTERM, then SIGKILL when their grace is over."""
    from gpufleet.v1 import scheduler_pb2

    from ..changing import Change, change_jobs

    def request(selector: scheduler_pb2.JobSelector) -> scheduler_pb2.CancelRequest:
        return scheduler_pb2.CancelRequest(jobs=selector, reason=reason, abandon=abandon)

    change_jobs(connection, output, jobs, Change("cancel", lambda stub: stub.Cancel, request), is_sure=yes)


def signal(
    number: Annotated[str, Argument(metavar="SIGNAL", help="A name such as USR1 or SIGINT, or a number.")],
    jobs: Which,
    output: Output,
    connection: Connection,
    yes: Yes = False,
) -> None:
    """Send a signal to every process of running jobs."""
    import uuid

    from gpufleet.v1 import scheduler_pb2

    from ..changing import RUNS, Change, change_jobs, signal_number

    sent = signal_number(number, jobs)

    def request(selector: scheduler_pb2.JobSelector) -> scheduler_pb2.SignalJobRequest:
        return scheduler_pb2.SignalJobRequest(jobs=selector, signal=sent, request_id=uuid.uuid4().hex)

    change = Change("signal", lambda stub: stub.SignalJob, request, lambda state: state in RUNS)
    change_jobs(connection, output, jobs, change, is_sure=yes)


def hold(jobs: Which, output: Output, connection: Connection, yes: Yes = False) -> None:
    """Keep waiting jobs from starting until they are released."""
    from ..changing import change_jobs, holding

    change_jobs(connection, output, jobs, holding("hold", is_held=True), is_sure=yes)


def release(jobs: Which, output: Output, connection: Connection, yes: Yes = False) -> None:
    """Let held jobs start."""
    from ..changing import change_jobs, holding

    change_jobs(connection, output, jobs, holding("release", is_held=False), is_sure=yes)


def band(
    word: Annotated[str, Argument(metavar="BAND", help="low, normal, high or urgent.")],
    jobs: Which,
    output: Output,
    connection: Connection,
    yes: Yes = False,
) -> None:
    """Move jobs to another band: a higher one goes before a lower one."""
    from gpufleet.v1 import scheduler_pb2

    from ..changing import Change, band_number, change_jobs
    from ..outcome import FINAL_STATES

    wanted = band_number(word, jobs)

    def request(selector: scheduler_pb2.JobSelector) -> scheduler_pb2.UpdateJobRequest:
        change = scheduler_pb2.UpdateJobRequest(jobs=selector, band=wanted)
        change.update_mask.paths.append("band")
        return change

    change = Change("move", lambda stub: stub.UpdateJob, request, lambda state: state not in FINAL_STATES)
    change_jobs(connection, output, jobs, change, is_sure=yes)


def requeue(jobs: Which, output: Output, connection: Connection, reason: Reason = "", yes: Yes = False) -> None:
    """Take jobs off their nodes and queue them again.

    They keep their submit time, and so their place.
    """
    from gpufleet.v1 import scheduler_pb2

    from ..changing import Change, change_jobs
    from ..outcome import FINAL_STATES

    def request(selector: scheduler_pb2.JobSelector) -> scheduler_pb2.RequeueJobRequest:
        return scheduler_pb2.RequeueJobRequest(jobs=selector, reason=reason)

    change = Change("requeue", lambda stub: stub.RequeueJob, request, lambda state: state not in FINAL_STATES)
    change_jobs(connection, output, jobs, change, is_sure=yes)
