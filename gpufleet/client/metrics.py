"""What a client tells of itself and of its workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .core.dispatch import Dispatcher
from .core.sums import Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMetrics:
    """One worker as the client knows it. `circuit` is closed, open or half-open; `openings` how often it opened."""

    worker: str
    backend: str
    condition: str
    circuit: str
    openings: int
    requests_under_way: int
    figures: Figures

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "worker": self.worker,
            "backend": self.backend,
            "condition": self.condition,
            "circuit": self.circuit,
            "openings": self.openings,
            "requests_under_way": self.requests_under_way,
            **self.figures.as_dict(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMetrics:
    """The client's figures, and those of each of its workers, the callable among them."""

    figures: Figures
    workers: tuple[WorkerMetrics, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {**self.figures.as_dict(), "workers": [worker.as_dict() for worker in self.workers]}


def metrics_of(dispatcher: Dispatcher, now_s: float) -> ClientMetrics:
    """The figures as they are now."""
    workers = tuple(
        WorkerMetrics(
            worker=state.id,
            backend=str(state.backend or "unknown"),
            condition=str(state.condition),
            circuit=str(state.circuit.state(now_s)),
            openings=state.circuit.openings,
            requests_under_way=state.requests_under_way,
            figures=dispatcher.sums_of_workers[state.id].figures(),
        )
        for state in dispatcher.workers.values()
    )
    return ClientMetrics(figures=dispatcher.sums.figures(), workers=workers)
