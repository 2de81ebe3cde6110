"""What a rank brings: files that it leaves, and files that it keeps, of which half is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpufleet.jobs.folders import folder_of
from node_agent.files import leavings
from node_agent.files.brought import brought_of


def names(manifest: bytes | None) -> list[str]:
    return [] if manifest is None else [each.path for each in folder_of(manifest).entries]


def test_a_file_of_both_is_sent_once(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/a").write_bytes(b"1" * 1_000)
    (tmp_path / "b").write_bytes(b"2" * 1_000)
    brought = brought_of(tmp_path, ("out/**",), ("out/**",))
    assert names(brought.left.manifest) == names(brought.kept_manifest) == ["out/a"]
    assert len(brought.plans) == 1


def test_a_copy_that_lacks_a_file_is_none_and_one_without_what_is_never_stored_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "latest").symlink_to("a")
    brought = brought_of(tmp_path, (), ("*",))
    assert names(brought.kept_manifest) == ["a"] and not brought.kept_problem
    (tmp_path / "b").write_bytes(b"2")
    monkeypatch.setattr(leavings, "RESULT_FILES_MAX", 1)
    brought = brought_of(tmp_path, ("*",), ("*",))
    assert names(brought.left.manifest) == ["a"], "of what it leaves a part is better than nothing"
    assert brought.kept_manifest is None and "2 files are chosen" in brought.kept_problem


def test_without_room_the_next_attempt_goes_first(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    both = brought_of(tmp_path, ("*",), ("*",))
    kept = both.less("no room")
    assert not kept.left.manifest and kept.left.problems == ["nothing is stored: no room"]
    assert kept.kept_manifest == both.kept_manifest and not kept.kept_problem
    left = kept.less("no room for that either")
    assert left.kept_manifest is None and left.kept_problem == "no room for that either"
    assert left.left == both.left
    nothing = left.less("no room at all")
    assert nothing.left.problems == ["nothing is stored: no room at all"]
    assert not nothing.has_something and not nothing.plans
