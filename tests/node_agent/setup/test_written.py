"""What builds wrote, by rank."""

from __future__ import annotations

from pathlib import Path

from gpufleet.jobs.runs import JobId, RankKey
from node_agent.setup.written import RANKS_MAX, Written


def rank(job: int) -> RankKey:
    return RankKey(JobId(job), 1, 0)


def test_it_can_be_read_while_it_is_written_and_when_the_environment_is_gone(tmp_path: Path) -> None:
    written, output = Written(tmp_path / "written"), tmp_path / "output"
    assert written.of(rank(1)) == (b"", 0)
    output.touch()
    written.keep(rank(1), output)
    with output.open("wb") as file:
        file.write(b"begun\n")
        file.flush()
        assert written.of(rank(1)) == (b"begun\n", 6)
    output.unlink()
    assert written.of(rank(1)) == (b"begun\n", 6)
    written.keep(rank(1), tmp_path / "nowhere")
    assert written.of(rank(1)) == (b"", 0)


def test_it_is_kept_for_the_newest_jobs_however_their_numbers_read(tmp_path: Path) -> None:
    written, output = Written(tmp_path / "written"), tmp_path / "output"
    output.write_bytes(b"made\n")
    for job in range(1, RANKS_MAX + 3):
        written.keep(rank(job), output)
    assert [written.of(rank(job)) for job in (1, 2)] == [(b"", 0), (b"", 0)]
    assert {written.of(rank(job)) for job in range(3, RANKS_MAX + 3)} == {(b"made\n", 5)}
