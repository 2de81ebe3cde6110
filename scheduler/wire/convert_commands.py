"""Commands to the agents, as protos."""

from gpufleet.v1 import node_agent_pb2 as pb

from gpufleet.jobs.run_protos import INPUT_MODES, STOP_CAUSES, key_to_proto
from gpufleet.jobs.variables import JOB_TOKEN_VARIABLE, OF_SUBMIT

from ..state import commands
from ..state.attempts import Placement
from ..state.shares import DeviceShare
from ..state.warnings import JobWarning
from .container import container_proto
from .convert import duration
from .convert_jobs import share_proto
from .gpu_choice import VARIABLES, variables_of
from .input_files import input_files_proto
from .input_folder import input_folder_proto
from .job_environment import job_environment_proto
from .job_inputs import job_inputs_proto
from .limit_rules import limit_signal_proto
from .output_file import output_path
from .process_settings import process_settings_proto

Message = pb.HeartbeatResponse


def command_proto(command: commands.Command) -> Message:
    """A command on the wire; the link adds term and sequence."""
    if isinstance(command, commands.ClearTroubles):
        return Message(clear_troubles=pb.ClearTroubles())
    key = key_to_proto(command.key)
    match command:
        case commands.PrepareAttempt(launch=launch):
            return Message(prepare=pb.Prepare(launch=_launch_proto(launch, key)))
        case commands.StartAttempt(master_address=address, master_port=port):
            return Message(start=pb.Start(key=key, master_address=address, master_port=port))
        case commands.AbortAttempt():
            return Message(abort=pb.Abort(key=key))
        case commands.LaunchAttempt():
            return Message(launch=_launch_proto(command, key))
        case commands.StopAttempt(cause=cause, grace=grace):
            return Message(stop=pb.Stop(key=key, cause=STOP_CAUSES[cause], grace=duration(grace)))
        case commands.KillAttempt():
            return Message(kill=pb.Kill(key=key))
        case commands.TakeBack():
            return Message(take_back=pb.TakeBack(key=key))
        case commands.KeepAttempt():
            return Message(keep=pb.Keep(key=key))
        case commands.ForgetAttempt():
            return Message(forget=pb.Forget(key=key))
        case commands.SignalAttempt(signal=number):
            return Message(send_signal=pb.SendSignal(key=key, signal=number))
        case commands.SetTimeLimit(time_limit=limit):
            return Message(set_time_limit=pb.SetTimeLimit(key=key, time_limit=duration(limit)))
        case commands.TellWarning(number=number, warning=JobWarning(kind=kind, sentence=sentence)):
            return Message(tell_warning=pb.TellWarning(key=key, number=number, kind=kind.value, sentence=sentence))


def _least_share(placement: Placement) -> DeviceShare | None:
    """The share that the job has of each of its devices: of unlike devices the memory of the smallest."""
    return min((device.share for device in placement.devices if device.share is not None), default=None)


def _launch_proto(command: commands.LaunchAttempt, key: pb.AttemptKey) -> pb.Launch:
    spec = command.spec
    return pb.Launch(
        key=key,
        argv=spec.argv_now,
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
        limit_signal=limit_signal_proto(spec.limit_signal),
        output_file=output_path(command),
        process=process_settings_proto(spec.process),
        files=input_files_proto(spec.files, command.shared_root),
        folder=input_folder_proto(spec.folder),
        results=spec.results,
        keep=spec.keep,
        kept=input_folder_proto(command.kept),
        inputs=job_inputs_proto(spec.inputs),
        environment=job_environment_proto(spec.environment),
        secret_variables=[variable for variable, _ in spec.secrets],
        container=container_proto(spec.container),
        slot=None if command.slot is None else key_to_proto(command.slot),
        run_number=command.run_number,
    )


OF_ARRAYS = ("GPUFLEET_ARRAY_ID", "GPUFLEET_ARRAY_INDEX")
"""Variables of an item. Of a submitter who is one itself they are not passed on, and neither is its way to itself."""


def _environment(command: commands.LaunchAttempt) -> dict[str, str]:
    spec = command.spec
    env = {name: value for name, value in spec.env if name not in (*OF_ARRAYS, *VARIABLES, JOB_TOKEN_VARIABLE)}
    told = (spec.name, command.user, ",".join(command.nodes), command.node, spec.submit_cwd or spec.cwd)
    env |= zip(OF_SUBMIT, told, strict=True)
    env |= variables_of(spec)
    if command.array is not None:
        env |= zip(OF_ARRAYS, (str(command.array), str(command.index)), strict=True)
    return env
