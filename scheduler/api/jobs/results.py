"""The Scheduler service: which files a job left, and their bytes. They are for whoever reads what the job wrote."""

import hashlib
import sys
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from typing import Any

from gpufleet.v1 import files_pb2

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.jobs.files import PIECE_BYTES_MAX
from gpufleet.jobs.folders import ManifestError

from ...blobs.folders import IndexedFolder
from ...blobs.results import Stored
from ...blobs.store import BlobStore
from ...state.ids import JobId, UserName
from ...state.indices import Indices
from ...state.jobs import Finished, Job
from ...state.units import Span, after
from ...wire.convert import timestamp
from ...wire.digests import query_of
from ..paging import PAGE_SIZE_MAX, PageTokens
from ..sight import Sight
from .arrays import items_at, items_of, positions_in
from .finding import JobsFound
from .what_came import RankLeft, left_by_ranks

ITEMS_LISTED_MAX = 100
"""Items of an array on a page."""

FilePosition = tuple[int, int]
"""A rank, and which of its files."""


@dataclass(frozen=True, slots=True)
class _Run:
    """A part of a chunk."""

    digest: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class _File:
    """A file that a job left: whose it is, where its bytes lie, and what names them."""

    user: UserName
    size_bytes: int
    runs: tuple[_Run, ...]
    version: str


class ResultCalls(JobsFound):
    """What jobs left. Each public method is one RPC."""

    blobs: BlobStore
    pages: PageTokens
    one_stream: Callable[[], AbstractContextManager[None]]

    async def ListFiles(self, request: files_pb2.ListFilesRequest) -> files_pb2.ListFilesResponse:
        """What each rank of the newest attempt left of which anything is stored or still to come.

        Of an array it is what each item left. Errors: NOT_AN_ARRAY where items of another job are named.
        """
        job = await self._read_job(request.job_id)
        if job.items is not None:
            return await self._files_of_items(job, job.items.indices, request)
        if request.HasField("first_index") or request.HasField("last_index"):
            items_of(job)
        query, size = f"files {job.id}", _page_size(request.page_size)
        cursor = self.pages.read(query, request.page_token)
        ranks = await left_by_ranks(self.engine, self.blobs, job)
        begin = _begin(ranks, cursor)
        answer, more = await self.blobs.on_thread(_listed, self.blobs, ranks, self.facts.results_kept(), begin, size)
        if more is not None:
            answer.next_page_token = self.pages.sign(query, [ranks[0].key.attempt, ranks[0].key.lineage, *more])
        return answer

    async def DownloadFile(
        self, request: files_pb2.DownloadFileRequest
    ) -> AsyncIterator[files_pb2.DownloadFileResponse]:
        """The bytes of a file from the offset on, all of them or a part. Errors: IS_AN_ARRAY, and those of a file."""
        job = await self._read_job(request.job_id)
        self.check_has_output(job)
        if request.length_bytes < 0:
            raise invalid("length_bytes", f"is {request.length_bytes:,}", next_step="leave it out for all of the file")
        ranks = await left_by_ranks(self.engine, self.blobs, job)
        file = await self.blobs.on_thread(_found, self.blobs, job, ranks, request.rank, request.path)
        if not 0 <= request.offset <= file.size_bytes:
            why = f"{request.offset:,} is not within the file's {file.size_bytes:,} bytes"
            raise GpufleetError(Reason.OFFSET_OUT_OF_RANGE, why)
        with self.one_stream():
            is_first = True
            async for piece in self._pieces(file, request):
                if is_first:
                    piece.size_bytes, piece.version, is_first = file.size_bytes, file.version, False
                yield piece

    async def _files_of_items(
        self, array: Job, indices: Indices, request: files_pb2.ListFilesRequest
    ) -> files_pb2.ListFilesResponse:
        """A page of the items of an array; it ends with the item that fills it."""
        query = query_of(request)
        cursor, room = self.pages.read(query, request.page_token), _page_size(request.page_size) or PAGE_SIZE_MAX
        position, end = positions_in(indices, request, cursor[0] if cursor else 0)
        answer, kept = files_pb2.ListFilesResponse(), self.facts.results_kept()
        last = min(end, position + ITEMS_LISTED_MAX)
        for item in await items_at(self.engine, array, position, last):
            ranks = await left_by_ranks(self.engine, self.blobs, item)
            listed, _ = await self.blobs.on_thread(_listed, self.blobs, ranks, kept, (0, 0), None)
            index = indices.at(item.id - array.id - 1)
            why = "" if ranks else _why_nothing(item)
            answer.items.add(index=index, job_id=item.id, ranks=listed.ranks, message=why)
            room -= sum(rank.file_count for rank in listed.ranks)
            if room <= 0:
                position = item.id - array.id
                break
        else:
            position = last
        if position < end:
            answer.next_page_token = self.pages.sign(query, [position])
        return answer

    async def _pieces(
        self, file: _File, request: files_pb2.DownloadFileRequest
    ) -> AsyncIterator[files_pb2.DownloadFileResponse]:
        """The wanted bytes; the last piece has none, and of a whole file the digest."""
        wanted, offset, sha = file.runs, 0, None
        if request.length_bytes:
            wanted, offset = _part(file.runs, request.offset, request.length_bytes), request.offset
        else:
            sha = hashlib.sha256()
        for run in wanted:
            for data in await self.blobs.on_thread(_read, self.blobs, file.user, run, sha):
                skipped = max(0, request.offset - offset)  # what the caller has counts for the digest alone
                if skipped < len(data):
                    yield files_pb2.DownloadFileResponse(offset=offset + skipped, data=data[skipped:])
                offset += len(data)
        digest = sha.hexdigest() if sha is not None else ""
        yield files_pb2.DownloadFileResponse(offset=offset, digest=digest)

    async def _read_job(self, job_id: int) -> Job:
        job = await self.find(job_id)
        Sight.of_caller(self.facts).check_reads(job.id, job.user)
        return job


