"""The folder that this node shares with people: which one it is, and its files, as their jobs may read them.

It may be on another machine's disk, which can go away in the middle of a read and never say so: so each use of it is in
a thread of its own, that nobody waits for when it stands still. What is read for a user's job is opened by that user's
rights alone, inside the folder, through no link; what a job gets is a copy that has the SHA-256 of what was submitted.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gpufleet.jobs.files import trouble_with_path
from gpufleet.jobs.shared_root import PROBE_BYTES_MAX, RootUnusable, id_of, is_probe

from ..core.launch import InputFile, Isolation
from ..keeper.linux import take_file_rights
from .beneath import NotPlain, open_beneath, open_folder

T = TypeVar("T")
_log = logging.getLogger(__name__)

LOOK_SECONDS = 30.0
"""How often it is looked whether the folder is there, and the same."""
SILENT_SECONDS = 10.0
"""A folder that has not answered in this time cannot be used now."""
READ_PATIENCE_SECONDS = 300.0
"""A read is given up when nothing more of a file came for so long."""
READS_MAX = 4
"""Threads that read in it at the same time; one that stands still takes a place until it comes back."""
FICLONE = 0x40049409
"""ioctl_ficlone(2): let a file share the blocks of another one."""
CHUNK_BYTES = 2**20
LASTING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM})
"""What a file is refused for that no wait changes."""
OF_OUR_DISK = frozenset({errno.ENOSPC, errno.EDQUOT})


class NotRead(Exception):
    """A file cannot be had from the shared folder. `is_lasting`: it is not what was submitted, and will not be."""

    def __init__(self, why: str, *, is_lasting: bool) -> None:
        super().__init__(why)
        self.is_lasting = is_lasting


@dataclass(slots=True)
class _Course:
    """How far a thread is, and whether anybody still waits for it."""

    bytes: int = 0
    is_given_up: bool = False


@dataclass(frozen=True, slots=True)
class RootState:
    """What the scheduler is told of the folder."""

    id: str = ""
    problem: str = ""


class SharedRoot:
    """`account_of` says as whom a user's jobs run, None for as the agent does; `changed` hears what is to be told."""

    def __init__(
        self, folder: Path | None, account_of: Callable[[str], Isolation | None], changed: Callable[[], None]
    ) -> None:
        self.folder = folder
        self.state = RootState()
        self._account_of = account_of
        self._changed = changed
        self._slots = asyncio.Semaphore(READS_MAX)

    async def run(self) -> None:
        """Look at it now and then, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if self.folder is not None and await self.look():
                self._changed()

    async def look(self) -> bool:
        """See whether it is there, and which one it is; whether that is news."""
        if self.folder is None:
            return False
        folder, before = self.folder, self.state
        try:
            self.state = RootState(id=await self._aside(lambda course: id_of(folder), SILENT_SECONDS))
        except (RootUnusable, OSError) as problem:
            self.state = RootState(problem=_words(problem, "it does not answer"))
        if self.state != before and self.state.problem:
            _log.warning("the shared folder %s cannot be used: %s", folder, self.state.problem)
        elif self.state != before:
            _log.info("the shared folder %s has the id %s", folder, self.state.id)
        return self.state != before

    async def read_probe(self, root: str, probe: str, digest: str, size: int) -> float:
        """Seconds that reading a probe took. Errors: NotRead where it is not there, or is another one."""
        if not is_probe(probe) or trouble_with_path(probe) or not 0 <= size <= PROBE_BYTES_MAX:
            raise NotRead("that is no probe", is_lasting=True)
        sha = hashlib.sha256()

        def read(folder: int, course: _Course) -> float:
            begun = time.monotonic()
            with suppress(FileNotFoundError):
                descriptor = open_beneath(folder, probe)
                try:
                    if _hash(descriptor, sha, size, course) == size and sha.hexdigest() == digest:
                        return time.monotonic() - begun
                finally:
                    os.close(descriptor)
                raise NotRead("it has other bytes here than were just written", is_lasting=True)
            raise NotRead("what was just written in it is not there: it is another folder", is_lasting=True)

        return await self._inside(root, None, SILENT_SECONDS, read)

    async def unreadable(self, root: str, paths: Sequence[str], user: str) -> dict[int, str]:
        """Which of the files a user's jobs cannot read, and why. Errors: NotRead, AccountUnusable."""

        def look(folder: int, course: _Course) -> dict[int, str]:
            found: dict[int, str] = {}
            for number, path in enumerate(paths):
                if course.is_given_up:
                    break
                if trouble_with_path(path):
                    found[number] = "its path is none"
                    continue
                try:
                    os.close(open_beneath(folder, path))
                except (NotPlain, OSError) as problem:
                    found[number] = _why_not(problem)
                course.bytes += 1
            return found

        return await self._inside(root, self._account_of(user), SILENT_SECONDS, look)

    async def copy(self, file: InputFile, user: str, target: int) -> None:
        """Fill a new file with one of a user's. Errors: NotRead, AccountUnusable, OSError of this node's own disk."""
        sha = hashlib.sha256()

        def fill(folder: int, course: _Course) -> None:
            source = open_beneath(folder, file.shared_path)
            try:
                if (size := os.fstat(source).st_size) != file.size_bytes:
                    raise NotRead(f"has {size:,} bytes now, and had {file.size_bytes:,}", is_lasting=True)
                size = _copy(source, target, sha, file.size_bytes, course)
            finally:
                os.close(source)
            if size != file.size_bytes or sha.hexdigest() != file.digest:
                raise NotRead("is no longer what was submitted: it has changed", is_lasting=True)

        await self._inside(file.shared_root, self._account_of(user), READ_PATIENCE_SECONDS, fill)

    async def _inside(
        self, root: str, account: Isolation | None, patience_s: float, work: Callable[[int, _Course], T]
    ) -> T:
        """Work in the folder of this id, by the rights of an account. Errors: NotRead, OSError of our own disk."""
        if self.folder is None:
            raise NotRead("this node has no shared folder", is_lasting=False)
        path = self.folder

        def inside(course: _Course) -> T:
            folder = open_folder(str(path))
            try:
                if (found := id_of(Path(f"/proc/self/fd/{folder}"))) != root:
                    raise NotRead(f"this node's shared folder is another one: {found}", is_lasting=False)
                if account is not None:
                    take_file_rights(account.uid, account.gid, account.groups)
                return work(folder, course)
            finally:
                os.close(folder)

        try:
            return await self._aside(inside, patience_s)
        except RootUnusable as problem:
            raise NotRead(str(problem).replace("/proc/self/fd", "…"), is_lasting=False) from None
        except NotPlain as problem:
            raise NotRead(f"is {problem}, and no plain file", is_lasting=True) from None
        except TimeoutError:
            raise NotRead("cannot be read: the shared folder does not answer", is_lasting=False) from None
        except OSError as problem:
            if problem.errno in OF_OUR_DISK:
                raise
            raise NotRead(_why_not(problem), is_lasting=problem.errno in LASTING) from None

    async def _aside(self, work: Callable[[_Course], T], patience_s: float) -> T:
        """Work in a thread of its own, which nobody waits for when it stands still. Errors: TimeoutError."""
        async with asyncio.timeout(patience_s):
            await self._slots.acquire()
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[T] = loop.create_future()
        course = _Course()

        def end(result: T | None, problem: BaseException | None) -> None:
            self._slots.release()
            if not ended.done():
                if problem is None:
                    ended.set_result(result)  # type: ignore[arg-type]
                else:
                    ended.set_exception(problem)

        def run() -> None:
            result, problem = None, None
            try:
                result = work(course)
            except Exception as error:  # told to who waits
                problem = error
            with suppress(RuntimeError):  # the agent has left meanwhile
                loop.call_soon_threadsafe(end, result, problem)

        threading.Thread(target=run, name="shared-root", daemon=True).start()
        try:
            while True:
                before = course.bytes
                done, _ = await asyncio.wait({ended}, timeout=patience_s)
                if done:
                    return ended.result()
                if course.bytes == before:
                    raise TimeoutError("the shared folder does not answer")
        finally:
            course.is_given_up = True
            if not ended.done():
                ended.cancel()


