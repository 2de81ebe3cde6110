"""What some run must have met: a simulation that meets nothing proves nothing. And few seeds that meet all of it."""

from __future__ import annotations

from collections.abc import Mapping

CORNERS = frozenset(
    {
        "a node of one user alone",
        "AttemptEnded EXIT_UNKNOWN",
        "AttemptEnded NODE_LOST",
        "AttemptEnded PREEMPTED",
        "AttemptEnded REQUEUED",
        "AttemptEnded needs GPUs",
        "AttemptReady",
        "AttemptUnreachable",
        "AttemptVoided DEVICE_BUSY",
        "AttemptVoided PREPARE_TIMED_OUT",
        "DeviceMarked",
        "JobFellBack GPU_QUEUE_LONG",
        "JobFellBack GPU_WAIT_OVER",
        "JobFellBack NO_GPU_NODE",
        "JobFinished CANCELLED",
        "JobFinished COMMAND_NOT_FOUND",
        "JobFinished CWD_MISSING",
        "JobFinished DEPENDENCY_FAILED",
        "JobFinished EXITED",
        "JobFinished EXIT_UNKNOWN",
        "JobFinished NODE_LOST",
        "JobFinished NO_CAPACITY",
        "JobFinished TIME_LIMIT",
        "JobReleased",
        "JobWarned DEVICES_IDLE",
        "JobWarned DEVICE_TROUBLE",
        "JobWarned THROTTLED",
        "JobWarned TIME_LIMIT_NEAR",
        "NodeDrained",
        "NodeForgotten",
        "NodeLost",
        "NodeReturned",
        "output incomplete",
        "results LOST",
        "results STORED",
        "results that were given up",
        "results that were refused",
        "AttemptAskedBack",
        "AttemptVoided TAKEN_BACK",
        "a command that came too late",
        "a rank of a backlog that is begun",
        "a commit whose answer was lost",
        "a request that was asked again",
        "a scheduler that was away",
        "a fence that ended an attempt",
        "a wall clock that stepped",
    }
)

SESSION_CORNERS = frozenset(
    {
        "ClaimMissed",
        "SessionEnded",
        "SessionRequeued",
        "TicketRenewed",
        "a commit whose answer was lost",
        "a model that raised",
        "a person who came back",
        "a person who changed lines",
        "a person who never came back",
        "a person who walked away",
        "a seat that nobody took",
        "a second tab",
        "a stream that took over from another",
        "a stream that was lost",
        "a ticket that was used again",
        "a turn that was not opened: NO_SEAT",
        "a turn that was not opened: USED",
        "a wall clock that stepped",
        "an end that was told again",
        "end: CLAIM_TIMEOUT",
        "end: CLOSED",
        "end: DISCONNECTED",
        "end: IDLE",
        "end: LINE_FULL",
        "end: MODEL_FAILED",
        "end: MOVED",
        "end: TURN_ENDED",
        "end: WORKER_LOST",
        "news: IDLE_WARNING",
        "news: TURN_GRACE",
        "news: TURN_LIMITED",
        "news: TURN_UNLIMITED",
        "news: TURN_WARNING",
        "news: WORKER_LOST",
    }
)

SERVED_CORNERS = frozenset(
    {
        "AttemptPlaced",
        "ModelFailed",
        "ModelReady",
        "ModelStopped",
        "NodeLost",
        "NodeReturned",
        "WorkerDied",
        "WorkerDrained",
        "a fence that ended an attempt",
        "a served worker that died",
        "a served worker that was cancelled",
        "a worker whose attempt is over",
        "a worker whose model cannot be loaded",
        "an array that has ended",
        "end: DRAINING",
    }
)


def cover(wanted: frozenset[str], met: Mapping[int, frozenset[str]]) -> list[int]:
    """Few of the seeds that come to all that is wanted together, the one with the most first.

    `met` has the corners of each seed's run. A seed that has the only run of a corner is always among them.
    """
    chosen: list[int] = []
    missing = frozenset(wanted) & frozenset().union(*met.values())
    while missing:
        seed = max(met, key=lambda each: len(met[each] & missing))
        chosen.append(seed)
        missing -= met[seed]
    # A later one may have made an earlier one needless.
    for seed in list(chosen):
        others = frozenset().union(*(met[each] for each in chosen if each != seed))
        if met[seed] & wanted <= others:
            chosen.remove(seed)
    return chosen
