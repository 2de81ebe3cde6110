"""`files` and `cp` of a job that runs: out of its folder, and into it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.fleet.client import Client
from gpufleet.fleet.running_files import RunningFolder
from gpufleet.jobs.files import trouble_with_path

FILES_MAX = 20_000
"""Of one copy; more belong into an archive."""


def bring_running(client: Client, job_id: int, path: str, target: str, rank: int) -> tuple[int, int, list[str]]:
    """Copy a file, a folder or all of a running job's folder here: files, their bytes, and what is not among them."""
    folder, path = RunningFolder(client, job_id, rank), path.strip("/")
    entries, left_out = folder.list(path)
    place, above = Path(target), path.rpartition("/")[0]
    if len(entries) == 1 and entries[0].path == path and not entries[0].is_empty_folder:
        places = [(path, place / Path(path).name if target.endswith("/") or place.is_dir() else place)]
    else:
        wanted = (each.path for each in entries if not each.link_target and not each.is_empty_folder)
        places = [(each, place / (each.removeprefix(f"{above}/") if above else each)) for each in wanted]
    size = sum(folder.bring(each, where) for each, where in places)
    links = [f"{each.path!a} is a link" for each in entries if each.link_target]
    return len(places), size, [*left_out, *links]


def send_running(client: Client, job_id: int, source: str, path: str, rank: int) -> tuple[int, int, list[str]]:
    """Copy a file or a folder from here into a running job's folder: files, their bytes, and what is not among them."""
    folder, root = RunningFolder(client, job_id, rank), Path(source)
    into = path.rstrip("/")
    if not root.is_dir():
        name = f"{into}/{root.name}".lstrip("/") if not into or path.endswith("/") or _is_folder(folder, into) else into
        return 1, folder.send(root, _checked(name)), []
    found = list(_files_of(root))
    left_out = [f"{str(each)!a} is no plain file" for each in found if each.is_symlink() or not each.is_file()]
    files = [each for each in found if each.is_file() and not each.is_symlink()]
    if len(files) > FILES_MAX:
        why = f"{source!a} has {len(files):,} files; {FILES_MAX:,} are the most of one copy"
        raise GpufleetError(Reason.FILE_TOO_LARGE, why, next_step="Copy an archive of it, and unpack that in the job.")
    base = root.resolve().name
    names = [_checked("/".join(filter(None, (into, base, each.relative_to(root).as_posix())))) for each in files]
    size = sum(folder.send(each, name) for each, name in zip(files, names, strict=True))
    return len(files), size, left_out


def _files_of(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders.sort()
        yield from (Path(folder, each) for each in folders if Path(folder, each).is_symlink())
        yield from (Path(folder, each) for each in sorted(names))


def _is_folder(folder: RunningFolder, path: str) -> bool:
    try:
        entries, _ = folder.list(path)
    except GpufleetError as problem:
        if problem.reason is Reason.FILE_NOT_FOUND:
            return False
        raise
    return not (len(entries) == 1 and entries[0].path == path and not entries[0].is_empty_folder)


def _checked(path: str) -> str:
    if why := trouble_with_path(path):
        raise invalid("TARGET", f"{path!a} {why}", next_step="Write it as 41:data/x.bin, inside the job's folder.")
    return path
