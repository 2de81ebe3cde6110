"""Records and commands as text: `sentence` for people (a job's story), `tell` and `tell_command` for transcripts.

A new record is a type error here until it can be told.
"""

from typing import assert_never

from gpufleet.jobs.runs import ExitCode, ExitSignal, StopCause

from ..policy.fit import begin_text
from ..state import commands, records
from ..state.attempts import AllocationMethod, Attempt, Placement, RankExit
from ..state.commands import Command
from ..state.groups.changes import GroupRecord
from ..state.ids import JobId, RankKey, UserName
from ..state.jobs import Deferred, Divided, Finished, Held, Job
from ..state.kept import KeptCopy
from ..state.records import Record
from ..state.results import ResultsOutcome
from ..state.sessions.records import SessionRecord
from ..state.shares import share_text
from ..state.specs import GpuMode, InputFolder, Outcome
from ..state.units import HOUR, MILLISECOND, MINUTE, SECOND
from .group_story import group_sentence, tell_group
from .sessions.story import session_sentence, tell_session


def sentence(record: Record) -> str:
    """One sentence for people that says what happened; without its time, which stands beside it."""
    if isinstance(record, GroupRecord):
        return group_sentence(record)
    if isinstance(record, SessionRecord):
        return session_sentence(record)
    match record:
        case records.JobQueued(job=job, count=count):
            held = ", held" if isinstance(job.state, Held | Divided) and _not_eligible(job) == " held" else ""
            who = f"by {job.user} in band {job.band.name.lower()}{held}"
            if count > 1:
                return f"Jobs {job.id} to {job.id + count - 1}, all alike, were submitted {who}{_gpu_words(job)}."
            if job.items is not None:
                number = job.items.indices.count
                many = f"{number:,} {'item' if number == 1 else 'items'}"
                return f"Array {job.id} of {many} was submitted {who}{_gpu_words(job)}."
            return f"Job {job.id} was submitted {who}{_worker_words(job)}{_gpu_words(job)}."
        case records.RequestRemembered(request=request):
            return f"Request {request.request_id} of {request.user} was carried out."
        case records.RequestForgotten(user=user, request_id=request_id):
            return f"Request {request_id} of {user} is old enough to be forgotten."
        case records.JobHeld(job=job_id, by=by):
            return f"{by} holds job {job_id}."
        case records.JobReleased(job=job_id, by=by):
            return f"{by} released job {job_id}."
        case records.BeginReached(job=job_id):
            return f"The begin time of job {job_id} has come."
        case records.DependencyMet(job=job_id, on=on):
            return f"Job {on} has ended as job {job_id} waited for."
        case records.JobBandChanged(job=job_id, by=by, band=band):
            return f"{by} moved job {job_id} to band {band.name.lower()}."
        case records.JobUpdated(job=job_id, by=by):
            return f"{by} gave job {job_id} {_given_words(record)}."
        case records.ItemsUpdated(array=array, by=by):
            return f"{by} gave array {array} {_given_words(record)}."
        case records.ItemsHeld(array=array, by=by):
            return f"{by} holds array {array}."
        case records.ItemsReleased(array=array, by=by):
            return f"{by} released array {array}."
        case records.ItemsMoved(array=array, by=by, band=band):
            return f"{by} moved array {array} to band {band.name.lower()}."
        case records.JobFellBack(job=job_id, message=message):
            return f"Job {job_id} does without GPUs from now on: {message}."
        case records.ItemsFellBack(array=array, message=message):
            return f"What waits of array {array} does without GPUs from now on: {message}."
        case records.FallBackPostponed() | records.ItemsFallBackPostponed():
            who = (
                f"Job {record.job}"
                if isinstance(record, records.FallBackPostponed)
                else f"What waits of array {record.array}"
            )
            return f"{who} goes on waiting for its GPUs: without them it would not start either."
        case records.ItemsFinished():
            return _items_end_sentence(record)
        case records.AttemptPlaced(job=job_id, attempt=attempt):
            where = f"{_places(attempt)}{_in_plain_order(attempt)}"
            if attempt.slot is not None:
                return f"Attempt {job_id}/{attempt.number} is to be the next on {where}, in the slot of {attempt.slot}."
            kept = ", ".join(str(each) for each in sorted({copy.attempt for copy in attempt.kept}))
            found = f"; it finds what attempt {kept} kept" if kept else ""
            return f"Attempt {job_id}/{attempt.number} was placed on {where}{found}."
        case records.AttemptReady(job=job_id, rendezvous=rendezvous):
            where = f"{rendezvous.address}, port {rendezvous.port}"
            return f"Every rank of job {job_id} is ready; they are started and meet at {where}."
        case records.AttemptStarted(key=key):
            return f"The command of attempt {key} runs."
        case records.AttemptStopping(job=job_id, cause=cause, reason=reason, by=by):
            return f"Job {job_id} is being stopped: {_CAUSE_WORDS[cause]}{_by(by)}{_because(reason)}."
        case records.AttemptUnreachable(job=job_id, is_unreachable=True):
            return f"The node of job {job_id} is not heard; as far as anybody knows the job goes on."
        case records.AttemptUnreachable(job=job_id):
            return f"The node of job {job_id} is heard again; the job went on."
        case records.AttemptAskedBack(job=job_id, reason=reason):
            return f"Job {job_id} is asked back out of its node's backlog: {reason}."
        case records.RankEnded(key=key, exit=exit_):
            return f"Rank {key} {_exit_words(exit_)} while others go on."
        case records.AttemptEnded(job=job_id, ended=ended, begins_at=begins_at, at=at):
            has_timed_out = ended.reason == StopCause.TIME_LIMIT.value
            place = "behind those that wait" if has_timed_out else "in its old place in the queue"
            waits = "is held" if record.is_held else f"waits again, {place}"
            waits = f"is tried again: it {waits}" if record.is_retry else waits
            waits = f"says that it needs its GPUs, is tried on them once, and {waits}" if record.needs_gpus else waits
            if record.awaits_kept:
                waits = f"{waits}, once what the attempt keeps is stored"
            elif begins_at is not None:
                waits = f"waits for {span_text(begins_at - at)} and is tried again"
            why = f"{ended.reason}: {ended.message}" if ended.message else ended.reason
            return f"Attempt {job_id}/{ended.number} ended ({why}); job {job_id} {waits}."
        case records.WorkerDrained(job=job_id, reason=reason):
            return f"The worker of job {job_id} takes no new turns and ends after its last one: {reason}."
        case records.AttemptVoided(job=job_id, number=number, reason="REQUEUED", message=message):
            return f"Attempt {job_id}/{number} was taken back before it started{_because(message)}; it waits again."
        case records.AttemptVoided(job=job_id, number=number, reason="PREPARE_TIMED_OUT", message=message):
            return f"Attempt {job_id}/{number} did not come about ({message}); job {job_id} is placed again."
        case records.AttemptVoided(job=job_id, number=number, node=node, reason=reason, message=message):
            why = f"{reason}: {message}" if message else reason
            again = f"job {job_id} is placed again{_away(record)}"
            return f"Node {node} did not start attempt {job_id}/{number} ({why}); {again}."
        case records.NodesOpened(job=job_id):
            return f"Job {job_id} may be tried again on nodes that could not start it."
        case records.JobFinished():
            return _end_sentence(record)
        case records.SetupStateChanged(key=key, is_ready=is_ready, message=message, image=""):
            what = "is there" if is_ready else "is made on its node"
            return f"The environment of {key} {what}{_because(message)}."
        case records.SetupStateChanged(key=key, is_ready=is_ready, message=message, image=image):
            what = "is there" if is_ready else "comes to its node"
            return f"Image {image} of {key} {what}{_because(message)}."
        case records.SpoolStateChanged(key=key, is_full=True, message=message):
            return f"The output of {key} waits for room on its node{_because(message)}."
        case records.SpoolStateChanged(key=key):
            return f"The output of {key} goes on."
        case records.SignalSent(job=job_id, by=by, signal=signal):
            return f"{by} sent signal {signal} to job {job_id}."
        case records.JobEntered(job=job_id, by=by, attempt=number, port=port, command=command):
            how = f"connected to port {port} of" if port else f"ran {command} in"
            how = "reached into the folder of" if record.files else how
            return f"{by} {how} attempt {job_id}/{number}."
        case records.NoticeNotDelivered(key=key, notice=notice, message=message):
            return f"The notice {notice!r} of attempt {key} was not delivered{_because(message)}."
        case records.ResultsSettled():
            return _results_sentence(record)
        case records.FilesKept(key=key, copy=copy, is_checkpoint=is_checkpoint):
            how = "A checkpoint of" if is_checkpoint else "What"
            keeps = "" if is_checkpoint else " keeps"
            return f"{how} {key}{keeps} is stored for the next attempt: {_files_text(copy)}."
        case records.KeptWaitEnded(job=job_id, reason=reason):
            went = f"does not wait any longer for what its last attempt keeps{_because(reason)}"
            return f"Job {job_id} {went if reason else 'waits in line: what its last attempt keeps has come'}."
        case records.NodeRegistered(node=node):
            devices = ", ".join(device.name for device in node.info.devices) or "no GPU"
            return f"Node {node.name} registered from {node.address or 'an unknown address'} with {devices}."
        case records.NodeLost(node=name):
            return f"Node {name} was not heard for its whole lease."
        case records.NodeReturned(node=name):
            return f"Node {name} is heard again."
        case records.NodeDrained(node=name, by=by, reason=reason):
            return f"{by} drains node {name}{_because(reason)}."
        case records.NodeResumed(node=name, by=by):
            return f"{by} resumed node {name}."
        case records.NodeApproved(node=name, by=by):
            return f"{by} approved node {name}."
        case records.NodeRevoked(node=name, by=by, reason=reason):
            return f"{by} revoked the credential of node {name}{_because(reason)}."
        case records.NodeRootChecked(node=name, root=root):
            return f"Node {name} sees the shared folder {root}."
        case records.NodeForgotten(node=name, by=by):
            return f"{by} dropped node {name}, which will not come back."
        case records.DeviceMarked(node=name, device=device):
            return f"Device {device.uuid} of node {name} is unhealthy{_because(device.reason)}."
        case records.JobWarned(warning=warning):
            return warning.sentence
        case records.TokenCreated(token=token, by=by):
            if token.login:
                return f"{by} logged in as {token.role.value} with token {token.id}."
            return f"{by} made token {token.id} for {token.user} as {token.role.value}."
        case records.TokenRevoked(token=token_id, by=by):
            return f"{by} revoked token {token_id}."
        case records.LoginEnded(token=token_id, by=by):
            return f"{by} logged out; token {token_id} has ended."
        case records.LoginForgotten(token=token_id):
            return f"Token {token_id}, of a login that has ended, is kept no longer."
        case records.TokenUsed(token=token_id, node=name):
            return f"Token {token_id} let node {name} join."
        case records.ProgramJoined(token=token):
            return f"Token {token.joined_by} let {token.role.value} {token.program} join, with credential {token.id}."
        case records.CredentialRenewed(token=token_id):
            return f"Credential {token_id} was renewed."
        case records.NumbersRaised(next_job=next_job, next_session=next_session, reason=reason):
            sessions = f", those of sessions from {next_session}" if next_session else ""
            return f"Numbers of jobs go on from {next_job}{sessions}{_because(reason)}."
        case records.GapAccepted(gap=gap):
            awaited = ", ".join(gap.awaited) or "no node"
            return f"The store lacks history{_because(gap.reason)}; its jobs wait for what is told by {awaited}."
        case records.GapNodeReported(node=name):
            return f"Node {name} has told what it runs, and runs nothing that the store lacks."
        case records.GapReleased(job=job_id, by=by):
            return f"{by} lets job {job_id} start, though the store lacks what happened before it was put back."
        case records.GapReleasedWhole(by=by):
            return f"{by} lets all jobs start that wait since the store was put back."
        case records.GapOutlived(job=job_id, cut_at=cut_at):
            return (
                f"What became of job {job_id} before the store was put back, at {begin_text(cut_at)}, is not known,"
                " and no node has told of it; it is placed."
            )
        case records.AttemptFound(job=job_id, attempt=attempt, exit=exit_):
            node = attempt.ranks[0].placement.node
            does = "runs" if exit_ is None else "has ended"
            return (
                f"Node {node} has told that attempt {job_id}/{attempt.number} {does}, which the store lacked"
                " when it was put back; it counts."
            )
        case records.AttemptGivenUp(key=key, node=name, reason=reason):
            did = "runs, and was ended" if record.is_running else "has run"
            return (
                f"Node {name} has told that attempt {key.job}/{key.attempt} {did}, which the store lacked when it was"
                f" put back: it does not count, as {reason}. What it did may be done twice."
            )
        case records.JobFound(job=job):
            return f"A node has told of job {job.id} of {job.user}, which the store lacks; it is kept as it was found."
        case records.GapClosed():
            return "No job waits any more for what the store lacks."
        case records.SecretSet(secret=secret, by=by):
            return f"{by} set secret {secret.name} of {secret.user}."
        case records.SecretRemoved(user=user, name=secret_name, by=by):
            return f"{by} removed secret {secret_name} of {user}."
        case _:
            assert_never(record)


