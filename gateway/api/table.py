"""Which path of the API is which call of the scheduler. Values only.

A path's `{job_id}` is the field of this name; `{job_id=jobs.job_ids}` is called job_id and is another field. What the
path does not say comes from the query of a GET or DELETE, and else from the body, by the names of the fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from google.protobuf.descriptor import Descriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from gpufleet.v1 import scheduler_pb2

from gpufleet.net.json_messages import inner

PREFIX = "/api/v1"

_PARAMETER = re.compile(r"\{(\w+)(?:=([\w.]+))?\}")

_METHODS: Mapping[str, MethodDescriptor] = scheduler_pb2.DESCRIPTOR.services_by_name["Scheduler"].methods_by_name


class Form(Enum):
    """What the answer is."""

    OBJECT = "application/json"
    LINES = "application/x-ndjson"
    """One message a line, as they come."""
    BYTES = "text/plain; charset=utf-8"
    """What jobs and programs wrote, as they wrote it."""


@dataclass(frozen=True)
class Row:
    """One path with one verb. `subject` is what OpenAPI groups it by; `needed` are fields that a request says, since
    left out they would be taken for false."""

    subject: str
    verb: str
    written: str
    rpc: str
    form: Form = Form.OBJECT
    needed: tuple[str, ...] = ()

    @cached_property
    def path(self) -> str:
        """As it is asked for, with parameters in braces."""
        return PREFIX + _PARAMETER.sub(r"{\1}", self.written)

    @cached_property
    def parameters(self) -> Mapping[str, str]:
        """The path of the field that each parameter of the address is."""
        return {name: field or name for name, field in _PARAMETER.findall(self.written)}

    @property
    def has_body(self) -> bool:
        """Whether the request is the body; else it is the query."""
        return self.verb in ("POST", "PUT", "PATCH")

    @property
    def method(self) -> MethodDescriptor:
        """The call."""
        return _METHODS[self.rpc]

    @property
    def asked(self) -> Descriptor:
        """The message of its request."""
        return self.method.input_type

    @property
    def kind(self) -> type[Message]:
        """The same as a class."""
        return GetMessageClass(self.asked)

    @cached_property
    def in_path(self) -> frozenset[str]:
        """Fields of the request that only the path says. One job of the path is all the jobs that are meant."""
        roots = {field.partition(".")[0] for field in self.parameters.values()}
        return frozenset(root for root in roots if root not in self.parts)

    @cached_property
    def parts(self) -> frozenset[str]:
        """Fields that the path says in part: the name of a model whose other fields are in the body."""
        found = (field.partition(".") for field in self.parameters.values())
        return frozenset(root for root, _, leaf in found if leaf and not self._is_list(root, leaf))

    @property
    def masked(self) -> bool:
        """Whether the fields that are said are those that are changed; a PUT says how all of it is to be."""
        return self.verb == "PATCH" and "update_mask" in self.asked.fields_by_name

    @property
    def takes_key(self) -> bool:
        """Whether the header Idempotency-Key is its request_id."""
        return "request_id" in self.asked.fields_by_name

    def _is_list(self, root: str, leaf: str) -> bool:
        field = inner(self.asked.fields_by_name[root]).fields_by_name[leaf]
        return bool(field.is_repeated)


LINES, BYTES = Form.LINES, Form.BYTES

ROWS: tuple[Row, ...] = (
    Row("jobs", "POST", "/jobs", "Submit"),
    Row("jobs", "GET", "/jobs", "Queue"),
    Row("jobs", "PATCH", "/jobs", "UpdateJob"),
    Row("jobs", "GET", "/jobs/ended", "ListEndedJobs"),
    Row("jobs", "GET", "/jobs/newest", "GetJob"),
    Row("jobs", "POST", "/jobs/cancel", "Cancel"),
    Row("jobs", "POST", "/jobs/signal", "SignalJob"),
    Row("jobs", "POST", "/jobs/requeue", "RequeueJob"),
    Row("jobs", "GET", "/jobs/{job_id}", "GetJob"),
    Row("jobs", "PATCH", "/jobs/{job_id=jobs.job_ids}", "UpdateJob"),
    Row("jobs", "POST", "/jobs/{job_id=jobs.job_ids}/cancel", "Cancel"),
    Row("jobs", "POST", "/jobs/{job_id=jobs.job_ids}/signal", "SignalJob"),
    Row("jobs", "POST", "/jobs/{job_id=jobs.job_ids}/requeue", "RequeueJob"),
    Row("jobs", "GET", "/jobs/{job_id}/story", "GetStory"),
    Row("jobs", "GET", "/jobs/{job_id}/explanation", "Explain"),
    Row("jobs", "GET", "/jobs/{job_id}/items", "ListArrayItems"),
    Row("jobs", "POST", "/jobs/{job_id}/keep", "KeepFiles"),
    Row("jobs", "GET", "/jobs/{job_id}/stats", "GetJobStats"),
    Row("jobs", "GET", "/jobs/{job_id}/files", "ListFiles"),
    Row("jobs", "GET", "/jobs/{job_id}/output", "StreamOutput", BYTES),
    Row("jobs", "GET", "/jobs/{job_id}/output/pieces", "StreamOutput", LINES),
    Row("jobs", "POST", "/ingest/file", "Ingest"),
    Row("jobs", "POST", "/files/missing", "FindMissingBlobs"),
    Row("jobs", "GET", "/watch", "Watch", LINES),
    Row("secrets", "GET", "/secrets", "ListSecrets"),
    Row("secrets", "PUT", "/secrets/{name}", "SetSecret", needed=("value",)),
    Row("secrets", "DELETE", "/secrets/{name}", "RemoveSecret"),
    Row("nodes", "GET", "/nodes", "ListNodes"),
    Row("nodes", "PATCH", "/nodes/{node}", "UpdateNode", needed=("is_draining",)),
    Row("nodes", "DELETE", "/nodes/{node}", "ForgetNode"),
    Row("nodes", "POST", "/nodes/{node}/approve", "ApproveNode"),
    Row("nodes", "POST", "/nodes/{node}/revoke", "RevokeNode"),
    Row("nodes", "GET", "/status/workers", "ListWorkers"),
    Row("nodes", "GET", "/devices", "ListDevices"),
    Row("nodes", "GET", "/devices/watch", "WatchDevices", LINES),
    Row("nodes", "POST", "/capacity", "CheckCapacity", LINES),
    Row("nodes", "POST", "/estimate", "Estimate"),
    Row("history", "GET", "/history/devices", "GetNodeHistory"),
    Row("history", "GET", "/history/queue", "GetQueueHistory"),
    Row("history", "GET", "/usage", "ListUsage"),
    Row("history", "GET", "/usage/sessions", "ListSessionUsage"),
    Row("history", "GET", "/usage/requests", "ListRequestUsage"),
    Row("models", "GET", "/models", "ListModels"),
    Row("models", "PUT", "/models/{name=model.name}", "ServeModel"),
    Row("models", "DELETE", "/models/{name}", "StopModel"),
    Row("models", "POST", "/models/{model}/drain", "DrainWorker"),
    Row("models", "GET", "/models/{model}/workers/watch", "WatchWorkers", LINES),
    Row("models", "GET", "/sessions", "ListSessions"),
    Row("models", "DELETE", "/sessions/{id}", "CloseSession"),
    Row("admin", "GET", "/server", "GetServerInfo"),
    Row("admin", "PATCH", "/server", "UpdateServer"),
    Row("admin", "GET", "/logs/{program=program.program}", "StreamOutput", BYTES),
    Row("admin", "GET", "/logs/{program=program.program}/{node=program.node}", "StreamOutput", BYTES),
    Row("admin", "POST", "/tokens", "CreateToken"),
    Row("admin", "GET", "/tokens", "ListTokens"),
    Row("admin", "DELETE", "/tokens/{id}", "RevokeToken"),
    Row("admin", "GET", "/groups", "ListGroups"),
    Row("admin", "PATCH", "/groups/{name}", "SetGroup"),
    Row("admin", "POST", "/groups/{name}/rename", "RenameGroup"),
    Row("admin", "DELETE", "/groups/{name}", "RemoveGroup"),
    Row("admin", "GET", "/audit", "ListAuditEntries"),
)

LEFT_OUT: Mapping[str, str] = {
    "AttachJob": "typing to a job is a conversation both ways: gpuctl attach, or gRPC",
    "AccessFiles": "questions and answers are a conversation both ways: gpuctl cp, or gRPC",
    "ForwardPort": "a connection is a conversation both ways: gpuctl forward, or gRPC",
    "ExecJob": "a command is a conversation both ways: gpuctl exec, or gRPC",
    "OpenSession": "gateways speak it for the people in browsers; programs of people speak docs/web-protocol.md",
    "ReportRequests": "a gateway's own report",
    "CountRequests": "a gateway's own report",
    "ConnectWorker": "a model's worker speaks it",
    "JoinProgram": "workers and gateways speak it",
    "DescribeLogin": "it is asked before one has a token, without which the API answers nobody: gpuctl login, or gRPC",
    "BeginLogin": "a browser comes back to the machine that began: gpuctl login, or gRPC",
    "Login": "its answer is a token, and who asks has none yet: gpuctl login, or gRPC",
    "Logout": "it ends the token that asks: gpuctl logout, or gRPC",
    "UploadBlob": "PUT /files/{digest} is it: the bytes are the body (files.py)",
    "DownloadBlob": "GET /files/{digest} is it: the bytes are the answer (files.py)",
    "CheckFiles": "about a folder that the caller sees, too, which a gateway does not know: gpuctl, or gRPC",
    "DownloadFile": "GET /jobs/{job_id}/files/{path} is it: the bytes are the answer (left_files.py)",
}
"""Calls without a path, and why."""

NOT_BY_COOKIE = frozenset(
    {
        *("CreateToken", "ListTokens", "RevokeToken", "UpdateServer", "ListAuditEntries"),
        *("SetSecret", "ListSecrets", "RemoveSecret", "SetGroup", "RenameGroup", "RemoveGroup"),
    }
)
"""Calls that want the token itself: tokens and settings are no matter of a browser that is logged in."""


def kinds_of(*, is_stream: bool) -> dict[str, type[Message]]:
    """The calls that the dashboard's page makes by their names, with the messages of their requests."""
    return {
        row.rpc: row.kind for row in ROWS if row.rpc not in NOT_BY_COOKIE and row.method.server_streaming == is_stream
    }
