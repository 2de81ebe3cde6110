"""The folder of a job that runs, from elsewhere: lists of it, files out of it and into it.

A file that comes lies in a part beside its place until all of it is there and has the SHA-256 that its node says; then
it takes its place, whole and at once. What was cut goes on where it stood.
"""

from __future__ import annotations

import hashlib
import os
import queue
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import grpc

from gpufleet.errors import GpufleetError, Reason, UnavailableError
from gpufleet.jobs.files import trouble_with_path
from gpufleet.net.carrying import PIECE_BYTES_MAX
from gpufleet.v1 import files_pb2

from .client import Client, translated

CUT_SECONDS_MAX = 60.0
"""A copy that was cut is given up when nobody answered for so long; else it goes on where it stood."""
PAUSE_SECONDS = 1.0
WAITING_MAX = 4
"""Pieces that wait to be sent."""
LOOK_SECONDS = 1.0
TAKEN_SECONDS_MAX = 300.0
"""A side that takes nothing for so long is given up."""

T = TypeVar("T")
Request = files_pb2.AccessFilesRequest


class RunningFolder:
    """The folder of one rank. Each method opens it anew where it was cut. Errors: those of AccessFiles."""

    def __init__(self, client: Client, job_id: int, rank: int) -> None:
        self._client = client
        self._target = files_pb2.AccessedFiles(job_id=job_id, rank=rank)
        self._key = f"{job_id}-{rank}"

    def list(self, path: str) -> tuple[list[files_pb2.FolderEntry], list[str]]:
        """What is below a path, and what is not told of it, and why. Errors: FILE_NOT_FOUND."""

        def listed(talk: _Talk) -> tuple[list[files_pb2.FolderEntry], list[str]]:
            talk.ask(list=files_pb2.ListFolder(path=path))
            entries: list[files_pb2.FolderEntry] = []
            while True:
                answer = talk.answer()
                entries.extend(answer.entries)
                if answer.is_end:
                    break
            if any(trouble_with_path(each.path) for each in entries):
                raise GpufleetError(Reason.CONFLICT, "the node names a path that none may have")
            return entries, list(answer.left_out)

        return self._talked(listed)

    def bring(self, path: str, place: Path) -> int:
        """Copy a file here; its size. Errors: FILE_NOT_FOUND, DIGEST_MISMATCH, CONFLICT where it changes meanwhile."""
        try:
            return self._talked(lambda talk: self._bring(talk, path, place))
        except OSError as problem:
            why = f"{str(place)!a} cannot be written: {problem.strerror}"
            raise GpufleetError(Reason.FILE_NOT_FOUND, why, next_step="Name another TARGET.") from None

    def send(self, source: Path, path: str) -> int:
        """Copy a file there; its size. Errors: FILE_NOT_FOUND, DIGEST_MISMATCH where it changes, and its node's."""
        try:
            if not source.is_file() and source.exists():
                why = f"{str(source)!a} is no plain file"  # a pipe would be waited for, and a device has no end
                raise GpufleetError(Reason.FILE_NOT_FOUND, why, next_step="Name a file or a folder.")
            with source.open("rb") as file:
                status = os.fstat(file.fileno())
                asked = files_pb2.WriteFile(
                    path=path,
                    size_bytes=status.st_size,
                    digest=hashlib.file_digest(file, "sha256").hexdigest(),
                    is_executable=bool(status.st_mode & 0o100),
                )
                return self._talked(lambda talk: _send(talk, file, asked))
        except OSError as problem:
            why = f"{str(source)!a} cannot be read: {problem.strerror}"
            raise GpufleetError(Reason.FILE_NOT_FOUND, why, next_step="Name another file.") from None

    def _bring(self, talk: _Talk, path: str, place: Path) -> int:
        place.parent.mkdir(parents=True, exist_ok=True)
        name = hashlib.sha256(f"{self._key} {path}".encode()).hexdigest()[:16]
        part, note = place.with_name(f".gpufleet-{name}.part"), place.with_name(f".gpufleet-{name}.version")
        version = note.read_text() if note.is_file() and part.is_file() and not part.is_symlink() else ""
        offset = part.stat().st_size if version else 0
        talk.ask(read=files_pb2.ReadFile(path=path, offset=offset, version=version))
        begin = talk.answer()
        offset, sha = begin.offset, hashlib.sha256()
        if not offset:
            part.unlink(missing_ok=True)
        note.write_text(begin.version)
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            file.truncate(offset)
            while data := file.read(min(2**20, offset - file.tell())) if file.tell() < offset else b"":
                sha.update(data)
            while not (answer := talk.answer()).is_end:
                if answer.offset != offset:
                    raise GpufleetError(Reason.CONFLICT, "a piece came that does not follow the one before it")
                file.write(answer.data)
                sha.update(answer.data)
                offset += len(answer.data)
        note.unlink()
        if sha.hexdigest() != answer.digest or offset != begin.file.size_bytes:
            part.unlink()
            why = f"{path!a} came with the SHA-256 {sha.hexdigest()}, and its node says {answer.digest}"
            raise GpufleetError(Reason.DIGEST_MISMATCH, why, next_step="Copy it again.")
        part.chmod(0o755 if begin.file.is_executable else 0o644)
        part.replace(place)
        return offset

    def _talked(self, work: Callable[[_Talk], T]) -> T:
        """What it answers; done again, from where it stood, while it is cut."""
        since = time.monotonic()
        while True:
            talk: _Talk | None = None
            try:
                talk = _Talk(self._client, self._target)
                return work(talk)
            except UnavailableError as problem:
                if problem.reason is Reason.CONFLICT:  # its node's own word, which stays the same: nothing was cut
                    raise
                if talk is not None and talk.answers > 1:
                    since = time.monotonic()
                elif time.monotonic() - since > CUT_SECONDS_MAX:
                    raise
            finally:
                if talk is not None:
                    talk.close()
            time.sleep(PAUSE_SECONDS)


