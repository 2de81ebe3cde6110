"""Batch inference for programs: items go to GPU workers, else to CPU workers, else to a callable of yours.

    from gpufleet.client import InferenceClient

    with InferenceClient(model="faces") as client:           # through the gateway, as gpuctl knows it
        for result in client.predict([first_jpeg, second_jpeg]):
            print(result.value if result.is_ok else result.error, result.worker, result.backend, result.attempts)

`AsyncInferenceClient` is the same for asyncio. With `addresses=["host:8000"]` workers are asked without a gateway.
Every setting is a keyword and a variable, GPUFLEET_INFERENCE_…: `ClientSettings` says what each means, and
docs/inference-client.md shows more.

**A result for each item**, in their order: a value, or an error of its own. A call raises for no item's sake. It takes
`deadline_s` at the longest, waits and retries included.

**What is sent again.** The model's contract says that the same item may be asked twice. A request is sent again after
connections that fail, time-outs, and the statuses 429, 502, 503 and 504, and after no others. An item is in one request
at a time.

**Threads.** A sync client may be used from any thread. It runs on one thread of its own, which ends with `close`. A
child made by fork starts its own. An async client belongs to the loop in which it is used.

It needs h11 (`pip install 'gpufleet[client]'`), neither torch nor NumPy, and runs where Python runs. `core/` decides,
`engine.py` carries out, `clients.py` are the two classes; read `core/dispatch.py` first.
"""

from __future__ import annotations

from .clients import AsyncInferenceClient, InferenceClient
from .core.outcomes import Backend, ErrorKind, InferenceFailed, ItemError, Result
from .core.sums import Figures
from .engine import Fallback
from .metrics import ClientMetrics, WorkerMetrics
from .settings import ClientSettings

__all__ = [
    "AsyncInferenceClient",
    "Backend",
    "ClientMetrics",
    "ClientSettings",
    "ErrorKind",
    "Fallback",
    "Figures",
    "InferenceClient",
    "InferenceFailed",
    "ItemError",
    "Result",
    "WorkerMetrics",
]
