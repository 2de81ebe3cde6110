"""Jobs, their attempts, stories and explanations, as protos."""

from collections.abc import Iterable

from google.protobuf.timestamp_pb2 import Timestamp
from gpufleet.v1 import job_pb2

from gpufleet.jobs.run_protos import INPUT_MODES, exit_to_proto, runs_to_proto
from gpufleet.jobs.runs import ExitCode

from ..core.story import sentence
from ..policy.explain import Explanation, WaitReason
from ..policy.forecast import Bound, Estimate
from ..policy.ranges import helps
from ..policy.summary import summary
from ..ports import StoredRecord
from ..state.attempts import Attempt, EndedAttempt, OutputEnd, Rank
from ..state.jobs import Deferred, Divided, Finished, Held, Job, Queued, Running, Starting, Stopping
from ..state.kept import KeptCopy
from ..state.shares import DeviceShare
from ..state.specs import EndWanted, GpuMode, JobSpec, Outcome
from ..state.units import MB
from ..state.warnings import JobWarning
from .container import container_proto
from .convert import duration, numbers_of, timestamp
from .gpu_choice import MODES, gpu_choice_proto
from .input_files import input_files_proto
from .input_folder import input_folder_proto
from .job_environment import job_environment_proto
from .job_inputs import job_inputs_proto
from .limit_rules import limit_signal_proto
from .process_settings import process_settings_proto
from .secret_fields import secrets_proto

OUTCOMES = numbers_of(Outcome, job_pb2.JobState.Value, "JOB_STATE")
SPECS_KEPT_MAX = 1_000
"""Specs whose messages are kept: a page of the longest that there is."""
CONDITIONS = numbers_of(EndWanted, job_pb2.DependencyCondition.Value, "DEPENDENCY_CONDITION")


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
        case Divided(rest=Held()):
            return job_pb2.JOB_STATE_HELD
        case Divided():
            return job_pb2.JOB_STATE_RUNNING
        case Finished(outcome=outcome):
            return OUTCOMES[outcome]


def spec_proto(spec: JobSpec, *, omit_env: bool = False) -> job_pb2.JobSpec:
    """What was asked for, with every default filled in."""
    resources, choice = spec.resources_asked, spec.gpu_choice
    # `or None`: most jobs have none of these, and to fill in an empty list or map takes as long as five plain fields.
    message = job_pb2.JobSpec(
        argv=spec.argv,
        name=spec.name,
        cpus=resources.cpus,
        memory_bytes=resources.memory_bytes,
        pins=[job_pb2.NodePins(node=pins.node, device_indices=pins.indices) for pins in resources.pins] or None,
        nodelist=resources.nodelist or None,
        exclude=resources.exclude or None,
        node_labels=dict(resources.node_labels) or None,
        time_limit=duration(spec.time_limit),
        grace=duration(spec.grace),
        no_requeue=not spec.is_requeueable,
        requeue_fence=duration(spec.requeue_fence),
        env=None if omit_env else dict(spec.env) or None,
        cwd=spec.cwd,
        labels=dict(spec.labels) or None,
        trace_context=spec.trace_context,
        begin_time=None if spec.begin_at is None else timestamp(spec.begin_at),
        after=[job_pb2.Dependency(job_id=each.job, condition=CONDITIONS[each.wanted]) for each in spec.after] or None,
        queue_timeout=duration(spec.queue_timeout),
        sampling_interval=duration(spec.sampling),
        retries=spec.retries,
        blame_limit=spec.blame_limit or 0,
        is_preemptible=spec.is_preemptible,
        notify=spec.notify,
        no_warnings=spec.no_warnings,
        submit_cwd=spec.submit_cwd,
        limit_signal=limit_signal_proto(spec.limit_signal),
        requeue_on_timeout=spec.is_requeued_on_timeout,
        output_file=spec.output_file,
        process=process_settings_proto(spec.process),
        files=input_files_proto(spec.files),
        folder=input_folder_proto(spec.folder),
        results=spec.results or None,
        keep=spec.keep or None,
        inputs=job_inputs_proto(spec.inputs),
        environment=job_environment_proto(spec.environment),
        secrets=secrets_proto(spec.secrets),
        container=container_proto(spec.container),
        no_gpu_selection=resources.ignores_telemetry,
        node_count=resources.node_count,
        no_span=resources.no_span,
        gpu_mode=MODES[GpuMode.REQUIRED if choice is None else choice.asked],
        content_type="" if choice is None else choice.content_type,
        cpu_argv=None if choice is None else choice.cpu_argv or None,
        kind=job_pb2.JOB_KIND_SERVICE if spec.serves else job_pb2.JOB_KIND_BATCH,
        serves=spec.serves,
        input=INPUT_MODES[spec.input],
    )
    if resources.gpus:
        several = resources.node_count > 1 and not resources.pins
        message.devices.add(
            count=resources.gpus,
            per_node_count=resources.gpus // resources.node_count if several else 0,
            min_memory_bytes=resources.min_memory_bytes or 0,
            models=resources.models,
            allow_busy=resources.allow_busy,
            share=share_proto(DeviceShare(resources.share_milli, resources.min_memory_bytes or 0)),
        )
    return message


