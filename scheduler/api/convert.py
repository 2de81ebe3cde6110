"""From the state's values to protos; the way back is `validate.py`."""

from collections.abc import Iterable

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from gpufleet.v1 import job_pb2, node_agent_pb2, node_pb2, scheduler_pb2

from ..core.story import sentence
from ..policy.explain import Explanation
from ..policy.fit import FreeDevice, NodeView
from ..ports import StoredRecord
from ..state.access import Role, Token
from ..state.commands import (
    ClearTroubles,
    Command,
    ForgetAttempt,
    KeepAttempt,
    KillAttempt,
    LaunchAttempt,
    SignalAttempt,
    StopAttempt,
)
from ..state.ids import JobId, RankKey
from ..state.jobs import (
    Attempt,
    Deferred,
    EndedAttempt,
    EndWanted,
    ExitCode,
    ExitSignal,
    ExitStatus,
    Finished,
    Held,
    InputMode,
    Job,
    JobSpec,
    Outcome,
    OutputEnd,
    Placement,
    Queued,
    Rank,
    Running,
    Starting,
    StopCause,
    Stopping,
)
from ..state.live import NodeLive
from ..state.nodes import Device, DeviceSample, Node, NodeInfo, Reach
from ..state.units import MB, Instant, Span

OUTCOMES = {
    Outcome.SUCCEEDED: job_pb2.JOB_STATE_SUCCEEDED,
    Outcome.FAILED: job_pb2.JOB_STATE_FAILED,
    Outcome.CANCELLED: job_pb2.JOB_STATE_CANCELLED,
    Outcome.TIMED_OUT: job_pb2.JOB_STATE_TIMED_OUT,
}

STOP_CAUSES = {
    StopCause.CANCELLED: node_agent_pb2.STOP_CAUSE_CANCELLED,
    StopCause.TIME_LIMIT: node_agent_pb2.STOP_CAUSE_TIME_LIMIT,
    StopCause.FENCED: node_agent_pb2.STOP_CAUSE_FENCED,
    StopCause.PREEMPTED: node_agent_pb2.STOP_CAUSE_PREEMPTED,
    StopCause.GANG: node_agent_pb2.STOP_CAUSE_GANG,
    StopCause.STALE: node_agent_pb2.STOP_CAUSE_STALE,
    StopCause.REQUEUED: node_agent_pb2.STOP_CAUSE_REQUEUED,
}

INPUT_MODES = {
    None: job_pb2.INPUT_MODE_UNSPECIFIED,
    InputMode.PIPE: job_pb2.INPUT_MODE_PIPE,
    InputMode.TERMINAL: job_pb2.INPUT_MODE_TERMINAL,
}

ROLES = {
    Role.ADMIN: scheduler_pb2.ROLE_ADMIN,
    Role.USER: scheduler_pb2.ROLE_USER,
    Role.VIEWER: scheduler_pb2.ROLE_VIEWER,
    Role.AGENT: scheduler_pb2.ROLE_AGENT,
    Role.GATEWAY: scheduler_pb2.ROLE_GATEWAY,
    Role.WORKER: scheduler_pb2.ROLE_WORKER,
}