def _files_text(copy: KeptCopy) -> str:
    count = copy.folder.entry_count
    return f"{count:,} {'file' if count == 1 else 'files'} of {copy.folder.content_bytes:,} bytes"


def _results_sentence(record: records.ResultsSettled) -> str:
    files = f"{record.file_count:,} {'file' if record.file_count == 1 else 'files'} of {record.size_bytes:,} bytes"
    match record.outcome:
        case ResultsOutcome.STORED:
            return f"What {record.key} left is stored: {files}."
        case ResultsOutcome.INCOMPLETE:
            return f"What {record.key} left is stored in part, {files}: {record.message}."
        case ResultsOutcome.LOST:
            return f"What {record.key} left is lost: {record.message}."
        case ResultsOutcome.NOT_WANTED:
            return f"What {record.key} left is not wanted: {record.message}."


def tell(record: Record) -> str:
    """The short form of a record: its kind, its ids and what tells it from others of its kind."""
    if isinstance(record, GroupRecord):
        return tell_group(record)
    if isinstance(record, SessionRecord):
        return tell_session(record)
    name = type(record).__name__
    match record:
        case records.JobQueued(job=job, count=count):
            ids = f"{job.id}" if count == 1 else f"{job.id}-{job.id + count - 1}"
            if job.items is not None:
                ids = f"{job.id} with items {job.id + 1}-{job.id + job.items.indices.count}"
            successor = "" if job.replaces is None else f" for {job.replaces}"
            return f"{name} {ids}{_not_eligible(job)}{successor}"
        case records.RequestRemembered(request=request):
            return f"{name} {request.user} {request.request_id}"
        case records.RequestForgotten(user=user, request_id=request_id):
            return f"{name} {user} {request_id}"
        case records.JobHeld() | records.JobReleased() | records.BeginReached() | records.WorkerDrained():
            return f"{name} {record.job}"
        case records.DependencyMet(job=job_id, on=on):
            return f"{name} {job_id} on {on}"
        case records.JobBandChanged(job=moved, band=band) | records.ItemsMoved(array=moved, band=band):
            return f"{name} {moved} {band.name.lower()}"
        case records.JobUpdated(job=updated) | records.ItemsUpdated(array=updated):
            return f"{name} {updated} {_given_text(record)}"
        case records.ItemsHeld() | records.ItemsReleased():
            return f"{name} {record.array}"
        case records.JobFellBack(reason=reason):
            return f"{name} {record.job} {reason}"
        case (
            records.FallBackPostponed(job=job_id, until=until)
            | records.ItemsFallBackPostponed(array=job_id, until=until)
        ):
            return f"{name} {job_id} for {span_text(until - record.at)}"
        case records.ItemsFellBack(array=array, reason=reason):
            return f"{name} {array} {reason}"
        case records.ItemsFinished(array=array, spans=spans, finished=finished):
            return f"{name} {array}: {spans_text(spans)} {finished.outcome.value} {finished.reason}"
        case records.AttemptPlaced(job=job_id, attempt=attempt):
            behind = "" if attempt.slot is None else f" in the slot of {attempt.slot}"
            return f"{name} {job_id}/{attempt.number} on {_places(attempt)}{behind}"
        case records.AttemptReady(job=job_id, rendezvous=rendezvous):
            return f"{name} {job_id} at {rendezvous.address}:{rendezvous.port}"
        case records.AttemptStarted():
            return f"{name} {record.key}"
        case records.AttemptStopping(job=job_id, cause=cause):
            return f"{name} {job_id} {cause.value}"
        case records.AttemptUnreachable(job=job_id, is_unreachable=is_unreachable):
            return f"{name} {job_id}" + ("" if is_unreachable else " no more")
        case records.AttemptAskedBack(job=job_id):
            return f"{name} {job_id}"
        case records.RankEnded(key=key, exit=exit_):
            return f"{name} {key} {exit_.reason}"
        case records.AttemptEnded(job=job_id, ended=ended, begins_at=begins_at, at=at):
            what = " held" if record.is_held else " retry" if record.is_retry else ""
            what = " needs GPUs" if record.needs_gpus else what
            waits = "awaits what it keeps for" if record.awaits_kept else "again in"
            pause = "" if begins_at is None else f", {waits} {span_text(begins_at - at)}"
            return f"{name} {job_id}/{ended.number} {ended.reason}{what}{pause}"
        case records.AttemptVoided(job=job_id, number=number, reason=reason, kept_away=kept_away):
            away = (
                each.node + ("" if each.until is None else f" for {span_text(each.until - record.at)}")
                for each in kept_away
            )
            return f"{name} {job_id}/{number} {reason}" + (f" not on {', '.join(away)}" if kept_away else "")
        case records.NodesOpened(job=job_id):
            return f"{name} {job_id}"
        case records.JobFinished(job=job_id):
            return f"{name} {job_id} {_end_text(record)}"
        case records.SetupStateChanged(key=key, is_ready=is_ready):
            return f"{name} {key} {'ready' if is_ready else 'making'}"
        case records.SpoolStateChanged(key=key, is_full=is_full):
            return f"{name} {key} {'full' if is_full else 'goes on'}"
        case records.SignalSent(job=job_id, signal=signal):
            return f"{name} {job_id} {signal}"
        case records.JobEntered(job=job_id, attempt=number, port=port, command=command):
            return f"{name} {job_id}/{number} {'files' if record.files else port or command}"
        case records.NoticeNotDelivered(key=key, number=number, notice=notice):
            return f"{name} {key} {number}: {notice}"
        case records.ResultsSettled(key=key, outcome=outcome):
            return f"{name} {key} {outcome.value}"
        case records.FilesKept(key=key, copy=copy, is_checkpoint=is_checkpoint):
            return f"{name} {key} {'checkpoint ' if is_checkpoint else ''}{copy.folder.digest[:8]}"
        case records.KeptWaitEnded(job=job_id):
            return f"{name} {job_id}{_because(record.reason)}"
        case records.NodeRegistered(node=node):
            return f"{name} {node.name}"
        case records.DeviceMarked(node=node_name, device=device):
            return f"{name} {node_name} {device.uuid}"
        case records.OfNode():
            return f"{name} {record.node}"
        case records.JobWarned(job=job_id, warning=warning):
            return f"{name} {job_id}/{warning.attempt} {warning.kind.value} {','.join(warning.about)}"
        case records.TokenCreated(token=token):
            return f"{name} {token.id}"
        case (
            records.TokenRevoked(token=token_id)
            | records.LoginEnded(token=token_id)
            | records.LoginForgotten(token=token_id)
        ):
            return f"{name} {token_id}"
        case records.TokenUsed(token=token_id, node=node_name):
            return f"{name} {token_id} {node_name}"
        case records.ProgramJoined(token=token):
            return f"{name} {token.joined_by} {token.program}"
        case records.CredentialRenewed(token=token_id):
            return f"{name} {token_id}"
        case records.NumbersRaised(next_job=next_job, next_session=next_session):
            return f"{name} {next_job}" + (f" sessions {next_session}" if next_session else "")
        case records.GapAccepted(gap=gap):
            return f"{name} jobs below {gap.jobs_below} await {','.join(gap.awaited) or '-'}"
        case records.GapReleased(job=job_id) | records.GapOutlived(job=job_id):
            return f"{name} {job_id}"
        case records.GapReleasedWhole(by=by):
            return f"{name} by {by}"
        case records.AttemptFound(job=job_id, attempt=attempt, exit=exit_):
            end = "running" if exit_ is None else exit_.reason
            return f"{name} {job_id}/{attempt.number} on {_places(attempt)} {end}"
        case records.AttemptGivenUp(key=key, node=node):
            return f"{name} {key.job}/{key.attempt} on {node} {'running' if record.is_running else 'ended'}"
        case records.JobFound(job=job):
            end = f"{job.state.outcome.value} {job.state.reason}" if isinstance(job.state, Finished) else "unstored"
            return f"{name} {job.id} {end}"
        case records.GapClosed():
            return name
        case records.SecretSet(secret=secret):
            return f"{name} {secret.user} {secret.name}"
        case records.SecretRemoved(user=user, name=secret_name):
            return f"{name} {user} {secret_name}"
        case _:
            assert_never(record)