class _SpecMessages:
    """Messages of specs without their variables, kept: lists of jobs are asked for again and again.

    Found by the identity of the spec, which is kept along: to hash one takes as long as to make its message.
    """

    def __init__(self) -> None:
        self._kept: dict[int, tuple[JobSpec, job_pb2.JobSpec]] = {}

    def of(self, spec: JobSpec) -> job_pb2.JobSpec:
        """The message, for whoever copies it."""
        found = self._kept.get(id(spec))
        if found is None:
            if len(self._kept) == SPECS_KEPT_MAX:
                del self._kept[next(iter(self._kept))]
            found = self._kept[id(spec)] = spec, spec_proto(spec, omit_env=True)
        return found[1]


_SPEC_MESSAGES = _SpecMessages()


def share_proto(share: DeviceShare | None) -> job_pb2.DeviceShare | None:
    """A share of a device on the wire; that of a whole one is absent."""
    if share is None or not share.milli:
        return None
    return job_pb2.DeviceShare(milli=share.milli, memory_bytes=share.memory_bytes)


def _end_proto(end: OutputEnd) -> job_pb2.OutputEnd:
    return job_pb2.OutputEnd(
        rank=end.rank, stream=job_pb2.Stream.ValueType(end.stream), end_offset=end.end_offset, was_cut=end.was_cut
    )


def _rank_proto(number: int, rank: Rank) -> job_pb2.PlacedRank:
    placement, ended = rank.placement, rank.exit
    return job_pb2.PlacedRank(
        rank=number,
        node=placement.node,
        device_indices=[device.index for device in placement.devices],
        device_uuids=[device.uuid for device in placement.devices],
        cpus=placement.cpus,
        memory_bytes=placement.memory_bytes,
        start_time=timestamp(rank.started_at),
        exit=exit_to_proto(ended.exit) if ended is not None else None,
        exit_reason=ended.reason if ended is not None else "",
        exit_message=ended.message if ended is not None else "",
        stop_cause=ended.stop_cause.value if ended is not None and ended.stop_cause is not None else "",
        file_runs=runs_to_proto(rank.file_runs),
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
            share=share_proto(device.share),
        )
        for placement in placements
        for device in placement.devices
    ]
    if not devices:
        return None
    are_many = len(placements) > 1
    return job_pb2.GpuInfo(
        count=len(devices),
        allocation_method=placements[0].method.value,
        devices=devices,
        indices=[f"{each.node}:{each.index}" if are_many else str(each.index) for each in devices],
        uuids=[each.uuid for each in devices],
    )


def _attempt_proto(attempt: Attempt | EndedAttempt) -> job_pb2.Attempt:
    exits = [rank.exit for rank in attempt.ranks if rank.exit is not None]
    starts = [rank.started_at for rank in attempt.ranks]
    deciding = next((each for each in exits if each.exit != ExitCode(code=0)), exits[0] if exits else None)
    if isinstance(attempt, EndedAttempt):
        deciding = attempt.ranks[attempt.deciding_rank].exit
    message = job_pb2.Attempt(
        number=attempt.number,
        ranks=[_rank_proto(number, rank) for number, rank in enumerate(attempt.ranks)],
        place_time=timestamp(attempt.placed_at),
        start_time=timestamp(max(each for each in starts if each is not None)) if all(starts) else None,
        exit=exit_to_proto(deciding.exit) if deciding is not None else None,
        output_ends=[_end_proto(end) for each in exits for end in each.output_ends],
        gpu_info=_gpu_info(attempt.ranks),
        cpu_seconds=sum(each.cpu_seconds for each in exits),
        memory_bytes_max=max((each.memory_bytes_max for each in exits), default=0),
        lineage=attempt.lineage,
        slot_job_id=0 if attempt.slot is None else attempt.slot.job,
        slot_attempt=0 if attempt.slot is None else attempt.slot.attempt,
    )
    if isinstance(attempt, EndedAttempt):
        message.end_time.CopyFrom(timestamp(attempt.ended_at) or Timestamp())
        message.exit_reason = attempt.reason
        message.exit_message = attempt.message
        message.output_is_complete = attempt.output_is_complete
    else:
        message.is_unreachable = attempt.is_unreachable
        message.is_asked_back = attempt.is_asked_back
    return message


