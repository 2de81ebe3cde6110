"""`serve NAME --update`: some of a program that is served, changed; what is not said stays as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace

from google.protobuf.field_mask_pb2 import FieldMask
from gpufleet.v1 import sessions_pb2

from gpufleet.errors import invalid
from gpufleet.fleet.submitting.job_options import JobOptions
from gpufleet.fleet.submitting.job_spec import spec_of, variables

from .serve_options import PredictOptions, ProgramOptions, TurnOptions, WorkerOptions

PATHS = {
    "min_workers": "min_workers",
    "max_workers": "max_workers",
    "python": "worker.argv",
    "cwd": "worker.cwd",
    "env": "worker.env",
    "image": "worker.container.image",
    "mount": "worker.container.mounts",
    "image_secret": "worker.container.image_secret",
    "secret": "worker.secrets",
    "gpus": "worker.devices",
    "gpu_share": "worker.devices",
    "min_memory": "worker.devices",
    "gpu_model": "worker.devices",
    "allow_busy": "worker.devices",
    "node_gpu_ids": "worker.pins",
    "cpus": "worker.cpus",
    "memory": "worker.memory_bytes",
    "nodelist": "worker.nodelist",
    "exclude": "worker.exclude",
    "node_label": "worker.node_labels",
    "label": "worker.labels",
    "band": "worker.band",
    "preemptible": "worker.is_preemptible",
    "port_env": "http.port_env",
    "port": "http.port",
    "ready": "http.ready_path",
    "concurrency": "http.concurrency",
    "target_concurrency": "http.target_concurrency",
    "target_wait": "http.target_wait",
    "exclusive_group": "exclusive_group",
    "cpu_model": "http.cpu_model",
    "request_gpu_mode": "http.gpu_mode",
    "idle": "http.idle",
    "access": "limits.access",
}
"""Which field of a program an option changes."""

UNSAID_IMAGE = "unsaid"
"""Stands for the image that there is while what is typed is read; it is not among the fields that change."""

OF_DEVICES = ("gpus", "gpu_share", "min_memory", "gpu_model", "allow_busy")


def paths_of(
    argv: Sequence[str], worker: WorkerOptions, program: ProgramOptions, turns: TurnOptions, predict: PredictOptions
) -> list[str]:
    """The fields that were typed. Raises INVALID_ARGUMENT for what no program has, or what is not changed alone."""
    if worker.model_arg or predict != PredictOptions():
        option = "--model-arg" if worker.model_arg else "--predict"
        step = "Serve it again with all that it is to be, without --update."
        raise invalid(option, "is not changed alone", next_step=step)
    if turns != replace(TurnOptions(), idle=turns.idle, access=turns.access):
        step = "Leave out all but --idle and --access; the numbers of a line are changed by themselves."
        raise invalid("--update", "a program has no turns and no line of people", next_step=step)
    typed = {
        each.name: getattr(options, each.name)
        for options in (worker, program, turns)
        for each in fields(options)
        if getattr(options, each.name) != each.default
    }
    paths = [PATHS[name] for name in typed]
    if worker.cwd is not None:
        paths.append("worker.submit_cwd")
    if worker.node_gpu_ids is not None:
        paths.append("worker.devices")
    if argv:
        paths.append("http.argv")
    return sorted(set(paths))


def worker_changes(
    worker: WorkerOptions, python: Sequence[str], environment: Mapping[str, str], folder: str
) -> sessions_pb2.Model:
    """What was typed of the workers. Raises INVALID_ARGUMENT with the option."""
    asked = {each.name for each in fields(JobOptions)}
    options = {name: value for name, value in asdict(worker).items() if name in asked}
    # Which GPUs may be said without how many: of these there are some already.
    is_uncounted = worker.gpus is None and worker.node_gpu_ids is None and any(options[name] for name in OF_DEVICES)
    if is_uncounted:
        options["gpus"] = 1
    # So may what else its container has: there is an image already.
    options["image"] = worker.image or UNSAID_IMAGE if worker.mount or worker.image_secret else worker.image
    spec = spec_of(JobOptions(**options), python, environment, folder)
    if is_uncounted:
        spec.devices[0].ClearField("count")
    spec.ClearField("env")
    spec.env.update(variables(worker.env or (), environment, pass_all=False) if worker.env else {})
    spec.ClearField("trace_context")
    return sessions_pb2.Model(worker=spec, min_workers=worker.min_workers or 0, max_workers=worker.max_workers or 0)


def idle_of_a_program(request: sessions_pb2.ServeModelRequest) -> sessions_pb2.ServeModelRequest:
    """Only numbers were typed, and they are a program's: its idle time is another field than that of people."""
    limits, paths = request.model.limits, ["http.idle"]
    if limits != sessions_pb2.SessionLimits(idle=limits.idle, access=limits.access):
        step = "Leave out all but --idle and --access."
        raise invalid("--update", "a program has no turns and no line of people", next_step=step)
    changes = sessions_pb2.Model(name=request.model.name, limits=sessions_pb2.SessionLimits(access=limits.access))
    changes.http.idle.CopyFrom(limits.idle)
    if limits.access:
        paths.append("limits.access")
    return sessions_pb2.ServeModelRequest(model=changes, in_place=request.in_place, update_mask=FieldMask(paths=paths))
