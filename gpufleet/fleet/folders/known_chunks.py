"""Remembers the digests of chunks whose files did not change, so that these are not read again.

    $XDG_CACHE_HOME/gpufleet/folders/NAME.json     of one folder: what was known when it was last sent

A chunk is known by the size, inode and times of each of its files. One that was written just before it was read is not
remembered: it could be written again within the same tick of its file system's clock.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gpufleet.host.whole_file import replace_file
from gpufleet.jobs.cutting import Part
from gpufleet.jobs.files import is_digest

from .scanning import FoundFile

Plan = tuple[Part[FoundFile], ...]
"""What a chunk is made of."""


FOLDERS_MAX = 100
"""Folders that are remembered; the one that was not sent for longest is forgotten first."""
FILE_BYTES_MAX = 64 * 2**20
TICK_NS = 2_000_000_000
"""What is younger than this could change and look the same."""


def key_of(plan: Plan) -> str:
    """What a chunk is known by."""
    seen = [
        (part.file.size, part.file.modified_ns, part.file.changed_ns, part.file.inode, part.file.device, part.offset)
        for part in plan
    ]
    return hashlib.blake2b(repr(seen).encode(), digest_size=16).hexdigest()


def is_settled(plan: Plan, now_ns: int | None = None) -> bool:
    """Whether its files are old enough to be known by their times."""
    before = (time.time_ns() if now_ns is None else now_ns) - TICK_NS
    return all(max(part.file.modified_ns, part.file.changed_ns) < before for part in plan)


def load(root: Path) -> dict[str, str]:
    """The digests by key; empty where nothing is known, or what is there cannot be read."""
    try:
        with _file_of(root).open("rb") as file:
            found = json.loads(file.read(FILE_BYTES_MAX))
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {key: digest for key, digest in found.items() if isinstance(digest, str) and is_digest(digest)}


def save(root: Path, known: Mapping[str, str]) -> None:
    """Remember these, in place of what was known. A disk that takes nothing is no reason to fail."""
    file = _file_of(root)
    with suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(file, json.dumps(dict(known)).encode(), is_synced=False)
        _forget_old(file.parent)


def _forget_old(folder: Path) -> None:
    files = sorted(folder.glob("*.json"), key=lambda each: each.stat().st_mtime, reverse=True)
    for file in files[FOLDERS_MAX:]:
        file.unlink(missing_ok=True)


def _file_of(root: Path) -> Path:
    name = hashlib.blake2b(os.fsencode(root.resolve()), digest_size=16).hexdigest()
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(given) if given.startswith("/") else Path(os.environ.get("HOME") or str(Path.home())) / ".cache"
    return base / "gpufleet" / "folders" / f"{name}.json"
