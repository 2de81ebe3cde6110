"""A scheduler in this process that does what a test tells it: canned jobs and output, and faults where they hurt.

It decides nothing. `output` is what a job writes, cut into pieces; a `Fault` waits in `faults` for the next call of
its method. `calls` is everything that was asked, in order.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import chain
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message
from gpufleet.v1 import (
    capacity_pb2,
    files_pb2,
    history_pb2,
    ingest_pb2,
    job_pb2,
    node_pb2,
    scheduler_pb2,
    scheduler_pb2_grpc,
    sessions_pb2,
    status_pb2,
)

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.status import to_status

WAIT_S_MAX = 60.0
POLL_S = 0.01

A = TypeVar("A", bound=Message)


class Fault(Enum):
    """What goes wrong with one call."""

    UNAVAILABLE = auto()
    """The connection breaks before anything is done."""
    LOST_ANSWER = auto()
    """It is done, and the answer does not arrive."""
    HANG = auto()
    """Nothing happens until the caller gives up."""


@dataclass
class Piece:
    """Some bytes of a job's output."""

    data: bytes
    stream: job_pb2.Stream.ValueType = job_pb2.STREAM_STDOUT
    rank: int = 0
    attempt: int = 1


@dataclass
class Break:
    """The stream breaks here, once."""

    is_used: bool = False


@dataclass
class Until:
    """The stream goes on when this is set; until then it is silent, or sends signs of life."""

    event: threading.Event
    sends_keepalives: bool = False


@dataclass
class Gap:
    """Bytes that were left out."""

    size: int
    stream: job_pb2.Stream.ValueType = job_pb2.STREAM_STDOUT


Step = Piece | Break | Until | Gap | Callable[[], None]


def job(job_id: int = 1, state: job_pb2.JobState.ValueType = job_pb2.JOB_STATE_RUNNING, **values: Any) -> job_pb2.Job:
    """A job with the usual values."""
    values.setdefault("user", "ada")
    values.setdefault("output_is_complete", True)
    made = job_pb2.Job(id=job_id, state=state, version=job_id, **values)
    if not made.spec.argv:
        made.spec.argv.extend(["python", "train.py"])
    made.submit_time.FromSeconds(1_790_000_000)
    return made


def ended(job_id: int = 1, code: int = 0, **values: Any) -> job_pb2.Job:
    """A job that exited with this code."""
    state = job_pb2.JOB_STATE_SUCCEEDED if code == 0 else job_pb2.JOB_STATE_FAILED
    values.setdefault("exit_reason", "EXITED")
    return job(job_id, state, exit=job_pb2.ExitStatus(code=code), **values)


