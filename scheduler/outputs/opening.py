"""Picks where output is stored: beside the embedded database in files, with PostgreSQL in rows."""

from collections.abc import Callable
from pathlib import Path

from gpufleet.config.scheduler_settings import OutputSettings, SchedulerSettings

from ..clock import wall_time
from ..state.units import Instant
from ..store.opening import parse_url
from .files import FileShelf
from .layout import OutputLimits
from .retention import DropMark
from .segment_store import SegmentStore
from .segmented import SegmentedOutputStore

FOLDER = "output"
"""Where in the data folder the files are."""

OUTPUT_NAME = "gpufleet output"
"""What connections to a server are named by where they are not a scheduler's own."""

DROPS_FILE = "output-dropped"
"""Where in the data folder it is noted up to when output was dropped; also with PostgreSQL."""


def open_outputs(
    settings: SchedulerSettings,
    data: Path,
    term: int,
    wall_clock: Callable[[], Instant] = wall_time,
    identity: str = OUTPUT_NAME,
) -> SegmentedOutputStore:
    """The output store that belongs to the opened store that has this term. Errors: OutputStoreUnavailable."""
    shelf = open_shelf(settings.store, term, data / FOLDER, identity)
    drops = DropMark(data / DROPS_FILE)
    if drops.read() is None:
        drops.note(wall_clock())  # nobody knows what an earlier version dropped
    return SegmentedOutputStore(shelf, limits_of(settings.output), wall_clock, drops)


def limits_of(output: OutputSettings) -> OutputLimits:
    """The limits that the settings ask for."""
    tail_bytes = output.attempt_bytes_max - output.head_bytes_max
    return OutputLimits(head_bytes=output.head_bytes_max, tail_bytes=tail_bytes)


def open_shelf(store_url: str, term: int, folder: Path, identity: str = OUTPUT_NAME) -> SegmentStore:
    """Where the segments are. `identity` names connections to a server. Errors: OutputStoreUnavailable."""
    url = parse_url(store_url) if store_url else None
    if url is None or url.get_backend_name() == "sqlite":
        return FileShelf(folder)
    from ..store.postgres import connected_engine
    from .rows import RowShelf

    return RowShelf(connected_engine(url, identity), term)
