"""How a job takes GPUs: as it is asked for, and what that came to."""

import re

from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import invalid

from ..state.jobs import Job
from ..state.specs import GpuChoice, GpuMode, JobSpec
from .argv import check_argv
from .convert import timestamp

CONTENT_TYPE_CHARS_MAX = 255
_NAME = r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}"
CONTENT_TYPE = re.compile(rf"{_NAME}/{_NAME}(\s*;[\x20-\x7e]*)?")
"""A media type as RFC 6838 has it; parameters are kept as they are."""

MODES = {
    GpuMode.REQUIRED: job_pb2.GPU_MODE_REQUIRED,
    GpuMode.PREFERRED: job_pb2.GPU_MODE_PREFERRED,
    GpuMode.NEVER: job_pb2.GPU_MODE_NEVER,
    GpuMode.AUTO: job_pb2.GPU_MODE_AUTO,
}
MODE_OF = {number: mode for mode, number in MODES.items()} | {job_pb2.GPU_MODE_UNSPECIFIED: GpuMode.REQUIRED}


def apply_gpu(request: scheduler_pb2.SubmitRequest) -> None:
    """Put what a submit says of GPUs in one word for all into the specs that say no mode. Errors: INVALID_ARGUMENT."""
    if not request.HasField("gpu"):
        return
    if request.rerun_failed_job_id:
        raise invalid("gpu", "does not go with rerun_failed_job_id: it is as it was", next_step="leave it out")
    for spec in request.specs:
        if spec.gpu_mode == job_pb2.GPU_MODE_UNSPECIFIED:
            spec.gpu_mode = job_pb2.GPU_MODE_AUTO if request.gpu else job_pb2.GPU_MODE_NEVER


def gpu_choice_of(spec: job_pb2.JobSpec, path: str) -> GpuChoice | None:
    """How a job asks to take GPUs; AUTO is decided when it is submitted. Errors: INVALID_ARGUMENT with the path."""
    mode, content_type = MODE_OF.get(spec.gpu_mode), spec.content_type
    if mode is None:
        step = "choose REQUIRED, PREFERRED, NEVER or AUTO"
        raise invalid(f"{path}.gpu_mode", f"is {spec.gpu_mode}", next_step=step)
    if content_type and (len(content_type) > CONTENT_TYPE_CHARS_MAX or not CONTENT_TYPE.fullmatch(content_type)):
        raise invalid(
            f"{path}.content_type",
            f"{content_type[:80]!r} is not a content type",
            next_step="write a type and a subtype, such as audio/mpeg or text/plain",
        )
    if mode is GpuMode.REQUIRED and spec.cpu_argv:
        raise invalid(
            f"{path}.cpu_argv",
            "would never run: the job waits for its GPUs for as long as it takes",
            next_step="add --gpu-mode preferred, never or auto, or leave out --cpu-command",
        )
    check_argv(spec.cpu_argv, f"{path}.cpu_argv", may_be_none=True)
    if mode is GpuMode.REQUIRED and not content_type:
        return None
    if mode is not GpuMode.REQUIRED and spec.pins:
        raise invalid(
            f"{path}.gpu_mode",
            f"is {mode.name}, and pins say exactly which GPUs it must have",
            next_step="leave one of the two out",
        )
    return GpuChoice(asked=mode, mode=mode, content_type=content_type, cpu_argv=tuple(spec.cpu_argv))


def gpu_choice_proto(job: Job) -> job_pb2.GpuChoice | None:
    """What it came to, and why; absent where a job simply requires its GPUs."""
    choice, fell_back = job.spec.gpu_choice, job.fell_back
    if choice is None:
        return None
    sentences = [choice.why] if choice.why else []
    sentences += [f"it does without GPUs, as {fell_back.message}"] if fell_back is not None else []
    at = job.falls_back_at if job.is_waiting_in_line else None
    return job_pb2.GpuChoice(
        mode=MODES[choice.mode],
        sentence="; ".join(sentences),
        fell_back=fell_back is not None,
        fell_back_reason="" if fell_back is None else fell_back.reason,
        fall_back_time=timestamp(at if fell_back is None else fell_back.at),
    )


VARIABLES = ("GPUFLEET_GPU_MODE", "GPUFLEET_FELL_BACK", "GPUFLEET_CONTENT_TYPE")
"""By which a job knows; of a submitter who is a job itself they are not passed on."""


def variables_of(spec: JobSpec) -> dict[str, str]:
    """What a job is told of it; nothing where it simply requires its GPUs."""
    choice = spec.gpu_choice
    if choice is None:
        return {}
    told = {"GPUFLEET_GPU_MODE": choice.mode.value}
    if choice.mode is GpuMode.PREFERRED and not spec.prefers_gpus:
        told["GPUFLEET_FELL_BACK"] = "1"
    if choice.content_type:
        told["GPUFLEET_CONTENT_TYPE"] = choice.content_type
    return told
