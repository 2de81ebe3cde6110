"""The folder that goes with a job, in a spec and in a launch: from the wire to the state, checked, and back."""

from gpufleet.v1 import job_pb2

from gpufleet.errors import invalid
from gpufleet.jobs.files import is_digest
from gpufleet.jobs.folders import CONTENT_BYTES_MAX, ENTRIES_MAX, MANIFEST_BYTES_MAX

from ..state.specs import InputFolder


def input_folder_of(spec: job_pb2.JobSpec, path: str) -> InputFolder | None:
    """The checked folder, not yet what its manifest says. Errors: INVALID_ARGUMENT with the path of the field."""
    if not spec.HasField("folder"):
        return None
    asked, field = spec.folder, f"{path}.folder"
    if not is_digest(asked.digest):
        why = "is not a SHA-256 in lower-case hexadecimal"
        raise invalid(f"{field}.digest", why, next_step="give the 64 digits that sha256sum prints of the manifest")
    for name, value, most in (
        ("size_bytes", asked.size_bytes, MANIFEST_BYTES_MAX),
        ("entry_count", asked.entry_count, ENTRIES_MAX),
        ("content_bytes", asked.content_bytes, CONTENT_BYTES_MAX),
    ):
        if not 0 <= value <= most:
            raise invalid(f"{field}.{name}", f"is {value:,}; it must be 0 to {most:,}")
    return InputFolder(
        digest=asked.digest,
        size_bytes=asked.size_bytes,
        entry_count=asked.entry_count,
        content_bytes=asked.content_bytes,
    )


def input_folder_proto(folder: InputFolder | None) -> job_pb2.InputFolder | None:
    """The folder on the wire; None for none."""
    if folder is None:
        return None
    return job_pb2.InputFolder(
        digest=folder.digest,
        size_bytes=folder.size_bytes,
        entry_count=folder.entry_count,
        content_bytes=folder.content_bytes,
    )
