"""Commands to the agents, as protos."""

from gpufleet.v1 import node_agent_pb2

from ..state.attempts import Placement, StopCause
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
from ..state.shares import DeviceShare
from .convert import duration, key_proto
from .convert_jobs import INPUT_MODES, share_proto

STOP_CAUSES = {
    StopCause.CANCELLED: node_agent_pb2.STOP_CAUSE_CANCELLED,
    StopCause.TIME_LIMIT: node_agent_pb2.STOP_CAUSE_TIME_LIMIT,
    StopCause.FENCED: node_agent_pb2.STOP_CAUSE_FENCED,
    StopCause.PREEMPTED: node_agent_pb2.STOP_CAUSE_PREEMPTED,
    StopCause.GANG: node_agent_pb2.STOP_CAUSE_GANG,
    StopCause.STALE: node_agent_pb2.STOP_CAUSE_STALE,
    StopCause.REQUEUED: node_agent_pb2.STOP_CAUSE_REQUEUED,
}


def command_proto(command: Command) -> node_agent_pb2.HeartbeatResponse:
    """A command on the wire; the link adds term and sequence."""
    if isinstance(command, ClearTroubles):
        return node_agent_pb2.HeartbeatResponse(clear_troubles=node_agent_pb2.ClearTroubles())
    key = key_proto(command.key)
    match command:
        case PrepareAttempt(launch=launch):
            prepare = node_agent_pb2.Prepare(launch=_launch_proto(launch, key))
            return node_agent_pb2.HeartbeatResponse(prepare=prepare)
        case StartAttempt(master_address=address, master_port=port):
            start = node_agent_pb2.Start(key=key, master_address=address, master_port=port)
            return node_agent_pb2.HeartbeatResponse(start=start)
        case AbortAttempt():
            return node_agent_pb2.HeartbeatResponse(abort=node_agent_pb2.Abort(key=key))
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
        case TellWarning(number=number, warning=warning):
            tell = node_agent_pb2.TellWarning(
                key=key, number=number, kind=warning.kind.value, sentence=warning.sentence
            )
            return node_agent_pb2.HeartbeatResponse(tell_warning=tell)


def _least_share(placement: Placement) -> DeviceShare | None:
    """The share that the job has of each of its devices: of unlike devices the memory of the smallest."""
    return min((device.share for device in placement.devices if device.share is not None), default=None)


def _launch_proto(command: LaunchAttempt, key: node_agent_pb2.AttemptKey) -> node_agent_pb2.Launch:
    spec = command.spec
    return node_agent_pb2.Launch(
        key=key,
        argv=spec.argv,
        env=_environment(command),
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
        node_count=command.node_count,
        is_gang=command.node_count > 1,
        input=INPUT_MODES[spec.input if command.key.rank == 0 else None],
        notify=spec.notify if command.key.rank == 0 else "",
        share=share_proto(_least_share(command.placement)),
        serves=spec.serves,
        sampling_interval=duration(spec.sampling),
    )


OF_ARRAYS = ("GPUFLEET_ARRAY_ID", "GPUFLEET_ARRAY_INDEX")
"""Variables of an item. Of a submitter who is one itself they are not passed on."""


def _environment(command: LaunchAttempt) -> dict[str, str]:
    env = {name: value for name, value in command.spec.env if name not in OF_ARRAYS}
    if command.array is not None:
        env |= zip(OF_ARRAYS, (str(command.array), str(command.index)), strict=True)
    return env
