"""The files that go with a job, in a spec and in a launch: from the wire to the state, checked, and back."""

from collections.abc import Collection, Iterable
from dataclasses import replace

from gpufleet.v1 import job_pb2

from gpufleet.errors import invalid
from gpufleet.jobs.files import FILE_BYTES_MAX, FILES_MAX, clash_among, is_digest, trouble_with_path
from gpufleet.jobs.shared_root import MARKER, is_root_id

from ..state.specs import InputFile, JobSpec

HOW = "give paths such as data/train.csv, relative to the folder of the job's files"


def input_files_of(spec: job_pb2.JobSpec, path: str) -> tuple[InputFile, ...]:
    """The checked files, in the order of their paths. Errors: INVALID_ARGUMENT with the path of the field."""
    if len(spec.files) > FILES_MAX:
        raise invalid(f"{path}.files", f"holds {len(spec.files):,}; at most {FILES_MAX:,} go with a job")
    found: list[InputFile] = []
    for number, each in enumerate(spec.files):
        field = f"{path}.files[{number}]"
        if why := trouble_with_path(each.path):
            raise invalid(f"{field}.path", why, next_step=HOW)
        if not is_digest(each.digest):
            why = "is not a SHA-256 in lower-case hexadecimal"
            raise invalid(f"{field}.digest", why, next_step="give the 64 digits that sha256sum prints")
        if not 0 <= each.size_bytes <= FILE_BYTES_MAX:
            raise invalid(f"{field}.size_bytes", f"is {each.size_bytes:,}; it must be 0 to {FILE_BYTES_MAX:,}")
        if each.shared_root or each.shared_path:
            _check_shared(each, field)
        found.append(
            InputFile(
                path=each.path,
                digest=each.digest,
                size_bytes=each.size_bytes,
                is_executable=each.is_executable,
                shared_root=each.shared_root,
                shared_path=each.shared_path,
            )
        )
    if (clash := clash_among(each.path for each in found)) is not None:
        number, why = clash
        raise invalid(f"{path}.files[{number}].path", why, next_step="give each file a path of its own")
    has_folder = found or spec.HasField("folder") or spec.results or spec.keep or spec.inputs
    lies_there = bool(has_folder) and not spec.cwd.startswith("/")
    if lies_there and spec.output_file and not spec.output_file.startswith("/"):
        raise invalid(
            f"{path}.output_file",
            "would lie in the folder of the job's files, which is removed with the attempt",
            next_step="give an absolute path, or leave it out: gpuctl logs has what the job writes",
        )
    return tuple(sorted(found, key=lambda each: each.path))


def _check_shared(file: job_pb2.InputFile, field: str) -> None:
    if not is_root_id(file.shared_root):
        why = "is not the id of a shared folder, 32 hexadecimal digits"
        raise invalid(f"{field}.shared_root", why, next_step=f"give what the folder's {MARKER} says")
    if why := trouble_with_path(file.shared_path):
        raise invalid(f"{field}.shared_path", why, next_step="give the path below the shared folder")


def with_shared_root(spec: JobSpec, missing: Collection[InputFile]) -> JobSpec:
    """The spec of a job that goes only where these of its files can be read, which lie in one shared folder."""
    if not missing:
        return spec
    (root,) = {each.shared_root for each in missing}
    files = tuple(replace(each, is_only_shared=True) if each in missing else each for each in spec.files)
    choice = spec.gpu_choice
    if choice is not None and choice.wanted is not None:
        choice = replace(choice, wanted=replace(choice.wanted, shared_root=root))
    return replace(spec, files=files, resources=replace(spec.resources, shared_root=root), gpu_choice=choice)


def input_files_proto(files: Iterable[InputFile], shared_root: str | None = None) -> list[job_pb2.InputFile] | None:
    """The files on the wire; None for none. With a shared folder only what lies in it is told to lie in one."""
    told = []
    for each in files:
        is_told = shared_root is None or each.shared_root == shared_root
        told.append(
            job_pb2.InputFile(
                path=each.path,
                digest=each.digest,
                size_bytes=each.size_bytes,
                is_executable=each.is_executable,
                shared_root=each.shared_root if is_told else "",
                shared_path=each.shared_path if is_told else "",
                is_only_shared=each.is_only_shared,
            )
        )
    return told or None
