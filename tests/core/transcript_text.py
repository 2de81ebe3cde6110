"""What a transcript shows under a command."""

from __future__ import annotations

from scheduler.state.attempts import EndedAttempt
from scheduler.state.durable import Durable
from scheduler.state.ids import JobId
from scheduler.state.jobs import Divided, Finished, Job
from scheduler.state.replies import JobsChanged, NodeGone, Refused, Reply, Submitted
from scheduler.state.units import SECOND, Instant
from tests.core.fleet import BEGIN

GAP = "   "
"""Between records on a line."""

WIDTH = 110


def state_text(job: Job, durable: Durable | None = None) -> str:
    if isinstance(job.state, Divided) and durable is not None:
        live, tally = durable.arrays[job.id], durable.tally(job.id)
        counts = [f"{number} {state.__name__.lower()}" for state, number in sorted(live.counts.items(), key=str)]
        ended = {"succeeded": tally.succeeded, "failed": tally.failures, "cancelled": tally.cancelled}
        return f"array: {', '.join([*counts, *(f'{number} {how}' for how, number in ended.items() if number)])}"
    if isinstance(job.state, Finished):
        return f"{job.state.outcome.value}: {job.state.message} ({job.state.reason})"
    nodes = [] if job.attempt is None else [rank.placement.node for rank in job.attempt.ranks]
    held = "" if job.attempt is None else f" {job.attempt.number} on {','.join(nodes)}"
    unreachable = ", unreachable" if job.attempt is not None and job.attempt.is_unreachable else ""
    return f"{type(job.state).__name__.lower()}{held}{unreachable} (band {job.band.name.lower()})"


def ended_text(ended: EndedAttempt) -> str:
    message = f": {ended.message}" if ended.message else ""
    return f"attempt {ended.number}: {ended.reason}{message}{'' if ended.output_is_complete else ', output incomplete'}"


def clock_text(at: Instant) -> str:
    total, rest = divmod(at - BEGIN, SECOND)
    text = f"{total // 3600:02}:{total // 60 % 60:02}:{total % 60:02}"
    return f"{text}.{rest:06}".rstrip("0") if rest else text


def reply_lines(reply: Reply) -> list[str]:
    match reply:
        case Refused(reason=reason, message=message, field=field, next_step=next_step):
            where = f" [{field}]" if field else ""
            return [f"! {reason}{where}: {message}", *([f"!   {next_step}"] if next_step else [])]
        case Submitted(first=first, count=count, job=job, notes=notes):
            jobs = f"job {first}" if count == 1 else f"jobs {first}-{first + count - 1}"
            told = jobs if first else "a dry run: nothing is stored"
            state = f", {state_text(job)}" if job is not None and first == 0 else ""
            return [f"= {told}{state}", *(f"= note: {note}" for note in notes)]
        case JobsChanged(changes=changes):
            return [f"= {change.message}" + ("" if change.changed else " (unchanged)") for change in changes]
        case NodeGone(ended=ended, requeued=requeued):
            return [f"= ended: {_ids(ended)}; queued again: {_ids(requeued)}"]
        case _:
            return []


def _ids(jobs: tuple[JobId, ...]) -> str:
    return ", ".join(map(str, jobs)) or "none"


def wrapped(line: str) -> list[str]:
    """A line of records is broken between records."""
    if len(line) <= WIDTH or line.startswith(("!", "=", "->", " ", "@")):
        return [line]
    lines = [""]
    for part in line.split(GAP):
        if lines[-1] and len(lines[-1]) + len(GAP) + len(part) > WIDTH:
            lines.append("")
        lines[-1] += GAP + part if lines[-1] else part
    return lines
