"""Puts a backup back, in steps that a kill at any moment leaves either undone or to be done again, never half served.

1. The file is read whole, sums and all. 2. The database is filled where no start finds it, and what is in it is looked
at. 3. A mark says that a restore has begun. 4. Keys and database take their places. 5. The mark says that it is over,
and what the next start has to know.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from sqlalchemy import Connection

from gpufleet.config.scheduler_settings import SchedulerSettings
from gpufleet.errors import GpufleetError, Reason

from ..known_store import jobs_above, newest_output, read_known, sessions_above
from ..restore_mark import RestoreMark, read_mark, remove_mark, write_mark
from ..state.access import Counters
from ..store.errors import StoreCorrupt
from ..store.filling import bring_up_to_date, make_tables, put
from ..store.snapshot import counters_of
from ..verifying import store_url
from . import keys, output_bytes, targets
from .archive import Archive
from .checking import check, check_output, rows_of
from .manifest import Manifest
from .targets import Occupant


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a restore did: numbers of jobs go on above `jobs_above`, 0 where nothing is lost.

    `kept` was there before and is aside now; `output_bytes` were missing and are put back.
    """

    jobs_above: int
    kept: Sequence[Path]
    output_bytes: int
    has_known: bool
    known_next_job: int


def restore(settings: SchedulerSettings, archive: Archive, *, replaces: bool) -> Restored:
    """Make a backup the store of what the settings name, from the next start on.

    Errors: BACKUP_INVALID, BACKUP_FAILED, STORE_NOT_EMPTY, and those of the store; then nothing was changed.
    """
    check(archive)
    check_output(archive)
    data, told = settings.data, archive.manifest
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    with targets.opened(store_url(settings)) as target:
        earlier = _earlier(data)
        # One that did not come to its end is run again, with this backup or another.
        begun = earlier if earlier is not None and not earlier.is_finished else None
        is_there = begun is not None and target.occupant is not None and _is_copy(target.occupant, told)
        plan = keys.planned(archive, settings)
        if not is_there:
            content = sum(each.content_bytes for each in told.members)
            target.must_take(content, replaces=replaces or begun is not None)
        if plan.others and not replaces and begun is None:
            raise GpufleetError(
                Reason.STORE_NOT_EMPTY,
                f"{', '.join(str(path) for path in plan.others)}: another is there than in the backup",
                next_step="Give another folder with --data DIR, or say --replace: what is there is kept beside it.",
            )
        if not is_there:
            target.fill(partial(_fill, archive))
        mark, known = _mark(settings, told, target.occupant, earlier), read_known(data)
        try:
            write_mark(data, mark)
            plan.put(mark.stamp)
        except BaseException:
            _take_back(data, plan, earlier)
            raise
        # From here on what is in its place may be the old one or the new one: whatever happens, the mark stays.
        old = None if is_there else target.put(mark.stamp)
        output_written = output_bytes.put(settings, archive) if told.has_output else 0
        if mark.gap:
            write_mark(data, replace(mark, is_finished=True))
        else:
            remove_mark(data)
    return Restored(
        jobs_above=mark.jobs_above if mark.gap else 0,
        kept=[*plan.kept.values(), *([] if old is None else [old])],
        has_known=known is not None,
        output_bytes=output_written,
        known_next_job=0 if known is None else known.next_job,
    )


def _fill(archive: Archive, connection: Connection) -> None:
    """Everything into empty tables, and a look at what is there then. Errors: BACKUP_INVALID, StoreCorrupt."""
    told = archive.manifest
    make_tables(connection, told.revision)
    for name, table in told.tables.items():
        put(connection, name, table.columns, rows_of(archive, name))
    try:
        found = bring_up_to_date(connection)
        of_rows = (found.store_id, found.term, found.record_seq, counters_of(connection))
    except StoreCorrupt as error:
        raise GpufleetError(Reason.BACKUP_INVALID, f"{archive.path}: {error}") from error
    if of_rows != _said_by(told):
        raise GpufleetError(Reason.BACKUP_INVALID, f"{archive.path}: its manifest is of another store than its rows")


def _earlier(data: Path) -> RestoreMark | None:
    """The mark of a restore before; of a damaged one only that it may not have come to its end."""
    try:
        return read_mark(data)
    except GpufleetError:
        unknown = {"store_id": "", "lineage": "", "gap": "unknown", "stamp": _new_stamp()}
        return RestoreMark(**unknown, term=0, sequence=0, jobs_above=0, sessions_above=0, is_finished=False)


def _take_back(data: Path, plan: keys.KeyPlan, earlier: RestoreMark | None) -> None:
    """Let the folder be as it was. Where not even that can be done a start is refused, and a restore is run again."""
    with suppress(OSError):
        plan.take_back()
        if earlier is None:
            remove_mark(data)
        else:
            write_mark(data, earlier)


def _is_copy(occupant: Occupant, told: Manifest) -> bool:
    """Whether a store is as far as the backup, and no farther: then nothing was committed since."""
    meta = occupant.meta
    return (meta.store_id, meta.term, meta.record_seq, occupant.counters) == _said_by(told)


def _said_by(told: Manifest) -> tuple[str, int, int, Counters]:
    """Which store, and how far, by what a backup says of itself."""
    counters = Counters(next_job=told.next_job, next_session=told.next_session)
    return told.store_id, told.term, told.sequence, counters


def _mark(
    settings: SchedulerSettings, told: Manifest, occupant: Occupant | None, earlier: RestoreMark | None
) -> RestoreMark:
    """What the next start has to know. Nothing is lost where the newest store is at hand, and is as the backup is."""
    data, known = settings.data, read_known(settings.data)
    before = occupant.counters if occupant is not None else Counters()
    newest = occupant or targets.occupant_of(f"sqlite:///{data / 'scheduler.db'}")
    is_whole = earlier is None and newest is not None and _is_copy(newest, told)
    if earlier is not None and not earlier.is_finished and not earlier.gap:
        is_whole = (earlier.store_id, earlier.term, earlier.sequence) == (told.store_id, told.term, told.sequence)
    jobs = f"jobs up to {told.next_job - 1:,}"
    gap = "" if is_whole else f"the database was restored from a backup of {told.made_at} (term {told.term}, {jobs})"
    above = jobs_above(known, newest_output(data), told.next_job - 1, before.next_job - 1)
    sessions = sessions_above(known, told.next_session - 1, before.next_session - 1)
    return RestoreMark(
        store_id=told.store_id,
        lineage=told.lineage,
        term=told.term,
        sequence=told.sequence,
        gap=gap,
        jobs_above=max(above, 0 if earlier is None else earlier.jobs_above),
        sessions_above=max(sessions, 0 if earlier is None else earlier.sessions_above),
        stamp=_stamp(earlier),
        is_finished=False,
    )


def _stamp(earlier: RestoreMark | None) -> str:
    """What is behind the names of what is kept aside: one for a restore, however often it is run."""
    return earlier.stamp if earlier is not None and not earlier.is_finished else _new_stamp()


def _new_stamp() -> str:
    return f"before-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
