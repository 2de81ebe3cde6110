"""The place of whole files as the rest sees it: what fails there is kept in mind; what waits has its own threads."""

import asyncio
import contextvars
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from gpufleet.errors import GpufleetError, Reason

from .backends.backend import Backend, FoundNote, Reader
from .on_disk import FoundBlob, Key

P = ParamSpec("P")
T = TypeVar("T")

_URL = re.compile(r"""(https?://[^/\s"']+)[^\s"']*""")
_KEY = re.compile(r"[^\s()\"']*[0-9a-f]{64}[^\s()\"']*")

THREADS_MAX = 32
"""Calls that wait for a place that is far away; further ones wait for these."""


class Place:
    """Has the methods of its backend. `trouble` is why the last call of it failed; empty where it did not."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._not_admitted = ""
        self.trouble = ""

    @property
    def words(self) -> str:
        """Where it is, for people."""
        return self._backend.place

    @property
    def is_remote(self) -> bool:
        """Whether others store there, too, or it is far away."""
        return self._backend.is_remote

    @property
    def away(self) -> str:
        """Why the last call of a place that is far away failed, until a call finds it again; else empty."""
        return self.trouble if self.is_remote else ""

    def shut(self, why: str) -> None:
        """Let nothing through, for this reason; with none, all of it."""
        self._not_admitted = why
        self.tell(why)

    def tell(self, why: str) -> None:
        """Keep in mind why it cannot be reached, for everybody: nothing of whose files were asked for, or which."""
        self.trouble = _KEY.sub("…", _URL.sub(r"\1", why))

    async def on_thread(self, act: Callable[P, T], *args: P.args, **words: P.kwargs) -> T:
        """Do it on a thread: one of our own where it may wait for another machine."""
        if not self.is_remote:
            return await asyncio.to_thread(act, *args, **words)
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="file-store")
            pool = self._pool
        whole = partial(contextvars.copy_context().run, act, *args, **words)
        return await asyncio.get_running_loop().run_in_executor(pool, whole)

    def close(self) -> None:
        """Give up what is under way; what comes later fails."""
        self._backend.close()
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)

    def files(self) -> Iterator[FoundBlob]:
        """Every whole file."""
        with self._minded():
            yield from self._backend.files()

    def find(self, key: Key) -> FoundBlob | None:
        """What is known of a file."""
        with self._minded():
            return self._backend.find(key)

    def put(self, key: Key, part: Path) -> None:
        """Store a part that is whole, and drop it; it is durable after `settle`."""
        with self._minded():
            self._backend.put(key, part)
        if self.is_remote:
            part.unlink(missing_ok=True)

    def settle(self, key: Key) -> None:
        """Make durable that the files of this one's user have their names."""
        with self._minded():
            self._backend.settle(key)

    def open(self, key: Key) -> Reader | None:
        """Read a file."""
        with self._minded():
            return self._backend.open(key)

    def touch(self, key: Key, at: float) -> bool:
        """Note when a file was last needed; whether it is there, as far as is known."""
        with self._minded():
            return self._backend.touch(key, at)

    def remove(self, key: Key) -> None:
        """Drop a file."""
        with self._minded():
            self._backend.remove(key)

    def read_note(self, name: str) -> tuple[bytes, float] | None:
        """A note, and when it was stored."""
        with self._minded():
            return self._backend.read_note(name)

    def write_note(self, name: str, content: bytes) -> None:
        """Store a note, durably."""
        with self._minded():
            self._backend.write_note(name, content)

    def notes(self) -> Iterator[FoundNote]:
        """Every note."""
        with self._minded():
            yield from self._backend.notes()

    def remove_note(self, name: str) -> None:
        """Drop a note."""
        with self._minded():
            self._backend.remove_note(name)

    @contextmanager
    def _minded(self) -> Iterator[None]:
        if self._not_admitted:
            raise GpufleetError(Reason.STORE_UNAVAILABLE, self._not_admitted)
        try:
            yield
        except GpufleetError as problem:
            if problem.reason is Reason.STORE_UNAVAILABLE:
                self.tell(problem.message)
            raise
        self.trouble = ""
