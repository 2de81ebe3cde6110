"""Agents of one machine that give uids to users: each has a range of its own, and nobody gets another's."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gpufleet.config.agent_settings import IsolationSettings
from gpufleet.errors import GpufleetError
from node_agent.isolation.accounts import Isolating
from node_agent.isolation.limits import Limiting
from node_agent.isolation.ranges import RANGES_MAX, UidRange, claim_range

FIRST, COUNT = IsolationSettings().uid_first, 1_000


@pytest.fixture
def settings(tmp_path: Path) -> IsolationSettings:
    return IsolationSettings(users="range", uid_count=COUNT, uid_claims=str(tmp_path / "claims"))


def agents(tmp_path: Path, *names: str) -> list[Path]:
    for name in names:
        (tmp_path / name).mkdir()
    return [tmp_path / name for name in names]


def leave(claimed: UidRange) -> None:
    """As the end of its agent does."""
    assert claimed.claim_fd is not None
    os.close(claimed.claim_fd)


def give(folder: Path, *uids: int) -> None:
    (folder / "uids.json").write_text(json.dumps({f"user{uid}": uid for uid in uids}))


def test_the_second_agent_takes_the_next_range_and_keeps_it(tmp_path: Path, settings: IsolationSettings) -> None:
    one, two = agents(tmp_path, "one", "two")
    first, second = claim_range(settings, one), claim_range(settings, two)
    assert (first.first, second.first) == (FIRST, FIRST + COUNT)
    give(two, FIRST + COUNT, FIRST + COUNT + 1)
    leave(first)
    leave(second)
    again = claim_range(settings, two)
    assert again.first == FIRST + COUNT, "its users have uids of that range"
    leave(again)
    shutil.rmtree(tmp_path / "claims")  # the machine was started again
    again, other = claim_range(settings, two), claim_range(settings, one)
    assert (again.first, other.first) == (FIRST + COUNT, FIRST)
    leave(again)
    leave(other)


def test_the_scheduler_is_told_where_its_range_begins_and_why_it_was_moved(
    tmp_path: Path, settings: IsolationSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    one, two = agents(tmp_path, "one", "two")
    notes, claims = {}, []
    for folder in (one, two):
        isolating = Isolating(settings, folder)
        claimed = claim_range(settings, folder)
        isolating.uid_first = claimed.first
        told = isolating.as_proto(Limiting(settings, isolates=False))
        notes[told.uid_first] = told.uids_note
        claims.append(claimed)
    for claimed in claims:
        leave(claimed)
    assert list(notes) == [FIRST, FIRST + COUNT]
    moved = f"another agent of this machine had uids {FIRST} to {FIRST + COUNT - 1} when this one took its own"
    assert list(notes.values()) == ["", moved]
    shared = Isolating(replace(settings, users="shared"), one).as_proto(Limiting(settings, isolates=False))
    assert (shared.uid_first, shared.uids_note) == (0, "")


def test_uids_that_were_given_stay_so_while_their_agent_is_down_and_are_free_when_its_folder_is_gone(
    tmp_path: Path, settings: IsolationSettings
) -> None:
    one, two, three = agents(tmp_path, "one", "two", "three")
    leave(claim_range(settings, one))
    taken = claim_range(settings, two)
    assert taken.first == FIRST, "the first one ran no job"
    give(two, FIRST)
    leave(taken)
    moved = claim_range(settings, three)
    assert moved.first == FIRST + COUNT
    leave(moved)
    shutil.rmtree(two)
    freed = claim_range(settings, one)
    assert freed.first == FIRST
    leave(freed)


def test_uids_that_somebody_chose_or_that_were_given_are_refused_where_they_are_anothers(
    tmp_path: Path, settings: IsolationSettings
) -> None:
    one, two, three = agents(tmp_path, "one", "two", "three")
    first = claim_range(settings, one)
    for chosen in (FIRST + 1, FIRST - COUNT + 1, FIRST + COUNT - 1):
        with pytest.raises(GpufleetError, match=f"those of another agent of this machine.*{one}") as refused:
            claim_range(replace(settings, uid_first=chosen), two)
        assert f"uid_first = {FIRST + COUNT}" in refused.value.next_step
    beside = claim_range(replace(settings, uid_first=FIRST - COUNT), two)
    assert beside.first == FIRST - COUNT
    give(three, FIRST + 5)
    with pytest.raises(GpufleetError, match="another agent"):
        claim_range(settings, three)
    (three / "uids.json").write_text("{")
    with pytest.raises(GpufleetError, match="another agent"):
        claim_range(settings, three)
    leave(first)
    leave(beside)


def test_not_more_ranges_than_that_are_looked_at(tmp_path: Path, settings: IsolationSettings) -> None:
    (owner, last) = agents(tmp_path, "owner", "last")
    give(owner, 1)
    claims = tmp_path / "claims"
    claims.mkdir()
    (claims / f"{FIRST}-{COUNT * RANGES_MAX}").write_bytes(os.fsencode(owner))
    with pytest.raises(GpufleetError, match="another agent"):
        claim_range(settings, last)


def test_where_no_claim_can_be_made_the_agent_says_so_and_goes_on(
    tmp_path: Path, settings: IsolationSettings, caplog: pytest.LogCaptureFixture
) -> None:
    (one,) = agents(tmp_path, "one")
    (tmp_path / "claims").write_text("no folder")
    assert claim_range(settings, one) == UidRange(FIRST, COUNT)
    assert "whether another agent" in caplog.text
