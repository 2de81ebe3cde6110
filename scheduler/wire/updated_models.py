"""A program that is served, with some fields of it changed: what `ServeModel` takes with an update mask."""

from google.protobuf.field_mask_pb2 import FieldMask
from gpufleet.v1 import job_pb2, sessions_pb2

from gpufleet.errors import invalid

from ..state.sessions.session import Access, Model
from .convert_jobs import spec_proto
from .convert_sessions import ACCESS, http_proto
from .validate_models import of_program

PATHS_MAX = 100
"""Paths of one mask."""

OWN_OF_A_WORKER = ("kind", "serves", "gpu_mode", "no_span", "trace_context", "name", "input", "grace")
"""Fields of a worker's job that the scheduler fills in."""

PATHS = frozenset(
    {
        "exclusive_group",
        "http.argv",
        "http.concurrency",
        "http.cpu_model",
        "http.gpu_mode",
        "http.idle",
        "http.port",
        "http.port_env",
        "http.ready_path",
        "http.target_concurrency",
        "http.target_wait",
        "limits.access",
        "max_workers",
        "min_workers",
        "worker.argv",
        "worker.band",
        "worker.container.image",
        "worker.container.image_secret",
        "worker.container.mounts",
        "worker.cpus",
        "worker.cwd",
        "worker.devices",
        "worker.env",
        "worker.exclude",
        "worker.is_preemptible",
        "worker.labels",
        "worker.memory_bytes",
        "worker.node_labels",
        "worker.nodelist",
        "worker.pins",
        "worker.secrets",
        "worker.submit_cwd",
    }
)
"""What can be changed alone."""

OF_CONTAINER = "worker.container."


def asked_of(model: Model) -> sessions_pb2.Model:
    """The request that would serve a program as it is served. Its variables are in it: it is for nobody's eyes."""
    assert model.worker is not None and model.http is not None
    worker = spec_proto(model.worker)
    for field in OWN_OF_A_WORKER:
        worker.ClearField(field)  # type: ignore[arg-type]
    del worker.argv[len(worker.argv) - len(of_program(model.name, model.http)) :]
    if worker.HasField("container"):
        del worker.argv[:]  # the default of any worker, which nobody may name beside one
    worker.band = job_pb2.Band.ValueType(model.band)
    asked = sessions_pb2.Model(
        name=model.name,
        worker=worker,
        http=http_proto(model.http),
        min_workers=model.min_workers,
        max_workers=model.max_workers,
        exclusive_group=model.exclusive_group,
    )
    if "access" in model.chosen:
        asked.limits.access = ACCESS[Access(model.limits.access)]
    return asked


def updated(model: Model, changes: sessions_pb2.Model, mask: FieldMask) -> sessions_pb2.Model:
    """A program as it is asked for, with these fields of it changed. Raises INVALID_ARGUMENT."""
    if model.http is None or model.worker is None:
        step = "serve it again, as it is to be; the numbers of its line change without a mask"
        raise invalid("update_mask", f"{model.name} is no program, and is changed as a whole", next_step=step)
    if not mask.paths or len(mask.paths) > PATHS_MAX:
        raise invalid("update_mask", f"names {len(mask.paths):,} fields; it must name 1 to {PATHS_MAX}")
    for path in mask.paths:
        if path not in PATHS:
            step = f"name some of: {', '.join(sorted(PATHS))}"
            raise invalid("update_mask", f"{path[:80]!r} is no field that is changed alone", next_step=step)
    if model.worker.container is None and any(path.startswith(OF_CONTAINER) for path in mask.paths):
        # Its folder and its variables are the node's, and would not do in a container.
        step = "serve it again, as it is to be: with its image, and without update_mask"
        raise invalid("update_mask", f"{model.name} does not run in a container", next_step=step)
    asked = asked_of(model)
    laid_over = {"worker.env", "worker.secrets", "worker.devices"}
    FieldMask(paths=[path for path in mask.paths if path not in laid_over]).MergeMessage(
        changes, asked, replace_message_field=True, replace_repeated_field=True
    )
    if "worker.env" in mask.paths:
        asked.worker.env.update(changes.worker.env)
    if "worker.secrets" in mask.paths:
        asked.worker.secrets.update(changes.worker.secrets)
    if "worker.devices" in mask.paths:
        _lay_over(asked.worker, changes.worker)
    return asked


def _lay_over(worker: job_pb2.JobSpec, changes: job_pb2.JobSpec) -> None:
    """Devices as they were, but for what is said; where no devices are, there are none any more."""
    if not worker.devices or not changes.devices:
        del worker.devices[:]
        worker.devices.extend(changes.devices)
        return
    for field, value in changes.devices[0].ListFields():
        if field.name == "models":
            del worker.devices[0].models[:]
            worker.devices[0].models.extend(value)
        elif field.message_type is not None:
            getattr(worker.devices[0], field.name).CopyFrom(value)
        else:
            setattr(worker.devices[0], field.name, value)
    if len(changes.devices) > 1:
        worker.devices.extend(changes.devices[1:])  # refused as in any request
