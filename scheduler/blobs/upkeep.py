"""Looks after a place of files that is far away: whether it is this fleet's, whether it answers, what is in it."""

import asyncio
import logging
import time
from collections.abc import Callable

from gpufleet.errors import GpufleetError, Reason
from gpufleet.telemetry.logs import fields

from .store import BlobStore

log = logging.getLogger(__name__)

CHECK_SECONDS = 15.0
"""How often a place is asked whether it is there; so long `gpuctl doctor` may not know that it went away."""
LISTING_SECONDS = 3600.0
"""How often all that is there is listed, for what others have stored or dropped."""


class Upkeep:
    """`admit_place` looks whether a place may be used, as `admission.py` does; None where that is the data folder."""

    def __init__(self, blobs: BlobStore, admit_place: Callable[[], None] | None) -> None:
        self._blobs = blobs
        self._admit_place = admit_place
        self._is_admitted = admit_place is None
        self._listed_at: float | None = None

    def admit(self) -> None:
        """Let calls through to the place, or say why not. Errors: those of `admission.admit`."""
        if self._admit_place is None:
            return
        try:
            self._admit_place()
        except GpufleetError as problem:
            if problem.reason is not Reason.STORE_UNAVAILABLE or not self._is_admitted:
                self._blobs.place.shut(problem.message)
            self._blobs.place.tell(problem.message)
            raise
        self._is_admitted = True
        self._blobs.place.shut("")

    async def run(self) -> None:
        """Until cancelled; of a data folder there is nothing to look after."""
        if self._admit_place is None:
            await asyncio.Event().wait()
        before = self._blobs.place.trouble
        while True:
            await self._blobs.on_thread(self.look)
            now = self._blobs.place.trouble
            if now != before:
                told = log.warning if now else log.info
                told("stored files cannot be reached" if now else "stored files can be reached", extra=fields(why=now))
            before = now
            await asyncio.sleep(CHECK_SECONDS)

    def look(self) -> None:
        """Look once; what is wrong is in the place's `trouble` then."""
        try:
            self.admit()
            if self._listed_at is None or time.monotonic() - self._listed_at >= LISTING_SECONDS:
                began = time.monotonic()
                count = self._blobs.look_around()
                self._listed_at = began
                log.info(
                    "stored files were listed",
                    extra=fields(
                        place=self._blobs.place.words, files=count, seconds=round(time.monotonic() - began, 1)
                    ),
                )
        except GpufleetError as problem:
            if problem.reason not in (Reason.STORE_UNAVAILABLE, Reason.CONFIG_INVALID):
                raise
