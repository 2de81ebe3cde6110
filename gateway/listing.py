"""The models as a page shows them before one joins: what stands in each line, and whether a seat is free."""

from __future__ import annotations

from typing import Any

from gpufleet.v1 import inference_pb2, sessions_pb2

STATES = (
    (inference_pb2.WORKER_STATE_READY, "ready"),
    (inference_pb2.WORKER_STATE_LOADING, "loading"),
    (inference_pb2.WORKER_STATE_STARTING, "starting"),
    (inference_pb2.WORKER_STATE_QUEUED, "queued"),
    (inference_pb2.WORKER_STATE_FAILED, "failed"),
)
"""What is said of a model with several workers: the first of these that one of them is in."""


def model_shown(model: sessions_pb2.Model) -> dict[str, Any]:
    """One model of `GET /api/v1/models`; docs/web-protocol.md names the fields.

    Why a model has failed is not for everybody: it may name files of whoever serves it.
    """
    ready = [each for each in model.workers if each.state == inference_pb2.WORKER_STATE_READY]
    loading = [each for each in model.workers if each.state == inference_pb2.WORKER_STATE_LOADING]
    return {
        "name": model.name,
        "waiting": model.waiting_count,
        "turns": model.turn_count,
        "seats": sum(each.seats for each in ready),
        "free": sum(max(0, each.seats - each.taken_seats) for each in ready),
        "workers": len(model.workers),
        "state": _state(model),
        "progress": round(max((each.progress for each in loading), default=0.0), 3),
        "turn_s": model.limits.turn.ToMilliseconds() / 1e3,
    }


def _state(model: sessions_pb2.Model) -> str:
    found = {each.state for each in model.workers}
    best = next((name for state, name in STATES if state in found), None)
    if best is not None:
        return best
    if model.HasField("failure"):
        return "failed"
    # Without a worker: the fleet starts one for who comes, or somebody has to start it by hand.
    return "asleep" if model.entry_point else "away"
