"""The models as a page shows them before one joins: what stands in each line, and whether a seat is free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpufleet.v1 import inference_pb2, sessions_pb2

READY = inference_pb2.WORKER_STATE_READY
LOADING = inference_pb2.WORKER_STATE_LOADING
FAILED = inference_pb2.WORKER_STATE_FAILED


def model_shown(model: sessions_pb2.Model) -> dict[str, Any]:
    """One model of `GET /api/v1/models`; docs/web-protocol.md names the fields."""
    ready = [each for each in model.workers if each.state == READY]
    free = sum(max(0, each.seats - each.taken_seats) for each in ready)
    state, telling = _state(model.workers)
    return {
        "name": model.name,
        "waiting": model.waiting_count,
        "turns": model.turn_count,
        "seats": sum(each.seats for each in ready),
        "free": free,
        "workers": len(model.workers),
        "state": state,
        "progress": round(telling.progress, 3) if telling is not None else 0.0,
        "message": telling.message if telling is not None else "",
        "turn_s": model.limits.turn.ToMilliseconds() / 1e3,
    }


def _state(workers: Sequence[sessions_pb2.WorkerInfo]) -> tuple[str, sessions_pb2.WorkerInfo | None]:
    """The best that can be said of a model's workers, and the one that tells more of it."""
    if any(each.state == READY for each in workers):
        return "ready", None
    loading = [each for each in workers if each.state == LOADING]
    if loading:
        return "loading", max(loading, key=lambda each: each.progress)
    failed = [each for each in workers if each.state == FAILED]
    return ("failed", failed[-1]) if failed else ("away", None)
