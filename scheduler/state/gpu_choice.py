"""What a job asks for with its GPUs and without: it falls back from the one to the other."""

from dataclasses import replace

from .specs import GpuMode, JobSpec, Resources

NEEDS_GPU_EXIT_CODE = 75
"""A job that fell back and ends by itself with this code says that it needs a GPU: EX_TEMPFAIL of sysexits.h."""

NEEDS_GPU = f"it fell back and said, with exit code {NEEDS_GPU_EXIT_CODE}, that it needs a GPU"


def without_gpus(resources: Resources) -> Resources:
    """The same without GPUs: as many CPUs, as much memory, and the same nodes to choose from.

    Where a number of nodes was asked for it stays; what the scheduler would have spread for its GPUs is one task.
    """
    return replace(
        resources,
        gpus=0,
        min_memory_bytes=None,
        models=(),
        allow_busy=False,
        pins=(),
        share_milli=0,
        ignores_telemetry=False,
        no_span=False,
    )


def fallen_back(spec: JobSpec) -> JobSpec:
    """A job that prefers GPUs, without them."""
    assert spec.prefers_gpus, "only a job that prefers GPUs, and has not fallen back, falls back"
    return replace(spec, resources=without_gpus(spec.resources))


def begun_anew(spec: JobSpec) -> JobSpec:
    """A job that is queued again: one that fell back asks for its GPUs again, in the mode that it was given."""
    choice = spec.gpu_choice
    if choice is None or choice.mode is not GpuMode.PREFERRED or spec.prefers_gpus:
        return spec
    return replace(spec, resources=spec.resources_asked)


def needing_gpus(spec: JobSpec) -> JobSpec:
    """A job that fell back, and needs its GPUs from now on."""
    assert spec.gpu_choice is not None
    choice = replace(spec.gpu_choice, mode=GpuMode.REQUIRED, why=NEEDS_GPU)
    return replace(spec, resources=spec.resources_asked, gpu_choice=choice)
