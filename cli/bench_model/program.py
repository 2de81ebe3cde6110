"""Runs row after row, first of the model, then of its CPU workers, and makes one report of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpufleet.client.core.outcomes import Backend
from gpufleet.client.routes import routes_of
from gpufleet.client.settings import ClientSettings, GivenSettings, load_settings
from gpufleet.errors import GpufleetError, Reason
from gpufleet.fleet.settings import Settings

from .. import screen
from ..asking.items import NamedItem
from ..asking.reaching import Reached, wait_until_ready
from .devices import DeviceWatch, watching
from .histogram import RELATIVE_ERROR
from .load import run_row
from .pacing import UNDER_WAY_MAX, Shape
from .sums import Figures
from .targets import EndpointRequest, EndpointTarget, ModelTarget, Target
from .twin import cpu_twin_of

BUSY = 0.9
"""Beyond this share of a core this program may be what limits the figures."""


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One row. `client_cpu` is the share of a core that this program itself took."""

    shape: Shape
    figures: Figures
    client_cpu: float
    gpu_monitoring: dict[str, Any] | None

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        shape = self.shape
        return {
            "concurrency": None if shape.rate else shape.concurrency,
            "rate": shape.rate or None,
            **self.figures.as_dict(),
            "client_cpu": self.client_cpu,
            "gpu_monitoring": self.gpu_monitoring,
        }


