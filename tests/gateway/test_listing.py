"""What everybody is told of a model before joining."""

from __future__ import annotations

import pytest
from gpufleet.v1 import inference_pb2, sessions_pb2

from gateway.app import model_shown

READY, LOADING, QUEUED, DRAINING = (
    inference_pb2.WORKER_STATE_READY,
    inference_pb2.WORKER_STATE_LOADING,
    inference_pb2.WORKER_STATE_QUEUED,
    inference_pb2.WORKER_STATE_DRAINING,
)


def worker(
    state: inference_pb2.WorkerState.ValueType, seats: int = 0, taken: int = 0, progress: float = 0
) -> sessions_pb2.WorkerInfo:
    return sessions_pb2.WorkerInfo(state=state, seats=seats, taken_seats=taken, progress=progress)


def test_seats_are_those_of_workers_that_take_people() -> None:
    workers = [worker(READY, 4, 3), worker(READY, 4, 4), worker(DRAINING, 4, 1), worker(LOADING, progress=0.25)]
    shown = model_shown(sessions_pb2.Model(name="m", waiting_count=2, turn_count=8, workers=workers))
    assert (shown["seats"], shown["free"], shown["workers"]) == (8, 1, 4)
    assert (shown["waiting"], shown["turns"], shown["state"], shown["progress"]) == (2, 8, "ready", 0.25)


@pytest.mark.parametrize(
    ("model", "state"),
    [
        (sessions_pb2.Model(workers=[worker(QUEUED), worker(LOADING)]), "loading"),
        (sessions_pb2.Model(workers=[worker(QUEUED)]), "queued"),
        (sessions_pb2.Model(workers=[worker(DRAINING)], entry_point="a:B"), "asleep"),
        (sessions_pb2.Model(entry_point="a:B", failure=sessions_pb2.ModelFailure(message="no /home/ann/x")), "failed"),
        (sessions_pb2.Model(entry_point="a:B"), "asleep"),
        (sessions_pb2.Model(), "away"),
    ],
)
def test_a_model_without_a_ready_worker_says_how_far_it_is_and_nothing_private(
    model: sessions_pb2.Model, state: str
) -> None:
    shown = model_shown(model)
    assert (shown["state"], shown["free"]) == (state, 0)
    assert "/home/ann" not in str(shown)


def test_a_worker_that_waits_says_for_what_and_not_where() -> None:
    waits = sessions_pb2.WorkerInfo(
        state=QUEUED, wait_reason="CPUS_IN_USE", message="waits: node n1 has 0 of 2 CPUs free"
    )
    shown = model_shown(sessions_pb2.Model(workers=[waits]))
    assert (shown["state"], shown["waits_for"]) == ("queued", "CPUS_IN_USE")
    assert "n1" not in str(shown)
    assert model_shown(sessions_pb2.Model(workers=[worker(READY, 1)]))["waits_for"] == ""
