"""What other jobs left for a rank (`--input`): which files of it are chosen, and where they lie beside its others.

The scheduler says whose files an input names, once all of them are stored; until then it is asked again, as for a file
that does not come. Nothing is ever written over, or through a link of the folder that went along.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Protocol

import grpc.aio
from google.protobuf.message import DecodeError
from gpufleet.v1 import node_agent_pb2 as pb

from gpufleet.errors import GpufleetError, Reason
from gpufleet.jobs.files import is_digest, trouble_with_path
from gpufleet.jobs.folders import Folder, folder_of
from gpufleet.jobs.results import RESULT_MANIFEST_BYTES_MAX, Chosen
from gpufleet.jobs.runs import RankKey
from gpufleet.net.status import from_rpc_error

from ..core.launch import InputFile, JobInput, RefusalReason
from .file_cache import NEVER_WITHOUT_ANOTHER_LAUNCH, PATIENCE_SECONDS, NotHad
from .job_folders import Cache, write_files

INPUT_FILES_MAX = 100_000
"""Files that all inputs of a rank give it together."""
RETRY_SECONDS = 1.0
INPUTS_PATIENCE_SECONDS = PATIENCE_SECONDS
"""A launch whose inputs are still coming is given up after so long, as for a file that does not come."""
RENAMED = "write --input JOB:PATTERN=NAME for a folder of their own"


class SourcesCache(Cache, Protocol):
    """A cache that also knows where the files of inputs are."""

    async def fetch_sources(self, key: RankKey) -> bytes:
        """What the scheduler tells: an InputSources message. Errors: AioRpcError, TimeoutError."""
        ...


async def lay_out_inputs(cache: SourcesCache, key: RankKey, inputs: tuple[JobInput, ...], place: Path) -> None:
    """Write the chosen files into a rank's folder. Errors: NotHad, ManifestError, OSError, and those of the cache."""
    sources = await _sources(cache, key)
    origins: dict[str, tuple[str, str]] = {}
    counts = dict.fromkeys(range(len(inputs)), 0)
    for source in sources:
        if source.input not in counts or not is_digest(source.digest):
            raise NotHad(RefusalReason.BAD_REQUEST, "the scheduler names an input that the launch does not have")
        manifest = InputFile(path=f"what {source.words} left", digest=source.digest, size_bytes=source.size_bytes)
        async with cache.cached(key, manifest, makes_room=True) as path:
            folder = await asyncio.to_thread(_read, path)
        chosen = await asyncio.to_thread(_chosen, folder, inputs[source.input].pattern, source.folder)
        counts[source.input] += len(chosen)
        placed = _new_among(chosen, source, origins)
        await asyncio.to_thread(_make_room_for, place, placed)
        await write_files(cache, key, folder, placed, place)
    for number, each in enumerate(inputs):
        if not counts[number]:
            why = f"job {each.job} left no file that {each.pattern!r} chooses"
            raise NotHad(RefusalReason.INPUT_UNUSABLE, f"--input {each.job}:{each.pattern}: {why}")


async def _sources(cache: SourcesCache, key: RankKey) -> tuple[pb.InputSource, ...]:
    """Where their files are. Errors: NotHad, also where they are not stored in time."""
    until = time.monotonic() + INPUTS_PATIENCE_SECONDS
    while True:
        try:
            return tuple(pb.InputSources.FromString(await cache.fetch_sources(key)).sources)
        except grpc.aio.AioRpcError as problem:
            error = from_rpc_error(problem)
            if error.reason is Reason.INPUT_UNUSABLE:
                raise NotHad(RefusalReason.INPUT_UNUSABLE, error.message) from None
            why = error.message
            if error.reason in NEVER_WITHOUT_ANOTHER_LAUNCH:
                raise NotHad(RefusalReason.FILES_UNAVAILABLE, why) from None
        except (TimeoutError, GpufleetError, DecodeError) as problem:
            why = str(problem) or "the scheduler said nothing"
        if time.monotonic() > until:
            raise NotHad(RefusalReason.FILES_UNAVAILABLE, f"what --input names could not be fetched: {why}")
        await asyncio.sleep(RETRY_SECONDS)


def _read(path: Path) -> Folder:
    with path.open("rb") as file:
        return folder_of(file.read(RESULT_MANIFEST_BYTES_MAX + 1))


def _chosen(folder: Folder, pattern: str, inside: str) -> dict[str, str]:
    """Where each chosen file is to lie, by the path that it had."""
    lines = Chosen((pattern,))
    paths = (each.path for each in folder.entries if lines.has(each.path))
    return {path: f"{inside}/{path}" if inside else path for path in paths}


def _new_among(
    chosen: Mapping[str, str], source: pb.InputSource, origins: dict[str, tuple[str, str]]
) -> dict[str, str]:
    """Those that no input before has brought; `origins` is what each of them was. Errors: NotHad for another file."""
    placed = {}
    for path, target in chosen.items():
        origin = (source.digest, path)
        if (known := origins.get(target)) == origin:
            continue
        if known is not None:
            raise _clash(target, "another --input brings a file of this path")
        origins[target] = origin
        if trouble_with_path(target):
            raise NotHad(RefusalReason.BAD_REQUEST, f"the path of an input {trouble_with_path(target)}")
        placed[path] = target
    if len(origins) > INPUT_FILES_MAX:
        why = f"--input names more than {INPUT_FILES_MAX:,} files"
        raise NotHad(RefusalReason.INPUT_UNUSABLE, f"{why}: choose fewer")
    return placed


def _make_room_for(place: Path, placed: dict[str, str]) -> None:
    """Make the folders that files are to lie in, and leave out files that are there. Errors: NotHad for a clash."""
    for folder in sorted({str(above) for path in placed.values() for above in PurePosixPath(path).parents} - {"."}):
        try:
            Path(place, folder).mkdir(0o700)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(f"{place}/{folder}").st_mode):
                raise _clash(folder, "a file or a link of --upload or --file lies there") from None
    for target in placed.values():
        if os.path.lexists(f"{place}/{target}"):
            raise _clash(target, "--upload or --file brings a file of this path")


def _clash(path: str, why: str) -> NotHad:
    return NotHad(RefusalReason.INPUT_UNUSABLE, f"{path!r} of --input cannot be laid out, as {why}: {RENAMED}")
