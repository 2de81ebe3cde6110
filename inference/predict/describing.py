"""What a model's configuration and its statistics are, in the words of Triton's clients."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from gpufleet.predict import TensorSpec

from ..core.batching import ANSWERED
from .metrics import Counts, Times
from .predictor import Predictor
from .results import VERSION

PLATFORM, BACKEND = "gpufleet_python", "python"

GPU = re.compile(r"cuda:(\d+)")


def config_of(name: str, predictor: Predictor) -> dict[str, Any]:
    """How the model takes requests."""
    limits = predictor.batcher.limits
    gpu = GPU.match(predictor.device)
    return {
        "name": name,
        "platform": PLATFORM,
        "backend": BACKEND,
        "max_batch_size": predictor.batcher.batch_max,
        "input": _tensors(predictor.traits.inputs),
        "output": _tensors(predictor.traits.outputs),
        "instance_group": [
            {
                "name": f"{name}_0",
                "kind": "KIND_GPU" if gpu else "KIND_CPU" if predictor.device == "cpu" else "KIND_AUTO",
                "count": 1,
                "gpus": [int(gpu[1])] if gpu else [],
            }
        ],
        "dynamic_batching": {"max_queue_delay_microseconds": limits.wait_us},
        "parameters": {"max_items": {"string_value": str(limits.waiting_max)}},
    }


def statistics_of(name: str, counts: Counts) -> dict[str, Any]:
    """What was computed since the start."""
    batches = sorted(counts.batches.items())
    every = Times(sum(each.count for _, each in batches), sum(each.total_s for _, each in batches))
    waited = Times(counts.waits_s.counts.total(), counts.waits_s.total)
    return {
        "name": name,
        "version": VERSION,
        "last_inference": round(counts.last_s * 1e3),
        "inference_count": counts.items[ANSWERED],
        "execution_count": every.count,
        "inference_stats": {
            "success": _duration(counts.succeeded),
            "fail": _duration(counts.failed),
            "queue": _duration(waited),
            "compute_input": _duration(Times()),
            "compute_infer": _duration(every),
            "compute_output": _duration(Times()),
        },
        "batch_stats": [
            {
                "batch_size": size,
                "compute_input": _duration(Times()),
                "compute_infer": _duration(times),
                "compute_output": _duration(Times()),
            }
            for size, times in batches
        ],
    }


def _tensors(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
    return [{"name": each.name, "data_type": _type(each.datatype), "dims": list(each.shape)} for each in specs]


def _type(datatype: str) -> str:
    return "TYPE_STRING" if datatype in ("BYTES", "JSON") else f"TYPE_{datatype}"


def _duration(times: Times) -> dict[str, int]:
    return {"count": times.count, "ns": round(times.total_s * 1e9)}
