"""The Scheduler service: the folders that jobs name, before a job is taken with one."""

from collections.abc import Sequence

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.jobs.environment_files import first_missing
from gpufleet.jobs.folders import EntryKind, ManifestError

from ...blobs.folders import Contents
from ...blobs.store import BlobStore
from ...state.ids import UserName
from ...state.specs import InputFolder, JobSpec

MANIFEST_STEP = "gpuctl submit --upload FOLDER makes a right one; files.proto says at FolderManifest what it must be"


def check_folders(blobs: BlobStore, user: UserName, specs: Sequence[JobSpec], field: str) -> None:
    """Refuse specs whose folders a node could not lay out, and whose environment names a file that is in none.

    What they need is kept for a while. It reads files. `field` is where a folder is in the request.
    Errors: FILE_NOT_UPLOADED, FILE_TOO_LARGE, INVALID_ARGUMENT.
    """
    checked: set[InputFolder] = set()
    for number, spec in enumerate(specs):
        folder, path = spec.folder, field.format(number)
        if folder is not None and folder not in checked:
            checked.add(folder)
            _check(blobs, user, folder, path)
        _check_environment(blobs, user, spec, path)
        if folder is None:
            continue
        if spec.files and (clash := blobs.folders.clash_with(user, folder.digest, spec.files)) is not None:
            raise invalid(path, f"leaves no room for the file {clash!r}", next_step="give the file another path")


def _check(blobs: BlobStore, user: UserName, folder: InputFolder, path: str) -> None:
    not_uploaded = invalid(f"{path}.digest", "its manifest is not uploaded", reason=Reason.FILE_NOT_UPLOADED)
    try:
        contents = blobs.folders.contents(user, folder.digest)
    except ManifestError as problem:
        raise invalid(f"{path}.digest", f"names no right manifest: {problem}", next_step=MANIFEST_STEP) from None
    except GpufleetError as problem:
        raise (not_uploaded if problem.reason is Reason.FILE_NOT_UPLOADED else problem) from None
    size_bytes = blobs.size_of(user, folder.digest)
    if size_bytes is None:  # what is in an empty folder is known all the same
        raise not_uploaded
    for name, said, right in (
        ("size_bytes", folder.size_bytes, size_bytes),
        ("entry_count", folder.entry_count, contents.entry_count),
        ("content_bytes", folder.content_bytes, contents.content_bytes),
    ):
        if said != right:
            raise invalid(f"{path}.{name}", f"is {said:,}, and by the manifest it is {right:,}")
    if contents.content_bytes > (most := blobs.folder_bytes_max):
        raise invalid(
            path,
            f"holds {contents.content_bytes:,} bytes; at most {most:,} are taken",
            reason=Reason.FILE_TOO_LARGE,
            next_step="leave out what the job does not need (.gpufleetignore), or have an admin raise "
            "[files] folder_bytes_max",
        )
    _keep_chunks(blobs, user, contents, path)


def _check_environment(blobs: BlobStore, user: UserName, spec: JobSpec, path: str) -> None:
    if spec.environment is None:
        return
    entries = () if spec.folder is None else blobs.folders.read(user, spec.folder.digest).entries
    files = {each.path for each in spec.files} | {each.path for each in entries if each.kind is EntryKind.FILE}
    links = {each.path for each in entries if each.kind is EntryKind.LINK}
    tool = spec.environment.tool.value
    if missing := first_missing(tool, spec.environment.what, files, links):
        where = f"{path.removesuffix('folder')}environment.{tool}" if path.endswith(".folder") else path
        raise invalid(
            where,
            f"needs {missing!a}, which is not among the job's files",
            next_step="upload it in the folder, or name another file by its path in the folder",
        )


def _keep_chunks(blobs: BlobStore, user: UserName, contents: Contents, path: str) -> None:
    blobs.keep((user, each) for each in contents.chunks)
    missing = sum(blobs.size_of(user, digest) is None for digest in contents.chunks)
    if missing:
        why = f"{missing:,} of its {len(contents.chunks):,} chunks are not uploaded"
        raise invalid(path, why, reason=Reason.FILE_NOT_UPLOADED)
    wrong = next((each for each, size in contents.chunks.items() if blobs.size_of(user, each) != size), None)
    if wrong is not None:
        why = f"names no right manifest: chunk {wrong} has another size"
        raise invalid(f"{path}.digest", why, next_step=MANIFEST_STEP)
