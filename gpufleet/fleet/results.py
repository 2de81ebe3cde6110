"""What a job left, and its way here: into a part beside its place, and into that whole and at once."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc

from gpufleet.errors import GpufleetError, Reason, UnavailableError
from gpufleet.jobs.files import trouble_with_path
from gpufleet.jobs.results import NOTHING_STORED
from gpufleet.v1 import files_pb2, scheduler_pb2

from .client import Client, translated
from .left_parts import LeftPart

SILENT_SECONDS = 2.0
"""Who waits longer than this for what a job left is told what for."""
ASKED_AGAIN_SECONDS = 0.3
CUT_SECONDS_MAX = 60.0
"""A copy that was cut is given up when nobody answered for so long; else it goes on where it stood."""
PAUSE_SECONDS = 1.0
MISSING_SHOWN = 20
"""Parts of which it is said why their files could not be brought."""


@dataclass(frozen=True, slots=True)
class Brought:
    """What came of one part: what it left, and where each of its files lies."""

    part: LeftPart
    left: files_pb2.RankFiles
    places: list[tuple[files_pb2.FolderEntry, Path]]


def bring_all(
    client: Client,
    parts: Sequence[LeftPart],
    path: str,
    target: str,
    tell: Callable[[Brought], None],
    on_wait: Callable[[LeftPart, str], None] = lambda part, why: None,
) -> None:
    """Bring a file, a folder or, for an empty path, all of what each part left; `tell` hears of each that is here.

    `target` is a place, with / at its end a folder; several parts get a folder each in it. Where files of one part
    cannot be brought, the others come all the same. Errors: those of `bring`, and FILE_NOT_FOUND for some of several.
    """

    def bring_one(part: LeftPart) -> None:
        tell(bring(client, part, path, part.inside(target), partial(on_wait, part)))

    try_each(parts, bring_one)


def try_each(parts: Sequence[LeftPart], act: Callable[[LeftPart], None]) -> None:
    """Do something with each of several parts, and raise in the end what went wrong; of one part it is raised as it is.

    Errors: FILE_NOT_FOUND, and at once that the scheduler is away.
    """
    missing: list[str] = []
    for part in parts:
        try:
            if part.trouble:
                raise GpufleetError(Reason.FILE_NOT_FOUND, part.trouble, next_step=_how_to_see(part.typed))
            act(part)
        except GpufleetError as problem:
            is_away = isinstance(problem, UnavailableError) and problem.reason is not Reason.CONFLICT
            if len(parts) == 1 or is_away:
                raise
            missing.append(problem.message)
    if missing:
        more = f"; and {len(missing) - MISSING_SHOWN:,} more" if len(missing) > MISSING_SHOWN else ""
        why = f"files of {len(missing):,} of {len(parts):,} are missing: " + "; ".join(missing[:MISSING_SHOWN]) + more
        raise GpufleetError(Reason.FILE_NOT_FOUND, why, next_step=_how_to_see(parts[0].typed.partition(".")[0]))


def bring(
    client: Client, part: LeftPart, path: str, target: str, on_wait: Callable[[str], None] = lambda why: None
) -> Brought:
    """Bring a file, a folder or all of what one part left, to a target that is its own.

    It waits for what is still coming; `on_wait` hears what for. Errors: FILE_NOT_FOUND, INVALID_ARGUMENT, and those of
    DownloadFile.
    """
    found = stored(client, part, on_wait)
    if not found.files and (why := next((each for each in found.problems if each.startswith(NOTHING_STORED)), "")):
        raise GpufleetError(
            Reason.FILE_NOT_FOUND, f"of what {part.words} left {why}", next_step=_how_to_see(part.typed)
        )
    places = list(_places(part, found, path.strip("/"), Path(target), target.endswith("/")))
    for file, place in places:
        _bring(client, part.job_id, found, file, place)
    return Brought(part, found, places)


def stored(client: Client, part: LeftPart, on_wait: Callable[[str], None] = lambda why: None) -> files_pb2.RankFiles:
    """What a rank left, once it is stored; `on_wait` hears what is waited for. Errors: FILE_NOT_FOUND."""
    began, said = time.monotonic(), ""
    while True:
        answer = client.call(client.scheduler.ListFiles, files_pb2.ListFilesRequest(job_id=part.job_id))
        if part.rank >= len(answer.ranks):
            raise _nothing_yet(client, part)
        found = answer.ranks[part.rank]
        if found.is_stored:
            return found
        if found.state in (files_pb2.RESULTS_STATE_LOST, files_pb2.RESULTS_STATE_DROPPED):
            why = f"what {part.words} left is not there: {found.message}"
            step = f"See what happened with: gpuctl story {part.typed}"
            raise GpufleetError(Reason.FILE_NOT_FOUND, why, next_step=step)
        if time.monotonic() - began > SILENT_SECONDS and found.message != said:
            said = found.message
            on_wait(said)
        time.sleep(ASKED_AGAIN_SECONDS)


def _nothing_yet(client: Client, part: LeftPart) -> GpufleetError:
    job = client.call(client.scheduler.GetJob, scheduler_pb2.GetJobRequest(job_id=part.job_id)).job
    if job.HasField("end_time"):
        step = f"See how it ended with: gpuctl job {part.typed}"
        return GpufleetError(Reason.FILE_NOT_FOUND, f"{part.words} left nothing: it never ran", next_step=step)
    why = f"{part.words} has not ended; what it leaves is stored then"
    return GpufleetError(Reason.FILE_NOT_FOUND, why, next_step=f"Wait for it with: gpuctl wait {part.typed}")


def _how_to_see(typed: str) -> str:
    return f"See what there is with: gpuctl files {typed}"


def _places(
    part: LeftPart, found: files_pb2.RankFiles, path: str, target: Path, is_folder: bool
) -> Iterator[tuple[files_pb2.FolderEntry, Path]]:
    """Each wanted file, and where it is to lie."""
    files: Sequence[files_pb2.FolderEntry] = found.files
    if any(trouble_with_path(each.path) for each in files):
        raise GpufleetError(Reason.CONFLICT, "the scheduler names a path that none may have")
    for each in files:
        if each.path == path:
            yield each, target / Path(path).name if is_folder or target.is_dir() else target
            return
    inside = [each for each in files if path in ("", ".") or each.path.startswith(f"{path}/")]
    if not inside and path not in ("", "."):
        raise GpufleetError(Reason.FILE_NOT_FOUND, f"{part.words} left no {path!a}", next_step=_how_to_see(part.typed))
    above = path.rpartition("/")[0]
    for each in inside:
        yield each, target / (each.path.removeprefix(f"{above}/") if above else each.path)


def _bring(
    client: Client,
    job_id: int,
    found: files_pb2.RankFiles,
    file: files_pb2.FolderEntry,
    place: Path,
) -> None:
    part = place.with_name(f".{place.name}.{job_id}-{found.attempt}.part")  # what a job left never changes
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        if not part.exists() and _is_there(client, job_id, found.rank, file, place):
            place.chmod(0o755 if file.is_executable else 0o644)
            return
        digest, since = "", time.monotonic()
        while True:
            offset = min(part.stat().st_size, file.size_bytes) if part.exists() else 0
            request = files_pb2.DownloadFileRequest(job_id=job_id, path=file.path, offset=offset, rank=found.rank)
            try:
                digest = _write(part, offset, client.scheduler.DownloadFile(request))
                break
            except grpc.RpcError as problem:
                error = translated(problem, client.settings)
                if part.exists() and part.stat().st_size > offset:
                    since = time.monotonic()
                if not isinstance(error, UnavailableError) or time.monotonic() - since > CUT_SECONDS_MAX:
                    raise error from None
            time.sleep(PAUSE_SECONDS)
        if part.stat().st_size != file.size_bytes:
            part.unlink()
            raise GpufleetError(Reason.CONFLICT, f"{file.path!a} came with another size than was said")
        if digest and digest != (found_digest := _digest_of(part)):
            part.unlink()
            why = f"{file.path!a} came with the SHA-256 {found_digest}, and the scheduler says {digest}"
            raise GpufleetError(Reason.DIGEST_MISMATCH, why, next_step="Copy it again.")
        part.chmod(0o755 if file.is_executable else 0o644)
        part.replace(place)
    except OSError as problem:
        why = f"{str(place)!a} cannot be written: {problem.strerror}"
        raise GpufleetError(Reason.FILE_NOT_FOUND, why, next_step="Name another TARGET.") from None


def _is_there(client: Client, job_id: int, rank: int, file: files_pb2.FolderEntry, place: Path) -> bool:
    """Whether an earlier copy has brought the file: it is asked for its SHA-256 alone."""
    if place.is_symlink() or not place.is_file() or place.stat().st_size != file.size_bytes:
        return False
    request = files_pb2.DownloadFileRequest(job_id=job_id, path=file.path, offset=file.size_bytes, rank=rank)
    try:
        digests = [piece.digest for piece in client.scheduler.DownloadFile(request)]
    except grpc.RpcError:
        return False  # to be told, or tried again, by who asks for its bytes
    return digests[-1:] == [_digest_of(place)]


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(part: Path, offset: int, pieces: Iterator[files_pb2.DownloadFileResponse]) -> str:
    """Write what comes from the offset on; the SHA-256 of the whole file as the scheduler says it."""
    digest = ""
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.truncate(offset)
        file.seek(offset)
        for piece in pieces:
            if piece.offset != offset:
                raise GpufleetError(Reason.CONFLICT, "a piece came that does not follow the one before it")
            file.write(piece.data)
            offset += len(piece.data)
            digest = piece.digest
    return digest
