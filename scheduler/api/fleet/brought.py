"""What a node says a rank brings: what it leaves for its user, and what it keeps for the next attempt, checked."""

import hashlib
from dataclasses import dataclass

from gpufleet.v1 import node_agent_pb2 as pb

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.jobs.folders import EntryKind, Folder, ManifestError, folder_of
from gpufleet.jobs.results import PROBLEM_CHARS_MAX, PROBLEMS_MAX, RESULT_FILES_MAX, RESULT_MANIFEST_BYTES_MAX

from ...state.jobs import Job

MANIFEST_STEP = "Nothing: the agent is not of this version, or something speaks in its place."


@dataclass(frozen=True, slots=True)
class Brought:
    """What a rank brings: what it leaves for its user, and what it keeps for the next attempt; None for neither."""

    left: Folder | None
    problems: tuple[str, ...]
    kept: Folder | None
    kept_problem: str

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each chunk by its digest: what is in both is stored once."""
        folders = (each for each in (self.left, self.kept) if each is not None)
        return {chunk.digest: chunk.size_bytes for folder in folders for chunk in folder.chunks}

    def manifest_digests(self, first: pb.StoreResultsRequest) -> tuple[str, ...]:
        """The digests of the manifests, as they are stored behind their chunks."""
        manifests = ((self.left, first.manifest), (self.kept, first.kept_manifest))
        return tuple(hashlib.sha256(each).hexdigest() for folder, each in manifests if folder is not None and each)


def checked(first: pb.StoreResultsRequest, job: Job) -> Brought:
    """What comes of it that is wanted of this job. Errors: INVALID_ARGUMENT."""
    if len(first.problems) > PROBLEMS_MAX or any(len(each) > PROBLEM_CHARS_MAX for each in first.problems):
        raise invalid("problems", f"are more than {PROBLEMS_MAX}, or longer than {PROBLEM_CHARS_MAX:,} characters")
    if len(first.kept_problem) > PROBLEM_CHARS_MAX:
        raise invalid("kept_problem", f"is longer than {PROBLEM_CHARS_MAX:,} characters")
    if first.is_checkpoint and not first.HasField("kept_manifest"):
        raise invalid("kept_manifest", "is not set, and it is a checkpoint", next_step=MANIFEST_STEP)
    left = kept = None
    if job.spec.results and not first.is_checkpoint:
        left = _folder_of(first.manifest, "manifest")
    if job.spec.keep and not job.is_finished and first.HasField("kept_manifest"):
        kept = _folder_of(first.kept_manifest, "kept_manifest")
    kept_problem = first.kept_problem if job.spec.keep and not job.is_finished else ""
    return Brought(left, tuple(first.problems), kept, kept_problem)


def _folder_of(manifest: bytes, field: str) -> Folder:
    if len(manifest) > RESULT_MANIFEST_BYTES_MAX:
        why = f"has {len(manifest):,} bytes; {RESULT_MANIFEST_BYTES_MAX:,} are the most"
        raise invalid(field, why, next_step=MANIFEST_STEP)
    try:
        folder = folder_of(manifest)
    except ManifestError as problem:
        raise invalid(field, f"is not right: {problem}", next_step=MANIFEST_STEP) from None
    if len(folder.entries) > RESULT_FILES_MAX or any(each.kind is not EntryKind.FILE for each in folder.entries):
        why = f"may hold {RESULT_FILES_MAX:,} files and nothing else"
        raise invalid(field, why, next_step=MANIFEST_STEP)
    return folder


def check_sizes(brought: Brought, most: int) -> None:
    """Refuse what is larger than what is stored of a folder. Errors: FILE_TOO_LARGE."""
    for folder, does, option in ((brought.left, "left", "--download"), (brought.kept, "keeps", "--keep")):
        if folder is not None and folder.content_bytes > most:
            why = f"what the job {does} has {folder.content_bytes:,} bytes; at most {most:,} are stored"
            raise GpufleetError(Reason.FILE_TOO_LARGE, why, next_step=f"name less of it with {option}")
