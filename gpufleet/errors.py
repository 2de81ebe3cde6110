"""Every way a request or a program can be refused: one stable reason each, and what to do about it.

The table is `Reason`. A reason's name is its stable word: it travels in google.rpc.ErrorInfo, appears in JSON
and in logs, and has a row in docs/troubleshooting.md. Reasons are added and never renamed. Translation to and
from gRPC is in gpufleet/net/status.py; nothing here imports grpc, so that the CLI can fail fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum, unique
from types import MappingProxyType
from typing import Any, Self


class Code(IntEnum):
    """The gRPC codes that this project answers with, by their numbers on the wire."""

    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


@unique
class Reason(Enum):
    """Name, gRPC code, what it means, and the usual next step (an error may carry a better one)."""

    # fmt: off
    # The request itself is wrong: nothing was changed, and the same request will fail again.
    INVALID_ARGUMENT = (Code.INVALID_ARGUMENT, "A field has a value that is not allowed.",
        "Correct the field that is named.")
    COMMAND_EMPTY = (Code.INVALID_ARGUMENT, "The job has no command.",
        "Put the command after --, as in: gpuctl submit --gpus 1 -- python train.py")
    ARGV_TOO_LONG = (Code.INVALID_ARGUMENT, "Arguments and environment are longer than a process may have.",
        "Put the data in a file and pass the file's path.")
    ENV_NAME_INVALID = (Code.INVALID_ARGUMENT, "A variable's name is empty or holds '=' or a NUL byte.",
        "Write --env NAME=VALUE; everything after the first '=' is the value.")
    GPUS_DISAGREE_WITH_PINS = (Code.INVALID_ARGUMENT, "The number of GPUs is not that of the pinned devices.",
        "Leave out --gpus, or name as many devices in --node-gpu-ids.")
    UNKNOWN_NODE = (Code.INVALID_ARGUMENT, "The request names a node that this scheduler has never seen.",
        "See the names with: gpuctl nodes")
    UNKNOWN_GPU_MODEL = (Code.INVALID_ARGUMENT, "No node has a GPU of the model that was asked for.",
        "See the models with: gpuctl nodes -o wide")
    UNKNOWN_DEVICE = (Code.INVALID_ARGUMENT, "The request pins a device that the node does not have.",
        "See the node's devices with: gpuctl nodes -o wide")
    PAGE_TOKEN_INVALID = (Code.INVALID_ARGUMENT, "The page token was changed or belongs to another list.",
        "Ask again from the first page, without a page token.")
    CONFIG_INVALID = (Code.INVALID_ARGUMENT, "A configuration file cannot be read or holds a wrong value.",
        "Correct the line that is named, then try: gpuctl config check FILE")
    ADDRESS_INVALID = (Code.INVALID_ARGUMENT, "An address is not HOST or HOST:PORT.",
        "Write it as 10.0.0.5:50051 or [::1]:50051.")
    SELECTOR_AMBIGUOUS = (Code.INVALID_ARGUMENT, "A name stands for more than one job.",
        "Use the job's id; see it with: gpuctl queue -a")
    CONTENT_TYPE_UNKNOWN = (Code.INVALID_ARGUMENT, "The body of the request is not said to be JSON.",
        "Send it with: Content-Type: application/json")
    MESSAGE_TOO_LARGE = (Code.RESOURCE_EXHAUSTED, "A message is larger than the receiver takes.",
        "Send less at once; large data belongs in a file that the job reads.")

    DIGEST_MISMATCH = (Code.INVALID_ARGUMENT, "What was uploaded does not have the digest that was said.",
        "Compute the digest again, and upload the file from its beginning.")

    # The fleet or the object is not in a state that allows it.
    NEVER_FITS = (Code.FAILED_PRECONDITION, "No node, alone or with others, could ever hold the request.",
        "Ask for what the nearest miss has; see the fleet with: gpuctl nodes")
    JOB_FINISHED = (Code.FAILED_PRECONDITION, "The job has already ended.",
        "See how it ended with: gpuctl job ID")
    JOB_NOT_RUNNING = (Code.FAILED_PRECONDITION, "The job has no running process yet.",
        "See what it waits for with: gpuctl explain ID")
    JOB_HAS_NO_INPUT = (Code.FAILED_PRECONDITION, "The job was submitted without a standard input.",
        "See its output with: gpuctl logs -f ID · a job to type to is made by: gpuctl run -i, gpuctl shell")
    PORT_NOT_OPEN = (Code.FAILED_PRECONDITION, "No process of the job listens on the port.",
        "See on which port it listens, and whether it does yet, with: gpuctl logs ID")
    INPUT_TAKEN = (Code.FAILED_PRECONDITION, "Another session types to the job.",
        "Look on: gpuctl logs -f ID · take the keyboard: gpuctl attach --take-over ID")
    DEPENDENCY_FAILED = (Code.FAILED_PRECONDITION, "A job that this one is to run after never ends that way.",
        "See how it ended with: gpuctl job ID, and submit without that --after, or with ID:any")
    CONTENT_TYPE_UNHANDLED = (Code.FAILED_PRECONDITION, "Nothing takes files of this content type.",
        "Say another content type, or have an admin add it to [handlers] of scheduler.toml.")
    INPUT_UNUSABLE = (Code.FAILED_PRECONDITION, "What --input names of another job cannot be had.",
        "See what that job left with: gpuctl files ID, and name files that are there.")
    FILE_NOT_UPLOADED = (Code.FAILED_PRECONDITION, "A file that the request names is not stored for this user.",
        "Upload it first: gpuctl submit --file PATH does it by itself; over gRPC it is UploadBlob.")
    NOTHING_FAILED = (Code.FAILED_PRECONDITION, "Nothing of the job has failed, so there is nothing to run again.",
        "See how it did with: gpuctl job ID")
    IS_AN_ARRAY = (Code.FAILED_PRECONDITION, "The job is an array; what was asked for is that of its items.",
        "Name an item, such as 41.3; see them with: gpuctl job ID")
    NOT_AN_ARRAY = (Code.FAILED_PRECONDITION, "The job is no array and has no items.",
        "Name the array that was submitted with --array; see it with: gpuctl queue -a")
    NODE_NOT_LOST = (Code.FAILED_PRECONDITION, "The node still answers and cannot be forgotten.",
        "Stop its agent first, or keep work away from it with: gpuctl drain NODE")
    AGENT_VERSION_UNSUPPORTED = (Code.FAILED_PRECONDITION, "The versions of agent and scheduler do not mix.",
        "Install the scheduler's version on the node; see both with: gpuctl version")
    MODEL_NOT_LOADED = (Code.FAILED_PRECONDITION, "The worker's model cannot be loaded.",
        "Install or correct what is named; docs/write-a-model.md says what a model has.")
    PROGRAM_FAILED = (Code.FAILED_PRECONDITION, "A served program cannot be run, or ended by itself.",
        "See what it printed with: gpuctl logs ID; see its replicas with: gpuctl models -o wide")
    SECRETS_UNAVAILABLE = (Code.FAILED_PRECONDITION, "The scheduler cannot seal or open secrets; all else goes on.",
        "What an admin does about it stands in docs/secrets.md.")
    LOGIN_NOT_SET_UP = (Code.FAILED_PRECONDITION, "This scheduler has no such way to log in.",
        "Use a token, or ask an admin to set up [login] or [oidc]: docs/logins.md")
    NOT_A_LOGIN = (Code.FAILED_PRECONDITION, "The token is not that of a login, and does not end by logging out.",
        "An admin makes it useless with: gpuctl token revoke ID")
    TLS_REQUIRED = (Code.FAILED_PRECONDITION, "The connection would leave this machine without encryption.",
        "Give TLS files, or say --insecure if the network is trusted.")
    TLS_FAILED = (Code.FAILED_PRECONDITION, "The two sides do not agree on TLS, or the certificate is not trusted.",
        "See why with: gpuctl doctor")

    # Something by that name is not there.
    JOB_NOT_FOUND = (Code.NOT_FOUND, "There is no job with this id.",
        "See the jobs, finished ones too, with: gpuctl queue -a")
    ITEM_NOT_FOUND = (Code.NOT_FOUND, "The array has no item with this index.",
        "See its items with: gpuctl job ID")
    ATTEMPT_NOT_FOUND = (Code.NOT_FOUND, "The job has no attempt with this number.",
        "See the job's attempts with: gpuctl story ID")
    NODE_NOT_FOUND = (Code.NOT_FOUND, "There is no node with this name.",
        "See the nodes with: gpuctl nodes")
    MODEL_NOT_FOUND = (Code.NOT_FOUND, "There is no model with this name.",
        "See what is served with: gpuctl models")
    SESSION_NOT_FOUND = (Code.NOT_FOUND, "No session with this id waits or has a turn.",
        "See them with: gpuctl sessions")
    WORKER_NOT_FOUND = (Code.NOT_FOUND, "The model has no such worker now.",
        "See its workers with: gpuctl models -o wide")
    OUTPUT_NOT_FOUND = (Code.NOT_FOUND, "There is no output of this rank or stream, or it was pruned.",
        "See what is kept with: gpuctl job ID")
    PATH_UNKNOWN = (Code.NOT_FOUND, "The HTTP API has no such path.",
        "See the paths with: curl GATEWAY/api/v1/openapi.json")
    TOKEN_NOT_FOUND = (Code.NOT_FOUND, "There is no token with this id.",
        "See the tokens with: gpuctl token list")
    SECRET_NOT_FOUND = (Code.NOT_FOUND, "The user has no secret with this name.",
        "See the names with: gpuctl secret list · set it with: gpuctl secret set NAME")
    GROUP_NOT_FOUND = (Code.NOT_FOUND, "There is no group with this name, or the user is not in it.",
        "See your groups with: gpuctl group list")
    FILE_NOT_FOUND = (Code.NOT_FOUND, "A file that was named is not there.",
        "Check the path.")

    # Something by that name is there already.
    REQUEST_ID_REUSED = (Code.ALREADY_EXISTS, "This request id was used for a request with other content.",
        "Use a new request id, or none.")
    NODE_ID_TAKEN = (Code.ALREADY_EXISTS, "A live agent is registered under this node id.",
        "Start this agent with another name: gpuctl agent --node-id NAME")
    NODE_REVOKED = (Code.PERMISSION_DENIED, "The node's credential was revoked; nothing may register under its name.",
        "An admin lets the node in again with: gpuctl nodes approve NODE")
    TOKEN_NAME_TAKEN = (Code.ALREADY_EXISTS, "A token with this name exists.",
        "Choose another name, or revoke the old one with: gpuctl token revoke ID")
    GROUP_NAME_TAKEN = (Code.ALREADY_EXISTS, "A group with this name exists.",
        "Choose another name, or see the groups with: gpuctl group list")
    PORT_TAKEN = (Code.ALREADY_EXISTS, "Another process listens on the port.",
        "Stop that process, or choose another port with the flag that is named.")
    ALREADY_RUNNING = (Code.ALREADY_EXISTS, "Another scheduler, agent or gateway uses the same data.",
        "Stop the other one, or give this one its own --data DIR.")
    STORE_RESTORED = (Code.FAILED_PRECONDITION, "The database is older than what its data folder has seen, or another.",
        "Put the newest database back, or go on without what it lacks: gpuctl scheduler --accept-restored")
    KEYS_DIFFER = (Code.FAILED_PRECONDITION, "A scheduler that is to stand by has other keys than the one that leads.",
        "Copy the keys of the leader's data folder into that of this one, and start it again.")
    STORE_NOT_EMPTY = (Code.ALREADY_EXISTS, "A backup was to be restored over something that is there.",
        "Restore into another data folder or database, or say --replace.")
    RESTORE_UNFINISHED = (Code.FAILED_PRECONDITION, "A restore was interrupted, and half of a store is not served.",
        "Run it again to its end: gpuctl scheduler restore FILE, with the options that the scheduler has.")
    BACKUP_INVALID = (Code.DATA_LOSS, "A backup is cut off, damaged, or of another form.",
        "Take another one; which are whole says: gpuctl scheduler backup --check FILE")
    BACKUP_FAILED = (Code.UNAVAILABLE, "A backup could not be written, or what it holds could not be put back.",
        "See to the disk or folder that is named, then try again.")

    # Who are you, and may you?
    TOKEN_MISSING = (Code.UNAUTHENTICATED, "The call carries no token.",
        "Give --token-file FILE or set GPUCTL_TOKEN; a scheduler's first start says where its tokens are.")
    TOKEN_INVALID = (Code.UNAUTHENTICATED, "The scheduler does not know this token.",
        "Check that the token belongs to this scheduler: gpuctl config show --origin")
    TOKEN_REVOKED = (Code.UNAUTHENTICATED, "The token was revoked or has expired.",
        "Ask an admin for a new one: gpuctl token create")
    TOKEN_USED_UP = (Code.PERMISSION_DENIED, "The token has let as many nodes join as it may.",
        "Ask an admin for another one: gpuctl token create --role node")
    TOKEN_FILE_EXPOSED = (Code.FAILED_PRECONDITION, "Other accounts of this machine can read the token file.",
        "Take their right away with: chmod 600 FILE")
    TOKEN_FILE_INVALID = (Code.INVALID_ARGUMENT, "The file does not hold a gpufleet token.",
        "The file must hold one line that begins with gf_; an admin makes one with: gpuctl token create")
    PERMISSION_DENIED = (Code.PERMISSION_DENIED, "The token's role does not allow this call.",
        "Ask an admin, or use a token of another role.")
    TICKET_REFUSED = (Code.UNAUTHENTICATED, "The turn ticket is forged, expired or was used.",
        "Ask the scheduler for a new turn; in a browser, load the page again.")
    LOGIN_FAILED = (Code.UNAUTHENTICATED, "The user, the password, or what the provider answered is not right.",
        "Try again, or ask an admin; why a provider's answer was not taken stands in the scheduler's log.")
    LOGIN_NAME_TAKEN = (Code.PERMISSION_DENIED, "The user's name belongs to somebody else, or has another role.",
        "Ask an admin, who sees whose it is with: gpuctl token list")
    BAND_REFUSED = (Code.PERMISSION_DENIED, "The band is for admins, and for users who have it by a setting.",
        "Choose a band that you have, or ask an admin for an entry in [policy] bands of scheduler.toml.")
    TIME_LIMIT_REFUSED = (Code.PERMISSION_DENIED, "Only admins may let a job run for longer than it asked for.",
        "Choose a shorter limit, or ask an admin.")
    OUTPUT_PRIVATE = (Code.PERMISSION_DENIED, "Here only a job's owner and admins read what it does.",
        "Ask its owner or an admin.")
    NOT_YOUR_JOB = (Code.PERMISSION_DENIED, "The job belongs to another user.",
        "Ask its owner or an admin.")

    PASS_PHRASE_MISSING = (Code.UNAUTHENTICATED, "The model wants a pass phrase.",
        "Ask who serves the model for it, and say it with the join.")
    PASS_PHRASE_WRONG = (Code.UNAUTHENTICATED, "This is not the model's pass phrase.",
        "Ask who serves the model; capital letters count.")
    LOGIN_NEEDED = (Code.UNAUTHENTICATED, "The model is for people who are logged in to the dashboard.",
        "Log in to the gateway's dashboard in the same browser, then join.")

    # Too much of something.
    QUEUE_FULL = (Code.RESOURCE_EXHAUSTED, "The queue holds as many jobs as it may.",
        "Wait until jobs end, or cancel some: gpuctl cancel 40-45")
    QUOTA_EXCEEDED = (Code.RESOURCE_EXHAUSTED, "The request is beyond the user's limit.",
        "Ask an admin for more, or wait until your jobs end.")
    FILE_TOO_LARGE = (Code.RESOURCE_EXHAUSTED, "A file, or a folder, is larger than is taken.",
        "Put it where the nodes can read it, and pass its path; the limits are in [files] of scheduler.toml.")
    NO_FREE_SEAT = (Code.RESOURCE_EXHAUSTED, "The worker holds as many sessions as it has seats.",
        "Try again when a session has ended.")
    TOO_MANY_STREAMS = (Code.RESOURCE_EXHAUSTED, "As many followers as allowed are connected.",
        "Try again later, or close a follower.")
    OTHER_SESSION = (Code.FAILED_PRECONDITION, "The person has a turn or a place with another model, which would end.",
        "Leave that one first, or join without keeps_other.")
    ADDRESS_FULL = (Code.RESOURCE_EXHAUSTED, "As many people of one address have a place with the model as may.",
        "Try again when one of them has left; places_per_address is a number of the model.")
    TOO_MANY_TRIES = (Code.RESOURCE_EXHAUSTED, "Too many wrong pass phrases or passwords came from one address.",
        "Wait as long as is said, and try again.")
    LINE_FULL = (Code.RESOURCE_EXHAUSTED, "The line of the model is full.",
        "Try again in a minute.")

    # Try again: the same request may pass later.
    STORE_UNAVAILABLE = (Code.UNAVAILABLE, "The store cannot be written; running jobs go on.",
        "Free the disk or restore the database it names; then try again.")
    HISTORY_UNAVAILABLE = (Code.UNAVAILABLE, "What was used cannot be told now; jobs are not concerned.",
        "Try again in a minute; why, if it stays so: gpuctl logs --program scheduler")
    METRICS_UNAVAILABLE = (Code.UNAVAILABLE, "A page of metrics could not be written.",
        "See why with: gpuctl logs --program scheduler")
    OUTCOME_UNKNOWN = (Code.UNAVAILABLE, "The request may or may not have been stored.",
        "Send it again with the same request id: it is never done twice.")
    SCHEDULER_UNREACHABLE = (Code.UNAVAILABLE, "No scheduler answers at the address.",
        "See why with: gpuctl doctor")
    SCHEDULER_STOPPING = (Code.UNAVAILABLE, "The scheduler is shutting down or starting.",
        "Try again in a few seconds.")
    NODE_UNREACHABLE = (Code.UNAVAILABLE, "The node's agent does not answer at the moment.",
        "See its state with: gpuctl nodes")
    WORKER_NOT_READY = (Code.UNAVAILABLE, "The worker is loading its model, draining, or about to end.",
        "Try again in a few seconds, or at another worker.")
    LOGIN_PROVIDER_FAILED = (Code.UNAVAILABLE, "The OpenID Connect provider does not answer as it should.",
        "Try again in a minute; why stands in the scheduler's log: gpuctl logs --program scheduler")
    MODEL_DOWN = (Code.UNAVAILABLE, "A served model has failed, and no replica of it is started any more.",
        "See its last lines with: gpuctl models -o wide; mended, serve it again: gpuctl serve")
    REPLICA_FAILED = (Code.UNAVAILABLE, "A replica of a served program closed the connection without an answer.",
        "Try again; what the program says is in the log of the replica's job: gpuctl logs ID")
    MODEL_HANGS = (Code.UNAVAILABLE, "A step of the model took so long that its worker was given up.",
        "See the worker's log for the session; a step must end within 10 s.")
    DEADLINE = (Code.DEADLINE_EXCEEDED, "No answer came in time.",
        "Try again, or allow more time with --connection-timeout.")
    CONFLICT = (Code.ABORTED, "Another change came first.",
        "Look at the present state and try again.")
    CANCELLED = (Code.CANCELLED, "The caller left before the answer.",
        "Nothing: the call was given up on purpose.")
    RESUME_TOKEN_EXPIRED = (Code.OUT_OF_RANGE, "The changes after this resume token are no longer kept.",
        "Watch again without a resume token: the stream begins with the present state.")
    OFFSET_OUT_OF_RANGE = (Code.OUT_OF_RANGE, "The offset lies beyond the end of the output.",
        "Read from an offset between 0 and the end that is named.")

    # What this version cannot do, and what should never happen.
    NOT_BUILT = (Code.UNIMPLEMENTED, "This version does not do that yet.",
        "See what there is in CHANGELOG.md; gpuctl version shows both versions.")
    METHOD_UNKNOWN = (Code.UNIMPLEMENTED, "The server does not know this call.",
        "Client and server differ in version: gpuctl version")
    VERB_UNKNOWN = (Code.UNIMPLEMENTED, "The path of the HTTP API does not take this method.",
        "Use one of those that the answer's Allow header names.")
    EXTRA_MISSING = (Code.FAILED_PRECONDITION, "An optional part of the installation is missing.",
        "Install it with: pip install 'gpufleet[EXTRA]'")
    NO_SYSTEMD = (Code.FAILED_PRECONDITION, "No systemd of this machine can run a service.",
        "Have what starts programs here run it: gpuctl scheduler, gpuctl agent, gpuctl gateway")
    UNIT_TAKEN = (Code.ALREADY_EXISTS, "A unit of this name is there and was not written by gpuctl install.",
        "Move it away, or keep it and change it by hand.")
    STORE_CORRUPT = (Code.DATA_LOSS, "The store holds something that breaks its own rules.",
        "Stop, keep a copy of the data folder, and report what is named.")
    INTERNAL = (Code.INTERNAL, "The program met a case that should not exist.",
        "Report it with the trace id and the program's log: gpuctl logs --program scheduler")
    UNKNOWN = (Code.UNKNOWN, "A server answered with an error that this version does not know.",
        "Compare versions with: gpuctl version")
    # fmt: on

    def __init__(self, code: Code, meaning: str, next_step: str) -> None:
        self.code = code
        self.meaning = meaning
        self.next_step = next_step


@dataclass(frozen=True, slots=True)
class FieldViolation:
    """One field that is wrong: its path as in the proto (`resources.gpus`), and why."""

    field: str
    why: str


NO_METADATA: Mapping[str, str] = MappingProxyType({})


class GpufleetError(Exception):
    """The root of all operating errors; the reason picks the class, as errno does for OSError.

    `message` is one sentence on what happened. `next_step` is what to type or do now, by default the reason's
    own. `retry_after_s` is the server's wish for the pause before a retry, in seconds. `metadata` names for
    programs what the error is about (`{"job_id": "41"}`). Programmer errors are assertions instead.
    """

    def __new__(cls, reason: Reason, *_: object, **__: object) -> Self:
        family = _family(reason)
        # A class that was named on purpose is kept; only the root stands for its families.
        return super().__new__(family if issubclass(family, cls) else cls)

    def __init__(
        self,
        reason: Reason,
        message: str = "",
        *,
        violations: Iterable[FieldViolation] = (),
        next_step: str = "",
        retry_after_s: float | None = None,
        metadata: Mapping[str, str] = NO_METADATA,
    ) -> None:
        super().__init__(message or reason.meaning)
        self.reason = reason
        self.message = message or reason.meaning
        self.violations = tuple(violations)
        self.next_step = next_step or reason.next_step
        self.retry_after_s = retry_after_s
        self.metadata: Mapping[str, str] = dict(metadata)

    @property
    def code(self) -> Code:
        """The gRPC code of the reason."""
        return self.reason.code

    def __reduce__(self) -> tuple[object, ...]:
        """Survive copy and pickle, whose default would lose every keyword."""
        return (type(self), (self.reason, self.message), self.__getstate__())


class InvalidRequestError(GpufleetError):
    """The request is wrong and will stay wrong."""


class NotFoundError(GpufleetError):
    """What was named is not there."""


class RefusedError(GpufleetError):
    """A right, a quota or the state of things does not allow it."""


class UnavailableError(GpufleetError):
    """The same request may pass later."""


class InternalError(GpufleetError):
    """The fault is ours."""


_FAMILIES: Mapping[Code, type[GpufleetError]] = {
    Code.INVALID_ARGUMENT: InvalidRequestError,
    Code.OUT_OF_RANGE: InvalidRequestError,
    Code.UNIMPLEMENTED: InvalidRequestError,
    Code.NOT_FOUND: NotFoundError,
    Code.ALREADY_EXISTS: RefusedError,
    Code.FAILED_PRECONDITION: RefusedError,
    Code.PERMISSION_DENIED: RefusedError,
    Code.RESOURCE_EXHAUSTED: RefusedError,
    Code.UNAUTHENTICATED: RefusedError,
    Code.ABORTED: UnavailableError,
    Code.CANCELLED: UnavailableError,
    Code.DEADLINE_EXCEEDED: UnavailableError,
    Code.UNAVAILABLE: UnavailableError,
    Code.DATA_LOSS: InternalError,
    Code.INTERNAL: InternalError,
    Code.UNKNOWN: InternalError,
}


def _family(reason: Reason) -> type[GpufleetError]:
    return _FAMILIES[reason.code]


def invalid(field: str, why: str, *, reason: Reason = Reason.INVALID_ARGUMENT, next_step: str = "") -> GpufleetError:
    """One wrong field: the commonest refusal, with the field's path in the message and as a violation."""
    return GpufleetError(reason, f"{field}: {why}", violations=[FieldViolation(field, why)], next_step=next_step)


def as_lines(error: GpufleetError) -> str:
    """The error for people: what is wrong, each further wrong field, and what to do next, a line each."""
    named = [f"{violation.field}: {violation.why}" for violation in error.violations]
    further = [f"  {line}" for line in named if line != error.message]
    return "\n".join([error.message, *further, _as_sentence(error.next_step)])


def as_object(error: GpufleetError) -> dict[str, Any]:
    """The error for programs, as `gpuctl -o json` and the gateway tell it. `field` is the first wrong field's path in
    the request, empty where it is none; `fields` are all of them."""
    violations = [{"field": each.field, "why": each.why} for each in error.violations]
    return {
        # A newer server's own word where this version has none.
        "reason": error.metadata.get("reason", error.reason.name),
        "message": error.message,
        "next_step": error.next_step,
        "field": violations[0]["field"] if violations else "",
        "fields": violations,
        "metadata": dict(error.metadata),
    }


def _as_sentence(text: str) -> str:
    """With a capital, unless it begins with what is to be typed."""
    first = text.partition(" ")[0]
    return text if first == "gpuctl" or not first.isalpha() else text[:1].upper() + text[1:]
