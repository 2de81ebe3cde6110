"""Opens the output store that the settings name."""

from pathlib import Path

from gpufleet.scheduler_settings import SchedulerSettings

from ..ports import OutputStore
from .files import FileShelf
from .layout import OutputLimits
from .segmented import SegmentedOutputStore


def open_outputs(settings: SchedulerSettings, data: Path) -> OutputStore:
    """Files in the data folder."""
    output = settings.output
    limits = OutputLimits(head_bytes=output.head_bytes_max, tail_bytes=output.attempt_bytes_max - output.head_bytes_max)
    return SegmentedOutputStore(FileShelf(data / "output"), limits)