def _why_nothing(job: Job) -> str:
    """Of a job of which nothing is known that it left: why that is."""
    if not job.spec.results:
        return "it was submitted without --download"
    return "it never ran" if isinstance(job.state, Finished) else "it has not ended; what it leaves is stored then"


def _page_size(size: int) -> int | None:
    """How many files a page has; None for all. Errors: INVALID_ARGUMENT."""
    if not 0 <= size <= PAGE_SIZE_MAX:
        raise invalid("page_size", f"is {size}; it must be 1 to {PAGE_SIZE_MAX:,}, or 0 for all files")
    return size or None


def _begin(ranks: Sequence[RankLeft], cursor: list[Any] | None) -> FilePosition:
    """Where a page begins. Errors: PAGE_TOKEN_INVALID where the job has left other files since."""
    if cursor is None:
        return 0, 0
    attempt, lineage, rank, file = cursor
    if not ranks or (ranks[0].key.attempt, ranks[0].key.lineage) != (attempt, lineage):
        why = "is of what an earlier attempt left; there is something newer now"
        raise invalid(
            "page_token", why, reason=Reason.PAGE_TOKEN_INVALID, next_step="Begin anew, without a page_token."
        )
    return rank, file


def _listed(
    blobs: BlobStore, ranks: list[RankLeft], kept: Span, begin: FilePosition, size: int | None
) -> tuple[files_pb2.ListFilesResponse, FilePosition | None]:
    """All ranks with so many files of theirs, and where the next page begins."""
    answer, more, room = files_pb2.ListFilesResponse(), None, sys.maxsize if size is None else size
    for number, each in enumerate(ranks):
        key, stored = each.key, each.stored
        at = stored.stored_at if stored is not None else None
        rank = answer.ranks.add(
            attempt=key.attempt,
            rank=key.rank,
            is_stored=stored is not None,
            state=each.state,
            store_time=timestamp(at),
            drop_time=timestamp(after(at, kept)) if at is not None else None,
        )
        if stored is None:
            rank.message = each.message
            continue
        rank.problems.extend(stored.problems)
        entries = _indexed(blobs, stored).folder.entries
        rank.file_count = len(entries)
        first = 0 if number > begin[0] else begin[1] if number == begin[0] else len(entries)
        page = entries[first : first + room]
        rank.files.extend(
            files_pb2.FolderEntry(path=file.path, size_bytes=file.size_bytes, is_executable=file.is_executable)
            for file in page
        )
        room -= len(page)
        if more is None and first + len(page) < len(entries):
            more = number, first + len(page)
    return answer, more