def _gpu_words(job: Job) -> str:
    """How it takes GPUs, where that is not as it asks for them."""
    choice = job.spec.gpu_choice
    if choice is None:
        return ""
    how = f", {MODE_WORDS[choice.mode]}"
    return f"{how}: {choice.why}" if choice.why else how


MODE_WORDS = {
    GpuMode.REQUIRED: "GPUs required",
    GpuMode.PREFERRED: "GPUs preferred",
    GpuMode.NEVER: "never on a GPU",
    GpuMode.AUTO: "GPUs as they are needed",
}


def _worker_words(job: Job) -> str:
    """What a worker is started for, where its model was updated."""
    if job.revision <= 1 and job.replaces is None:
        return ""
    place = "" if job.replaces is None else f", to take the place of job {job.replaces}"
    return f": a worker of {job.spec.serves}, revision {job.revision}{place}"


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
    name = type(command).__name__
    match command:
        case commands.ClearTroubles(node=node):
            return f"-> {name} {node}"
        case _:
            facts = _command_facts(command)
            return f"-> {name} {command.key} {command.node}" + (f" {facts}" if facts else "")


def _command_facts(command: commands.ToRank | commands.PrepareAttempt) -> str:
    """What tells a command from others of its kind to the same rank."""
    match command:
        case commands.StartAttempt(master_address=address, master_port=port):
            return f"{address}:{port}"
        case commands.LaunchAttempt(slot=RankKey() as slot):
            return f"in the slot of {slot}"
        case commands.LaunchAttempt(kept=InputFolder() as kept):
            return f"with {kept.digest[:8]}"
        case commands.PrepareAttempt(launch=launch):
            return _command_facts(launch)
        case commands.StopAttempt(cause=cause, grace=grace):
            return f"{cause.value} grace={span_text(grace)}"
        case commands.SetTimeLimit(time_limit=limit):
            return "none" if limit is None else span_text(limit)
        case commands.SignalAttempt(signal=signal):
            return f"{signal}"
        case commands.TellWarning(number=number, warning=warning):
            return f"{number}: {warning.kind.value}"
        case _:
            return ""


