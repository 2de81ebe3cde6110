"""The manifest, a backup's last member: which store it is of, how far that had come, and the sum of every member.

It is a line of JSON, and a line with the SHA-256 of the first one: a flipped bit in it is noticed, too.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpufleet.errors import GpufleetError, Reason

FORMAT = 1
"""The form of the file. What reads it refuses every other."""
MANIFEST = "manifest.json"
MANIFEST_BYTES_MAX = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Member:
    """A file of the tar: its size, that of what it holds once it is unpacked, and its sum."""

    name: str
    bytes: int
    content_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class TableRows:
    """A table: the columns, in the order of a row's values, and how many rows there are."""

    columns: list[str]
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a backup says of itself.

    `database` is where it came from (sqlite, postgresql), `revision` that of its tables, `stored_format` that of its
    payloads. `sequence` is that of its newest record; `next_job` and `next_session` are the numbers that come next.
    """

    format: int
    release: str
    made_at: str
    database: str
    revision: str
    stored_format: int
    store_id: str
    lineage: str
    term: int
    sequence: int
    next_job: int
    next_session: int
    tables: Mapping[str, TableRows]
    output_pieces: int
    output_bytes: int
    has_output: bool
    members: tuple[Member, ...]


def written_manifest(manifest: Manifest) -> bytes:
    """The bytes of the last member."""
    line = json.dumps(asdict(manifest), separators=(",", ":")).encode()
    return line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n"


def read_manifest(data: bytes, path: Path) -> Manifest:
    """The manifest that a last member holds. Errors: BACKUP_INVALID."""
    line, _, rest = data.partition(b"\n")
    if rest != hashlib.sha256(line).hexdigest().encode() + b"\n":
        raise GpufleetError(Reason.BACKUP_INVALID, f"{path}: its manifest is not what was written")
    try:
        told = json.loads(line)
        if type(told["format"]) is int and told["format"] != FORMAT:
            raise GpufleetError(
                Reason.BACKUP_INVALID,
                f"{path} is of format {told['format']} of release {told['release']}; this one reads format {FORMAT}",
                next_step="Restore it with that release; a start of this one then brings the store up to date.",
            )
        return _manifest(told)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
        raise GpufleetError(
            Reason.BACKUP_INVALID, f"{path}: its manifest says nothing that a backup says ({why})"
        ) from None


def _manifest(told: dict[str, Any]) -> Manifest:
    kinds = Manifest.__annotations__
    plain = {name: told.pop(name) for name, kind in kinds.items() if kind in (int, str, bool)}
    for name, value in plain.items():
        _must_be(name, value, kinds[name])
    tables = {name: TableRows(**each) for name, each in told.pop("tables").items()}
    members = tuple(Member(**each) for each in told.pop("members"))
    if told:
        raise ValueError(f"{next(iter(told))} is nothing that is known")
    for name, table in tables.items():
        _must_be(f"tables.{name}", table.rows, int)
        if not isinstance(table.columns, list) or not all(isinstance(each, str) for each in table.columns):
            raise TypeError(f"tables.{name}.columns are no names")
    for member in members:
        for name, value in asdict(member).items():
            _must_be(f"members.{name}", value, Member.__annotations__[name])
    if len({member.name for member in members}) != len(members):
        raise ValueError("a member is named twice")
    return Manifest(**plain, tables=tables, members=members)


def _must_be(name: str, value: object, kind: type) -> None:
    if type(value) is not kind or (isinstance(value, int) and value < 0):
        raise TypeError(f"{name} is {value!r}")
