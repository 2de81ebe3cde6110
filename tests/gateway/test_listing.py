"""What a page is told of a model before one joins."""

from __future__ import annotations

import pytest
from gpufleet.v1 import inference_pb2, sessions_pb2

from gateway.listing import model_shown

READY, LOADING, STARTING, QUEUED, FAILED, DRAINING = (
    inference_pb2.WorkerState.Value(f"WORKER_STATE_{name}")
    for name in ("READY", "LOADING", "STARTING", "QUEUED", "FAILED", "DRAINING")
)


@pytest.mark.parametrize(
    ("states", "failure", "said"),
    [
        ([], "", ("away", "")),
        ([DRAINING], "", ("away", "")),
        ([QUEUED], "", ("loading", "a worker is being started")),
        ([STARTING, FAILED], "", ("loading", "a worker is being started")),
        ([LOADING, STARTING], "", ("loading", "worker 0")),
        ([FAILED], "", ("failed", "worker 0")),
        ([], "no torch", ("failed", "no torch")),
        ([READY, QUEUED], "no torch", ("ready", "")),
    ],
)
def test_a_model_is_shown_by_the_best_of_its_workers(
    states: list[inference_pb2.WorkerState.ValueType], failure: str, said: tuple[str, str]
) -> None:
    workers = [sessions_pb2.WorkerInfo(state=state, message=f"worker {at}") for at, state in enumerate(states)]
    model = sessions_pb2.Model(name="m", workers=workers)
    if failure:
        model.failure.message = failure
    shown = model_shown(model)
    assert (shown["state"], shown["message"]) == said
    assert shown["workers"] == len(states)
