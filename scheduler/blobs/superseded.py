"""Drops what attempts kept for the next one, once a newer copy has taken its place or the job has ended.

A checkpoint every few minutes would fill the room of its user if each copy stayed for [files] keep_unused. So a copy is
dropped a moment after no job has it any more, but for what of it is needed elsewhere: by a newer copy, the folder of a
job, or what jobs left. A restart forgets what was to be dropped; `pruning.py` finds it.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta

from gpufleet.errors import GpufleetError
from gpufleet.telemetry.logs import fields

from ..ports import Commit
from ..state.durable import Durable
from ..state.ids import JobId
from ..state.jobs import Job, kept_folders
from .on_disk import Key
from .opening import chunks_of, left_by_jobs, needed_by
from .store import BlobStore, Moment

log = logging.getLogger(__name__)

PAUSE_SECONDS = 5.0
"""How long copies gather that are dropped together."""


class SupersededCopies:
    """Follows the commits; `run` drops. `view` is the committed state, `unused` the setting keep_unused."""

    def __init__(self, blobs: BlobStore, view: Callable[[], Durable], unused: Callable[[], timedelta]) -> None:
        self._blobs = blobs
        self._view = view
        self._unused = unused
        jobs = (each for each in view().jobs.entities() if isinstance(each, Job))
        self._had: dict[JobId, frozenset[Key]] = {job.id: has for job in jobs if (has := _copies_of(job))}
        self._superseded: set[Key] = set()
        self._is_due = asyncio.Event()

    def take_commit(self, commit: Commit) -> None:
        """Note which copies no job has any more."""
        for job in (each for each in (*commit.upserts, *commit.finished) if isinstance(each, Job)):
            has = _copies_of(job)
            gone = self._had.pop(job.id, frozenset()) - has
            if has:
                self._had[job.id] = has
            if gone:
                self._superseded |= gone
                self._is_due.set()

    async def run(self) -> None:
        """Drop until cancelled. What cannot be dropped now goes with all other files that nobody needs."""
        while True:
            await self._is_due.wait()
            await asyncio.sleep(PAUSE_SECONDS)
            self._is_due.clear()
            try:
                dropped = await self.drop()
            except GpufleetError as error:
                log.warning("superseded copies could not be dropped", extra=fields(why=error.message))
            else:
                if dropped:
                    log.info("superseded copies were dropped", extra=fields(files=dropped))

    async def drop(self) -> int:
        """Drop what is superseded; how many files. Errors: STORE_UNAVAILABLE."""
        gone, self._superseded = frozenset(self._superseded), set()
        users = {user for user, _ in gone}
        # What is being stored from this moment on is not in the state yet, and is not touched.
        moment = self._blobs.moment()
        needed = frozenset(key for key in needed_by(self._view()) if key[0] in users)
        return await self._blobs.on_thread(self._drop, gone, needed, moment)

    def _drop(self, gone: frozenset[Key], needed: frozenset[Key], moment: Moment) -> int:
        users = {user for user, _ in gone}
        folders = needed | frozenset(key for key in left_by_jobs(self._blobs) if key[0] in users)
        still = folders | frozenset(chunks_of(self._blobs, folders))
        candidates = gone | frozenset(chunks_of(self._blobs, gone))
        return self._blobs.drop_superseded(candidates - still, moment, self._unused().total_seconds())


def _copies_of(job: Job) -> frozenset[Key]:
    """The manifests of the copies that a job has."""
    return frozenset((job.user, each.digest) for each in kept_folders(job)) if not job.is_finished else frozenset()