def timestamp(at: Instant | None) -> Timestamp | None:
    """An instant on the wire; None stays absent."""
    if at is None:
        return None
    return Timestamp(seconds=at // 1_000_000, nanos=at % 1_000_000 * 1000)


def duration(span: Span | None) -> Duration | None:
    """A span on the wire; None stays absent."""
    if span is None:
        return None
    return Duration(seconds=span // 1_000_000, nanos=span % 1_000_000 * 1000)


def state_of(job: Job) -> job_pb2.JobState.ValueType:
    """The state on the wire."""
    match job.state:
        case Queued() | Deferred():
            return job_pb2.JOB_STATE_QUEUED
        case Held():
            return job_pb2.JOB_STATE_HELD
        case Starting():
            return job_pb2.JOB_STATE_STARTING
        case Running():
            return job_pb2.JOB_STATE_RUNNING
        case Stopping():
            return job_pb2.JOB_STATE_STOPPING
        case Finished(outcome=outcome):
            return OUTCOMES[outcome]


CONDITIONS = {
    EndWanted.OK: job_pb2.DEPENDENCY_CONDITION_OK,
    EndWanted.ANY: job_pb2.DEPENDENCY_CONDITION_ANY,
    EndWanted.FAIL: job_pb2.DEPENDENCY_CONDITION_FAIL,
}


def spec_proto(spec: JobSpec, *, omit_env: bool = False) -> job_pb2.JobSpec:
    """What was asked for, with every default filled in."""
    resources = spec.resources
    message = job_pb2.JobSpec(
        argv=spec.argv,
        name=spec.name,
        cpus=resources.cpus,
        memory_bytes=resources.memory_bytes,
        pins=[job_pb2.NodePins(node=pins.node, device_indices=pins.indices) for pins in resources.pins],
        nodelist=resources.nodelist,
        exclude=resources.exclude,
        node_labels=dict(resources.node_labels),
        time_limit=duration(spec.time_limit),
        grace=duration(spec.grace),
        no_requeue=not spec.is_requeueable,
        requeue_fence=duration(spec.requeue_fence),
        env={} if omit_env else dict(spec.env),
        cwd=spec.cwd,
        labels=dict(spec.labels),
        trace_context=spec.trace_context,
        begin_time=None if spec.begin_at is None else timestamp(spec.begin_at),
        after=[job_pb2.Dependency(job_id=each.job, condition=CONDITIONS[each.wanted]) for each in spec.after],
        queue_timeout=duration(spec.queue_timeout),
        retries=spec.retries,
        blame_limit=spec.blame_limit or 0,
        no_gpu_selection=resources.ignores_telemetry,
        gpu_mode=job_pb2.GPU_MODE_REQUIRED,
        kind=job_pb2.JOB_KIND_BATCH,
        input=INPUT_MODES[spec.input],
    )
    if resources.gpus:
        message.devices.add(
            count=resources.gpus,
            min_memory_bytes=resources.min_memory_bytes or 0,
            models=resources.models,
            allow_busy=resources.allow_busy,
        )
    return message


def exit_proto(exit_: ExitStatus | None) -> job_pb2.ExitStatus | None:
    """An exit status on the wire; None stays absent."""
    match exit_:
        case ExitCode(code=code):
            return job_pb2.ExitStatus(code=code)
        case ExitSignal(signal=number):
            return job_pb2.ExitStatus(signal=number)
        case None:
            return None


def _end_proto(end: OutputEnd) -> job_pb2.OutputEnd:
    return job_pb2.OutputEnd(
        rank=end.rank, stream=job_pb2.Stream.ValueType(end.stream), end_offset=end.end_offset, was_cut=end.was_cut
    )


def _rank_proto(number: int, placement: Placement) -> job_pb2.PlacedRank:
    return job_pb2.PlacedRank(
        rank=number,
        node=placement.node,
        device_indices=[device.index for device in placement.devices],
        device_uuids=[device.uuid for device in placement.devices],
        cpus=placement.cpus,
        memory_bytes=placement.memory_bytes,
    )


def _gpu_info(ranks: Iterable[Rank]) -> job_pb2.GpuInfo | None:
    placements = [rank.placement for rank in ranks]
    devices = [
        job_pb2.PlacedDevice(
            node=placement.node,
            index=device.index,
            uuid=device.uuid,
            name=device.name,
            memory_free_mb=None if device.memory_free_bytes is None else device.memory_free_bytes // MB,
            utilization_percent=device.utilization_percent,
            availability_score=None if device.score is None else round(device.score, 4),
        )
        for placement in placements
        for device in placement.devices
    ]
    if not devices:
        return None
    return job_pb2.GpuInfo(count=len(devices), allocation_method=placements[0].method.value, devices=devices)


def _attempt_proto(attempt: Attempt | EndedAttempt) -> job_pb2.Attempt:
    exits = [rank.exit for rank in attempt.ranks if rank.exit is not None]
    starts = [rank.started_at for rank in attempt.ranks]
    deciding = next((each for each in exits if each.exit != ExitCode(code=0)), exits[0] if exits else None)
    message = job_pb2.Attempt(
        number=attempt.number,
        ranks=[_rank_proto(number, rank.placement) for number, rank in enumerate(attempt.ranks)],
        place_time=timestamp(attempt.placed_at),
        start_time=timestamp(max(each for each in starts if each is not None)) if all(starts) else None,
        exit=exit_proto(deciding.exit) if deciding is not None else None,
        output_ends=[_end_proto(end) for each in exits for end in each.output_ends],
        gpu_info=_gpu_info(attempt.ranks),
        cpu_seconds=sum(each.cpu_seconds for each in exits),
        memory_bytes_max=max((each.memory_bytes_max for each in exits), default=0),
    )
    if isinstance(attempt, EndedAttempt):
        message.end_time.CopyFrom(timestamp(attempt.ended_at) or Timestamp())
        message.exit_reason = attempt.reason
        message.exit_message = attempt.message
        message.output_is_complete = attempt.output_is_complete
    else:
        message.is_unreachable = attempt.is_unreachable
    return message


def job_proto(job: Job, *, position: int = 0, omit_env: bool = False) -> job_pb2.Job:
    """A job on the wire."""
    attempts = [_attempt_proto(ended) for ended in job.past]
    if job.attempt is not None:
        attempts.append(_attempt_proto(job.attempt))
    message = job_pb2.Job(
        id=job.id,
        user=job.user,
        spec=spec_proto(job.spec, omit_env=omit_env),
        state=state_of(job),
        submit_time=timestamp(job.submitted_at),
        attempts=attempts,
        attempt_count=job.attempt_count,
        queue_position=position,
        version=job.version,
        requeue_count=job.requeue_count,
        retries_used=job.retries_used,
    )
    message.spec.band = job_pb2.Band.ValueType(job.band)
    message.spec.is_held = isinstance(job.state, Held)
    if attempts and attempts[-1].HasField("start_time") and not isinstance(job.state, Queued | Deferred | Held):
        message.start_time.CopyFrom(attempts[-1].start_time)
    if isinstance(job.state, Finished):
        finished = job.state
        message.end_time.CopyFrom(timestamp(finished.at) or Timestamp())
        message.exit_reason = finished.reason
        message.exit_message = finished.message
        message.output_is_complete = attempts[-1].output_is_complete if attempts else True
        exit_ = exit_proto(finished.exit)
        if exit_ is not None:
            message.exit.CopyFrom(exit_)
    return message


def explanation_proto(explanation: Explanation) -> job_pb2.Explanation:
    """An explanation on the wire."""
    return job_pb2.Explanation(
        reason=job_pb2.WaitReason(reason=explanation.reason, sentence=explanation.sentence),
        nodes=[
            job_pb2.NodeVerdict(
                node=verdict.node,
                fits=verdict.miss is None,
                reason="" if verdict.miss is None else verdict.miss.reason,
                sentence="could take it" if verdict.miss is None else verdict.miss.clause,
            )
            for verdict in explanation.nodes
        ],
        ahead_job_ids=explanation.ahead,
        ahead_count=explanation.ahead_count,
        bound_sentence=explanation.bound_sentence,
    )


def story_line(stored: StoredRecord) -> job_pb2.StoryLine:
    """A line of a job's story."""
    return job_pb2.StoryLine(
        sequence=stored.sequence,
        time=timestamp(stored.at),
        kind=type(stored.record).__name__,
        sentence=sentence(stored.record),
    )


def device_proto(device: Device, unhealthy_reason: str = "") -> node_pb2.Device:
    """A device's facts on the wire."""
    return node_pb2.Device(
        uuid=device.uuid,
        index=device.index,
        name=device.name,
        memory_bytes=device.memory_bytes,
        pci_bus_id=device.pci_bus_id,
        is_virtual=device.is_virtual,
        is_healthy=not unhealthy_reason,
        unhealthy_reason=unhealthy_reason,
    )


def sample_proto(sample: DeviceSample, now: Instant) -> node_pb2.DeviceSample:
    """A sample on the wire; what is None stays absent."""
    return node_pb2.DeviceSample(
        uuid=sample.uuid,
        age=duration(Span(max(0, now - sample.taken_at))),
        utilization_percent=sample.utilization_percent,
        memory_used_bytes=sample.memory_used_bytes,
        memory_free_bytes=sample.memory_free_bytes,
        temperature_c=sample.temperature_c,
        power_mw=sample.power_mw,
        power_limit_mw=sample.power_limit_mw,
        processes=[
            node_pb2.DeviceProcess(pid=each.pid, memory_bytes=each.memory_bytes, is_foreign=each.is_foreign)
            for each in sample.processes
        ],
        processes_are_known=sample.processes_are_known,
        is_healthy=sample.is_healthy,
        unhealthy_reason=sample.unhealthy_reason,
    )


def info_proto(info: NodeInfo) -> node_pb2.NodeInfo:
    """What an agent said of its machine."""
    return node_pb2.NodeInfo(
        hostname=info.hostname,
        cpus=info.cpus,
        memory_bytes=info.memory_bytes,
        devices=[device_proto(device) for device in info.devices],
        driver_version=info.driver_version,
        cuda_version=info.cuda_version,
        agent_version=info.agent_version,
        python_version=info.python_version,
        platform=info.platform,
        labels=dict(info.labels),
        provider=info.provider,
        advertise_address=info.advertise_address,
        devices_note=info.devices_note,
        torch_version=info.torch_version,
        cuda_runtime_version=info.cuda_runtime_version,
        open_files_max=info.open_files_max,
    )


def node_state(node: Node, live: NodeLive | None) -> node_pb2.NodeState.ValueType:
    """The state on the wire."""
    if node.is_lost or (live is not None and live.reach is Reach.LOST):
        return node_pb2.NODE_STATE_LOST
    if live is None or live.reach is Reach.SUSPECT or not live.is_connected:
        return node_pb2.NODE_STATE_SUSPECT
    return node_pb2.NODE_STATE_DRAINING if node.is_draining else node_pb2.NODE_STATE_READY


def node_proto(view: NodeView, live: NodeLive | None, jobs: list[JobId], now: Instant) -> node_pb2.Node:
    """A node with its devices and what holds them."""
    node = view.node
    unhealthy = {device.uuid: device.reason for device in node.unhealthy}
    return node_pb2.Node(
        name=node.name,
        state=node_state(node, live),
        info=info_proto(node.info),
        devices=[_node_device(free, view, unhealthy.get(free.device.uuid, ""), now) for free in view.devices],
        address=node.address,
        register_time=timestamp(node.registered_at),
        last_heard_time=timestamp(live.heard_at) if live is not None and live.stream else None,
        is_draining=node.is_draining,
        drain_reason=node.drain_reason,
        cpus_used=node.info.cpus - view.cpus,
        memory_used_bytes=node.info.memory_bytes - view.memory_bytes,
        job_ids=jobs,
        version=node.version,
        is_connected=live is not None and live.is_connected,
        spool_free_bytes=live.spool_free_bytes if live is not None else None,
    )


def _node_device(free: FreeDevice, view: NodeView, unhealthy: str, now: Instant) -> node_pb2.NodeDevice:
    return node_pb2.NodeDevice(
        device=device_proto(free.device, unhealthy),
        sample=None if free.sample is None else sample_proto(free.sample, now),
        job_id=free.held_by or 0,
        availability_score=None if free.score is None else round(free.score, 4),
        is_free=view.miss is None and free.miss is None and free.held_by is None and not free.has_foreign_process,
    )


def token_proto(token: Token) -> scheduler_pb2.Token:
    """A token without its secret."""
    return scheduler_pb2.Token(
        id=token.id,
        user=token.user,
        role=ROLES[token.role],
        create_time=timestamp(token.created_at),
        expire_time=timestamp(token.expires_at),
        is_revoked=token.revoked_at is not None,
        note=token.note,
    )


def key_proto(key: RankKey) -> node_agent_pb2.AttemptKey:
    """A rank's key on the wire."""
    return node_agent_pb2.AttemptKey(job_id=key.job, attempt=key.attempt, rank=key.rank)


def command_proto(command: Command) -> node_agent_pb2.HeartbeatResponse:
    """A command on the wire; the link adds term and sequence."""
    if isinstance(command, ClearTroubles):
        return node_agent_pb2.HeartbeatResponse(clear_troubles=node_agent_pb2.ClearTroubles())
    key = key_proto(command.key)
    match command:
        case LaunchAttempt():
            return node_agent_pb2.HeartbeatResponse(launch=_launch_proto(command, key))
        case StopAttempt(cause=cause, grace=grace):
            stop = node_agent_pb2.Stop(key=key, cause=STOP_CAUSES[cause], grace=duration(grace))
            return node_agent_pb2.HeartbeatResponse(stop=stop)
        case KillAttempt():
            return node_agent_pb2.HeartbeatResponse(kill=node_agent_pb2.Kill(key=key))
        case KeepAttempt():
            return node_agent_pb2.HeartbeatResponse(keep=node_agent_pb2.Keep(key=key))
        case ForgetAttempt():
            return node_agent_pb2.HeartbeatResponse(forget=node_agent_pb2.Forget(key=key))
        case SignalAttempt(signal=number):
            send = node_agent_pb2.SendSignal(key=key, signal=number)
            return node_agent_pb2.HeartbeatResponse(send_signal=send)


def _launch_proto(command: LaunchAttempt, key: node_agent_pb2.AttemptKey) -> node_agent_pb2.Launch:
    spec = command.spec
    return node_agent_pb2.Launch(
        key=key,
        argv=spec.argv,
        env=dict(spec.env),
        cwd=spec.cwd,
        device_uuids=[device.uuid for device in command.placement.devices],
        cpus=command.placement.cpus,
        memory_bytes=command.placement.memory_bytes,
        time_limit=duration(spec.time_limit),
        grace=duration(spec.grace),
        fence=duration(command.fence),
        expected_free_memory_bytes=0 if spec.resources.ignores_telemetry else command.min_memory_bytes,
        allow_busy=spec.resources.allow_busy,
        user=command.user,
        trace_context=spec.trace_context,
        node_count=1,
        input=INPUT_MODES[spec.input if command.key.rank == 0 else None],
    )
