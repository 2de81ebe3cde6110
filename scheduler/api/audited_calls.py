"""Which calls are written down, and what of them says what they are done to: a row for each of the contract.

A call without a row keeps the program from starting, and a test says so. What a row takes from a request is what
anybody may see who may see the job, node or token: never a value that somebody keeps, and nothing that a command wrote.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from gpufleet.v1 import job_pb2, scheduler_pb2, sessions_pb2

from ..audit.texts import Span, spans_of, words


class Kept(Enum):
    """Which calls of a kind are written down, besides every one that is refused for who calls, or with what token."""

    EACH = auto()
    """Each, however it ends."""
    ALIKE_ONCE = auto()
    """Each; what comes again within a minute, and is alike, is counted in one row."""
    REFUSED = auto()
    """None but those."""


@dataclass(frozen=True, slots=True)
class About:
    """What a call is done to: jobs, something else (such as "node n1"), and a few words on what was asked."""

    jobs: list[Span] = field(default_factory=list)
    target: str = ""
    detail: str = ""


NOTHING = About()


@dataclass(frozen=True, slots=True)
class AuditedRpc:
    """How one call is audited. `about` reads a request (of a stream the first one), `came` the answer to one as well.

    `why`: why not each of these calls is written down. `changes`: whether a request asks for a change at all.
    """

    kept: Kept
    about: Callable[[Any], About]
    came: Callable[[Any, Any], About] | None = None
    why: str = ""
    changes: Callable[[Any], bool] = lambda request: True


def _read(why: str = "it changes nothing") -> AuditedRpc:
    return AuditedRpc(Kept.REFUSED, anything_named, why=why)


def _target(kind: str, name: str) -> str:
    return f"{kind} {words(name)}" if name else ""


def anything_named(request: Any) -> About:
    """The job, node or model that a request names, whatever call it is of."""
    known = request.DESCRIPTOR.fields_by_name
    if "job_id" in known:
        return About(spans_of([request.job_id]))
    for name in ("node", "model"):
        if name in known and isinstance(getattr(request, name), str):
            return About(target=_target(name, getattr(request, name)))
    return NOTHING


def _selected(request: Any, detail: str = "") -> About:
    selector: scheduler_pb2.JobSelector = request.jobs
    target = "all jobs of the caller" if selector.all_mine else _target("job named", selector.name)
    return About(spans_of(selector.job_ids), target, words(detail))


def _changed(request: Any, answer: Any, detail: str = "") -> About:
    selected = _selected(request, detail)
    return About(spans_of(each.job_id for each in answer.changes), selected.target, selected.detail)


def _of_jobs(detail: Callable[[Any], str]) -> AuditedRpc:
    return AuditedRpc(
        Kept.EACH,
        lambda request: _selected(request, detail(request)),
        lambda request, answer: _changed(request, answer, detail(request)),
    )


def _of(kind: str, name: Callable[[Any], str], detail: Callable[[Any], str] = lambda request: "") -> AuditedRpc:
    return AuditedRpc(Kept.EACH, lambda request: About([], _target(kind, name(request)), words(detail(request))))


def _of_job(kept: Kept, job: Callable[[Any], int], detail: Callable[[Any], str] = lambda request: "") -> AuditedRpc:
    return AuditedRpc(kept, lambda request: About(spans_of([job(request)]), "", words(detail(request))))


def _to_submit(request: scheduler_pb2.SubmitRequest) -> About:
    name = request.specs[0].name if len(request.specs) == 1 else f"{len(request.specs)} specs"
    if request.rerun_failed_job_id:
        return About(spans_of([request.rerun_failed_job_id]), "", "what failed, again")
    return About([], "", words(name))


def _submitted(request: scheduler_pb2.SubmitRequest, answer: scheduler_pb2.SubmitResponse) -> About:
    again = f", what failed of job {request.rerun_failed_job_id}" if request.rerun_failed_job_id else ""
    return _made(answer, f"{answer.count:,} jobs{again}" if answer.count > 1 else answer.job.spec.name + again)


def _made(answer: Any, detail: str) -> About:
    """Jobs that were made: an array has the numbers of its items as well."""
    first = answer.first_job_id if hasattr(answer, "first_job_id") else answer.job_id
    last = first + max(getattr(answer, "count", 1) - 1, answer.job.array_counts.items)
    return About([(first, last)] if first else [], "", words(detail))


def _to_update(request: scheduler_pb2.UpdateJobRequest) -> str:
    said = []
    for path in request.update_mask.paths:
        match path:
            case "band":
                said.append(f"band {_word(job_pb2.Band, 'BAND_', request.band)}")
            case "is_held":
                said.append("held" if request.is_held else "released")
            case "time_limit":
                said.append(f"time limit {request.time_limit.seconds:,} s")
            case _:
                said.append(words(path))
    return ", ".join(said[:8])


def _to_drain(request: scheduler_pb2.UpdateNodeRequest) -> str:
    return ("drain" if request.is_draining else "resume") + (f": {request.reason}" if request.reason else "")


def _to_set(request: scheduler_pb2.UpdateServerRequest) -> str:
    gap = ["jobs need not wait for what the store lacks"] if request.releases_gap else []
    return ", ".join([*gap, *([f"log level {request.log_level}"] if request.log_level else [])])


def _to_serve(request: sessions_pb2.ServeModelRequest) -> str:
    return "go back to the version before" if request.rollback else ", ".join(request.update_mask.paths)


def _role(request: scheduler_pb2.CreateTokenRequest) -> str:
    return f"role {_word(scheduler_pb2.Role, 'ROLE_', request.role)}"


def _word(kind: Any, prefix: str, number: int) -> str:
    """The word of a number of an enum, also of one that nobody knows."""
    return str(kind.Name(number).removeprefix(prefix).lower() if number in kind.values() else number)


_TOKEN_MADE = AuditedRpc(
    Kept.EACH,
    lambda request: About([], _target("user", request.user), _role(request)),
    lambda request, answer: About([], _target("token", answer.token.id), words(f"{_role(request)}, of {request.user}")),
)
_OF_SECRET = AuditedRpc(
    Kept.EACH,
    lambda request: About([], _target("secret", f"{request.name} of {request.user}" if request.user else request.name)),
    lambda request, answer: About([], _target("secret", f"{answer.secret.name} of {answer.secret.user}")),
)
_IN_JOB = Kept.ALIKE_ONCE
_STREAM_OF_NODE = "a stream of a node that has registered, which is written down"

AUDITED_RPCS: dict[str, AuditedRpc] = {
    "Scheduler/Submit": AuditedRpc(Kept.EACH, _to_submit, _submitted, changes=lambda request: not request.dry_run),
    "Scheduler/Ingest": AuditedRpc(
        Kept.EACH,
        lambda request: About([], "", words(request.content_type)),
        lambda request, answer: _made(answer, answer.content_type),
        changes=lambda request: not request.dry_run,
    ),
    "Scheduler/StreamOutput": _read(),
    "Scheduler/Cancel": _of_jobs(lambda request: request.reason),
    "Scheduler/Queue": _read(),
    "Scheduler/GetJob": _read(),
    "Scheduler/GetStory": _read(),
    "Scheduler/Explain": _read(),
    "Scheduler/ListArrayItems": _read(),
    "Scheduler/Watch": _read(),
    "Scheduler/UpdateJob": _of_jobs(_to_update),
    "Scheduler/SignalJob": _of_jobs(lambda request: f"signal {request.signal}"),
    "Scheduler/RequeueJob": _of_jobs(lambda request: request.reason),
    "Scheduler/AttachJob": _of_job(_IN_JOB, lambda request: request.job_id),
    "Scheduler/ForwardPort": _of_job(
        _IN_JOB, lambda request: request.target.job_id, lambda request: f"port {request.target.port}"
    ),
    # The command itself stands in the job's story, for those who may see the job.
    "Scheduler/ExecJob": _of_job(Kept.EACH, lambda request: request.start.job_id),
    "Scheduler/AccessFiles": _of_job(_IN_JOB, lambda request: request.target.job_id),
    "Scheduler/KeepFiles": _of_job(_IN_JOB, lambda request: request.job_id),
    "Scheduler/ListNodes": _read(),
    "Scheduler/ListWorkers": _read(),
    "Scheduler/ListDevices": _read(),
    "Scheduler/UpdateNode": _of("node", lambda request: request.node, _to_drain),
    "Scheduler/ForgetNode": _of("node", lambda request: request.node),
    "Scheduler/ApproveNode": _of("node", lambda request: request.node),
    "Scheduler/RevokeNode": _of("node", lambda request: request.node, lambda request: request.reason),
    "Scheduler/CheckCapacity": _read(),
    "Scheduler/Estimate": _read(),
    "Scheduler/GetJobStats": _read(),
    "Scheduler/WatchDevices": _read(),
    "Scheduler/GetNodeHistory": _read(),
    "Scheduler/GetQueueHistory": _read(),
    "Scheduler/ListUsage": _read(),
    "Scheduler/ListEndedJobs": _read(),
    "Scheduler/GetServerInfo": _read(),
    "Scheduler/UpdateServer": _of("agent of node", lambda request: request.program.node, _to_set),
    "Scheduler/ServeModel": _of("model", lambda request: request.model.name, _to_serve),
    "Scheduler/ListModels": _read(),
    "Scheduler/StopModel": _of("model", lambda request: request.name),
    "Scheduler/OpenSession": AuditedRpc(Kept.ALIKE_ONCE, lambda request: NOTHING),
    "Scheduler/ListSessions": _read(),
    "Scheduler/CloseSession": _of("session", lambda request: request.id, lambda request: request.reason),
    "Scheduler/ListSessionUsage": _read(),
    "Scheduler/DrainWorker": _of("model", lambda request: request.model, lambda request: request.reason),
    "Scheduler/WatchWorkers": _read(),
    "Scheduler/ReportRequests": _read("it tells how many requests there are, and changes who is asked for nothing"),
    "Scheduler/CountRequests": _read("it counts requests that have ended, every few seconds"),
    "Scheduler/ListRequestUsage": _read(),
    "Scheduler/ConnectWorker": AuditedRpc(
        Kept.ALIKE_ONCE,
        lambda request: About(spans_of([request.hello.job_id]), _target("model", request.hello.model)),
    ),
    "Scheduler/FindMissingBlobs": _read("it only keeps files that are there for a while longer"),
    "Scheduler/UploadBlob": AuditedRpc(Kept.ALIKE_ONCE, lambda request: NOTHING),
    "Scheduler/DownloadBlob": _read(),
    "Scheduler/CheckFiles": AuditedRpc(Kept.ALIKE_ONCE, lambda request: NOTHING),
    "Scheduler/ListFiles": _read(),
    "Scheduler/DownloadFile": _read(),
    "Scheduler/CreateToken": _TOKEN_MADE,
    "Scheduler/JoinProgram": _of("program", lambda request: request.name, lambda request: request.model),
    "Scheduler/ListTokens": _read(),
    "Scheduler/RevokeToken": _of("token", lambda request: request.id),
    "Scheduler/DescribeLogin": _read(),
    "Scheduler/BeginLogin": _read("it tells where the provider's page is"),
    # Who failed to log in is not named: people type their passwords into the wrong field, too.
    "Scheduler/Login": AuditedRpc(
        Kept.EACH,
        lambda request: NOTHING,
        lambda request, answer: About([], _target("user", answer.token.user), words(f"token {answer.token.id}")),
    ),
    "Scheduler/Logout": AuditedRpc(
        Kept.EACH,
        lambda request: NOTHING,
        lambda request, answer: About([], _target("token", answer.token.id)),
    ),
    "Scheduler/ListAuditEntries": _read(),
    "Scheduler/SetSecret": _OF_SECRET,
    "Scheduler/ListSecrets": _read(),
    "Scheduler/RemoveSecret": _OF_SECRET,
    "Scheduler/ListGroups": _read(),
    "Scheduler/SetGroup": _of("group", lambda request: request.name),
    "Scheduler/RenameGroup": _of("group", lambda request: request.name),
    "Scheduler/RemoveGroup": _of("group", lambda request: request.name),
    "NodeAgent/Register": AuditedRpc(Kept.ALIKE_ONCE, lambda request: About([], _target("node", request.node))),
    "NodeAgent/Heartbeat": _read(_STREAM_OF_NODE),
    "NodeAgent/ReportOutput": _read(_STREAM_OF_NODE),
    "NodeAgent/OpenChannel": _read(_STREAM_OF_NODE),
    "NodeAgent/CarryPort": _read("the node's end of a connection whose other end is written down"),
    "NodeAgent/CarryFiles": _read("the node's end of a call whose other end is written down"),
    "NodeAgent/CarryExec": _read("the node's end of a call whose other end is written down"),
    "NodeAgent/FetchBlob": _read("a node fetches the files of a job that it was given"),
    "NodeAgent/StoreResults": _read("a node stores the files that a job left, as the job asked for"),
}
