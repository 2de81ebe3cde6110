"""The directories of forgotten attempts serve those that come, empty; each attempt is still claimed once."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpufleet.jobs.runs import JobId, RankKey
from node_agent.keeper import records
from node_agent.keeper.records import SPARES_MAX, Record, Spares
from node_agent.keeper.state_dir import StateDir


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    state = StateDir(tmp_path / "state")
    state.prepare()
    state.keeper("k1").mkdir()
    return state


def record(job: int) -> Record:
    return Record(key=RankKey(JobId(job), 1, 0), keeper_id="k1", boot_id="boot", note="")


def claimed(state: StateDir, spares: Spares, job: int) -> Path:
    """The directory of an attempt of this job, claimed, and its record closed."""
    file = records.claim(state, spares, record(job))
    assert file is not None
    file.close()
    return file.directory


def inodes(directory: Path) -> set[int]:
    return {entry.stat().st_ino for entry in directory.glob("spare-*")}


def test_what_is_forgotten_leaves_its_directory_to_the_next_and_its_record_as_a_tombstone(state: StateDir) -> None:
    spares = Spares(state.keeper("k1"))
    first = claimed(state, spares, 1)
    (first / "stdout.0").write_text("output")
    inode = first.stat().st_ino
    records.bury(state, RankKey(JobId(1), 1, 0), spares)
    assert not first.exists()
    assert inodes(state.keeper("k1")) == {inode}
    second = claimed(state, spares, 2)
    assert second.stat().st_ino == inode
    assert [entry.name for entry in second.iterdir()] == ["record"]
    told = records.read(second)
    assert told is not None
    assert told.key == RankKey(JobId(2), 1, 0)
    assert state.tombstone(RankKey(JobId(1), 1, 0)).exists()


def test_an_attempt_is_claimed_once_also_with_a_spare_directory(state: StateDir) -> None:
    spares = Spares(state.keeper("k1"))
    claimed(state, spares, 1)
    assert records.claim(state, spares, record(1)) is None
    assert inodes(state.keeper("k1")) == set(), "what was not used is gone with what was in it"


def test_a_directory_in_which_something_is_left_is_not_used_again(state: StateDir) -> None:
    spares = Spares(state.keeper("k1"))
    directory = claimed(state, spares, 1)
    (directory / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        records.bury(state, RankKey(JobId(1), 1, 0), spares)
    assert (directory / "record").exists(), "it is not forgotten"
    assert inodes(state.keeper("k1")) == set()


def test_no_more_directories_are_kept_than_may_be(state: StateDir) -> None:
    spares = Spares(state.keeper("k1"))
    keys = [record(job) for job in range(1, SPARES_MAX + 3)]
    for each in keys:
        claimed(state, spares, int(each.key.job))
    for each in keys:
        records.bury(state, each.key, spares)
    assert len(inodes(state.keeper("k1"))) == SPARES_MAX
    assert list(state.attempts.iterdir()) == []
