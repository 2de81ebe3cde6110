"""What a rank left is read as from a stranger: plain files of its own, by no link, and as they were described."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpufleet.jobs.folders import folder_of
from gpufleet.jobs.results import Chosen
from node_agent.files import leavings
from node_agent.files.leavings import Changed, Left, bytes_of, look


def paths(left: Left) -> list[str]:
    return [each.path for each in folder_of(left.manifest).entries]


def test_what_the_lines_choose_is_described_and_read(tmp_path: Path) -> None:
    (tmp_path / "out/deep").mkdir(parents=True)
    for path, data in {"out/a": b"one", "out/deep/b": b"x" * 600_000, "out/c.tmp": b"no", "other": b"no"}.items():
        (tmp_path / path).write_bytes(data)
    (tmp_path / "out/a").chmod(0o700)
    left = look(tmp_path, ("out/**", "!*.tmp"))
    assert paths(left) == ["out/a", "out/deep/b"]
    folder = folder_of(left.manifest)
    assert [each.is_executable for each in folder.entries] == [True, False]
    contents = b"".join(bytes_of(tmp_path, left.plans[each.digest]) for each in folder.chunks)
    assert contents == b"one" + b"x" * 600_000
    assert not left.problems
    assert not paths(look(tmp_path, ("nothing",)))


def test_what_is_no_file_of_the_jobs_own_is_told_and_never_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_bytes(b"of somebody else")
    root = tmp_path / "root"
    (root / "d").mkdir(parents=True)
    (root / "mine").write_bytes(b"mine")
    (root / "link").symlink_to("../secret/key")
    (root / "way").symlink_to("../secret")
    os.mkfifo(root / "pipe")
    (root / "d" / "a\nb").write_bytes(b"")
    Path(os.fsdecode(os.fsencode(root) + b"/d/\xff")).write_bytes(b"")
    if os.geteuid() == 0:
        os.link(secret / "key", root / "d/hard")
        os.chown(secret / "key", 12345, 12345)
        os.mknod(root / "zero", 0o020600, os.makedev(1, 5))
    left = look(root, ("*",))
    assert paths(left) == ["mine"]
    told = "\n".join(left.problems)
    for path in ("link", "way", "pipe", "d/a\\nb", "d/\\udcff", *(("d/hard", "zero") if os.geteuid() == 0 else ())):
        assert f"'{path}' " in told, told
    assert "belongs to another account" in told or os.geteuid() != 0


def test_a_file_that_is_exchanged_behind_its_description_is_not_read(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "d").mkdir(parents=True)
    (root / "d/a").write_bytes(b"mine")
    left = look(root, ("*",))
    (plan,) = left.plans.values()
    (tmp_path / "secret").write_bytes(b"else")
    (root / "d/a").unlink()
    (root / "d/a").symlink_to(tmp_path / "secret")
    with pytest.raises(Changed):
        bytes_of(root, plan)
    (root / "d/a").unlink()
    (root / "d/a").write_bytes(b"else")
    with pytest.raises(Changed):
        bytes_of(root, plan)
    (root / "d/a").unlink()
    (root / "d").rmdir()
    (root / "d").symlink_to(tmp_path)
    with pytest.raises(Changed):
        bytes_of(root, plan)


def test_of_too_many_files_the_first_are_stored_and_the_rest_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        (tmp_path / f"f{number:02}").write_bytes(b"1")
    monkeypatch.setattr(leavings, "RESULT_FILES_MAX", 15)
    left = look(tmp_path, ("*",))
    assert paths(left) == [f"f{number:02}" for number in range(15)]
    assert left.problems == ["20 files are chosen, and only the first 15 are stored"]
    monkeypatch.setattr(leavings, "LOOKED_AT_MAX", 10)
    assert "more than 10 names" in look(tmp_path, ("*",)).problems[0]


def test_of_a_folder_without_end_no_more_is_held_than_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(40):
        (tmp_path / f"f{number:02}").write_bytes(b"1")
        (tmp_path / f"link{number:02}").symlink_to("f00")
    monkeypatch.setattr(leavings, "PROBLEMS_MAX", 5)
    monkeypatch.setattr(leavings, "LOOKED_AT_MAX", 50)
    left = Left()
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        walked = leavings._walk(descriptor, "", tmp_path.stat().st_uid, Chosen(("*",)), left, 0)
        assert len(list(walked)) == 51
    finally:
        os.close(descriptor)
    assert len(left.problems) == 5 and "is a link" in left.problems[0]


def test_a_folder_is_looked_at_for_so_long_and_what_is_left_of_it_is_told(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"f{number}").write_bytes(b"1")
    minutes = iter(range(100))
    left = look(tmp_path, ("*",), clock=lambda: 60.0 * next(minutes))
    assert paths(left) == ["f0", "f1", "f2", "f3"]
    assert left.problems == ["looking took more than 300 s: the rest was not looked at"]
