"""What is no whole backup is refused with one sentence, and nothing is changed, in an empty place or a full one."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from gpufleet.config.scheduler_settings import SchedulerSettings
from gpufleet.errors import GpufleetError, Reason
from scheduler.backup import archive, commands, parts
from scheduler.backup.manifest import MANIFEST, Manifest, TableRows
from scheduler.store.errors import StoreError
from tests.backup.conftest import Place
from tests.backup.stores import back_up, refusal


@pytest.fixture
def file(full: SchedulerSettings, tmp_path: Path) -> Path:
    """A backup that is whole."""
    return back_up(full, tmp_path / "fleet.tar")


def is_refused(settings: SchedulerSettings, file: Path) -> str:
    """The sentence with which it is refused by all that reads it."""
    said = refusal(settings, file)
    with pytest.raises((GpufleetError, StoreError)) as refused:
        assert commands.check(file) == 1, "it is called whole"
        raise GpufleetError(Reason.BACKUP_INVALID, said)  # rows that are no store are told one by one
    assert str(refused.value) == said
    return said


def members_of(file: Path) -> dict[str, bytes]:
    """The members of a backup but its manifest."""
    with archive.opened(file) as opened:
        return {member.name: opened.read(member.name) for member in opened.manifest.members}


def manifest_of(file: Path) -> Manifest:
    with archive.opened(file) as opened:
        return opened.manifest


def written_again(file: Path, members: dict[str, bytes], sizes: dict[str, int] | None = None, **changes: Any) -> Path:
    """A backup of these members with sums that are right, and a manifest with these changes."""
    before = manifest_of(file)
    known = {member.name: member.content_bytes for member in before.members} | (sizes or {})
    with file.open("wb") as to:
        writer = archive.Writer(to, 0)
        for name, data in members.items():
            writer.add(name, data, known.get(name, len(data)))
        manifest = replace(before, members=tuple(writer.members))
        writer.finish(replace(manifest, **changes))
    return file


def tar_of(file: Path, *members: tuple[tarfile.TarInfo, bytes], form: int = tarfile.USTAR_FORMAT) -> Path:
    """A tar that somebody else has made."""
    with tarfile.open(file, "w", format=form) as tar:
        for header, data in members:
            header.size = len(data) if header.type == tarfile.REGTYPE else 0
            tar.addfile(header, io.BytesIO(data))
    return file


def rows(*values: object) -> tuple[bytes, int]:
    """A part of these rows, and the size of what it holds."""
    content = b"".join(json.dumps(each).encode() + b"\n" for each in values)
    return parts.packed(content), len(content)


def test_a_file_that_was_cut_off_anywhere(file: Path, place: Place, tmp_path: Path) -> None:
    whole, new = file.read_bytes(), place("new", "sqlite")
    for size in (0, 1, 511, 512, 600, 1_024, len(whole) // 2, len(whole) - 2_049, len(whole) - 1_024, len(whole) - 1):
        file.write_bytes(whole[:size])
        said = is_refused(new, file)
        assert str(file) in said and any(word in said for word in ("cut off", "no backup", "the end is missing")), said
    file.write_bytes(whole + b"x")
    assert "something else follows" in is_refused(new, file)
    file.write_bytes(whole)
    assert commands.check(file) == 0


def test_a_bit_that_was_flipped_in_any_member_or_header(file: Path, place: Place) -> None:
    whole, new = bytearray(file.read_bytes()), place("new", "sqlite")
    with tarfile.open(file) as tar:
        places = [(member.name, member.offset, member.offset_data, member.size) for member in tar]
    assert len(places) == 6 + 4 + 1 + 1, "six tables, four keys, the list of output, the manifest"
    for name, header, data, size in places:
        for at in (header, header + 124 + 10, header + 148, header + 156, data, data + size // 2, data + size - 1):
            whole[at] ^= 1
            file.write_bytes(whole)
            said = is_refused(new, file)
            assert str(file) in said, (name, at - header, said)
            whole[at] ^= 1


def plain(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.type, header.linkname = kind, link
    return header


def test_a_tar_that_is_none_of_ours(file: Path, place: Place, tmp_path: Path) -> None:
    new, key = place("new", "sqlite"), b"33" * 32
    for said, members in (
        ("nothing by the name '../worker.key'", [(plain("../worker.key"), key)]),
        ("nothing by the name '/etc/passwd'", [(plain("/etc/passwd"), key)]),
        ("nothing by the name 'keys/../worker.key'", [(plain("keys/../worker.key"), key)]),
        ("'keys/worker.key' is no plain file", [(plain("keys/worker.key", tarfile.SYMTYPE, "/etc/passwd"), b"")]),
        ("'keys/worker.key' is no plain file", [(plain("keys/worker.key", tarfile.LNKTYPE, "/etc/passwd"), b"")]),
        ("'keys/worker.key' is no plain file", [(plain("keys/worker.key", tarfile.CHRTYPE), b"")]),
        ("is no plain file", [(plain("keys", tarfile.DIRTYPE), b"")]),
        ("keys/worker.key is in it twice", [(plain("keys/worker.key"), key), (plain("keys/worker.key"), key)]),
        ("is cut off", [(plain("keys/worker.key"), key)]),
    ):
        assert said in is_refused(new, tar_of(file, *members)), said
    long = plain("keys/" + "k" * 300)
    assert "is no plain file" in is_refused(new, tar_of(file, (long, key), form=tarfile.PAX_FORMAT))
    assert not (tmp_path / "worker.key").exists()
    huge = plain("keys/worker.key")
    huge.size = 8 * 1024**3 - 1
    file.write_bytes(huge.tobuf(tarfile.USTAR_FORMAT) + bytes(1_024))
    assert "is larger than anything in a backup (8,589,934,591 bytes)" in is_refused(new, file)


def test_what_is_no_tar_at_all(place: Place, full: SchedulerSettings, tmp_path: Path) -> None:
    new, other = place("new", "sqlite"), tmp_path / "other"
    for content in (b"hello\n", bytes(10_240), bytes(range(256)) * 40, (full.data / "scheduler.db").read_bytes()):
        other.write_bytes(content)
        assert f"{other} is no backup" in is_refused(new, other)
    other.write_bytes(gzip.compress(bytes(10_000)))
    assert f"{other} is no backup" in is_refused(new, other)
    os.mkfifo(tmp_path / "pipe")
    for no_file in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        assert f"{no_file} is no backup" in refusal(new, no_file)
    assert "cannot be read: No such file or directory" in is_refused(new, tmp_path / "nowhere.tar")


def test_a_part_that_unpacks_to_more_than_is_said(file: Path, place: Place) -> None:
    new, members = place("new", "sqlite"), members_of(file)
    name = "tables/record/000001.jsonl.gz"
    bomb = parts.packed(bytes(200_000_000))
    assert len(bomb) < 1_000_000
    said = is_refused(new, written_again(file, members | {name: bomb}))
    assert f"{name} does not hold the" in said
    said = is_refused(new, written_again(file, members | {name: bomb}, {name: parts.PART_BYTES_MAX + 1}))
    assert "more than any part does" in said


def test_what_the_manifest_says_and_is_not_so(file: Path, place: Place) -> None:
    new, members, told = place("new", "sqlite"), members_of(file), manifest_of(file)
    fewer = dict(told.tables) | {"record": TableRows(told.tables["record"].columns, 1)}
    turned = dict(told.tables) | {"lineage": TableRows(["lineage", "term", "begin_seq"], 2)}
    foreign = dict(told.tables) | {"passwords": TableRows(["user"], 0)}
    missing = {name: table for name, table in told.tables.items() if name != "record"}
    lies: list[tuple[str, dict[str, Any]]] = [
        (f"record has {told.tables['record'].rows} rows, and the manifest says 1", {"tables": fewer}),
        ("the table lineage is none of a store, or has other columns", {"tables": turned}),
        ("the table passwords is none of a store", {"tables": foreign}),
        ("the table record is missing", {"tables": missing}),
        ("its manifest is of another store than its rows", {"store_id": "f" * 16}),
        ("its manifest is of another store than its rows", {"term": told.term + 1}),
        ("its manifest is of another store than its rows", {"sequence": told.sequence - 1}),
        ("its manifest is of another store than its rows", {"next_job": 1}),
        ("its manifest is of another store than its rows", {"next_session": 1}),
        ("is of a newer release", {"revision": "9999"}),
        ("is of a newer release", {"revision": "../x"}),
        ("is of a newer release", {"stored_format": 99}),
        ("is of before the first release", {"revision": "0003"}),
        ("is of format 2 of release", {"format": 2}),
        ("its manifest says nothing that a backup says", {"term": -1}),
        ("its manifest says nothing that a backup says", {"term": True}),
        ("its manifest says nothing that a backup says", {"store_id": 7}),
        ("its manifest says nothing that a backup says", {"tables": {"meta": {"rows": 1}}}),
    ]
    whole = file.read_bytes()
    for said, lie in lies:
        file.write_bytes(whole)
        if lie.get("tables", {}).keys() == {"meta"}:
            with_manifest(file, json.dumps(asdict(told) | lie).encode())
        else:
            written_again(file, members, **lie)
        assert said in is_refused(new, file), lie
    for data in (b"[" * 100_000, b"[]", b"null", b'{"format": 1}', b"\xff"):
        with_manifest(file, data)
        assert "its manifest says nothing that a backup says" in is_refused(new, file)


def with_manifest(file: Path, line: bytes) -> None:
    """A tar that has nothing but a manifest, with the right sum."""
    data = line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n"
    tar_of(file, (plain(MANIFEST), data))
    whole = file.read_bytes()
    file.write_bytes(whole[: 512 + len(data) + -len(data) % 512] + bytes(1_024))


def test_a_member_that_is_missing_or_was_added(file: Path, place: Place) -> None:
    new, members = place("new", "sqlite"), members_of(file)
    manifest = manifest_of(file)
    without = {name: data for name, data in members.items() if name != "keys/worker.key"}
    with file.open("wb") as to:
        writer = archive.Writer(to, 0)
        for name, data in without.items():
            writer.add(name, data, 0)
        writer.finish(manifest)
    assert "keys/worker.key is missing, and the manifest names it" in is_refused(new, file)
    with file.open("wb") as to:
        writer = archive.Writer(to, 0)
        for name, data in (members | {"keys/other.key": b"x"}).items():
            writer.add(name, data, 0)
        writer.finish(manifest)
    assert "keys/other.key is not in the manifest" in is_refused(new, file)
    longer = tuple(replace(each, bytes=each.bytes + 1) for each in manifest.members)
    with file.open("wb") as to:
        writer = archive.Writer(to, 0)
        for name, data in members.items():
            writer.add(name, data, 0)
        writer.finish(replace(manifest, members=longer))
    assert "is not as large as the manifest says" in is_refused(new, file)


def test_a_key_that_no_scheduler_has(file: Path, place: Place) -> None:
    new, members = place("new", "sqlite"), members_of(file)
    said = refusal(new, written_again(file, members | {"keys/root.key": b"x"}))
    assert "keys/root.key is no key that a scheduler has" in said
    said = refusal(new, written_again(file, members | {"keys/worker.key": bytes(10_000)}))
    assert "keys/worker.key is no key that a scheduler has" in said


def test_rows_that_are_no_store(file: Path, place: Place) -> None:
    new, whole, told = place("new", "sqlite"), members_of(file), manifest_of(file)
    name = "tables/finished_job/000001.jsonl.gz"
    good = [json.loads(line) for line in gzip.decompress(whole[name]).splitlines()]
    (first, second), other = good, dict(told.tables)

    def put(*lines: object) -> str:
        packed, size = rows(*lines)
        tables = other | {"finished_job": TableRows(other["finished_job"].columns, len(lines))}
        written_again(file, whole | {name: packed}, {name: size}, tables=tables)
        said = refusal(new, file)
        try:
            assert commands.check(file) == 1
        except (GpufleetError, StoreError) as refused:
            assert str(file) in str(refused) or "finished_job" in str(refused)
        return said

    assert "does not have 9 values" in put(first[:-1], second)
    assert "UNIQUE constraint" in put(first, first)
    assert "holds a line that is no row" in put({"id": 1}, second)
    for payload in ("{", '{"v":1}', 7, None, {"a": 1}, [1]):
        changed = [*first[:6], payload, *first[7:]]
        assert "\n" not in put(changed, second)
    assert "its columns differ from its payload" in put([99_999, *first[1:]], second)
    broken, _ = rows(first, second)
    content = gzip.decompress(broken).replace(b"[", b"{", 1)
    written_again(file, whole | {name: parts.packed(content)}, {name: len(content)})
    assert "holds no lines of JSON" in is_refused(new, file)


def test_in_the_place_of_a_store_nothing_is_changed_either(file: Path, full: SchedulerSettings) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[:-3_000])
    assert "cut off" in refusal(full, file, replaces=True)
    members = members_of_bytes(file, whole)
    packed, size = rows(["nothing"])
    name = "tables/lineage/000001.jsonl.gz"
    written_again(file, members | {name: packed}, {name: size})
    assert "\n" not in refusal(full, file, replaces=True)


def members_of_bytes(file: Path, whole: bytes) -> dict[str, bytes]:
    file.write_bytes(whole)
    return members_of(file)
