"""The folder that goes with a job: what `--upload` names here, and how the line that submits a job again names it.

A folder of this machine is described before the request is made (`described`); from then on the option says
`sha256:DIGEST:SIZE:ENTRIES:BYTES`, as it does of one that was uploaded before.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.errors import invalid
from gpufleet.jobs.files import is_digest
from gpufleet.v1 import job_pb2 as pb

from ..settings import Settings
from .environment_files import check_environment_files
from .input_files import SIZE_DIGITS_MAX, UPLOADED
from .job_options import JobOptions

if TYPE_CHECKING:
    from ..folders.preparing import Prepared

OPTION = "--upload"


def described(settings: Settings, job: JobOptions) -> tuple[JobOptions, Prepared | None]:
    """The options with the folder by its manifest, and what there is to send.

    Errors: those of `prepare`, and INVALID_ARGUMENT where the job's environment is made of a file that is not there.
    """
    if job.upload is None:
        if job.file:  # without any file the scheduler says what is missing
            check_environment_files(job, None)
        return job, None
    if job.upload.startswith(UPLOADED):
        return job, None
    if not job.upload:  # a variable of a script that is not set must not send whatever lies here
        raise invalid(OPTION, "it is empty", next_step="Name a folder; the one where you stand is: --upload .")
    from ..folders.preparing import prepare
    from ..folders.scanning import Limits

    limits = Limits(settings.config.settings.upload_bytes_max, settings.config.settings.upload_files_max)
    prepared = prepare(Path(job.upload), limits)
    check_environment_files(job, prepared.found)
    return replace(job, upload=input_folder_text(prepared.folder)), prepared


def input_folder(text: str) -> pb.InputFolder:
    """Read what was uploaded before. Raises INVALID_ARGUMENT."""
    words = text.removeprefix(UPLOADED).split(":")
    digest, *numbers = words
    is_right = text.startswith(UPLOADED) and len(numbers) == 3 and is_digest(digest)
    if not is_right or not all(each.isascii() and each.isdigit() and len(each) <= SIZE_DIGITS_MAX for each in numbers):
        raise invalid(
            OPTION,
            f"{text!a} names no folder that was uploaded",
            next_step=f"Name a folder, with gpuctl submit, run or shell; or write {UPLOADED}DIGEST:SIZE:ENTRIES:BYTES.",
        )
    size, entries, content = map(int, numbers)
    return pb.InputFolder(digest=digest, size_bytes=size, entry_count=entries, content_bytes=content)


def input_folder_text(folder: pb.InputFolder) -> str:
    """The option's value that names a folder that was uploaded."""
    return f"{UPLOADED}{folder.digest}:{folder.size_bytes}:{folder.entry_count}:{folder.content_bytes}"
