"""Whether a file is a whole backup: every byte as it was written, and rows that make a store."""

from collections import namedtuple
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

from sqlalchemy import Table

from gpufleet.errors import GpufleetError, Reason

from ..state.access import Counters
from ..store import reading, schema
from ..store.codec import Codec
from ..store.errors import StoreCorrupt, StoreError, read_as_stored
from ..store.filling import must_be_known
from ..store.migrations import NEWEST_REVISION
from ..store.reading import Meta
from ..store.snapshot import COUNTERS_KIND, TABLE_SINCE, TABLES
from ..store.verify import PROBLEMS_MAX, contradictions
from . import output_bytes, output_list, parts
from .archive import Archive


def check(archive: Archive) -> None:
    """Read every byte. Errors: BACKUP_INVALID, StoreTooNew, StoreTooOld."""
    told = archive.manifest
    must_be_known(told.revision, told.stored_format, str(archive.path))
    known = {table.name: [column.name for column in table.columns] for table in TABLES}
    for name, table in told.tables.items():
        if name not in known or (told.revision == NEWEST_REVISION and table.columns != known[name]):
            raise _invalid(archive, f"the table {name} is none of a store, or has other columns")
    expected = {name for name in known if told.revision >= TABLE_SINCE.get(name, "")}
    if missing := expected - told.tables.keys():
        raise _invalid(archive, f"the table {min(missing)} is missing")
    folders = {f"tables/{name}" for name in known} | {"keys", output_list.PREFIX}
    if told.has_output:
        folders.add(output_bytes.PREFIX)
    for member in told.members:
        if member.name.rpartition("/")[0] not in folders:
            raise _invalid(archive, f"{member.name} belongs to nothing")
    archive.check_sums()


def problems(archive: Archive) -> list[str]:
    """What is wrong with what a checked backup holds, a sentence each. Errors: BACKUP_INVALID, StoreTooNew.

    Rows of tables that are older than this program's are looked at when they are restored.
    """
    told = archive.manifest
    check_output(archive)
    if told.revision != NEWEST_REVISION:
        for name in told.tables:
            for _ in rows_of(archive, name):
                pass
        return []
    found: list[str] = []
    try:
        with read_as_stored("its rows"):
            (meta,) = (Meta(*row[1:]) for row in _values(archive, TABLES[0]))
            if (meta.store_id, meta.term, meta.record_seq) != (told.store_id, told.term, told.sequence):
                found.append("its manifest is of another store than its rows")
            for _ in _values(archive, TABLES[1]):
                pass
            rows = _Rows(archive)
            for problem in contradictions(Codec(), meta, rows.of):
                found.append(problem)
                if len(found) >= PROBLEMS_MAX:
                    break
            if (rows.counters.next_job, rows.counters.next_session) != (told.next_job, told.next_session) and not found:
                found.append("its manifest says other next numbers than its rows")
    except StoreError as error:
        found.append(str(error))
    return found


def check_output(archive: Archive) -> None:
    """Whether the list of output, and output itself, are what the manifest says. Errors: BACKUP_INVALID."""
    told, pieces, size = archive.manifest, 0, 0
    source = output_bytes.Unpacking(archive) if told.has_output else None
    for piece in output_list.listed_in(archive):
        pieces, size = pieces + 1, size + piece.bytes
        for _ in () if source is None else source.chunks(piece.bytes):
            pass
    if source is not None:
        source.must_be_over()
    if (pieces, size) != (told.output_pieces, told.output_bytes):
        raise _invalid(archive, "it does not list as much output as its manifest says")


def rows_of(archive: Archive, name: str) -> Iterator[list[parts.Line]]:
    """The rows of a table, some at a time: as many as the manifest says. Errors: BACKUP_INVALID."""
    count = 0
    for lines in parts.lines_of(archive, f"tables/{name}"):
        count += len(lines)
        yield lines
    if count != archive.manifest.tables[name].rows:
        raise _invalid(
            archive, f"{name} has {count:,} rows, and the manifest says {archive.manifest.tables[name].rows:,}"
        )


class _Rows:
    """Rows as they are looked at, and what they say of the next numbers."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self.counters = Counters()

    def of(self, table: Table) -> Iterator[Any]:
        """The rows of a table."""
        for row in _values(self._archive, table):
            if table is schema.entity and row.kind == COUNTERS_KIND:
                counters = reading.entity(Codec(), row)
                assert isinstance(counters, Counters)
                self.counters = counters
            yield row


def _values(archive: Archive, table: Table) -> Iterator[Any]:
    """The rows of a table as a database answers them."""
    row_of = namedtuple("row_of", [column.name for column in table.columns])  # type: ignore[misc]
    key_of = attrgetter(*(column.name for column in table.primary_key.columns))
    seen, newest = set(), None
    for lines in rows_of(archive, table.name):
        for line in lines:
            row = row_of(*line)
            key: Any = key_of(row)
            # Numbers rise; texts do so in the order of the database that they come from.
            if key in seen or (type(key) is int and newest is not None and key <= newest):
                raise StoreCorrupt(f"{table.name}: the row {key} is in it twice, or in the wrong order")
            newest = key
            if type(key) is not int:
                seen.add(key)
            yield row


def _invalid(archive: Archive, why: str) -> GpufleetError:
    return GpufleetError(Reason.BACKUP_INVALID, f"{archive.path}: {why}")
