"""Courses of attempts in their own file: kept, replaced, bounded, and never in anybody's way."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.series import attempts
from scheduler.series.attempts import FILE, AttemptSeries
from scheduler.state.ids import JobId, RankKey


def key(job: int, rank: int = 0) -> RankKey:
    return RankKey(JobId(job), 1, rank)


async def test_what_is_kept_comes_back_also_after_a_start(tmp_path: Path) -> None:
    series = AttemptSeries(tmp_path)
    assert await series.of(key(1)) == {}
    series.keep(key(1), b"a")
    series.keep(key(1, rank=1), b"b")
    series.keep(key(1), b"c")  # told again
    assert await series.of(key(1)) == {0: b"c", 1: b"b"}
    series.close()
    series = AttemptSeries(tmp_path)
    assert await series.of(key(1)) == {0: b"c", 1: b"b"}
    assert await series.of(RankKey(JobId(1), 2, 0)) == {}
    series.close()


async def test_only_the_newest_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "RANKS_KEPT", 3)
    monkeypatch.setattr(attempts, "PRUNE_EVERY", 1)
    series = AttemptSeries(tmp_path)
    for job in range(1, 8):
        series.keep(key(job), b"x")
    assert [job for job in range(1, 8) if await series.of(key(job))] == [5, 6, 7]
    series.close()


async def test_a_file_that_is_none_is_moved_aside_and_a_new_one_begun(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).write_text("this is no database, and longer than a header of one would have to be" * 20)
    series = AttemptSeries(tmp_path)
    series.keep(key(1), b"a")
    assert await series.of(key(1)) == {0: b"a"}
    series.close()
    assert "no database" in (tmp_path / f"{FILE}.broken-1").read_text()
    assert len([record for record in caplog.records if "moved aside" in record.message]) == 1


async def test_what_cannot_be_kept_is_given_up_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / FILE).mkdir()  # no file can be made there
    series = AttemptSeries(tmp_path)
    series.keep(key(1), b"a")
    series.keep(key(2), b"x" * (attempts.SERIES_BYTES_MAX + 1))
    assert await series.of(key(1)) == {}
    series.close()
    assert len([record for record in caplog.records if "are not kept" in record.message]) == 1


async def test_of_the_same_numbers_in_another_lineage_the_course_is_another(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE) as before:  # as it was made before there were lineages
        before.execute(attempts.SCHEMA)
        before.execute("INSERT INTO rank_series VALUES (1, 1, 0, ?)", (b"old",))
    before.close()
    series = AttemptSeries(tmp_path)
    assert await series.of(key(1)) == {0: b"old"}
    again = replace(key(1), lineage="0123456789abcdef")
    assert await series.of(again) == {}
    series.keep(again, b"new")
    assert (await series.of(again), await series.of(key(1))) == ({0: b"new"}, {})
    series.close()