def job_proto(job: Job, *, position: int = 0, omit_env: bool = False) -> job_pb2.Job:
    """A job on the wire."""
    attempts = [_attempt_proto(ended) for ended in job.past]
    if job.attempt is not None:
        attempts.append(_attempt_proto(job.attempt))
    message = job_pb2.Job(
        id=job.id,
        user=job.user,
        spec=_SPEC_MESSAGES.of(job.spec),
        state=state_of(job),
        submit_time=timestamp(job.submitted_at),
        attempts=attempts or None,
        attempt_count=job.attempt_count,
        run_count=job.run_count,
        model_revision=job.revision,
        replaces_job_id=job.replaces or 0,
        queue_position=position,
        version=job.version,
        requeue_count=job.requeue_count,
        retries_used=job.retries_used,
        array_id=job.array or 0,
        warnings=[_warning_proto(each) for each in job.warnings] or None,
        gpu_choice=gpu_choice_proto(job),
        kept=[_kept_proto(each) for each in job.kept] or None,
    )
    if job.spec.env and not omit_env:
        message.spec.env.update(job.spec.env)
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
        exit_ = exit_to_proto(finished.exit)
        if exit_ is not None:
            message.exit.CopyFrom(exit_)
    return message


def _kept_proto(copy: KeptCopy) -> job_pb2.KeptFiles:
    return job_pb2.KeptFiles(
        rank=copy.rank,
        attempt=copy.attempt,
        store_time=timestamp(copy.given_at),
        file_count=copy.folder.entry_count,
        size_bytes=copy.folder.content_bytes,
    )


def _warning_proto(warning: JobWarning) -> job_pb2.JobWarning:
    return job_pb2.JobWarning(
        kind=warning.kind.value,
        sentence=warning.sentence,
        time=timestamp(warning.at),
        attempt=warning.attempt,
    )


def add_times(message: job_pb2.Job, estimate: Estimate | None, bound: Bound | None) -> None:
    """Say when a job that waits starts, as expected, likely and at the latest, or why nobody can say."""
    likely = None if estimate is None else estimate.likely
    if estimate is not None:
        message.MergeFrom(job_pb2.Job(estimated_start_time=timestamp(estimate.at), estimate_sentence=estimate.sentence))
    if likely is not None:
        earliest, latest = timestamp(likely.earliest), timestamp(likely.latest)
        message.MergeFrom(job_pb2.Job(likely_earliest_start_time=earliest, likely_latest_start_time=latest))
    if bound is not None and (estimate is None or helps(bound.at, likely, estimate.made_at)):
        message.MergeFrom(job_pb2.Job(latest_start_time=timestamp(bound.at), bound_sentence=bound.sentence))


def wait_reason_proto(job: Job, reason: WaitReason) -> job_pb2.WaitReason:
    """Why a job waits, as its message says it."""
    return job_pb2.WaitReason(reason=reason.name, sentence=reason.clause, summary=summary(job, reason))


def explanation_proto(explanation: Explanation) -> job_pb2.Explanation:
    """An explanation on the wire."""
    likely = explanation.likely
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
        estimated_start_time=timestamp(explanation.estimated_start),
        latest_start_time=timestamp(explanation.latest_start),
        likely_earliest_start_time=None if likely is None else timestamp(likely.earliest),
        likely_latest_start_time=None if likely is None else timestamp(likely.latest),
        bound_sentence=explanation.bound_sentence,
        nearest_change=explanation.nearest_change,
        estimate_sentence=explanation.estimate_sentence,
    )


def story_line(stored: StoredRecord) -> job_pb2.StoryLine:
    """A line of a job's story."""
    return job_pb2.StoryLine(
        sequence=stored.sequence,
        time=timestamp(stored.at),
        kind=type(stored.record).__name__,
        sentence=sentence(stored.record),
    )
