"""The model's own thread: it loads the model, and computes one batch after the other. Nothing else calls the model."""

from __future__ import annotations

import logging
import queue
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gpufleet.predict import Item

from ..core.batching import Answered, Raised
from ..loading import NotLoaded, last_line, let_go
from .loading import Ready, is_out_of_memory
from .results import Values, read_result
from .tensors import WrongData

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Computed:
    """What came of a batch: the outcome, and what each item has; none where predict raised or miscounted."""

    outcome: Answered | Raised
    values: Sequence[Values | None] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictCallbacks:
    """What the model's thread tells, on that thread."""

    loaded: Callable[[Ready], None]
    not_loaded: Callable[[str], None]
    computed: Callable[[Computed], None]


class PredictThread:
    """Runs the model. `begin` gives it a batch, one at a time; `stop` lets it end, which it does after its batch."""

    def __init__(self, load: Callable[[], Ready], told: PredictCallbacks) -> None:
        self._load = load
        self._told = told
        self._batches: queue.SimpleQueue[list[Item] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)

    def start(self) -> None:
        """Load the model, and then compute."""
        self._thread.start()

    def begin(self, items: list[Item]) -> None:
        """Compute these together."""
        self._batches.put(items)

    def stop(self, wait_s: float) -> bool:
        """End; False where the model did not come back within this time."""
        self._batches.put(None)
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            ready = self._load()
        except NotLoaded as problem:
            if problem.__cause__ is not None:
                _log.error("the model cannot be loaded", exc_info=problem.__cause__)
            self._told.not_loaded(str(problem))
            return
        except BaseException as problem:  # a SystemExit of a call that warms up, or zeros beyond all memory
            _log.error("the model cannot be loaded", exc_info=problem)
            self._told.not_loaded(last_line(problem))
            return
        self._told.loaded(ready)
        while (items := self._batches.get()) is not None:
            self._told.computed(compute(ready, items))
            del items


def compute(ready: Ready, items: list[Item]) -> Computed:
    """One call of predict, and what it gave for each item. Never raises."""
    try:
        results: Any = ready.model.predict(list(items))
        listed = list(results)
    except BaseException as problem:  # a model's own SystemExit as well
        outcome = Raised(last_line(problem), is_out_of_memory(problem))
        trace = "".join(traceback.format_exception(problem)).rstrip()
        _log.error("predict raised with %d items: %s\n%s", len(items), outcome.message, trace)
        let_go(problem)
        return Computed(outcome)
    if len(listed) != len(items):
        _log.error("predict gave %d answers for %d items", len(listed), len(items))
        return Computed(Answered([None] * len(listed)))
    refusals: list[str | None] = []
    values: list[Values | None] = []
    for result in listed:
        value, why = _read(ready, result)
        values.append(value)
        refusals.append(why)
    return Computed(Answered(refusals), values)


def _read(ready: Ready, result: Any) -> tuple[Values | None, str | None]:
    if isinstance(result, BaseException):
        return None, last_line(result)
    try:
        return read_result(result, ready.traits.outputs), None
    except WrongData as problem:
        return None, str(problem)
    except Exception as problem:  # of a tensor on a device that fails, say
        return None, f"the result cannot be read: {last_line(problem)}"
