"""Between the messages of the contract and the agent's values: the only module that knows both.
The key of a rank, why it is stopped and what it can be typed to through are everybody's: `gpufleet.jobs.run_protos`.

Ages and spans are what goes up, never times: the clocks of two machines are not comparable.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any

from google.protobuf.duration_pb2 import Duration
from gpufleet.v1 import job_pb2, node_agent_pb2, node_pb2

from gpufleet.jobs.run_protos import (
    INPUT_MODE_OF,
    STOP_CAUSE_OF,
    STOP_CAUSES,
    exit_to_proto,
    key_from_proto,
    key_to_proto,
    runs_to_proto,
)
from gpufleet.jobs.runs import DEFAULT_GRACE_US, ExitCode, ExitSignal, FileRun, InputMode, NodeCause, RankKey, StopCause
from gpufleet.net.limits import MESSAGE_BYTES_MAX
from gpufleet.text.units import format_size

from .core import commands, inventory
from .core.adoption import Verdict
from .core.attempt import Limits
from .core.expectations import Expectations
from .core.launch import (
    ContainerAsked,
    EnvironmentTool,
    InputFile,
    InputFolder,
    JobEnvironment,
    JobInput,
    Mount,
    Process,
)
from .core.notices import Failure
from .core.outcome import AttemptEnd, AttemptView, FullReason, Shortage, Stream
from .core.refusals import RefusalKind, kind_of
from .core.typed import COLUMNS, ROWS
from .origins import origin_of

STREAMS = {Stream.STDOUT: job_pb2.STREAM_STDOUT, Stream.STDERR: job_pb2.STREAM_STDERR}
STREAMS_BY_NUMBER = {number: stream for stream, number in STREAMS.items()}

FORGOTTEN_BYTES_MAX = MESSAGE_BYTES_MAX // 2
"""Of forgotten attempts the newest are told that fit into so much; the rest of an inventory needs less."""

_FULL = {
    FullReason.BOUND: "as much output as a node keeps of one attempt waits to be stored",
    FullReason.DISK_FULL: "the disk of the node's spool is full",
}

EXIT_UNKNOWN = "EXIT_UNKNOWN"
OUT_OF_MEMORY = "OUT_OF_MEMORY"


REFUSAL_KINDS = {
    RefusalKind.REQUEST: node_agent_pb2.REFUSAL_KIND_REQUEST,
    RefusalKind.JOB_HERE: node_agent_pb2.REFUSAL_KIND_JOB_HERE,
    RefusalKind.JOB_NOW: node_agent_pb2.REFUSAL_KIND_JOB_NOW,
    RefusalKind.DEVICES: node_agent_pb2.REFUSAL_KIND_DEVICES,
    RefusalKind.NODE: node_agent_pb2.REFUSAL_KIND_NODE,
    RefusalKind.NOBODY: node_agent_pb2.REFUSAL_KIND_NOBODY,
}


def duration(span_us: int) -> Duration:
    span = Duration()
    span.FromMicroseconds(max(0, span_us))
    return span


def command_from_proto(message: node_agent_pb2.HeartbeatResponse) -> commands.Command | None:
    """The command of a message down, None for a bare acknowledgement; ValueError when it makes no sense."""
    name = message.WhichOneof("command")
    match name:
        case None:
            return None
        case "launch":
            return _launch(message.launch)
        case "prepare":
            return commands.PrepareAttempt(_launch(message.prepare.launch))
        case "start":
            start = message.start
            return commands.StartAttempt(key_from_proto(start.key), start.master_address, start.master_port)
        case "abort":
            return commands.AbortAttempt(key_from_proto(message.abort.key))
        case "take_back":
            return commands.TakeBack(key_from_proto(message.take_back.key))
        case "stop":
            return _stop(message.stop)
        case "send_signal":
            return commands.SignalAttempt(key_from_proto(message.send_signal.key), message.send_signal.signal)
        case "set_time_limit":
            limited = message.set_time_limit
            limit_us = limited.time_limit.ToMicroseconds() if limited.HasField("time_limit") else None
            return commands.SetTimeLimit(key_from_proto(limited.key), limit_us)
        case "keep":
            return commands.JudgeAttempt(key_from_proto(message.keep.key), Verdict.KEEP)
        case "kill":
            return commands.JudgeAttempt(key_from_proto(message.kill.key), Verdict.KILL)
        case "forget":
            return commands.JudgeAttempt(key_from_proto(message.forget.key), Verdict.FORGET)
        case "refresh_samples":
            return commands.RefreshSamples()
        case "clear_troubles":
            return commands.ClearTroubles(tuple(message.clear_troubles.device_uuids))
        case "read_program_log":
            return _read_log(message.read_program_log)
        case "read_setup_output":
            wanted_output = message.read_setup_output
            return commands.ReadSetupOutput(
                wanted_output.request, key_from_proto(wanted_output.key), wanted_output.offset
            )
        case "check_files":
            asked = message.check_files
            return commands.CheckFiles(
                request=asked.request,
                root=asked.root,
                probe=asked.probe,
                digest=asked.digest,
                size_bytes=asked.size_bytes,
                user=asked.user,
                paths=tuple(asked.paths),
                by_wire=asked.by_wire,
            )
        case "set_log_level":
            return commands.SetLogLevel(message.set_log_level.level)
        case "tell_warning":
            told = message.tell_warning
            return commands.TellWarning(
                key=key_from_proto(told.key), number=told.number, kind=told.kind, sentence=told.sentence
            )
        case "open_port":
            port = message.open_port
            return commands.OpenPort(port.channel_id, key_from_proto(port.key), port.port)
        case "open_exec":
            return _exec_from(message.open_exec)
        case "open_files":
            files = message.open_files
            lines = tuple(files.results)
            return commands.OpenFiles(
                files.channel_id, key_from_proto(files.key), files.user, files.only_results, lines
            )
        case "close_channel":
            return commands.CloseChannel(message.close_channel.channel_id)
        case "open_channel":
            wanted = message.open_channel
            return commands.OpenChannel(wanted.channel_id, key_from_proto(wanted.key), wanted.writer)
        case _:
            return commands.Unknown(name)


def _exec_from(command: node_agent_pb2.OpenExecCommand) -> commands.OpenExec:
    start = command.start
    return commands.OpenExec(
        channel_id=command.channel_id,
        key=key_from_proto(command.key),
        argv=tuple(start.argv),
        input=InputMode.TERMINAL if start.has_terminal else InputMode.PIPE if start.has_input else None,
        columns=start.size.columns or COLUMNS,
        rows=start.size.rows or ROWS,
        terminal_type=start.terminal_type,
    )


def inventory_to_proto(
    entries: Iterable[inventory.Entry],
    boot_id: str,
    info: node_pb2.NodeInfo,
    now_us: int,
    usage_of: Callable[[RankKey], node_agent_pb2.AttemptUsage | None] = lambda key: None,
    runs_of: Callable[[RankKey], tuple[FileRun, ...]] = lambda key: (),
    forgotten: Iterable[AttemptView] | None = None,
) -> node_agent_pb2.Inventory:
    """Everything that the node knows; `usage_of` tells what a rank used that has ended, `runs_of` how files came.

    Where the scheduler asks for all, `forgotten` are those of which only tombstones are left, the newest first, and
    origins are told.
    """
    entries = tuple(entries)
    told = [_entry(entry, now_us, usage_of, runs_of) for entry in entries]
    if forgotten is not None:
        for message, entry in zip(told, entries, strict=True):
            message.origin = origin_of(entry.note) if isinstance(entry, AttemptView) else ""
        told += _forgotten(forgotten, {entry.key for entry in entries}, now_us, usage_of)
    return node_agent_pb2.Inventory(entries=told, boot_id=boot_id, info=info)


def started_to_proto(view: AttemptView, now_us: int, runs: Iterable[FileRun] = ()) -> node_agent_pb2.AttemptStarted:
    return node_agent_pb2.AttemptStarted(
        key=key_to_proto(view.key),
        pid=view.pid or 0,
        age=duration(now_us - (view.started_us or now_us)),
        file_runs=runs_to_proto(runs),
    )


def exited_to_proto(
    view: AttemptView, now_us: int, usage: node_agent_pb2.AttemptUsage | None = None
) -> node_agent_pb2.AttemptExited:
    """The end of a rank, with its start; `view.end` is set."""
    end = view.end
    assert end is not None
    report = node_agent_pb2.AttemptExited(
        key=key_to_proto(view.key),
        exit=exit_to_proto(end.status),
        reason=_reason(end),
        message=sentence_of_end(end),
        output_ends=[
            job_pb2.OutputEnd(
                rank=view.key.rank,
                stream=STREAMS[stream],
                end_offset=end.output_ends.of(stream),
                was_cut=stream in end.streams_cut,
            )
            for stream in Stream
        ],
        output_is_complete=end.loss is None and not end.streams_lost,
        # Of a container nobody says at its end what it used in all: then it is what was read of it.
        cpu_seconds=end.cpu_us / 1e6 or (0.0 if usage is None else usage.processes.cpu_seconds),
        memory_bytes_max=end.max_rss_bytes or (0 if usage is None else round(usage.processes.memory_bytes.max)),
        usage=usage,
        is_blameless=end.is_blameless,
    )
    if isinstance(end.stop_cause, StopCause):
        report.stop_cause = STOP_CAUSES[end.stop_cause]
    if view.started_us is not None and inventory.has_run(view):
        report.started_ago.CopyFrom(duration(max(0, now_us - view.started_us)))
    return report


def reason_and_sentence_of(end: AttemptEnd) -> tuple[str, str]:
    """An end in the words that the scheduler hears: a stable reason, and a sentence for people."""
    return _reason(end), sentence_of_end(end)


def setup_to_proto(key: RankKey, message: str, *, is_ready: bool, image: str = "") -> node_agent_pb2.SetupState:
    """How far the environment of a rank is, or this image for it."""
    phase = node_agent_pb2.SETUP_PHASE_READY if is_ready else node_agent_pb2.SETUP_PHASE_MAKING
    return node_agent_pb2.SetupState(key=key_to_proto(key), phase=phase, message=message, image=image)


def notice_failed_to_proto(key: RankKey, failure: Failure) -> node_agent_pb2.NoticeFailed:
    return node_agent_pb2.NoticeFailed(
        key=key_to_proto(key), number=failure.number, notice=failure.notice, message=failure.message
    )


def spool_to_proto(view: AttemptView) -> node_agent_pb2.SpoolState:
    sentence = _FULL[view.full] if view.full else ""
    return node_agent_pb2.SpoolState(key=key_to_proto(view.key), is_full=view.full is not None, message=sentence)


def ready_to_proto(prepared: inventory.Prepared) -> node_agent_pb2.RankReady:
    return node_agent_pb2.RankReady(key=key_to_proto(prepared.key), master_port=prepared.master_port)


def refused_to_proto(
    refused: inventory.Refused, samples: Iterable[node_pb2.DeviceSample] = ()
) -> node_agent_pb2.LaunchRefused:
    return node_agent_pb2.LaunchRefused(
        key=key_to_proto(refused.key),
        reason=refused.reason,
        message=refused.sentence,
        samples=samples,
        kind=REFUSAL_KINDS[kind_of(refused.reason)],
    )


def _entry(
    entry: inventory.Entry,
    now_us: int,
    usage_of: Callable[[RankKey], node_agent_pb2.AttemptUsage | None],
    runs_of: Callable[[RankKey], tuple[FileRun, ...]],
) -> node_agent_pb2.InventoryEntry:
    key = key_to_proto(entry.key)
    match entry:
        case inventory.Checking() | inventory.Prepared() | inventory.InBacklog():
            limit_us = (
                entry.time_limit_us
                if isinstance(entry, inventory.Checking)
                else entry.launch.process.limits.time_limit_us
            )
            return node_agent_pb2.InventoryEntry(
                key=key, phase=node_agent_pb2.ATTEMPT_PHASE_STARTING, time_limit=duration(limit_us or 0)
            )
        case inventory.Refused():
            # The contract has no field of its own for why; reason and message are where an end has them.
            why = node_agent_pb2.AttemptExited(key=key, reason=entry.reason, message=entry.sentence)
            return node_agent_pb2.InventoryEntry(
                key=key,
                phase=node_agent_pb2.ATTEMPT_PHASE_REFUSED,
                exited=why,
                refusal_kind=REFUSAL_KINDS[kind_of(entry.reason)],
            )
        case AttemptView() if entry.end is not None:
            exited = exited_to_proto(entry, now_us, usage_of(entry.key))
            return node_agent_pb2.InventoryEntry(key=key, phase=node_agent_pb2.ATTEMPT_PHASE_EXITED, exited=exited)
        case AttemptView():
            return node_agent_pb2.InventoryEntry(
                key=key,
                phase=node_agent_pb2.ATTEMPT_PHASE_RUNNING,
                run_duration=duration(now_us - (entry.started_us or now_us)),
                output_blocked=_FULL[entry.full] if entry.full else "",
                time_limit=duration(entry.time_limit_us or 0),
                file_runs=runs_to_proto(runs_of(entry.key)),
            )


def _forgotten(
    views: Iterable[AttemptView],
    known: Container[RankKey],
    now_us: int,
    usage_of: Callable[[RankKey], node_agent_pb2.AttemptUsage | None],
) -> Iterator[node_agent_pb2.InventoryEntry]:
    """What is told of those of which only tombstones are left, as many as go into a message."""
    size_bytes = 0
    for view in views:
        if view.key in known or view.end is None:
            continue
        message = _entry(view, now_us, usage_of, lambda key: ())
        message.origin = origin_of(view.note)
        message.is_forgotten = True
        size_bytes += message.ByteSize()
        if size_bytes > FORGOTTEN_BYTES_MAX:
            return
        yield message


def _launch(launch: node_agent_pb2.Launch) -> commands.LaunchAttempt:
    return commands.LaunchAttempt(
        key=key_from_proto(launch.key),
        process=_process(launch),
        expectations=Expectations(
            device_uuids=tuple(launch.device_uuids),
            memory_free_bytes=launch.expected_free_memory_bytes,
            allow_busy=launch.allow_busy,
        ),
        cpus=launch.cpus,
        memory_bytes=launch.memory_bytes,
        user=launch.user,
        trace_context=launch.trace_context,
        node_count=max(1, launch.node_count),
        is_gang=launch.is_gang,
        notify=launch.notify,
        share_milli=launch.share.milli,
        sampling_us=launch.sampling_interval.ToMicroseconds() if launch.HasField("sampling_interval") else None,
        share_memory_bytes=launch.share.memory_bytes,
        serves=launch.serves,
        files=tuple(
            InputFile(
                path=each.path,
                digest=each.digest,
                size_bytes=each.size_bytes,
                is_executable=each.is_executable,
                shared_root=each.shared_root,
                shared_path=each.shared_path,
                is_only_shared=each.is_only_shared,
            )
            for each in launch.files
        ),
        folder=_folder(launch.folder) if launch.HasField("folder") else None,
        results=tuple(launch.results),
        keep=tuple(launch.keep),
        kept=_folder(launch.kept) if launch.HasField("kept") else None,
        inputs=tuple(JobInput(job=each.job_id, pattern=each.pattern, name=each.name) for each in launch.inputs),
        secret_variables=frozenset(launch.secret_variables),
        origin=launch.origin,
        slot=key_from_proto(launch.slot) if launch.HasField("slot") else None,
        run_number=max(0, launch.run_number),
        environment=_environment(launch.environment) if launch.HasField("environment") else None,
        container=_container(launch) if launch.HasField("container") else None,
    )


def _container(launch: node_agent_pb2.Launch) -> ContainerAsked:
    asked = launch.container
    return ContainerAsked(
        image=asked.image,
        mounts=tuple(
            Mount(source=each.source, target=each.target, is_read_only=each.is_read_only) for each in asked.mounts
        ),
        credentials=launch.image_credentials,
    )


def _environment(environment: job_pb2.JobEnvironment) -> JobEnvironment:
    """What makes it."""
    for tool in EnvironmentTool:
        if what := getattr(environment, tool.value):
            return JobEnvironment(tool=tool, what="" if what is True else what)
    return JobEnvironment(tool=None)


def _folder(folder: job_pb2.InputFolder) -> InputFolder:
    return InputFolder(
        digest=folder.digest,
        size_bytes=folder.size_bytes,
        entry_count=folder.entry_count,
        content_bytes=folder.content_bytes,
    )


def _process(launch: node_agent_pb2.Launch) -> Process:
    return Process(
        argv=tuple(launch.argv),
        env=dict(launch.env),
        cwd=launch.cwd,
        limits=Limits(
            grace_us=launch.grace.ToMicroseconds() if launch.HasField("grace") else DEFAULT_GRACE_US,
            time_limit_us=launch.time_limit.ToMicroseconds() if launch.HasField("time_limit") else None,
            fence_us=launch.fence.ToMicroseconds() if launch.HasField("fence") else None,
            **_limit_signal(launch),
        ),
        input=INPUT_MODE_OF.get(launch.input),
        output_file=launch.output_file,
        rlimits={each.name: (each.soft, each.hard) for each in launch.process.rlimits},
        nice=launch.process.nice,
    )


def _limit_signal(launch: node_agent_pb2.Launch) -> dict[str, Any]:
    if not launch.HasField("limit_signal"):
        return {}
    asked = launch.limit_signal
    return {
        "signal": asked.signal,
        "signal_before_us": asked.before.ToMicroseconds(),
        "is_signal_for_leader": asked.leader_only,
    }


def _stop(stop: node_agent_pb2.Stop) -> commands.StopAttempt:
    grace_us = stop.grace.ToMicroseconds() if stop.HasField("grace") else None
    cause = STOP_CAUSE_OF.get(stop.cause, StopCause.CANCELLED)
    return commands.StopAttempt(key_from_proto(stop.key), cause, grace_us)


def _read_log(read: node_agent_pb2.ReadProgramLog) -> commands.ReadProgramLog:
    since_us = read.since_time.ToMicroseconds() if read.HasField("since_time") else None
    return commands.ReadProgramLog(
        request=read.request,
        tail_lines=read.tail_lines,
        follow=read.follow,
        cancel=read.cancel,
        since_us=since_us,
    )


def _reason(end: AttemptEnd) -> str:
    if end.failure is not None:
        return end.failure.value
    if end.status is None:
        return EXIT_UNKNOWN
    if isinstance(end.stop_cause, NodeCause):
        return end.stop_cause.value
    if end.ran_out_of_memory:
        return OUT_OF_MEMORY
    return "EXITED" if isinstance(end.status, ExitCode) else "SIGNALLED"


def sentence_of_end(end: AttemptEnd) -> str:
    """How an attempt ended, for people, what it ran out of, and what of its output nobody has."""
    lost = [f"its {stream.value} is lost from byte {end.output_ends.of(stream):,} on" for stream in end.streams_lost]
    return "; ".join([_sentence_of_status(end), *([] if end.shortage is None else _shortage(end.shortage)), *lost])


def _shortage(shortage: Shortage) -> Iterator[str]:
    if shortage.oom_kills:
        peak = f"{format_size(shortage.memory_bytes_peak)} at its peak, " if shortage.memory_bytes_peak else ""
        limit = (
            f"limit {format_size(shortage.memory_bytes_max)}" if shortage.memory_bytes_max else "no limit of its own"
        )
        yield f"the kernel ended {shortage.oom_kills:,} of its processes, out of memory ({peak}{limit})"
    if shortage.forks_refused:
        yield f"it was refused {shortage.forks_refused:,} beyond its {shortage.processes_max:,} processes and threads"


def _sentence_of_status(end: AttemptEnd) -> str:
    if end.detail:
        return end.detail
    match end.status:
        case ExitCode(code=code):
            return f"the command exited with code {code}"
        case ExitSignal(signal=number):
            return f"the command was ended by signal {number}"
        case None:
            return f"nobody saw how the command ended ({end.loss.value if end.loss else 'unknown'})"
