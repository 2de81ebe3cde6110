"""A row of `top`: a device's newest reading in the words that are shown, made once for each reading."""

from __future__ import annotations

from dataclasses import dataclass

from gpufleet.v1 import node_pb2

from gpufleet.units import format_size

from ..render.table import clean

ABSENT = "–"
OLD_S = 5.0
"""A reading that was older than this when it was told is shown with its age, and is in no sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU; None is what it does not tell. `old_since` is when it was read, where that is long ago."""

    uuid: str
    node: str
    index: int
    model: str
    load_percent: int | None
    memory_share: float | None
    memory: str
    power_w: float | None
    temperature_c: int | None
    clock_mhz: int | None
    fan_percent: int | None
    throttle: str
    job_id: int
    job: str
    user: str
    users: frozenset[str]
    is_free: bool
    is_healthy: bool
    old_since: float | None
    words: str
    """What a filter looks at, in small letters."""


def gpu_of(device: node_pb2.NodeDevice, now: float) -> Gpu:
    """The row of a device that is told at this moment, in seconds on any clock that runs on."""
    sample, facts = device.sample, device.device
    total_bytes = sample.memory_total_bytes or facts.memory_bytes
    has_memory = sample.HasField("memory_used_bytes")
    held = [each.job_id for each in device.shares]
    users = dict.fromkeys(filter(None, (device.user, *(each.user for each in device.shares))))
    is_foreign = any(each.is_foreign for each in sample.processes)
    job = str(device.job_id) if device.job_id else ",".join(map(str, held)) or ("foreign" if is_foreign else "")
    node, model, user = clean(device.node), clean(short_model(facts.name)), clean(",".join(users))
    age_s = sample.age.ToMilliseconds() / 1000 if device.HasField("sample") else 0.0
    state = "unhealthy" if not facts.is_healthy else "free" if device.is_free else ""
    return Gpu(
        uuid=facts.uuid,
        node=node,
        index=facts.index,
        model=model,
        load_percent=sample.utilization_percent if sample.HasField("utilization_percent") else None,
        memory_share=sample.memory_used_bytes / total_bytes if has_memory and total_bytes else None,
        memory=_memory(sample.memory_used_bytes, total_bytes) if has_memory else "",
        power_w=sample.power_mw / 1000 if sample.HasField("power_mw") else None,
        temperature_c=sample.temperature_c if sample.HasField("temperature_c") else None,
        clock_mhz=sample.clock_sm_mhz if sample.HasField("clock_sm_mhz") else None,
        fan_percent=sample.fan_percent if sample.HasField("fan_percent") else None,
        throttle=clean(",".join(sample.throttle_reasons)),
        job_id=device.job_id or min(held, default=0),
        job=job or ABSENT,
        user=user or ABSENT,
        users=frozenset(users),
        is_free=device.is_free,
        is_healthy=facts.is_healthy,
        old_since=now - age_s if age_s > OLD_S else None,
        words=f"{node}:{facts.index} {clean(facts.name)} {job} {user} {state}".casefold(),
    )


def short_model(name: str) -> str:
    """The model without its maker, which takes more room than it tells."""
    return name.removeprefix("NVIDIA ").removeprefix("AMD ").removeprefix("gpufleet ")


def _memory(used_bytes: int, total_bytes: int) -> str:
    """`88GB/141GB`; the first half alone where there is no room for both."""
    return f"{format_size(used_bytes)}/{format_size(total_bytes)}"
