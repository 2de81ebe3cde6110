"""What it costs to do nothing, and what a look at the queue costs."""

import sys

from . import measures
from .rows import Row, Run

IDLE_SECONDS = 10.0


def measure(run: Run) -> list[Row]:
    """The rows of the group `standing`."""
    fleet = run.fleet
    rows: list[Row] = []
    for name, (share, memory) in measures.idle(fleet.programs(), IDLE_SECONDS).items():
        rows += [Row(f"idle {name}", share, "% of a core"), Row(f"memory {name}", memory, "MB")]
    gpuctl = [sys.executable, "-P", "-m", "gpufleet.cli", "queue"]
    environment = {"GPUCTL_SCHEDULER": fleet.address, "GPUCTL_TOKEN": fleet.token}
    imports = measures.wall_ms([sys.executable, "-c", "import grpc, typer"], {}, 11)
    queue = measures.wall_ms(gpuctl, environment, 11)
    return [*rows, Row("gpuctl queue", queue, "ms", imports, 'python -c "import grpc, typer"')]