class _Talk:
    """One call: questions up, answers down."""

    def __init__(self, client: Client, target: files_pb2.AccessedFiles) -> None:
        self._settings = client.settings
        self.answers = 0
        self._requests: queue.Queue[Request | None] = queue.Queue(WAITING_MAX)
        self._requests.put(Request(target=target))
        self._call: Any = client.scheduler.AccessFiles(iter(self._requests.get, None))
        try:
            self._next()
        except BaseException:
            self.close()
            raise

    def ask(self, **question: Any) -> None:
        """Ask for something."""
        self.put(Request(question=files_pb2.FolderQuestion(**question)))

    def put(self, request: Request) -> None:
        """Send a message, when there is room for it. Raises what the call ended with."""
        until = time.monotonic() + TAKEN_SECONDS_MAX
        while True:
            try:
                self._requests.put(request, timeout=LOOK_SECONDS)
                return
            except queue.Full:
                if self._call.done():
                    self._next()
                if time.monotonic() > until:
                    raise UnavailableError(Reason.NODE_UNREACHABLE, "the node takes nothing of the file") from None

    def answer(self) -> files_pb2.FolderAnswer:
        """The next part of the answer. Raises the problem that it tells."""
        answer: files_pb2.FolderAnswer = self._next().answer
        if answer.problem:
            known = answer.reason in Reason.__members__
            raise GpufleetError(Reason[answer.reason] if known else Reason.CONFLICT, answer.problem)
        return answer

    def close(self) -> None:
        """Ask nothing more."""
        self._call.cancel()
        while True:
            try:
                self._requests.put_nowait(None)
                return
            except queue.Full:
                with suppress(queue.Empty):
                    self._requests.get_nowait()

    def _next(self) -> files_pb2.AccessFilesResponse:
        try:
            message: files_pb2.AccessFilesResponse = next(self._call)
        except StopIteration:
            raise UnavailableError(Reason.NODE_UNREACHABLE, "the folder of the job is not reached any more") from None
        except grpc.RpcError as problem:
            raise translated(problem, self._settings) from None
        self.answers += 1
        return message


def _send(talk: _Talk, file: BinaryIO, asked: files_pb2.WriteFile) -> int:
    talk.ask(write=asked)
    offset = talk.answer().offset
    file.seek(offset)
    while offset < asked.size_bytes and (data := file.read(min(PIECE_BYTES_MAX, asked.size_bytes - offset))):
        talk.put(Request(data=data))
        offset += len(data)
    if offset < asked.size_bytes:
        raise GpufleetError(Reason.DIGEST_MISMATCH, f"{asked.path!a} became shorter while it was sent")
    talk.answer()
    return asked.size_bytes
