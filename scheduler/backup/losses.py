"""What a restore loses, as far as the data folder and the output that is there tell."""

from collections.abc import Iterator, Sequence

from gpufleet.config.scheduler_settings import SchedulerSettings

from ..state.ids import JobId
from . import output_list
from .archive import Archive
from .restoring import Restored

NAMED_MAX = 10
"""So many jobs, or pieces of output, are named; of others only their number is said."""


def losses(settings: SchedulerSettings, archive: Archive, restored: Restored) -> Iterator[str]:
    """A sentence for each kind of loss. Errors: OutputStoreUnavailable, BACKUP_INVALID."""
    told = archive.manifest
    if restored.jobs_above:
        if restored.known_next_job > told.next_job:
            yield f"lost: {_range(told.next_job, restored.known_next_job - 1)}, submitted after the backup was made"
        elif restored.known_next_job:
            yield "lost: no job that this data folder has seen"
        else:
            yield f"lost: what was submitted after {told.made_at}; this data folder has not seen how much that is"
        yield f"lost: what became of older jobs after {told.made_at}: some may run again"
        yield f"again good: tokens, credentials and secrets that were revoked or removed after {told.made_at}"
    yield from _of_output(settings, archive)


def _of_output(settings: SchedulerSettings, archive: Archive) -> Iterator[str]:
    told = archive.manifest
    shelf = output_list.shelf_to_read(settings)
    try:
        others = [] if shelf is None else sorted(each.job for each in shelf.inventory() if each.job >= told.next_job)
        missing: list[str] = []
        count = lost = 0
        job, there = JobId(0), output_list.sizes_on(None, JobId(0))
        for piece in output_list.listed_in(archive):
            segment, size = piece.segment, piece.bytes
            if segment.key.job != job:
                job = segment.key.job
                there = output_list.sizes_on(shelf, job)
            stored = there[segment].size if segment in there else 0
            if stored < size:
                count, lost = count + 1, lost + size - stored
                if len(missing) < NAMED_MAX:
                    missing.append(
                        f"{segment.key} {segment.stream.name.lower()}: {stored:,} of {size:,} bytes are there"
                    )
    finally:
        if shelf is not None:
            shelf.close()
    if others:
        yield f"kept apart: output of {_named(others)}, which the backup knows nothing of; it stays where it is"
    if count:
        pieces = "1 piece" if count == 1 else f"{count:,} pieces"
        yield f"missing: {lost:,} bytes of output in {pieces}, lost or dropped by age or size since"
        yield from (f"  {each}" for each in missing)
        if count > len(missing):
            yield f"  and {count - len(missing):,} more"


def _range(first: int, last: int) -> str:
    return f"job {first}" if first == last else f"{last - first + 1:,} jobs, {first} to {last}"


def _named(jobs: Sequence[JobId]) -> str:
    names = ", ".join(str(job) for job in jobs[:NAMED_MAX])
    more = f" and {len(jobs) - NAMED_MAX:,} more" if len(jobs) > NAMED_MAX else ""
    return f"job {names}" if len(jobs) == 1 else f"jobs {names}{more}"
