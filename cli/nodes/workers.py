"""`workers`: both queues, and what each node and each worker of a served model is at."""

from __future__ import annotations

from ..options import Printing


def workers(options: Printing) -> None:
    """Show both queues, and what each worker runs.

    What waits for GPUs, and what for CPUs alone; each node with its jobs, and each worker of a served model, with when
    it was heard last. -o wide says whose the jobs are, and since when they run.
    """
    from .worker_calls import show_workers

    show_workers(options.settings())
