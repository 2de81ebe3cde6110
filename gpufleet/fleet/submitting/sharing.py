"""Files that nodes see, too: with --shared-root they are named, and read there, once both see the same folder."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from gpufleet.errors import GpufleetError, Reason
from gpufleet.jobs.files import trouble_with_path
from gpufleet.jobs.shared_root import PATHS_MAX, RootUnusable, id_of, new_probe, write_new
from gpufleet.text.cleaning import clean
from gpufleet.text.units import counted
from gpufleet.v1 import files_pb2, job_pb2

from ..client import connected
from ..notices import Notices
from ..settings import Settings
from .input_files import local_files

OPTION = "--shared-root"
PROBE_BYTES = 32
NODES_SHOWN = 3


def share_files(
    settings: Settings, root: Path | None, texts: Sequence[str], spec: job_pb2.JobSpec, notices: Notices
) -> frozenset[str]:
    """Name of each file of a spec where nodes find it in the shared folder; the digests that nobody needs uploaded.

    Where a node does not see the folder, or the job could not read a file there, it says so, and the file is uploaded.
    Errors: FILE_NOT_FOUND where the folder is none.
    """
    if root is None:
        return frozenset()
    folder = real_folder(root)
    inside = _inside(folder, local_files(texts))
    files = [each for each in spec.files if each.path in inside][:PATHS_MAX]
    if not files:
        notices.say(f"none of the files lies in {root}: they are uploaded")
        return frozenset()
    try:
        marker = id_of(folder)
        with probe_in([folder, *(folder / inside[each.path] for each in files)], folder) as (probe, content):
            request = files_pb2.CheckFilesRequest(
                root=marker,
                probe=probe,
                digest=hashlib.sha256(content).hexdigest(),
                size_bytes=len(content),
                paths=[inside[each.path] for each in files],
                nodes=spec.nodelist,
            )
            with connected(settings) as client:
                answer = client.call(client.scheduler.CheckFiles, request)
    except RootUnusable as problem:
        notices.say(f"{root} cannot be shared: {problem}; the files are uploaded")
        return frozenset()
    except GpufleetError as problem:
        if problem.reason is not Reason.METHOD_UNKNOWN:
            raise
        notices.say("the scheduler is older, and knows no shared folders; the files are uploaded")
        return frozenset()
    kept = _named(notices, root, marker, files, inside, [each for each in answer.nodes if not each.is_lost])
    # The same bytes may lie elsewhere, too, under another name of the job: that file is uploaded.
    return frozenset({each.digest for each in kept} - {each.digest for each in spec.files if each not in kept})


def real_folder(root: Path) -> Path:
    """The folder without links in its path. Errors: FILE_NOT_FOUND."""
    try:
        folder = root.resolve(strict=True)
    except OSError:
        folder = root
    if not folder.is_dir():
        how = "Name the folder that nodes see, too, by its path here."
        raise GpufleetError(Reason.FILE_NOT_FOUND, f"{OPTION}: there is no folder {root}", next_step=how)
    return folder


@contextmanager
def probe_in(places: Sequence[Path], root: Path, size: int = PROBE_BYTES) -> Iterator[tuple[str, bytes]]:
    """A probe in the first of these folders, or of the folders of these files, that can be written to, until the end.

    Gives its path below the root, and its bytes. Errors: RootUnusable.
    """
    content, name = secrets.token_bytes(size), new_probe()
    problem: OSError | None = None
    for place in places:
        path = (place if place.is_dir() else place.parent) / name
        try:
            write_new(path, content)
        except OSError as error:
            problem = problem or error
            with suppress(OSError):
                path.unlink()
            continue
        try:
            yield path.relative_to(root).as_posix(), content
        finally:
            path.unlink(missing_ok=True)
        return
    raise RootUnusable(f"nothing can be written in it: {problem.strerror if problem else 'it is empty'}")


def _inside(folder: Path, sources: Mapping[str, Path]) -> dict[str, str]:
    """The path below the folder of each file that lies in it, whatever links lead there."""
    found: dict[str, str] = {}
    for name, source in sources.items():
        real = Path(os.path.realpath(source))
        if real.is_relative_to(folder) and not trouble_with_path(path := real.relative_to(folder).as_posix()):
            found[name] = path
    return found


def _named(
    notices: Notices,
    root: Path,
    marker: str,
    files: Sequence[job_pb2.InputFile],
    inside: Mapping[str, str],
    nodes: Sequence[files_pb2.FilesOnNode],
) -> list[job_pb2.InputFile]:
    """Name where the files are that some node can read, and answer those that all can."""
    seeing = [node for node in nodes if node.is_same_root]
    blind = [node for node in nodes if not node.is_same_root]
    unreadable = {number for node in seeing for number in node.unreadable}
    kept: list[job_pb2.InputFile] = []
    for number, file in enumerate(files):
        if any(number not in node.unreadable for node in seeing):
            file.shared_root, file.shared_path = marker, inside[file.path]
            if not blind and number not in unreadable:
                kept.append(file)
    if blind or not seeing:
        told = ", ".join(f"{node.node}: {clean(node.root_problem)}" for node in blind[:NODES_SHOWN])
        more = f" and {len(blind) - NODES_SHOWN} more" if len(blind) > NODES_SHOWN else ""
        whom = "no node sees" if not seeing else "not every node sees"
        notices.say(f"{whom} {root}: the files are uploaded{f' ({told}{more})' if told else ''}")
    elif unreadable:
        why = next(node.unreadable_reason for node in seeing if node.unreadable)
        first = inside[files[min(unreadable)].path]
        notices.say(f"{counted(len(unreadable), 'file')} uploaded, as {clean(first)} {clean(why)}")
    else:
        notices.tell(f"{counted(len(kept), 'file')} read in {root}, which every node sees")
    return kept
