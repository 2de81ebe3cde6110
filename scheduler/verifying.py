"""`--verify`: looks at everything that is stored, changes nothing, and says what is wrong."""

import time
from collections.abc import Sequence
from contextlib import closing

from gpufleet.config.scheduler_settings import SchedulerSettings
from gpufleet.errors import GpufleetError

from .known_store import gap_of, read_known
from .outputs.errors import OutputStoreUnavailable
from .outputs.opening import DROPS_FILE, FOLDER, limits_of, open_shelf
from .outputs.retention import DropMark
from .outputs.verdict import OutputVerdict
from .restore_mark import read_mark
from .state.units import Instant
from .store.errors import StoreError, StoreLocked, StoreMissing, StoreTooOld, StoreUnavailable, StoreUrlInvalid
from .store.opening import open_to_examine, parse_url
from .store.reading import Began, Meta
from .store.verify import Examined


def store_url(settings: SchedulerSettings) -> str:
    """Where the store is: the database that is set, or the embedded one in the data folder."""
    return settings.store or f"sqlite:///{settings.data / 'scheduler.db'}"


def verify(settings: SchedulerSettings) -> tuple[list[str], str]:
    """What is wrong with what is stored, a sentence each, and a sentence on what was looked at.

    Errors: StoreLocked, StoreTooOld, StoreUnavailable and StoreUrlInvalid where nothing can be looked at.
    """
    try:
        examined = open_to_examine(store_url(settings))
    except StoreMissing as error:
        if gap := _gap(settings, None, []):
            return [f"{error}: {gap}"], ""
        raise
    except (StoreLocked, StoreTooOld, StoreUnavailable, StoreUrlInvalid):
        raise
    except StoreError as error:
        return [str(error)], ""
    with closing(examined):
        problems = examined.problems()
        if problems:
            return problems, ""
        gap = _gap(settings, *examined.newest())
        problems, looked_at = _outputs(settings, examined)
        return [*([gap] if gap else []), *problems], looked_at


def _gap(settings: SchedulerSettings, found: Meta | None, starts: Sequence[Began]) -> str:
    """What the store lacks of what its data folder has seen of it; empty where that is nothing.

    Of a write-ahead log that was cut off or removed SQLite says nothing: its commits are missing, the rest is sound.
    """
    try:
        mark = read_mark(settings.data)
    except GpufleetError as error:
        return error.message
    if mark is not None and not mark.is_finished:
        return "a restore into this data folder has not come to its end: run it again"
    if mark is not None and found is not None and mark.is_of(found.store_id, found.term):
        return ""  # who restored it knows
    gap = gap_of(read_known(settings.data), found, starts, leftovers=())
    is_file = parse_url(store_url(settings)).get_backend_name() == "sqlite"
    return (
        f"{gap}; its file scheduler.db-wal was cut off or removed, or a copy was put back" if gap and is_file else gap
    )


def _outputs(settings: SchedulerSettings, examined: Examined) -> tuple[list[str], str]:
    kept = limits_of(settings.output)
    kept_since = time.time() - settings.retention.total_seconds()
    verdict = OutputVerdict(
        dropped_until=DropMark(settings.data / DROPS_FILE).read(),
        attempt_bytes_max=kept.head_bytes + kept.tail_bytes,
        records_kept_since=Instant(int(kept_since * 1_000_000)),
    )
    living = ended = 0
    is_in_files = parse_url(store_url(settings)).get_backend_name() == "sqlite"
    shelf = None
    if not is_in_files or (settings.data / FOLDER).is_dir():
        shelf = open_shelf(settings.store, 0, settings.data / FOLDER)
    try:
        for job in examined.jobs():
            living, ended = living + (not job.is_finished), ended + job.is_finished
            verdict.look_at(shelf, job)
        if shelf is not None:
            verdict.look_at_others(shelf, examined.next_job())
    except OutputStoreUnavailable as error:
        verdict.problems.append(f"the stored output cannot be read: {error}")
    finally:
        if shelf is not None:
            shelf.close()
    looked_at = (
        f"{living:,} living and {ended:,} ended jobs; the output of {verdict.whole_jobs:,} is whole, "
        f"that of {verdict.dropped_jobs:,} was dropped by age or size, and others wrote none; "
        f"{verdict.checked_bytes:,} bytes of output are as they were written"
    )
    if verdict.unchecked_bytes:
        looked_at += f", and {verdict.unchecked_bytes:,} have no checksum to tell"
    return verdict.problems, looked_at
