"""Refuses an environment whose files are not uploaded, before anything is sent."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.errors import GpufleetError, invalid
from gpufleet.jobs.environment_files import first_missing
from gpufleet.text.spelling import did_you_mean

from .input_files import names_of
from .job_options import JobOptions

if TYPE_CHECKING:
    from ..folders.scanning import ScannedFolder


def check_environment_files(job: JobOptions, folder: ScannedFolder | None) -> None:
    """Check --requirements, --uv and --conda. Raises INVALID_ARGUMENT with the option."""
    asked = {"requirements": job.requirements or "", "uv": "uv" if job.uv else "", "conda": job.conda or ""}
    for tool, what in asked.items():
        if not what:
            continue
        files = names_of(job.file or ())
        links: set[str] = set()
        if folder is not None:
            files |= {each.path for each in folder.files}
            links |= folder.links.keys()
        if missing := first_missing(tool, what, files, links):
            raise _not_uploaded(f"--{tool}", missing, files, folder)


def _not_uploaded(option: str, path: str, files: set[str], folder: ScannedFolder | None) -> GpufleetError:
    root = None if folder is None else folder.root
    if root is not None and (root / path).is_file():
        line = f"echo {shlex.quote(f'!/{path}')} >> {shlex.quote(str(root / '.gpufleetignore'))}"
        return invalid(option, f"{path} is there, but ignored, so that it is not uploaded", next_step=f"Run: {line}")
    there = "the files of --file" if root is None else f"the folder {root}"
    beside = sorted(each for each in files if Path(each).name == Path(path).name)
    hint = f"; there is {beside[0]}" if beside else did_you_mean(path, files)
    step = "Name a file by its path in the folder." if option != "--uv" else "Make it there with: uv lock"
    return invalid(option, f"there is no {path} in {there}{hint}", next_step=step)
