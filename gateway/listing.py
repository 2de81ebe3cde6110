"""The models as a page shows them before one joins: what stands in each line, and whether a seat is free."""

from __future__ import annotations

from typing import Any

from gpufleet.v1 import inference_pb2, sessions_pb2

READY = inference_pb2.WORKER_STATE_READY
LOADING = inference_pb2.WORKER_STATE_LOADING
FAILED = inference_pb2.WORKER_STATE_FAILED
COMING = (inference_pb2.WORKER_STATE_STARTING, inference_pb2.WORKER_STATE_QUEUED)


def model_shown(model: sessions_pb2.Model) -> dict[str, Any]:
    """One model of `GET /api/v1/models`; docs/web-protocol.md names the fields."""
    ready = [each for each in model.workers if each.state == READY]
    free = sum(max(0, each.seats - each.taken_seats) for each in ready)
    state, progress, message = _state(model)
    return {
        "name": model.name,
        "waiting": model.waiting_count,
        "turns": model.turn_count,
        "seats": sum(each.seats for each in ready),
        "free": free,
        "workers": len(model.workers),
        "state": state,
        "progress": round(progress, 3),
        "message": message,
        "turn_s": model.limits.turn.ToMilliseconds() / 1e3,
    }


def _state(model: sessions_pb2.Model) -> tuple[str, float, str]:
    """The best that can be said of a model's workers, how far the furthest is that loads, and what tells more of it."""
    if any(each.state == READY for each in model.workers):
        return "ready", 0.0, ""
    loading = [each for each in model.workers if each.state == LOADING]
    if loading:
        furthest = max(loading, key=lambda each: each.progress)
        return "loading", furthest.progress, furthest.message
    if model.HasField("failure"):
        return "failed", 0.0, model.failure.message
    if any(each.state in COMING for each in model.workers):
        return "loading", 0.0, "a worker is being started"
    failed = [each for each in model.workers if each.state == FAILED]
    return ("failed", 0.0, failed[-1].message) if failed else ("away", 0.0, "")
