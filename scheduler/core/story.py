"""Records and commands as text: `sentence` for people (a job's story), `tell` and `tell_command` for transcripts.

A new record is a type error here until it can be told.
"""

from typing import assert_never

from ..state.attempts import (
    AllocationMethod,
    Attempt,
    EndedAttempt,
    ExitCode,
    ExitSignal,
    PlacedDevice,
    Placement,
    RankExit,
    StopCause,
)
from ..state.commands import (
    AbortAttempt,
    ClearTroubles,
    Command,
    ForgetAttempt,
    KeepAttempt,
    KillAttempt,
    LaunchAttempt,
    PrepareAttempt,
    SignalAttempt,
    StartAttempt,
    StopAttempt,
    TellWarning,
)
from ..state.ids import JobId, UserName
from ..state.jobs import Deferred, Divided, Held, Job
from ..state.records import (
    AttemptEnded,
    AttemptPlaced,
    AttemptReady,
    AttemptStarted,
    AttemptStopping,
    AttemptUnreachable,
    AttemptVoided,
    BeginReached,
    DependencyMet,
    DeviceMarked,
    ItemsFinished,
    ItemsHeld,
    ItemsMoved,
    ItemsReleased,
    JobBandChanged,
    JobFinished,
    JobHeld,
    JobQueued,
    JobReleased,
    JobWarned,
    NodeDrained,
    NodeForgotten,
    NodeLost,
    NodeRegistered,
    NodeResumed,
    NodeReturned,
    RankEnded,
    Record,
    RequestForgotten,
    RequestRemembered,
    SignalSent,
    SpoolStateChanged,
    TokenCreated,
    TokenRevoked,
    WorkerDrained,
)
from ..state.session_records import SessionRecord
from ..state.shares import share_text
from ..state.specs import Outcome
from ..state.units import HOUR, MILLISECOND, MINUTE, SECOND
from .session_story import session_sentence, tell_session


