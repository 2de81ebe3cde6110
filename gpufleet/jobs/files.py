"""Files that go with a job: which paths and digests are allowed, as scheduler, agent and gpuctl all hold to it."""

from __future__ import annotations

import re
from collections.abc import Iterable

FILES_VARIABLE = "GPUFLEET_FILES"
"""Names the folder of a rank's files in its environment."""

FILES_MAX = 1_000
"""Files of one job."""
PATH_BYTES_MAX = 1_024
NAME_BYTES_MAX = 255
"""Linux has no longer name of a file or folder (NAME_MAX)."""
FILE_BYTES_MAX = 2**50
"""No number of bytes is larger; what a deployment takes is a setting."""
PIECE_BYTES_MAX = 2**20
"""The bytes of one message, up and down."""

DIGEST = re.compile(r"[0-9a-f]{64}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def is_digest(text: str) -> bool:
    """Whether it is a SHA-256 in lower-case hexadecimal."""
    return DIGEST.fullmatch(text) is not None


def trouble_with_path(path: str) -> str:
    """Why a path may not be that of a job's file, for people; empty where it may."""
    if not path:
        return "is empty"
    if _CONTROL.search(path):
        return "holds a control character"
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        return "is not UTF-8 text"
    if size > PATH_BYTES_MAX:
        return f"is longer than {PATH_BYTES_MAX:,} bytes"
    if path.startswith("/"):
        return f"{path!r} is not relative"
    for part in path.split("/"):
        if part in ("", ".", ".."):
            return f"{path!r} has the part {part!r}"
        if len(part.encode()) > NAME_BYTES_MAX:
            return f"has a name of more than {NAME_BYTES_MAX} bytes"
    return ""


def clash_among(paths: Iterable[str]) -> tuple[int, str] | None:
    """The place of the first path that another one leaves no room for, and why; None where all fit together."""
    files: set[str] = set()
    folders: set[str] = set()
    for number, path in enumerate(paths):
        parts = path.split("/")
        above = ["/".join(parts[:count]) for count in range(1, len(parts))]
        if path in files:
            return number, f"{path!r} is the path of two files"
        if path in folders:
            return number, f"{path!r} is a file here and a folder of another one"
        if inside := next((folder for folder in above if folder in files), None):
            return number, f"{path!r} lies in {inside!r}, which is a file"
        files.add(path)
        folders.update(above)
    return None