def _found(blobs: BlobStore, job: Job, ranks: list[RankLeft], rank: int, path: str) -> _File:
    """A file that a rank left. Errors: FILE_NOT_FOUND, INVALID_ARGUMENT."""
    if not 0 <= rank < max(1, len(ranks)):
        raise invalid("rank", f"is {rank}; the job has {len(ranks)}", next_step=f"see them: gpuctl files {job.id}")
    stored = ranks[rank].stored if ranks else None
    if stored is None:
        raise _nothing(job.id, "left no files, or they are not stored yet")
    folder = _indexed(blobs, stored)
    if (known := folder.entries.get(path)) is not None:
        entry, begin = known
        version = hashlib.sha256(f"{stored.digest}/{path}".encode()).hexdigest()
        return _File(stored.user, entry.size_bytes, tuple(_runs(folder, begin, entry.size_bytes)), version)
    raise _nothing(job.id, f"left no file {path[:200]!r}")


def _nothing(job: JobId, why: str) -> GpufleetError:
    return GpufleetError(
        Reason.FILE_NOT_FOUND, f"job {job} {why}", next_step=f"See what there is with: gpuctl files {job}"
    )


def _runs(found: IndexedFolder, begin: int, size: int) -> Iterator[_Run]:
    start = max(0, bisect_right(found.chunk_begins, begin) - 1)
    for chunk, at in zip(found.folder.chunks[start:], found.chunk_begins[start:], strict=True):
        if at >= begin + size:
            return
        first, last = max(begin, at), min(begin + size, at + chunk.size_bytes)
        if first < last:
            yield _Run(chunk.digest, first - at, last - first)


def _part(runs: Iterable[_Run], offset: int, length: int) -> tuple[_Run, ...]:
    """Where so many bytes from the offset on lie, or those that there are."""
    found: list[_Run] = []
    at = 0
    for run in runs:
        first, last = max(offset, at), min(offset + length, at + run.size)
        if first < last:
            found.append(_Run(run.digest, run.offset + first - at, last - first))
        at += run.size
    return tuple(found)


def _indexed(blobs: BlobStore, stored: Stored) -> IndexedFolder:
    try:
        return blobs.folders.indexed(stored.user, stored.digest)
    except ManifestError as problem:
        raise GpufleetError(Reason.STORE_UNAVAILABLE, f"what the job left is not readable: {problem}") from None


def _read(blobs: BlobStore, user: UserName, run: _Run, sha: "hashlib._Hash | None") -> list[bytes]:
    """The bytes of a run, of which a chunk has 8 MiB at most; they are added to what is hashed, if anything is."""
    reader = blobs.open(user, run.digest)
    if reader is None:
        raise GpufleetError(Reason.FILE_NOT_FOUND, "a part of the file is not stored any more")
    with closing(reader):
        data = reader.read(run.offset, run.size)
    if len(data) != run.size:
        raise GpufleetError(Reason.STORE_UNAVAILABLE, "a part of the file is too short where it is stored")
    if sha is not None:
        sha.update(data)
    return [data[start : start + PIECE_BYTES_MAX] for start in range(0, len(data), PIECE_BYTES_MAX)]
