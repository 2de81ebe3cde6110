"""How the contents of a folder become chunks: small files together, large ones cut.

Two runs over the same folder cut alike, and a change moves only the chunks that are near it. A pack of small files ends
where it is large enough and the name of its last file says so: behind a file that came or went the packs soon begin at
the same files as before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

PACK_BYTES_MIN, PACK_BYTES_MAX = 128 * 1024, 512 * 1024
"""A pack of small files. What a change of one sends again is at most that."""
PACK_ENDS = 8
"""One in so many files ends a pack that has its least size."""
CUT_BYTES, CUT_BYTES_OF_LARGE = 512 * 1024, 8 * 2**20
"""The pieces of a file that is no small one."""
LARGE_BYTES = 256 * 2**20
"""From this size on a file is cut coarsely, or there would be too many pieces."""


class Cuttable(Protocol):
    """A file, by its path in the folder and its size in bytes."""

    @property
    def path(self) -> str: ...

    @property
    def size(self) -> int: ...


F = TypeVar("F", bound=Cuttable)


@dataclass(frozen=True, slots=True)
class Part(Generic[F]):
    """Some bytes of a file."""

    file: F
    offset: int
    size: int


def plans_of(files: Sequence[F]) -> Iterator[tuple[Part[F], ...]]:
    """What each chunk of these files is made of, in their order: parts one behind the other, none of them empty."""
    pack: list[Part[F]] = []
    size = 0
    for file in files:
        if pack and (size + file.size > PACK_BYTES_MAX or file.size > PACK_BYTES_MAX):
            yield tuple(pack)
            pack, size = [], 0
        if file.size > PACK_BYTES_MAX:
            step = CUT_BYTES_OF_LARGE if file.size >= LARGE_BYTES else CUT_BYTES
            for offset in range(0, file.size, step):
                yield (Part(file, offset, min(step, file.size - offset)),)
            continue
        if file.size:
            pack.append(Part(file, 0, file.size))
            size += file.size
        if size >= PACK_BYTES_MIN and _ends_a_pack(file.path):
            yield tuple(pack)
            pack, size = [], 0
    if pack:
        yield tuple(pack)


def _ends_a_pack(path: str) -> bool:
    return hashlib.blake2b(path.encode(), digest_size=1).digest()[0] % PACK_ENDS == 0