@dataclass(eq=False)
class FakeScheduler(scheduler_pb2_grpc.SchedulerServicer):
    """The servicer. Set its fields, then start gpuctl."""

    jobs: dict[int, job_pb2.Job] = field(default_factory=dict)
    foretold: job_pb2.Job = field(default_factory=lambda: job(0, job_pb2.JOB_STATE_QUEUED))
    """The job of a dry run."""
    nodes: list[node_pb2.Node] = field(default_factory=list)
    output: dict[int, list[Step]] = field(default_factory=dict)
    logs: deque[bytes] = field(default_factory=deque)
    program_logs: dict[str, bytes] = field(default_factory=dict)
    """What each stream of a program's log shows, one after the other; it breaks when another is left."""
    stories: dict[int, list[job_pb2.StoryLine]] = field(default_factory=dict)
    explanations: dict[int, job_pb2.Explanation] = field(default_factory=dict)
    tokens: list[scheduler_pb2.Token] = field(default_factory=list)
    audit: list[scheduler_pb2.AuditEntry] = field(default_factory=list)
    """Entries of the audit, oldest first."""
    secrets: dict[str, str] = field(default_factory=dict)
    groups: dict[str, scheduler_pb2.UserGroup] = field(default_factory=dict)
    server: scheduler_pb2.GetServerInfoResponse = field(default_factory=scheduler_pb2.GetServerInfoResponse)
    faults: dict[str, deque[Fault | GpufleetError]] = field(default_factory=lambda: defaultdict(deque))
    before: dict[str, Callable[[Any], None]] = field(default_factory=dict)
    """Called with each request of a method, before it is answered."""
    calls: list[tuple[str, Message]] = field(default_factory=list)
    changes: list[scheduler_pb2.JobChange] = field(default_factory=list)
    watch: list[Break | Until | Callable[[], None] | scheduler_pb2.WatchResponse] = field(default_factory=list)
    device_news: list[Break | Until | scheduler_pb2.WatchDevicesResponse] = field(default_factory=list)
    """What who watches the devices is told after the first picture, which is of `nodes`."""
    stats: capacity_pb2.GetJobStatsResponse = field(default_factory=capacity_pb2.GetJobStatsResponse)
    usage: capacity_pb2.ListUsageResponse = field(default_factory=capacity_pb2.ListUsageResponse)
    items: list[scheduler_pb2.ArrayItem] = field(default_factory=list)
    """The items of whatever array is asked for."""
    _queue: list[job_pb2.Job] = field(default_factory=list, init=False)
    _counts: tuple[int, int] = field(default=(0, 0), init=False)
    """What the first page of `Queue` found, and how many of it run and wait; the pages behind it go on in that."""
    ended: list[history_pb2.ListEndedJobsResponse] = field(
        default_factory=lambda: [history_pb2.ListEndedJobsResponse()]
    )
    """Pages of what has ended; the token of each is the number of the next one."""
    models: list[sessions_pb2.Model] = field(default_factory=list)
    session_usage: sessions_pb2.ListSessionUsageResponse = field(default_factory=sessions_pb2.ListSessionUsageResponse)
    request_usage: sessions_pb2.ListRequestUsageResponse = field(default_factory=sessions_pb2.ListRequestUsageResponse)
    working: list[status_pb2.ListWorkersResponse] = field(default_factory=lambda: [status_pb2.ListWorkersResponse()])
    """Pages of who works at what; the token of each is the number of the next one."""
    capacity: list[capacity_pb2.CheckCapacityResponse] = field(default_factory=list)
    submitted: dict[str, int] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    """What was uploaded, by its digest; nothing is checked."""
    ingested: ingest_pb2.IngestResponse = field(
        default_factory=lambda: ingest_pb2.IngestResponse(
            content_type="audio/mpeg",
            pattern="audio/*",
            gpu_mode=job_pb2.GPU_MODE_PREFERRED,
            job=job(7, job_pb2.JOB_STATE_QUEUED, spec=job_pb2.JobSpec(argv=["transcribe", "./talk.mp3"])),
        )
    )
    """What takes a file; a job of it is 7."""
    files_on_nodes: list[files_pb2.FilesOnNode] = field(default_factory=list)
    file_store: files_pb2.CheckFilesResponse = field(default_factory=files_pb2.CheckFilesResponse)
    """What CheckFiles answers of each node."""
    address: str = ""

    def asked(self, method: str) -> list[Any]:
        """The requests of one method so far."""
        return [request for name, request in self.calls if name == method]

    # One method for each call of the contract.

    def Submit(self, request: Any, context: Any) -> Any:
        def submit() -> scheduler_pb2.SubmitResponse:
            if request.dry_run:
                return scheduler_pb2.SubmitResponse(count=1, job=self.foretold, notes=["a note"])
            made = self.submitted.setdefault(request.request_id, 1 + len(self.submitted))
            self.jobs.setdefault(made, job(made, job_pb2.JOB_STATE_QUEUED, spec=request.specs[0]))
            return scheduler_pb2.SubmitResponse(first_job_id=made, count=1, job=self.jobs[made])

        return self._answer("Submit", request, context, submit)

    def Ingest(self, request: Any, context: Any) -> Any:
        def ingest() -> ingest_pb2.IngestResponse:
            answer = ingest_pb2.IngestResponse()
            answer.CopyFrom(self.ingested)
            answer.job_id = 0 if request.dry_run or answer.HasField("model") else 7
            return answer

        return self._answer("Ingest", request, context, ingest)

    def FindMissingBlobs(self, request: Any, context: Any) -> Any:
        def find() -> files_pb2.FindMissingBlobsResponse:
            missing = [
                each for each in request.digests if hashlib.sha256(self.blobs.get(each, b"")).hexdigest() != each
            ]
            stored = [len(self.blobs.get(each, b"")) for each in missing]
            return files_pb2.FindMissingBlobsResponse(missing_digests=missing, stored_bytes=stored)

        return self._answer("FindMissingBlobs", request, context, find)

    def UploadBlob(self, requests: Iterator[Any], context: Any) -> Any:
        first = next(requests)

        def upload() -> files_pb2.UploadBlobResponse:
            digests: list[str] = []
            for piece in chain([first], requests):
                if piece.digest:
                    digests.append(piece.digest)
                self.blobs[digests[-1]] = self.blobs.get(digests[-1], b"")[: piece.offset] + piece.data
            return files_pb2.UploadBlobResponse(stored_bytes=sum(len(self.blobs[each]) for each in digests))

        return self._answer("UploadBlob", first, context, upload)

    def CheckFiles(self, request: Any, context: Any) -> Any:
        return self._answer(
            "CheckFiles",
            request,
            context,
            lambda: self.file_store if request.by_store else files_pb2.CheckFilesResponse(nodes=self.files_on_nodes),
        )

    def GetJob(self, request: Any, context: Any) -> Any:
        return self._answer("GetJob", request, context, lambda: scheduler_pb2.GetJobResponse(job=self._find(request)))

    def ListAuditEntries(self, request: Any, context: Any) -> Any:
        def entries() -> scheduler_pb2.ListAuditEntriesResponse:
            found = [each for each in reversed(self.audit) if each.sequence > request.after_sequence]
            start = int(request.page_token or 0)
            end = start + (request.page_size or 100)
            more = str(end) if end < len(found) else ""
            return scheduler_pb2.ListAuditEntriesResponse(entries=found[start:end], next_page_token=more)

        return self._answer("ListAuditEntries", request, context, entries)

    def Queue(self, request: Any, context: Any) -> Any:
        def queue() -> scheduler_pb2.QueueResponse:
            if not request.page_token:  # pages that follow go on in what the first one found
                self._queue = [each for each in self.jobs.values() if request.name in ("", each.spec.name)]
                states = Counter(each.state for each in self._queue)
                self._counts = states[job_pb2.JOB_STATE_RUNNING], states[job_pb2.JOB_STATE_QUEUED]
            found = self._queue
            start = int(request.page_token or 0)
            end = start + (request.page_size or 100)
            answer = scheduler_pb2.QueueResponse(jobs=found[start:end])
            answer.next_page_token = str(end) if end < len(found) else ""
            answer.counts.running, answer.counts.queued = self._counts
            return answer

        return self._answer("Queue", request, context, queue)

    def GetStory(self, request: Any, context: Any) -> Any:
        def get() -> scheduler_pb2.GetStoryResponse:
            return scheduler_pb2.GetStoryResponse(lines=self.stories[request.job_id])

        return self._answer("GetStory", request, context, get)

    def Explain(self, request: Any, context: Any) -> Any:
        def explain() -> scheduler_pb2.ExplainResponse:
            explanation = self.explanations.get(request.job_id)
            return scheduler_pb2.ExplainResponse(job=self._find(request), explanation=explanation)

        return self._answer("Explain", request, context, explain)

    def ListArrayItems(self, request: Any, context: Any) -> Any:
        def items() -> scheduler_pb2.ListArrayItemsResponse:
            return scheduler_pb2.ListArrayItemsResponse(
                items=[each for each in self.items if not request.states or each.state in request.states]
            )

        return self._answer("ListArrayItems", request, context, items)

    def Cancel(self, request: Any, context: Any) -> Any:
        return self._answer("Cancel", request, context, lambda: scheduler_pb2.CancelResponse(changes=self.changes))

    def SignalJob(self, request: Any, context: Any) -> Any:
        def signal() -> scheduler_pb2.SignalJobResponse:
            return scheduler_pb2.SignalJobResponse(changes=self.changes)

        return self._answer("SignalJob", request, context, signal)

    def UpdateJob(self, request: Any, context: Any) -> Any:
        def update() -> scheduler_pb2.UpdateJobResponse:
            return scheduler_pb2.UpdateJobResponse(changes=self.changes)

        return self._answer("UpdateJob", request, context, update)

    def RequeueJob(self, request: Any, context: Any) -> Any:
        def requeue() -> scheduler_pb2.RequeueJobResponse:
            return scheduler_pb2.RequeueJobResponse(changes=self.changes)

        return self._answer("RequeueJob", request, context, requeue)

    def ListNodes(self, request: Any, context: Any) -> Any:
        def nodes() -> scheduler_pb2.ListNodesResponse:
            wanted = [node for node in self.nodes if not request.names or node.name in request.names]
            return scheduler_pb2.ListNodesResponse(nodes=wanted)

        return self._answer("ListNodes", request, context, nodes)

    def ListWorkers(self, request: Any, context: Any) -> Any:
        return self._answer("ListWorkers", request, context, lambda: self.working[int(request.page_token or 0)])

    def Estimate(self, request: Any, context: Any) -> Any:
        def estimate() -> capacity_pb2.EstimateResponse:
            return capacity_pb2.EstimateResponse(
                device_count=4, min_memory_bytes=20_000_000_000, sentence="A line.", unused_parameters=["seed", "dtype"]
            )

        return self._answer("Estimate", request, context, estimate)

    def GetJobStats(self, request: Any, context: Any) -> Any:
        return self._answer("GetJobStats", request, context, lambda: self.stats)

    def ListUsage(self, request: Any, context: Any) -> Any:
        return self._answer("ListUsage", request, context, lambda: self.usage)

    def ListEndedJobs(self, request: Any, context: Any) -> Any:
        return self._answer("ListEndedJobs", request, context, lambda: self.ended[int(request.page_token or 0)])

    def ListModels(self, request: Any, context: Any) -> Any:
        return self._answer("ListModels", request, context, lambda: sessions_pb2.ListModelsResponse(models=self.models))

    def ServeModel(self, request: Any, context: Any) -> Any:
        def model() -> sessions_pb2.ServeModelResponse:
            return sessions_pb2.ServeModelResponse(model=next(m for m in self.models if m.name == request.model.name))

        return self._answer("ServeModel", request, context, model)

    def DrainWorker(self, request: Any, context: Any) -> Any:
        return self._answer("DrainWorker", request, context, sessions_pb2.DrainWorkerResponse)

    def ListSessionUsage(self, request: Any, context: Any) -> Any:
        return self._answer("ListSessionUsage", request, context, lambda: self.session_usage)

    def ListRequestUsage(self, request: Any, context: Any) -> Any:
        return self._answer("ListRequestUsage", request, context, lambda: self.request_usage)

    def CheckCapacity(self, request: Any, context: Any) -> Iterator[Any]:
        self._meet("CheckCapacity", request, context)
        yield from self.capacity

    def ListDevices(self, request: Any, context: Any) -> Any:
        def devices() -> scheduler_pb2.ListDevicesResponse:
            all_of_them = [(node.name, each) for node in self.nodes for each in node.devices]
            found = [each for each in all_of_them if each[1].is_free or not request.only_free]
            answer = scheduler_pb2.ListDevicesResponse(devices=[each for _, each in found])
            for shown, (name, _) in zip(answer.devices, found, strict=True):
                shown.node = name
            return answer

        return self._answer("ListDevices", request, context, devices)

    def UpdateNode(self, request: Any, context: Any) -> Any:
        def update() -> scheduler_pb2.UpdateNodeResponse:
            node = next(node for node in self.nodes if node.name == request.node)
            return scheduler_pb2.UpdateNodeResponse(node=node, changed=True)

        return self._answer("UpdateNode", request, context, update)

    def ForgetNode(self, request: Any, context: Any) -> Any:
        def forget() -> scheduler_pb2.ForgetNodeResponse:
            return scheduler_pb2.ForgetNodeResponse(ended_job_ids=[3], requeued_job_ids=[4, 5])

        return self._answer("ForgetNode", request, context, forget)

    def ApproveNode(self, request: Any, context: Any) -> Any:
        def approve() -> scheduler_pb2.ApproveNodeResponse:
            node = next(node for node in self.nodes if node.name == request.node)
            return scheduler_pb2.ApproveNodeResponse(node=node, changed=True)

        return self._answer("ApproveNode", request, context, approve)

    def RevokeNode(self, request: Any, context: Any) -> Any:
        def revoke() -> scheduler_pb2.RevokeNodeResponse:
            node = next(node for node in self.nodes if node.name == request.node)
            return scheduler_pb2.RevokeNodeResponse(node=node, changed=True)

        return self._answer("RevokeNode", request, context, revoke)

    def GetServerInfo(self, request: Any, context: Any) -> Any:
        def info() -> scheduler_pb2.GetServerInfoResponse:
            answer = scheduler_pb2.GetServerInfoResponse()
            answer.CopyFrom(self.server)
            answer.server_time.GetCurrentTime()
            return answer

        return self._answer("GetServerInfo", request, context, info)

    def UpdateServer(self, request: Any, context: Any) -> Any:
        return self._answer("UpdateServer", request, context, scheduler_pb2.UpdateServerResponse)

    def CreateToken(self, request: Any, context: Any) -> Any:
        def create() -> scheduler_pb2.CreateTokenResponse:
            token = scheduler_pb2.Token(
                id="ab12",
                user=request.user,
                role=request.role,
                note=request.note,
                nodes=request.nodes,
                uses_max=request.uses_max,
            )
            return scheduler_pb2.CreateTokenResponse(token=token, secret="gf_" + "s" * 43)

        return self._answer("CreateToken", request, context, create)

    def SetSecret(self, request: Any, context: Any) -> Any:
        def keep() -> scheduler_pb2.SetSecretResponse:
            is_new = request.name not in self.secrets
            self.secrets[request.name] = request.value
            return scheduler_pb2.SetSecretResponse(secret=self._secret(request.name), is_new=is_new)

        return self._answer("SetSecret", request, context, keep)

    def ListSecrets(self, request: Any, context: Any) -> Any:
        def listed() -> scheduler_pb2.ListSecretsResponse:
            return scheduler_pb2.ListSecretsResponse(secrets=[self._secret(name) for name in sorted(self.secrets)])

        return self._answer("ListSecrets", request, context, listed)

    def RemoveSecret(self, request: Any, context: Any) -> Any:
        def drop() -> scheduler_pb2.RemoveSecretResponse:
            if self.secrets.pop(request.name, None) is None:
                raise GpufleetError(Reason.SECRET_NOT_FOUND, f"ada has no secret {request.name!r}")
            return scheduler_pb2.RemoveSecretResponse(secret=self._secret(request.name))

        return self._answer("RemoveSecret", request, context, drop)

    def _secret(self, name: str) -> scheduler_pb2.Secret:
        return scheduler_pb2.Secret(name=name, user="ada", set_by="ada")

    def SetGroup(self, request: Any, context: Any) -> Any:
        def change() -> scheduler_pb2.SetGroupResponse:
            group = self.groups.setdefault(request.name, scheduler_pb2.UserGroup(name=request.name, shares=1))
            for name in ("gpus_max", "gpu_hours_week", "max_band", "shares"):
                if request.HasField(name):
                    setattr(group, name, getattr(request, name))
            group.members.extend(scheduler_pb2.GroupMember(user=user) for user in request.add_members)
            return scheduler_pb2.SetGroupResponse(group=group, changed=True, is_new=len(group.members) > 0)

        return self._answer("SetGroup", request, context, change)

    def ListGroups(self, request: Any, context: Any) -> Any:
        def listed() -> scheduler_pb2.ListGroupsResponse:
            found = [self.groups[name] for name in sorted(self.groups) if request.name in ("", name)]
            return scheduler_pb2.ListGroupsResponse(groups=found)

        return self._answer("ListGroups", request, context, listed)

    def RenameGroup(self, request: Any, context: Any) -> Any:
        def rename() -> scheduler_pb2.RenameGroupResponse:
            group = self._group(request.name)
            group.name = request.new_name
            return scheduler_pb2.RenameGroupResponse(group=group)

        return self._answer("RenameGroup", request, context, rename)

    def RemoveGroup(self, request: Any, context: Any) -> Any:
        def remove() -> scheduler_pb2.RemoveGroupResponse:
            return scheduler_pb2.RemoveGroupResponse(group=self._group(request.name))

        return self._answer("RemoveGroup", request, context, remove)

    def _group(self, name: str) -> scheduler_pb2.UserGroup:
        if name not in self.groups:
            raise GpufleetError(Reason.GROUP_NOT_FOUND, f"no group is called {name!r}")
        return self.groups[name]

    def ListTokens(self, request: Any, context: Any) -> Any:
        def tokens() -> scheduler_pb2.ListTokensResponse:
            return scheduler_pb2.ListTokensResponse(tokens=self.tokens)

        return self._answer("ListTokens", request, context, tokens)

    def RevokeToken(self, request: Any, context: Any) -> Any:
        def revoke() -> scheduler_pb2.RevokeTokenResponse:
            found = next((token for token in self.tokens if token.id == request.id), None)
            if found is None:
                raise GpufleetError(Reason.TOKEN_NOT_FOUND, f'there is no token "{request.id}"')
            return scheduler_pb2.RevokeTokenResponse(token=found)

        return self._answer("RevokeToken", request, context, revoke)

    def StreamOutput(self, request: Any, context: Any) -> Iterator[Any]:
        self._meet("StreamOutput", request, context)
        if request.HasField("program"):
            if request.program.program in self.program_logs:
                yield scheduler_pb2.StreamOutputResponse(data=self.program_logs[request.program.program])
                yield scheduler_pb2.StreamOutputResponse(is_end=True)
                return
            if not self.logs:
                problem = GpufleetError(Reason.PERMISSION_DENIED, "the logs of programs are for admins")
                context.abort_with_status(to_status(problem))
            yield scheduler_pb2.StreamOutputResponse(data=self.logs.popleft())
            if self.logs:
                context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
            if not request.follow:
                yield scheduler_pb2.StreamOutputResponse(is_end=True)
            return
        yield scheduler_pb2.StreamOutputResponse(job=self._find_or_abort(request, context))
        skip = {(each.attempt, each.rank, each.stream): each.offset for each in request.positions}
        reached: dict[tuple[int, int, int], int] = defaultdict(int)
        for step in self.output.get(request.job_id, []):
            for message in self._messages(step, skip, reached, context):
                if request.stream in (0, message.stream) or not message.data:
                    yield message
        newest = self.jobs[request.job_id]
        yield scheduler_pb2.StreamOutputResponse(job=newest, is_end=newest.state > job_pb2.JOB_STATE_STOPPING)

    def Watch(self, request: Any, context: Any) -> Iterator[Any]:
        self._meet("Watch", request, context)
        for step in self.watch:
            match step:
                case scheduler_pb2.WatchResponse():
                    yield step
                case Until():
                    self._wait(step.event, context)
                case Break():
                    self._break(step, context)
                case _:
                    step()
        self._wait(threading.Event(), context)

    def WatchDevices(self, request: Any, context: Any) -> Iterator[Any]:
        self._meet("WatchDevices", request, context)
        devices = self.ListDevices(scheduler_pb2.ListDevicesRequest(), context).devices
        yield scheduler_pb2.WatchDevicesResponse(is_whole=True, devices=devices)
        for step in self.device_news:
            match step:
                case scheduler_pb2.WatchDevicesResponse():
                    yield step
                case Until():
                    self._wait(step.event, context)
                case Break():
                    self._break(step, context)
        self._wait(threading.Event(), context)

    # What they share.

    def _messages(
        self,
        step: Step,
        skip: dict[tuple[int, int, int], int],
        reached: dict[tuple[int, int, int], int],
        context: Any,
    ) -> Iterator[scheduler_pb2.StreamOutputResponse]:
        match step:
            case Piece():
                where = (step.attempt, step.rank, int(step.stream))
                start = reached[where]
                reached[where] += len(step.data)
                fresh = step.data[max(0, skip.get(where, 0) - start) :]
                if fresh:
                    yield scheduler_pb2.StreamOutputResponse(
                        attempt=step.attempt,
                        rank=step.rank,
                        stream=step.stream,
                        offset=reached[where] - len(fresh),
                        data=fresh,
                    )
            case Gap():
                where = (1, 0, int(step.stream))
                start = reached[where]
                reached[where] += step.size
                gap = scheduler_pb2.OutputGap(from_offset=start, to_offset=reached[where])
                yield scheduler_pb2.StreamOutputResponse(attempt=1, stream=step.stream, gap=gap)
            case Break():
                self._break(step, context)
            case Until():
                while not step.event.is_set() and context.is_active():
                    if step.sends_keepalives:
                        yield scheduler_pb2.StreamOutputResponse()
                    step.event.wait(POLL_S)
            case _:
                step()

    def _break(self, step: Break, context: Any) -> None:
        if not step.is_used:
            step.is_used = True
            context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")

    def _answer(self, method: str, request: Message, context: Any, make: Callable[[], A]) -> A:
        fault = self._meet(method, request, context)
        try:
            answer = make()
        except GpufleetError as problem:
            context.abort_with_status(to_status(problem))
            raise
        if fault is Fault.LOST_ANSWER:
            context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        return answer

    def _meet(self, method: str, request: Message, context: Any) -> Fault | None:
        """Note the call, and let the fault that waits for it happen."""
        self.calls.append((method, request))
        self.before.get(method, lambda request: None)(request)
        if not self.faults[method]:
            return None
        fault = self.faults[method].popleft()
        match fault:
            case GpufleetError():
                context.abort_with_status(to_status(fault))
            case Fault.UNAVAILABLE:
                context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
            case Fault.HANG:
                self._wait(threading.Event(), context)
                context.abort(grpc.StatusCode.CANCELLED, "")
            case Fault.LOST_ANSWER:
                return fault
        return None

    def _wait(self, event: threading.Event, context: Any) -> None:
        deadline = time.monotonic() + WAIT_S_MAX
        while not event.is_set() and context.is_active() and time.monotonic() < deadline:
            event.wait(POLL_S)

    def _find(self, request: Any) -> job_pb2.Job:
        if getattr(request, "last", False):
            return self.jobs[max(self.jobs)]
        name = getattr(request, "name", "")
        for each in self.jobs.values():
            if each.id == request.job_id or (name and each.spec.name == name):
                return each
        raise GpufleetError(Reason.JOB_NOT_FOUND, f"there is no job {name or request.job_id}")

    def _find_or_abort(self, request: Any, context: Any) -> job_pb2.Job:
        try:
            return self._find(request)
        except GpufleetError as problem:
            context.abort_with_status(to_status(problem))
            raise


class Serving:
    """The fake on a port of its own, until closed."""

    def __init__(self, fake: FakeScheduler, port: int = 0) -> None:
        self._pool = ThreadPoolExecutor(16)
        self._server = grpc.server(self._pool, options=[("grpc.so_reuseport", 0)])
        scheduler_pb2_grpc.add_SchedulerServicer_to_server(fake, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        fake.address = f"127.0.0.1:{self.port}"
        self._server.start()

    def close(self) -> None:
        """End every call and stop."""
        self._server.stop(None).wait(WAIT_S_MAX)
        self._pool.shutdown(wait=True)
