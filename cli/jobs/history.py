"""`history`: what has ended, how it ended, and what it used."""

from __future__ import annotations

from ..options import Printing
from .history_options import HistoryOptions


def history(options: Printing, wanted: HistoryOptions) -> None:
    """Show what has ended: how, how long it ran and waited, and what it used.

    The newest end comes first. ELAPSED, MEMORY and GPU are of a job's newest attempt: how long it ran, the most host
    memory that it used, and the mean utilisation of its GPUs. WAIT is how long it waited for its first start.
    """
    from .ended_jobs import show_history

    show_history(options.settings(), wanted)
