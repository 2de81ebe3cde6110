"""Drops what is older, or more, than the settings keep: records of ended jobs, their output, and histories."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta

from gpufleet.config.live import Change
from gpufleet.config.scheduler_settings import SchedulerSettings
from gpufleet.errors import GpufleetError
from gpufleet.telemetry.logs import fields

from .blobs.opening import chunks_of, folders_needed_by, inputs_needed_by, left_by_jobs, needed_by
from .blobs.store import BlobStore
from .clock import is_set_within
from .engine import Engine
from .output_hub import OutputHub
from .outputs.errors import OutputStoreUnavailable
from .state.ids import JobId
from .state.jobs import Finished
from .state.units import Instant, Span, after
from .store.errors import StoreUnavailable

log = logging.getLogger(__name__)

INPUTS_KEPT = timedelta(days=90)
"""What a job that has not ended is given of other jobs (`--input`) is kept for so much longer at most."""
PRUNE_SECONDS = 3600.0
"""How often, besides after each reload that changes what is kept."""
_KEPT = frozenset(
    {
        "retention",
        "output.retention",
        "output.total_bytes_max",
        "files.keep_unused",
        "files.keep_results",
        "history.retention",
        "history.fine_retention",
    }
)


DropHistories = Callable[[Instant, Instant], Awaitable[int]]
"""Drops points of 10 s, and the rest, from before two instants; how many rows. It never fails."""


@dataclass(eq=False)
class Pruner:
    """Looks every hour, and when it is told to."""

    _engine: Engine
    _outputs: OutputHub
    _settings: Callable[[], SchedulerSettings]
    _drop_histories: DropHistories | None = None
    _blobs: BlobStore | None = None
    _is_due: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def settings_changed(self, changes: tuple[Change, ...]) -> None:
        """Look at once where less may be kept from now on."""
        if any(change.key in _KEPT for change in changes):
            self._is_due.set()

    async def run(self) -> None:
        """Prune until cancelled. A store that is away is asked again in an hour; its other errors end the program."""
        while True:
            await is_set_within(self._is_due, PRUNE_SECONDS)
            self._is_due.clear()
            try:
                await self.prune()
            except (StoreUnavailable, OutputStoreUnavailable) as error:
                log.warning("old jobs could not be dropped; it is tried again in an hour", extra=fields(why=str(error)))

    async def prune(self) -> None:
        """Drop what is too old now, and the oldest output beyond the total size. Errors: those of both stores."""
        settings = self._settings()
        store, outputs = self._engine.store, self._outputs
        before = await self._before_inputs(self._ago(settings.retention))
        records = 0
        while dropped := await self._engine.on_store_thread(lambda: store.prune(before)):
            records += dropped
        live = frozenset(self._engine.view.durable.jobs)
        old, most = self._ago(settings.output.retention), settings.output.total_bytes_max
        jobs = await outputs.on_thread(lambda: outputs.store.retain(old, most, live))
        if records or jobs:
            log.info("old jobs were dropped", extra=fields(records=records, outputs=len(jobs)))
        if self._blobs is not None:
            await self._prune_files(self._blobs, settings.files.keep_unused, settings.files.keep_results)
        if self._drop_histories is not None:
            kept = settings.history
            await self._drop_histories(self._ago(kept.fine_retention), self._ago(kept.retention))

    async def _prune_files(self, blobs: BlobStore, unused: timedelta, results: timedelta) -> None:
        durable = self._engine.view.durable
        needed, folders = needed_by(durable), folders_needed_by(durable)
        inputs = inputs_needed_by(durable)

        def needed_job(job: JobId) -> bool:
            return any(each.names(job) for each in inputs)

        def prune() -> int:
            blobs.results.prune(results.total_seconds(), needed_job, INPUTS_KEPT.total_seconds())
            left = left_by_jobs(blobs)
            return blobs.prune(unused.total_seconds(), needed | left | frozenset(chunks_of(blobs, folders | left)))

        try:
            dropped = await blobs.on_thread(prune)
        except GpufleetError as error:
            log.warning("unused files could not be dropped", extra=fields(why=error.message))
        else:
            if dropped:
                log.info("unused files were dropped", extra=fields(files=dropped))

    async def _before_inputs(self, before: Instant) -> Instant:
        """This instant, or an earlier one that drops no record of a job whose files are needed, INPUTS_KEPT at most."""
        store, earliest = self._engine.store, after(before, Span(-round(INPUTS_KEPT.total_seconds() * 1_000_000)))
        for each in inputs_needed_by(self._engine.view.durable):
            job = await self._engine.on_store_thread(lambda each=each: store.finished_job(each.job))  # type: ignore[misc]
            if job is not None and isinstance(job.state, Finished):
                before = min(before, max(earliest, job.state.at))
        return before

    def _ago(self, length: timedelta) -> Instant:
        return after(self._engine.now(), Span(-round(length.total_seconds() * 1_000_000)))
