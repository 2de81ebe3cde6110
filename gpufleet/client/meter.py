"""What a client did, as metrics of OpenTelemetry, for programs that use it: instruments of the meter `gpufleet.client`.

Nothing is imported here. A program that measures has loaded `opentelemetry.metrics` before it makes a client, and says
by its own provider where figures go, later, too; with any other program nothing is kept. Labels are the model's name,
backends, outcomes and states of circuits: a bounded lot. docs/metrics.md lists the names.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import ref

from .core.dispatch import Dispatcher
from .core.sums import Batch

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation

API = "opentelemetry.metrics"

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SIZES = tuple(float(1 << power) for power in range(11))


@dataclass(frozen=True, slots=True)
class Named:
    """An instrument: its name, its unit (UCUM) and what it is, for people."""

    name: str
    unit: str
    doc: str


DURATION = Named("gpufleet.client.request.duration", "s", "Requests of a client, until they had an answer or failed.")
BATCH_SIZE = Named("gpufleet.client.request.items", "{item}", "Items of a request.")
ITEMS = Named("gpufleet.client.items", "{item}", "Items that have an answer, or an error for good.")
FALLBACKS = Named("gpufleet.client.fallbacks", "{item}", "Items that a backend answered that is not the preferred one.")
RETRIES = Named("gpufleet.client.retries", "{request}", "Requests that were sent again.")
WORKERS = Named("gpufleet.client.workers", "{worker}", "Workers that a client knows, by the state of their circuits.")

NAMES = (DURATION, BATCH_SIZE, ITEMS, FALLBACKS, RETRIES, WORKERS)


def measure(model: str, dispatcher: Dispatcher, clock: Any) -> None:
    """Have the program's metrics, if it has any, tell what becomes of a client's requests from now on.

    `clock` gives the time that circuits are told, in seconds. What is read when figures are collected is read on a
    thread of the SDK, and no longer once the dispatcher is gone.
    """
    api = sys.modules.get(API)
    if api is None:
        return
    meter = api.get_meter("gpufleet.client")
    dispatcher.sums.on_batch = _Figures(meter, model, dispatcher)
    known = ref(dispatcher)

    def read(options: CallbackOptions) -> Iterable[Observation]:
        at = known()
        return () if at is None else list(_circuits(api, model, at, clock()))

    meter.create_observable_up_down_counter(WORKERS.name, [read], WORKERS.unit, WORKERS.doc)


class _Figures:
    """Takes in every batch of a client, on its own thread."""

    def __init__(self, meter: Any, model: str, dispatcher: Dispatcher) -> None:
        self._dispatcher = ref(dispatcher)
        self._model = model
        self._retries = 0
        self._duration = meter.create_histogram(
            DURATION.name, DURATION.unit, DURATION.doc, explicit_bucket_boundaries_advisory=SECONDS
        )
        self._size = meter.create_histogram(
            BATCH_SIZE.name, BATCH_SIZE.unit, BATCH_SIZE.doc, explicit_bucket_boundaries_advisory=SIZES
        )
        self._items, self._fallbacks, self._resent = (
            meter.create_counter(each.name, each.unit, each.doc) for each in (ITEMS, FALLBACKS, RETRIES)
        )

    def __call__(self, batch: Batch) -> None:
        said = {"model": self._model, "backend": str(batch.backend or "none")}
        for outcome, count in (("answered", batch.answered), ("failed", batch.failed)):
            if count:
                self._items.add(count, said | {"outcome": outcome})
        if batch.fallen_back:
            self._fallbacks.add(batch.fallen_back, said)
        if batch.duration_s is not None:
            outcome = "answered" if batch.is_success else "failed"
            self._duration.record(batch.duration_s, said | {"outcome": outcome})
            self._size.record(batch.size, said)
        dispatcher = self._dispatcher()
        if dispatcher is not None and (more := dispatcher.sums.retries - self._retries) > 0:
            self._retries += more
            self._resent.add(more, {"model": self._model})


def _circuits(api: Any, model: str, dispatcher: Dispatcher, now_s: float) -> Iterator[Observation]:
    counted = Counter(
        (str(each.backend or "none"), str(each.circuit.state(now_s))) for each in list(dispatcher.workers.values())
    )
    for (backend, circuit), count in counted.items():
        yield api.Observation(count, {"model": model, "backend": backend, "circuit": circuit})