def span_text(span: int) -> str:
    """A span as a person types it: 90m, 30s, 250ms; microseconds where nothing larger is whole."""
    for unit, size in (("h", HOUR), ("m", MINUTE), ("s", SECOND), ("ms", MILLISECOND)):
        if span >= size and span % size == 0:
            return f"{span // size}{unit}"
    return f"{span}us" if span else "0s"


def spans_text(spans: tuple[tuple[JobId, JobId], ...]) -> str:
    """Ids in spans, whose ends are not among them, as people write them: 42-50,52."""
    return ",".join(f"{begin}" if end - begin == 1 else f"{begin}-{end - 1}" for begin, end in spans)


def _given_words(record: records.JobUpdated | records.ItemsUpdated) -> str:
    words = [] if record.name is None else [f"the name {record.name}"]
    if record.time_limit is not None:
        words.append(f"a time limit of {span_text(record.time_limit)}")
    if record.is_unlimited:
        words.append("no time limit any more" if not words else "no time limit")
    return " and ".join(words)


def _given_text(record: records.JobUpdated | records.ItemsUpdated) -> str:
    words = [] if record.name is None else [f"name={record.name}"]
    if record.time_limit is not None or record.is_unlimited:
        words.append(f"time-limit={'none' if record.time_limit is None else span_text(record.time_limit)}")
    return " ".join(words)


