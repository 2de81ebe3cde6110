"""A folder becomes a manifest: alike for the same folder, read once, and what changes in between is found."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from gpufleet.errors import GpufleetError, Reason
from gpufleet.fleet.folders import known_chunks, preparing
from gpufleet.fleet.folders.preparing import Prepared, bytes_of, prepare
from gpufleet.fleet.folders.scanning import FoundFile, Limits
from gpufleet.jobs.cutting import PACK_BYTES_MAX, plans_of
from gpufleet.jobs.folders import folder_of
from tests.cli.folders.test_scanning import made

ENOUGH = Limits(10**9, 10_000)
LONG_AGO_NS = 10**18


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of 300 small files and a large one, which were written long ago."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(known_chunks, "TICK_NS", -(10**12))  # files are as old as they say
    files = {f"p{number % 7}/m{number:03}.py": f"{number}\n" * 1_000 for number in range(300)}
    root = made(tmp_path / "root", files)
    (root / "large.bin").write_bytes(os.urandom(2 * 2**20))
    return root


def sent(before: Prepared, after: Prepared) -> int:
    """The bytes of what is new."""
    return sum(part.size for digest in after.plans.keys() - before.plans.keys() for part in after.plans[digest])


def test_the_contents_of_the_files_in_order_are_the_chunks(root: Path) -> None:
    prepared = prepare(root, ENOUGH)
    folder = folder_of(prepared.manifest)
    assert b"".join(bytes_of(root, prepared.plans[each.digest]) for each in folder.chunks) == b"".join(
        (root / each.path).read_bytes() for each in folder.entries
    )
    assert all(hashlib.sha256(bytes_of(root, plan)).hexdigest() == digest for digest, plan in prepared.plans.items())
    assert prepared.folder.entry_count == 301
    assert len(folder.chunks) < 20
    assert prepare(root, ENOUGH).manifest == prepared.manifest


def test_a_change_sends_little_again(root: Path) -> None:
    before = prepare(root, ENOUGH)
    (root / "p3/m150.py").write_text("another\n")
    after = prepare(root, ENOUGH)
    assert 0 < sent(before, after) <= 2 * PACK_BYTES_MAX
    with (root / "large.bin").open("r+b") as file:
        file.seek(10**6)
        file.write(b"x")
    assert sent(after, prepare(root, ENOUGH)) <= PACK_BYTES_MAX
    (root / "p0/new.py").write_text("n" * 3_000)
    assert 0 < sent(after, prepare(root, ENOUGH)) <= 4 * PACK_BYTES_MAX


def test_what_did_not_change_is_not_read_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = prepare(root, ENOUGH)
    read: list[str] = []
    whole = preparing._read

    def counted(folder: Path, file: FoundFile, offset: int, size: int) -> bytes:
        read.append(file.path)
        return whole(folder, file, offset, size)

    monkeypatch.setattr(preparing, "_read", counted)
    assert prepare(root, ENOUGH).manifest == before.manifest
    assert not read
    status = (root / "p3/m150.py").stat()
    (root / "p3/m150.py").write_text("x" * status.st_size)  # as long as before, with the time put back
    os.utime(root / "p3/m150.py", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert prepare(root, ENOUGH).manifest != before.manifest
    assert "p3/m150.py" in read


def test_what_was_written_a_moment_ago_is_read_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_chunks, "TICK_NS", 10**12)
    prepare(root, ENOUGH)
    assert not known_chunks.load(root)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"a": 1, "b": "x"}', b"\xff"])
def test_what_is_remembered_and_cannot_be_read_is_forgotten(root: Path, content: bytes) -> None:
    before = prepare(root, ENOUGH)
    file = known_chunks._file_of(root)
    assert file.exists()
    file.write_bytes(content)
    assert prepare(root, ENOUGH).manifest == before.manifest


def test_a_file_that_changes_while_it_is_read_or_sent_is_told(root: Path) -> None:
    prepared = prepare(root, ENOUGH)
    plan = next(plan for plan in prepared.plans.values() if plan[0].file.path == "p3/m003.py" or len(plan) > 1)
    path = plan[0].file.path
    (root / path).write_text("other\n")
    with pytest.raises(GpufleetError, match=f"'{path}' changed") as caught:
        bytes_of(root, plan)
    assert caught.value.reason is Reason.CONFLICT
    (root / path).unlink()
    with pytest.raises(GpufleetError, match=f"'{path}' changed"):
        bytes_of(root, plan)
    (root / path).symlink_to("/etc/passwd")
    with pytest.raises(GpufleetError, match="cannot be read"):
        bytes_of(root, plan)


def test_a_large_file_is_cut_coarsely() -> None:
    file = FoundFile("a", 20 * 2**30, 0, 0, 0, 0, is_executable=False)
    plans = list(plans_of([file]))
    assert len(plans) == 2_560
    assert sum(part.size for plan in plans for part in plan) == file.size