def sentence(record: Record) -> str:
    """One sentence for people that says what happened; without its time, which stands beside it."""
    if isinstance(record, SessionRecord):
        return session_sentence(record)
    match record:
        case JobQueued(job=job, count=count):
            held = ", held" if isinstance(job.state, Held | Divided) and _not_eligible(job) == " held" else ""
            who = f"by {job.user} in band {job.band.name.lower()}{held}"
            if count > 1:
                return f"Jobs {job.id} to {job.id + count - 1}, all alike, were submitted {who}."
            if job.items is not None:
                number = job.items.indices.count
                return f"Array {job.id} of {number:,} {'item' if number == 1 else 'items'} was submitted {who}."
            return f"Job {job.id} was submitted {who}."
        case RequestRemembered(request=request):
            return f"Request {request.request_id} of {request.user} was carried out."
        case RequestForgotten(user=user, request_id=request_id):
            return f"Request {request_id} of {user} is old enough to be forgotten."
        case JobHeld(job=job_id, by=by):
            return f"{by} holds job {job_id}."
        case JobReleased(job=job_id, by=by):
            return f"{by} released job {job_id}."
        case BeginReached(job=job_id):
            return f"The begin time of job {job_id} has come."
        case DependencyMet(job=job_id, on=on):
            return f"Job {on} has ended as job {job_id} waited for."
        case JobBandChanged(job=job_id, by=by, band=band):
            return f"{by} moved job {job_id} to band {band.name.lower()}."
        case ItemsHeld(array=array, by=by):
            return f"{by} holds array {array}."
        case ItemsReleased(array=array, by=by):
            return f"{by} released array {array}."
        case ItemsMoved(array=array, by=by, band=band):
            return f"{by} moved array {array} to band {band.name.lower()}."
        case ItemsFinished():
            return _items_end_sentence(record)
        case AttemptPlaced(job=job_id, attempt=attempt):
            return f"Attempt {job_id}/{attempt.number} was placed on {_places(attempt)}{_in_plain_order(attempt)}."
        case AttemptReady(job=job_id, rendezvous=rendezvous):
            where = f"{rendezvous.address}, port {rendezvous.port}"
            return f"Every rank of job {job_id} is ready; they are started and meet at {where}."
        case AttemptStarted(key=key):
            return f"The command of attempt {key} runs."
        case AttemptStopping(job=job_id, cause=cause, reason=reason, by=by):
            return f"Job {job_id} is being stopped: {_cause_words(cause)}{_by(by)}{_because(reason)}."
        case AttemptUnreachable(job=job_id, is_unreachable=True):
            return f"The node of job {job_id} is not heard; as far as anybody knows the job goes on."
        case AttemptUnreachable(job=job_id):
            return f"The node of job {job_id} is heard again; the job went on."
        case RankEnded(key=key, exit=exit_):
            return f"Rank {key} {_exit_words(exit_)} while others go on."
        case AttemptEnded(job=job_id, ended=ended, is_held=is_held, is_retry=is_retry, begins_at=begins_at, at=at):
            waits = "is held" if is_held else "waits again, in its old place in the queue"
            waits = f"is tried again: it {waits}" if is_retry else waits
            waits = waits if begins_at is None else f"waits for {span_text(begins_at - at)} and is tried again"
            return f"Attempt {_ended_id(job_id, ended)} ended ({_why(ended)}); job {job_id} {waits}."
        case WorkerDrained(job=job_id, reason=reason):
            return f"The worker of job {job_id} takes no new turns and ends after its last one: {reason}."
        case AttemptVoided(job=job_id, number=number, reason="REQUEUED", message=message):
            return f"Attempt {job_id}/{number} was taken back before it started{_because(message)}; it waits again."
        case AttemptVoided(job=job_id, number=number, reason="PREPARE_TIMED_OUT", message=message):
            return f"Attempt {job_id}/{number} did not come about ({message}); job {job_id} is placed again."
        case AttemptVoided(job=job_id, number=number, node=node, reason=reason, message=message):
            why = f"{reason}: {message}" if message else reason
            return f"Node {node} did not start attempt {job_id}/{number} ({why}); job {job_id} is placed again."
        case JobFinished():
            return _end_sentence(record)
        case SpoolStateChanged(key=key, is_full=True, message=message):
            return f"The output of {key} waits for room on its node{_because(message)}."
        case SpoolStateChanged(key=key):
            return f"The output of {key} goes on."
        case SignalSent(job=job_id, by=by, signal=signal):
            return f"{by} sent signal {signal} to job {job_id}."
        case NodeRegistered(node=node):
            devices = ", ".join(device.name for device in node.info.devices) or "no GPU"
            return f"Node {node.name} registered from {node.address or 'an unknown address'} with {devices}."
        case NodeLost(node=name):
            return f"Node {name} was not heard for its whole lease."
        case NodeReturned(node=name):
            return f"Node {name} is heard again."
        case NodeDrained(node=name, by=by, reason=reason):
            return f"{by} drains node {name}{_because(reason)}."
        case NodeResumed(node=name, by=by):
            return f"{by} resumed node {name}."
        case NodeForgotten(node=name, by=by):
            return f"{by} dropped node {name}, which will not come back."
        case DeviceMarked(node=name, device=device):
            return f"Device {device.uuid} of node {name} is unhealthy{_because(device.reason)}."
        case JobWarned(warning=warning):
            return warning.sentence
        case TokenCreated(token=token, by=by):
            return f"{by} made token {token.id} for {token.user} as {token.role.value}."
        case TokenRevoked(token=token_id, by=by):
            return f"{by} revoked token {token_id}."
        case _:
            assert_never(record)