@dataclass(frozen=True, slots=True)
class Measured:
    """The rows of one target, and what that is: URL and, of a model, its name, backend and device."""

    target: dict[str, Any]
    rows: Sequence[BenchRow]

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {"target": self.target, "rows": [row.as_dict() for row in self.rows]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that was measured."""

    main: Measured
    cpu: Measured | None = None
    batch_size: int = 1
    warm_up: int = 0
    gpu_monitoring: dict[str, Any] | None = None
    note: str = ""

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        is_open = any(row.shape.rate for row in self.main.rows)
        return {
            **self.main.as_dict(),
            "loop": "open" if is_open else "closed",
            "batch_size": self.batch_size,
            "warm_up_requests": self.warm_up,
            "percentile_relative_error": RELATIVE_ERROR,
            "gpu_monitoring": self.gpu_monitoring,
            "gpu_monitoring_note": self.note,
            "cpu": self.cpu.as_dict() if self.cpu is not None else None,
            "gpu_to_cpu": [_ratios(*pair) for pair in zip(self.main.rows, self.cpu.rows, strict=True)]
            if self.cpu is not None
            else None,
        }

    @property
    def has_failures(self) -> bool:
        """Whether any item has no answer."""
        rows = [*self.main.rows, *(self.cpu.rows if self.cpu is not None else ())]
        return any(row.figures.items_answered < row.figures.items for row in rows)


async def bench_model(
    given: GivenSettings,
    items: Sequence[NamedItem],
    shapes: Sequence[Shape],
    *,
    warm_up: int,
    compares_cpu: bool,
    fleet: Settings | None,
) -> Report:
    """Measure a model. `fleet` is where the scheduler is that knows the devices of a model that the gateway serves."""
    settings = load_settings(given)
    fleet = None if settings.addresses else fleet
    async with watching(fleet, settings.model) as watch:
        reached = await _reached(settings, Backend.GPU if compares_cpu else None)
        cpu: list[Reached] = []
        if compares_cpu:
            if not (settings.cpu_model or settings.cpu_addresses or any(_is_cpu(each) for each in reached)):
                settings = load_settings({**given, "cpu_model": await cpu_twin_of(fleet, settings.model)})
            cpu = [each for each in reached if _is_cpu(each)] or await _reached(settings, Backend.CPU)
            reached = [each for each in reached if not _is_cpu(each)]
            if not reached:
                why = f"{settings.model} computes on a CPU itself: there is nothing to compare"
                raise GpufleetError(Reason.INVALID_ARGUMENT, why, next_step="Leave out --compare-cpu.")
        connections = max(UNDER_WAY_MAX if shape.rate else shape.concurrency for shape in shapes)
        target = ModelTarget(reached, items, settings, connections)
        main = Measured(_named(settings.model, reached), await _rows(target, shapes, warm_up, watch))
        gpus = watch.whole()
        compared = None
        if cpu:
            screen.tell("the same on CPUs:")
            target = ModelTarget(cpu, items, settings, connections)
            rows = await _rows(target, shapes, warm_up, None)
            compared = Measured(_named(cpu[0].route.model, cpu), rows)
    note = watch.note or ("" if gpus is not None else "the model's replicas hold no GPU, or no row lasted a second")
    size = settings.batch_size
    return Report(main=main, cpu=compared, batch_size=size, warm_up=warm_up, gpu_monitoring=gpus, note=note)


async def bench_endpoint(
    request: EndpointRequest, settings: ClientSettings, shapes: Sequence[Shape], *, warm_up: int, shown: str
) -> Report:
    """Measure any HTTP endpoint; `shown` is its URL for people."""
    connections = max(UNDER_WAY_MAX if shape.rate else shape.concurrency for shape in shapes)
    target = EndpointTarget(request, settings, connections)
    await target.check_listens()
    rows = await _rows(target, shapes, warm_up, None)
    return Report(main=Measured({"url": shown}, rows), warm_up=warm_up, note="an endpoint's GPUs are not known")


async def _reached(settings: ClientSettings, side: Backend | None) -> list[Reached]:
    """The workers that are asked: those that are named for CPUs where that is the side, else the others."""
    routes = routes_of(settings, has_callable=False)
    wanted = [route for route in routes if (route.backend is Backend.CPU) == (side is Backend.CPU)]
    return await wait_until_ready(settings, wanted)


def _is_cpu(each: Reached) -> bool:
    """As gpufleet.client sees it: by the name under which it was given, else by its own word; else it is a GPU's."""
    assert each.metadata is not None
    return (each.route.backend or each.metadata.backend) is Backend.CPU


def _named(model: str, reached: Sequence[Reached]) -> dict[str, Any]:
    metadata = reached[0].metadata
    assert metadata is not None
    return {
        "model": model,
        "url": ", ".join(each.route.origin.url for each in reached),
        "backend": str(Backend.CPU if _is_cpu(reached[0]) else Backend.GPU),
        "device": metadata.device or None,
    }


async def _rows(target: Target, shapes: Sequence[Shape], warm_up: int, watch: DeviceWatch | None) -> list[BenchRow]:
    rows: list[BenchRow] = []
    try:
        for shape in shapes:
            if warm_up:
                await run_row(target, Shape(concurrency=min(warm_up, shape.concurrency or 1), requests=warm_up))
            if watch is not None:
                watch.begin_row()
            begun_s, cpu_s = time.monotonic(), time.process_time()
            figures = await run_row(target, shape)
            share = (time.process_time() - cpu_s) / max(1e-9, time.monotonic() - begun_s)
            rows.append(BenchRow(shape, figures, share, watch.row() if watch is not None else None))
            screen.tell(_told(rows[-1]))
    finally:
        target.close()
    return rows


def _told(row: BenchRow) -> str:
    figures, shape = row.figures, row.shape
    what = f"{shape.rate:g}/s" if shape.rate else f"{shape.concurrency} at a time"
    rate = f"{figures.items_per_s:,.1f} items/s" if figures.items_per_s is not None else "nothing answered"
    p95 = f", p95 {figures.latency_ms.p95:,.1f} ms" if figures.latency_ms.p95 is not None else ""
    return f"{what}: {rate}{p95}"


def _ratios(main: BenchRow, cpu: BenchRow) -> dict[str, Any]:
    def ratio(one: float | None, other: float | None) -> float | None:
        return one / other if one is not None and other else None

    return {
        "concurrency": None if main.shape.rate else main.shape.concurrency,
        "rate": main.shape.rate or None,
        "items_per_s": ratio(main.figures.items_per_s, cpu.figures.items_per_s),
        "p50": ratio(main.figures.latency_ms.p50, cpu.figures.latency_ms.p50),
    }
