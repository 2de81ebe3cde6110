"""Looks that a place is this fleet's, before anything is stored there: what drops old files must never drop others'."""

import json
from pathlib import Path

from gpufleet.errors import GpufleetError, Reason
from gpufleet.host.whole_file import replace_file

from ..on_disk import explained
from .backend import Backend

KNOWN_FILE = ".files-place"
"""Beside the parts, in the data folder: where files were stored last."""


def admit(backend: Backend, fleet: str, folder: Path) -> None:
    """Have the place marked as this fleet's, or refuse it. `folder` is where parts are, and what is known of the place.

    Errors: CONFIG_INVALID where it is another fleet's, or was emptied since; STORE_UNAVAILABLE.
    """
    backend.prepare()
    known_file = folder / KNOWN_FILE
    known = {"place": backend.place, "fleet": fleet}
    found = backend.read_marker()
    if found is None:
        if _read(known_file) == known:
            raise GpufleetError(
                Reason.CONFIG_INVALID,
                f"files.store is {backend.place}, and what this scheduler had stored there is gone",
                next_step="Mount the folder, or put back what was in it. To begin anew, without those files: "
                f"rm {known_file}",
            )
        backend.write_marker(fleet)
        found = backend.read_marker()
    if found != fleet:
        raise GpufleetError(
            Reason.CONFIG_INVALID,
            f"files.store is {backend.place}, and the files there belong to another fleet ({str(found)[:80]!r})",
            next_step="Give this one a prefix, or a folder, of its own; only schedulers of one database share theirs.",
        )
    if _read(known_file) != known:
        with explained("written", known_file):
            replace_file(known_file, json.dumps(known).encode())


def _read(file: Path) -> object:
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