def _copy(source: int, target: int, sha: hashlib._Hash, size: int, course: _Course) -> int:
    """Fill the target, which may share the blocks of the source, and hash what is in it then; its size."""
    try:
        fcntl.ioctl(target, FICLONE, source)
    except OSError as problem:
        if problem.errno in (*OF_OUR_DISK, errno.EIO):
            raise
        return _hash(source, sha, size, course, target)
    return _hash(target, sha, size, course)


def _hash(source: int, sha: hashlib._Hash, size: int, course: _Course, target: int | None = None) -> int:
    """Read a file up to one byte more than it should have; how many there were."""
    count = 0
    while data := os.pread(source, min(CHUNK_BYTES, size + 1 - count), count):
        if course.is_given_up:
            raise NotRead("nobody waits for it any more", is_lasting=False)
        sha.update(data)
        written = 0
        while target is not None and written < len(data):
            written += os.pwrite(target, data[written:], count + written)
        count += len(data)
        course.bytes += len(data)
    return count


def _why_not(problem: Exception) -> str:
    if isinstance(problem, NotPlain):
        return f"is {problem}, and no plain file"
    if isinstance(problem, OSError):
        words = {
            errno.ENOENT: "is not there any more",
            errno.EACCES: "cannot be read by the account that the job runs as",
            errno.ENOTDIR: "lies behind a link, or is not there any more",
            errno.ELOOP: "lies behind a link",
        }
        return words.get(problem.errno or 0, f"cannot be read: {problem.strerror or problem}")
    return str(problem)


def _words(problem: Exception, silence: str) -> str:
    if isinstance(problem, TimeoutError) and not problem.errno:
        return silence
    return (problem.strerror or str(problem)) if isinstance(problem, OSError) else str(problem)
