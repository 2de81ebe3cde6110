"""What a command takes as a person feels it: from its start to its end, against Python with grpc and typer imported."""

import sys

from . import measures
from .rows import Row, Run

FLOOR = 'python -c "import grpc, typer"'
COMMANDS = {
    "gpuctl run -- true": ("run", "--", "true"),
    "gpuctl submit -- true": ("submit", "--", "true"),
    "gpuctl queue": ("queue",),
    "gpuctl submit --help": ("submit", "--help"),
}


def measure(run: Run) -> list[Row]:
    """The rows of the group `commands`: medians of as many rounds as a latency has."""
    gpuctl = [sys.executable, "-P", "-m", "gpufleet.cli"]
    lines = {name: [*gpuctl, *words] for name, words in COMMANDS.items()}
    # Whoever measures may have Python keep no compiled modules: a command would then compile all of its own each time.
    environment = {
        "GPUCTL_SCHEDULER": run.fleet.address,
        "GPUCTL_TOKEN": run.fleet.token,
        "PYTHONDONTWRITEBYTECODE": "",
    }
    taken = measures.wall_ms({FLOOR: [sys.executable, "-c", "import grpc, typer"], **lines}, environment, run.rounds)
    return [Row(name, taken[name], "ms", taken[FLOOR], FLOOR) for name in lines]