def tell(record: Record) -> str:
    """The short form of a record: its kind, its ids and what tells it from others of its kind."""
    if isinstance(record, SessionRecord):
        return tell_session(record)
    match record:
        case JobQueued(job=job, count=count):
            ids = f"{job.id}" if count == 1 else f"{job.id}-{job.id + count - 1}"
            if job.items is not None:
                ids = f"{job.id} with items {job.id + 1}-{job.id + job.items.indices.count}"
            return f"JobQueued {ids}{_not_eligible(job)}"
        case RequestRemembered(request=request):
            return f"RequestRemembered {request.user} {request.request_id}"
        case RequestForgotten(user=user, request_id=request_id):
            return f"RequestForgotten {user} {request_id}"
        case JobHeld(job=job_id):
            return f"JobHeld {job_id}"
        case JobReleased(job=job_id):
            return f"JobReleased {job_id}"
        case BeginReached(job=job_id):
            return f"BeginReached {job_id}"
        case DependencyMet(job=job_id, on=on):
            return f"DependencyMet {job_id} on {on}"
        case JobBandChanged(job=job_id, band=band):
            return f"JobBandChanged {job_id} {band.name.lower()}"
        case ItemsHeld(array=array):
            return f"ItemsHeld {array}"
        case ItemsReleased(array=array):
            return f"ItemsReleased {array}"
        case ItemsMoved(array=array, band=band):
            return f"ItemsMoved {array} {band.name.lower()}"
        case ItemsFinished(array=array, spans=spans, finished=finished):
            return f"ItemsFinished {array}: {spans_text(spans)} {finished.outcome.value} {finished.reason}"
        case AttemptPlaced(job=job_id, attempt=attempt):
            return f"AttemptPlaced {job_id}/{attempt.number} on {_places(attempt)}"
        case AttemptReady(job=job_id, rendezvous=rendezvous):
            return f"AttemptReady {job_id} at {rendezvous.address}:{rendezvous.port}"
        case AttemptStarted(key=key):
            return f"AttemptStarted {key}"
        case AttemptStopping(job=job_id, cause=cause):
            return f"AttemptStopping {job_id} {cause.value}"
        case AttemptUnreachable(job=job_id, is_unreachable=is_unreachable):
            return f"AttemptUnreachable {job_id}" + ("" if is_unreachable else " no more")
        case RankEnded(key=key, exit=exit_):
            return f"RankEnded {key} {exit_.reason}"
        case AttemptEnded(job=job_id, ended=ended, is_held=is_held, is_retry=is_retry, begins_at=begins_at, at=at):
            what = " held" if is_held else " retry" if is_retry else ""
            pause = "" if begins_at is None else f", again in {span_text(begins_at - at)}"
            return f"AttemptEnded {_ended_id(job_id, ended)} {ended.reason}{what}{pause}"
        case WorkerDrained(job=job_id):
            return f"WorkerDrained {job_id}"
        case AttemptVoided(job=job_id, number=number, reason=reason):
            return f"AttemptVoided {job_id}/{number} {reason}"
        case JobFinished():
            return _tell_end(record)
        case SpoolStateChanged(key=key, is_full=is_full):
            return f"SpoolStateChanged {key} {'full' if is_full else 'goes on'}"
        case SignalSent(job=job_id, signal=signal):
            return f"SignalSent {job_id} {signal}"
        case NodeRegistered(node=node):
            return f"NodeRegistered {node.name}"
        case NodeLost(node=name):
            return f"NodeLost {name}"
        case NodeReturned(node=name):
            return f"NodeReturned {name}"
        case NodeDrained(node=name):
            return f"NodeDrained {name}"
        case NodeResumed(node=name):
            return f"NodeResumed {name}"
        case NodeForgotten(node=name):
            return f"NodeForgotten {name}"
        case DeviceMarked(node=name, device=device):
            return f"DeviceMarked {name} {device.uuid}"
        case JobWarned(job=job_id, warning=warning):
            return f"JobWarned {job_id}/{warning.attempt} {warning.kind.value} {','.join(warning.about)}"
        case TokenCreated(token=token):
            return f"TokenCreated {token.id}"
        case TokenRevoked(token=token_id):
            return f"TokenRevoked {token_id}"
        case _:
            assert_never(record)


def _not_eligible(job: Job) -> str:
    match job.state:
        case Held() | Divided(rest=Held()):
            return " held"
        case Deferred() | Divided(rest=Deferred()):
            return " deferred"
        case _:
            return ""


def tell_command(command: Command) -> str:
    """The short form of a command: what, which rank, and the node that it goes to."""
    match command:
        case LaunchAttempt(key=key, node=node):
            return f"-> LaunchAttempt {key} {node}"
        case PrepareAttempt(key=key, node=node):
            return f"-> PrepareAttempt {key} {node}"
        case StartAttempt(key=key, node=node, master_address=address, master_port=port):
            return f"-> StartAttempt {key} {node} {address}:{port}"
        case AbortAttempt(key=key, node=node):
            return f"-> AbortAttempt {key} {node}"
        case StopAttempt(key=key, node=node, cause=cause, grace=grace):
            return f"-> StopAttempt {key} {node} {cause.value} grace={span_text(grace)}"
        case KillAttempt(key=key, node=node):
            return f"-> KillAttempt {key} {node}"
        case KeepAttempt(key=key, node=node):
            return f"-> KeepAttempt {key} {node}"
        case ForgetAttempt(key=key, node=node):
            return f"-> ForgetAttempt {key} {node}"
        case SignalAttempt(key=key, node=node, signal=signal):
            return f"-> SignalAttempt {key} {node} {signal}"
        case ClearTroubles(node=node):
            return f"-> ClearTroubles {node}"
        case TellWarning(key=key, node=node, number=number, warning=warning):
            return f"-> TellWarning {key} {node} {number}: {warning.kind.value}"
        case _:
            assert_never(command)


def span_text(span: int) -> str:
    """A span as a person types it: 90m, 30s, 250ms; microseconds where nothing larger is whole."""
    for unit, size in (("h", HOUR), ("m", MINUTE), ("s", SECOND), ("ms", MILLISECOND)):
        if span >= size and span % size == 0:
            return f"{span // size}{unit}"
    return f"{span}us" if span else "0s"


