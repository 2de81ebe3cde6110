"""What it costs to do nothing."""

from . import measures
from .rows import Row, Run

IDLE_SECONDS = 10.0


def measure(run: Run) -> list[Row]:
    """The rows of the group `standing`."""
    rows: list[Row] = []
    for name, (share, memory) in measures.idle(run.fleet.programs(), IDLE_SECONDS).items():
        rows += [Row(f"idle {name}", share, "% of a core"), Row(f"memory {name}", memory, "MB")]
    return rows
