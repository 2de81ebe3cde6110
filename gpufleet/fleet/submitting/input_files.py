"""Files that go with a job: what `--file` names here, and how the line that submits a job again names it.

PATH or PATH=NAME is a file of this machine, or a folder with all files below it; `sha256:DIGEST:SIZE=NAME` is one that
was uploaded before, with `:x` behind the size for a program, and `//ROOT/PATH` behind the name of one that lies at this
path in the shared folder of that id.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.jobs.files import FILES_MAX, clash_among, is_digest, trouble_with_path
from gpufleet.jobs.shared_root import is_root_id
from gpufleet.v1 import job_pb2 as pb

OPTION = "--file"
UPLOADED = "sha256:"
SIZE_DIGITS_MAX = 16
HOW = "Write it as train.py, data/a.csv=a.csv, or a folder: src"


def local_files(texts: Sequence[str]) -> dict[str, Path]:
    """Where each file of this machine is, by its name in the job's folder. Errors: INVALID_ARGUMENT, FILE_NOT_FOUND."""
    found: dict[str, Path] = {}
    for text in texts:
        if text.startswith(UPLOADED):
            continue
        source, name = _source_and_name(text)
        for path, file in _files_of(source, name):
            if why := trouble_with_path(path):
                raise invalid(OPTION, f"the name of {str(file)!a} {why}", next_step=HOW)
            if path in found:
                raise invalid(OPTION, f"{path!r} is named twice", next_step=f"Give one another name: {file}=NAME")
            found[path] = file
            if len(found) > FILES_MAX:
                raise invalid(
                    OPTION,
                    f"more than {FILES_MAX:,} files",
                    next_step="Put them in one archive, which the job unpacks: tar -cf data.tar FOLDER",
                )
    return found


def input_files(texts: Sequence[str]) -> list[pb.InputFile]:
    """The files as a job names them, by their names; each file of this machine is read for its digest."""
    found = {each.path: each for each in map(_uploaded, texts) if each is not None}
    found |= {name: _described(name, path) for name, path in local_files(texts).items()}
    if (clash := clash_among(found)) is not None:
        raise invalid(OPTION, clash[1], next_step="Give one another name: PATH=NAME")
    return [found[name] for name in sorted(found)]


def names_of(texts: Sequence[str]) -> set[str]:
    """The paths that the files have in the job's folder. Errors: those of `local_files`."""
    return {*local_files(texts), *(each.path for each in map(_uploaded, texts) if each is not None)}


def input_file_text(file: pb.InputFile) -> str:
    """The option's value that names a file that was uploaded."""
    shared = f"//{file.shared_root}/{file.shared_path}" if file.shared_root else ""
    return f"{UPLOADED}{file.digest}:{file.size_bytes}{':x' if file.is_executable else ''}={file.path}{shared}"


def _uploaded(text: str) -> pb.InputFile | None:
    if not text.startswith(UPLOADED):
        return None
    digest, _, rest = text.removeprefix(UPLOADED).partition(":")
    size, _, name = rest.partition("=")
    size, colon, mark = size.partition(":")
    name, is_shared, place = name.partition("//")  # no path has an empty part
    root, _, path = place.partition("/")
    is_size = size.isascii() and size.isdigit() and len(size) <= SIZE_DIGITS_MAX
    is_placed = not is_shared or (is_root_id(root) and not trouble_with_path(path))
    is_marked = mark == ("x" if colon else "")
    if not (is_size and is_digest(digest) and is_marked and is_placed) or trouble_with_path(name):
        how = f"Write it as {UPLOADED}DIGEST:SIZE=NAME, with :x behind the size for a program."
        raise invalid(OPTION, f"{text!a} names no file that was uploaded", next_step=how)
    return pb.InputFile(
        path=name,
        digest=digest,
        size_bytes=int(size),
        is_executable=bool(mark),
        shared_root=root,
        shared_path=path,
    )


def _source_and_name(text: str) -> tuple[Path, str]:
    if text and os.path.lexists(text):
        source, name = text, ""
    else:
        source, equals, name = text.rpartition("=")
        if not equals:
            source, name = text, ""
    if not source:
        raise invalid(OPTION, f"{text!a} names no file", next_step=HOW)
    path = Path(source)
    if not path.exists():
        raise GpufleetError(Reason.FILE_NOT_FOUND, f"there is no file {source}", next_step=HOW)
    return path, name or path.resolve().name


def _files_of(source: Path, name: str) -> Iterator[tuple[str, Path]]:
    if not source.is_dir():
        yield name, source
        return
    for folder, folders, files in os.walk(source, onerror=_unreadable):
        if (link := next((each for each in sorted(folders) if (Path(folder) / each).is_symlink()), None)) is not None:
            what = f"{Path(folder) / link} is a link to a folder, and no link travels"
            raise invalid(OPTION, what, next_step="Name the folder that it leads to: FOLDER=NAME, or remove it.")
        folders.sort()
        for file in sorted(files):
            path = Path(folder) / file
            yield f"{name}/{path.relative_to(source).as_posix()}", path


def _unreadable(problem: OSError) -> None:
    raise GpufleetError(Reason.FILE_NOT_FOUND, f"{problem.filename} cannot be read: {problem.strerror}") from None


def _described(name: str, path: Path) -> pb.InputFile:
    import hashlib

    try:
        with open(path, "rb", opener=_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise invalid(OPTION, f"{path} is no plain file", next_step="Name a file, or a folder of files.")
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            size = file.tell()
    except OSError as problem:
        raise GpufleetError(Reason.FILE_NOT_FOUND, f"{path} cannot be read: {problem.strerror}") from None
    return pb.InputFile(path=name, digest=digest, size_bytes=size, is_executable=bool(status.st_mode & 0o100))


def _without_waiting(path: str, flags: int) -> int:
    """Open it, though it may be a pipe to which nobody writes."""
    return os.open(path, flags | os.O_NONBLOCK)
