"""What the client is told by gpuctl's own options and context."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpufleet.client.settings import VARIABLE_PREFIX, GivenSettings
from gpufleet.config.gateway_settings import GATEWAY_PORT
from gpufleet.fleet.settings import Settings
from gpufleet.jobs.variables import JOB_ID_VARIABLE


@dataclass(frozen=True, slots=True)
class GpuChoice:
    """How requests take GPUs, and by what that is decided; None: as variables say."""

    gpu_mode: str | None = None
    content_type: str | None = None


def settings_given(
    settings: Settings,
    model: str,
    addresses: Sequence[str],
    gateway: str | None,
    batch_size: int | None,
    environment: Mapping[str, str] = os.environ,
    *,
    choice: GpuChoice = GpuChoice(),
) -> GivenSettings:
    """Keywords for the client: what was typed, and gpuctl's token and gateway where no variable of the client says."""

    def is_unsaid(*names: str) -> bool:
        return not any(environment.get(VARIABLE_PREFIX + name) for name in names)

    given: GivenSettings = {"model": model}
    if addresses:
        given["addresses"] = addresses
    if batch_size is not None:
        given["batch_size"] = batch_size
    if choice.gpu_mode is not None:
        given["gpu_mode"] = choice.gpu_mode
    if choice.content_type is not None:
        given["content_type"] = choice.content_type
    if addresses or not is_unsaid("ADDRESSES"):
        return given
    if gateway:
        given["gateway"] = gateway
    elif is_unsaid("GATEWAY") and settings.config.settings.gateway is not None:
        given["gateway"] = settings.config.settings.gateway
    elif settings.is_local and is_unsaid("GATEWAY"):
        given["gateway"] = f"http://127.0.0.1:{GATEWAY_PORT}"
    if is_unsaid("TOKEN", "TOKEN_FILE") and (found := settings.token()) is not None:
        given["token"] = found.token
    config = settings.config.settings
    if config.ca_file is not None and is_unsaid("CA_FILE"):
        given["ca_file"] = config.ca_file
    if config.insecure:
        given["insecure"] = True
    return given


def own_job(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """The job in which this runs, as `Connection.settings` takes it: in a job models are asked in its owner's name, by
    the job's own token, whatever context the node's account has."""
    job = environment.get(JOB_ID_VARIABLE, "")
    return (job,) if job else ()