def _items_end_sentence(record: records.ItemsFinished) -> str:
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


def _end_sentence(record: records.JobFinished) -> str:
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


def _end_text(record: records.JobFinished) -> str:
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
    return f"{finished.outcome.value}{why}{cut}"


_PLAIN_REASONS = frozenset({"EXITED", "SIGNALLED", "CANCELLED", "TIME_LIMIT", "ITEMS_ENDED"})
"""Reasons that the outcome and its message say already."""


def _away(record: records.AttemptVoided) -> str:
    """For how long a job is not tried again on a node."""
    kept = next((each for each in record.kept_away if each.node == record.node), None)
    if kept is None:
        return ""
    return ", and not there" if kept.until is None else f", and not there for {span_text(kept.until - record.at)}"


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
    """The node, and the index of each device, with how much of it where that is a share: n1:0, or n1:0×0.5."""
    indices = ",".join(
        f"{each.index}×{share_text(each.share_milli)}" if each.share_milli else str(each.index)
        for each in placement.devices
    )
    return f"{placement.node}:{indices}" if indices else placement.node


_CAUSE_WORDS = {
    StopCause.CANCELLED: "it was cancelled",
    StopCause.TIME_LIMIT: "its time limit was reached",
    StopCause.FENCED: "its node lost the scheduler",
    StopCause.PREEMPTED: "a higher band needs its devices",
    StopCause.GANG: "another of its ranks failed",
    StopCause.STALE: "it was replaced",
    StopCause.REQUEUED: "it is to be queued again",
}


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
