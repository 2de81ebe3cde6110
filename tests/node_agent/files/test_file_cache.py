"""The cache of a node keeps to its bound, also where what should give way was in use when that was looked at."""

from __future__ import annotations

import asyncio
from pathlib import Path

from node_agent.files.file_cache import FileCache

DIGESTS = [str(number) * 64 for number in range(3)]
SIZE = 1_000


def held(folder: Path) -> set[str]:
    return {each.name[0] for each in folder.iterdir()}


async def test_what_is_in_use_gives_way_once_it_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    for digest in DIGESTS:
        (folder / digest).write_bytes(b"x" * SIZE)
    cache = FileCache("n1", 1, folder, lambda: SIZE)
    async with cache.turn(DIGESTS[0]), cache.turn(DIGESTS[1]):
        await cache.trim()
        assert held(folder) == {"0", "1"}
    # Nothing has come since, and yet it is not within its bound.
    await asyncio.gather(cache.trim(), cache.trim())
    assert len(held(folder)) == 1
