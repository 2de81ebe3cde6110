"""A fleet of GPUs from Python: what `gpuctl` does, in a program, a notebook, or a job.

    import gpufleet

    fleet = gpufleet.connect()                       # the scheduler and the token that gpuctl would take
    job = fleet.submit(["python", "train.py"], gpus=2, upload=".", download=["out/**"])
    for line in job.logs(follow=True):
        print(line, end="")
    if job.wait() == 0:
        job.download("out", target="results/")

    losses = list(fleet.map(train, [1e-2, 1e-3, 1e-4], gpus=1))      # a function, on the fleet

docs/python.md shows more. `gpufleet.AsyncFleet` and `gpufleet.connect_async` are the same for asyncio. Errors are
`gpufleet.GpufleetError`, with `reason`, `violations` and `next_step`. Nothing is imported before it is used.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

# In a checkout what is generated, `gpufleet.v1`, lies in gen/ beside this; an install has all in one folder.
if (_generated := Path(__file__).parent.with_name("gen") / "gpufleet").is_dir():
    __path__.append(str(_generated))

if TYPE_CHECKING:
    from gpufleet.api.connecting import connect, connect_async
    from gpufleet.api.executor import Executor
    from gpufleet.api.failures import JobFailed, TaskFailed
    from gpufleet.api.fleet import AsyncFleet
    from gpufleet.api.job import AsyncJob
    from gpufleet.api.job_view import JobFile
    from gpufleet.api.sync import Fleet, Job
    from gpufleet.errors import GpufleetError

__all__ = [
    "AsyncFleet",
    "AsyncJob",
    "Executor",
    "Fleet",
    "GpufleetError",
    "Job",
    "JobFailed",
    "JobFile",
    "TaskFailed",
    "connect",
    "connect_async",
]

_HOMES = {
    "AsyncFleet": "gpufleet.api.fleet",
    "AsyncJob": "gpufleet.api.job",
    "Executor": "gpufleet.api.executor",
    "Fleet": "gpufleet.api.sync",
    "GpufleetError": "gpufleet.errors",
    "Job": "gpufleet.api.sync",
    "JobFailed": "gpufleet.api.failures",
    "JobFile": "gpufleet.api.job_view",
    "TaskFailed": "gpufleet.api.failures",
    "connect": "gpufleet.api.connecting",
    "connect_async": "gpufleet.api.connecting",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
