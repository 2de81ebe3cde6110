"""Makes a backup: the store of one moment, the keys, and what there is of output, into a file or a pipe."""

import importlib.metadata
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, BinaryIO

from gpufleet.config.scheduler_settings import SchedulerSettings

from ..store.snapshot import TABLES, Snapshot, open_snapshot
from ..verifying import store_url
from . import keys, output_bytes, output_list, parts
from .archive import Writer
from .manifest import FORMAT, Manifest, TableRows


@dataclass(frozen=True, slots=True)
class Made:
    """A backup that was made: what it says of itself, its size, and how long it took."""

    manifest: Manifest
    keys: Sequence[str]
    bytes: int
    seconds: float


def make(settings: SchedulerSettings, file: BinaryIO, *, has_output: bool = False) -> Made:
    """Write a backup of what the settings name; a scheduler that runs on it goes on. Only the end makes it a backup.

    `has_output`: what jobs printed is in it, too, and not only where that is.

    Errors: those of `open_snapshot` and of a snapshot, OutputStoreUnavailable, BACKUP_FAILED, OSError of the file.
    """
    began, now = time.monotonic(), datetime.now(UTC)
    writer = Writer(file, int(now.timestamp()))
    with open_snapshot(store_url(settings)) as store:
        tables = {
            table.name: TableRows(
                [each.name for each in table.columns],
                parts.written(f"tables/{table.name}", map(list, store.rows(table)), writer.add),
            )
            for table in TABLES
        }
        counters = store.counters()
    found = keys.copied(settings, writer.add)
    packing = output_bytes.Packing(writer.add)
    listed = output_list.Listed(packing.take if has_output else None)
    parts.written(output_list.PREFIX, listed.lines(settings), writer.add)
    packing.finish()
    manifest = Manifest(
        format=FORMAT,
        release=importlib.metadata.version("gpufleet"),
        made_at=now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        **_identity(store),
        next_job=counters.next_job,
        next_session=counters.next_session,
        tables=tables,
        output_pieces=listed.pieces,
        output_bytes=listed.bytes,
        has_output=has_output,
        members=tuple(writer.members),
    )
    writer.finish(manifest)
    return Made(manifest, found, writer.bytes, time.monotonic() - began)


def _identity(store: Snapshot) -> dict[str, Any]:
    return {
        "database": store.kind,
        "revision": store.revision,
        "stored_format": store.meta.format,
        "store_id": store.meta.store_id,
        "lineage": store.starts[-1].lineage if store.starts else "",
        "term": store.meta.term,
        "sequence": store.meta.record_seq,
    }