def spans_text(spans: tuple[tuple[JobId, JobId], ...]) -> str:
    """Ids in spans, whose ends are not among them, as people write them: 42-50,52."""
    return ",".join(f"{begin}" if end - begin == 1 else f"{begin}-{end - 1}" for begin, end in spans)


def _items_end_sentence(record: ItemsFinished) -> str:
    finished = record.finished
    count = sum(end - begin for begin, end in record.spans)
    many = (
        f"{count:,} waiting items of array {record.array}" if count > 1 else f"A waiting item of array {record.array}"
    )
    were = "were" if count > 1 else "was"
    how = f"{were} cancelled" if finished.outcome is Outcome.CANCELLED else "failed"
    if finished.message.startswith("cancelled"):
        return f"{many} {were} {finished.message}."
    return f"{many} {how} ({finished.reason}: {finished.message})."


_END_WORDS = {
    Outcome.SUCCEEDED: "succeeded",
    Outcome.FAILED: "failed",
    Outcome.CANCELLED: "was cancelled",
    Outcome.TIMED_OUT: "ran into its time limit",
}


def _end_sentence(record: JobFinished) -> str:
    finished = record.finished
    how = _END_WORDS[finished.outcome]
    reason = "" if finished.reason in _PLAIN_REASONS else f"{finished.reason}: "
    why = f" ({reason}{finished.message})" if finished.message else f" ({finished.reason})"
    if finished.outcome is Outcome.CANCELLED and finished.message.startswith("cancelled"):
        why = finished.message.removeprefix("cancelled")  # "by ada: wrong data"
    if finished.reason == "TIME_LIMIT":
        why = ""
    cut = "" if record.ended is None or record.ended.output_is_complete else " Not all of its output is stored."
    return f"Job {record.job} {how}{why}.{cut}"


def _tell_end(record: JobFinished) -> str:
    finished, ended = record.finished, record.ended
    why = ""
    if finished.outcome is Outcome.FAILED:
        match finished.exit:
            case ExitCode(code=code) if finished.reason in _PLAIN_REASONS:
                why = f" code {code}"
            case ExitSignal(signal=signal) if finished.reason in _PLAIN_REASONS:
                why = f" signal {signal}"
            case _:
                why = f" {finished.reason}"
    cut = "" if ended is None or ended.output_is_complete else ", output incomplete"
    return f"JobFinished {record.job} {finished.outcome.value}{why}{cut}"


_PLAIN_REASONS = frozenset({"EXITED", "SIGNALLED", "CANCELLED", "TIME_LIMIT", "ITEMS_ENDED"})
"""Reasons that the outcome and its message say already."""


def _places(attempt: Attempt) -> str:
    return " + ".join(_place(rank.placement) for rank in attempt.ranks)


def _in_plain_order(attempt: Attempt) -> str:
    """Says so where devices were not chosen by what they do."""
    plain = [rank.placement for rank in attempt.ranks if rank.placement.method is AllocationMethod.FALLBACK]
    if not plain:
        return ""
    is_unknown = any(device.score is None for placement in plain for device in placement.devices)
    why = "what they do was not known" if is_unknown else "without a choice by their readings"
    return f", GPUs in plain order: {why}"


def _place(placement: Placement) -> str:
    indices = ",".join(_device_text(device) for device in placement.devices)
    return f"{placement.node}:{indices}" if indices else placement.node


def _device_text(device: PlacedDevice) -> str:
    """Its index, and how much of it where that is a share: 0, or 0×0.5."""
    return f"{device.index}×{share_text(device.share_milli)}" if device.share_milli else str(device.index)


def _ended_id(job_id: int, ended: EndedAttempt) -> str:
    return f"{job_id}/{ended.number}"


def _why(ended: EndedAttempt) -> str:
    return f"{ended.reason}: {ended.message}" if ended.message else ended.reason


def _cause_words(cause: StopCause) -> str:
    return {
        StopCause.CANCELLED: "it was cancelled",
        StopCause.TIME_LIMIT: "its time limit was reached",
        StopCause.FENCED: "its node lost the scheduler",
        StopCause.PREEMPTED: "a higher band needs its devices",
        StopCause.GANG: "another of its ranks failed",
        StopCause.STALE: "it was replaced",
        StopCause.REQUEUED: "it is to be queued again",
    }[cause]


def _exit_words(exit_: RankExit) -> str:
    match exit_.exit:
        case ExitCode(code=code):
            return f"exited with code {code}"
        case ExitSignal(signal=signal):
            return f"was ended by signal {signal}"
        case None:
            return f"ended, nobody knows how ({exit_.reason})"


def _by(by: UserName | None) -> str:
    return f" by {by}" if by else ""


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""
