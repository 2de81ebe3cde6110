"""The served model that computes on CPUs what another one computes on GPUs: the same class, and no device."""

from __future__ import annotations

from collections.abc import Sequence

from gpufleet.v1 import sessions_pb2

from gpufleet.errors import GpufleetError, Reason
from gpufleet.fleet.async_client import connected_async
from gpufleet.fleet.settings import Settings

CLASS_FOLLOWS = "gpufleet.inference.predict"
"""In the command line of a served class, its name stands behind this."""


async def cpu_twin_of(fleet: Settings | None, model: str) -> str:
    """Its name. Raises MODEL_NOT_FOUND, which says how to serve one, where there is none or nobody can be asked."""
    models: list[sessions_pb2.Model] = []
    if fleet is not None:
        async with connected_async(fleet) as client:
            request = sessions_pb2.ListModelsRequest(page_size=1_000)
            async for page in client.all_pages(client.scheduler.ListModels, request):
                models += page.models
    served = next((each for each in models if each.name == model), None)
    name = class_of(served) if served is not None else ""
    for each in models:
        if name and each.name != model and class_of(each) == name and not each.worker.devices:
            return each.name
    step = (
        f"Serve one: gpuctl serve {name or 'package.module:Class'} --predict --name {model}-cpu --min 1 "
        f"(without --gpus), or name it: --cpu-model NAME, --cpu-address HOST:PORT"
    )
    why = f"no CPU worker of {model} is known, and --compare-cpu needs one"
    raise GpufleetError(Reason.MODEL_NOT_FOUND, why, next_step=step)


def class_of(model: sessions_pb2.Model) -> str:
    """The class that a model answers requests with, as package.module:Class; empty of another program."""
    argv: Sequence[str] = model.http.argv
    return argv[place] if CLASS_FOLLOWS in argv and (place := list(argv).index(CLASS_FOLLOWS) + 1) < len(argv) else ""
