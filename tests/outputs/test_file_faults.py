"""Output in files when the disk is full, a sync fails, the process is killed, or the machine crashes."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from scheduler.outputs import files
from scheduler.outputs.errors import OutputHole, OutputStoreUnavailable
from scheduler.outputs.files import FileShelf
from scheduler.outputs.layout import OutputLimits
from scheduler.outputs.segmented import SegmentedOutputStore
from scheduler.ports import Gap, Piece
from scheduler.state.attempts import OutputStream
from scheduler.state.ids import JobId, RankKey
from tests.leaks import open_files

OUT, ERR = OutputStream.STDOUT, OutputStream.STDERR
KEY = RankKey(JobId(1234), 1, 0)
LIMITS = OutputLimits(head_bytes=10_000, tail_bytes=40_000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "output"


def opened(folder: Path, limits: OutputLimits = LIMITS) -> SegmentedOutputStore:
    return SegmentedOutputStore(FileShelf(folder), limits)


def numbered(start: int, count: int) -> bytes:
    return bytes((offset * 7 + offset // 251) % 251 for offset in range(start, start + count))


def bytes_of(outputs: SegmentedOutputStore) -> bytes:
    found = b""
    while (part := outputs.read(KEY, OUT, len(found), 100_000)) is not None:
        assert isinstance(part, Piece)
        found += part.data
    return found


@contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    """The kernel refuses to let files grow beyond this, as a quota does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_an_append_that_does_not_fit_leaves_the_stream_as_it_was_and_passes_later(folder: Path) -> None:
    with closing(opened(folder, OutputLimits())) as outputs:
        outputs.append(KEY, OUT, 0, numbered(0, 1_000))
        outputs.sync()
        outputs.append(KEY, OUT, 1_000, numbered(1_000, 1_000))
        with (
            file_size_limit(300_000),
            pytest.raises(OutputStoreUnavailable, match=r"1234/1\.0\.stdout: File too large"),
        ):
            outputs.append(KEY, OUT, 2_000, numbered(2_000, 400_000))
        assert outputs.end(KEY, OUT) == 2_000
        assert bytes_of(outputs) == numbered(0, 2_000)
        assert outputs.sync() == [(KEY, OUT, 2_000)]
        outputs.append(KEY, OUT, 2_000, numbered(2_000, 400_000))
        assert bytes_of(outputs) == numbered(0, 402_000)


def test_a_full_disk_refuses_appends_keeps_what_was_acknowledged_and_room_lets_them_pass(folder: Path) -> None:
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        with closing(opened(folder, OutputLimits())) as outputs:
            outputs.append(KEY, OUT, 0, numbered(0, 300_000))
            outputs.sync()
            with pytest.raises(OutputStoreUnavailable, match="No space left on device"):
                outputs.append(KEY, OUT, 300_000, numbered(300_000, 2_000_000))
            outputs.append(RankKey(JobId(5), 1, 0), OUT, 0, b"x" * 500_000)
            with pytest.raises(OutputStoreUnavailable, match="No space left on device"):
                outputs.append(KEY, OUT, 300_000, numbered(300_000, 400_000))
            assert bytes_of(outputs) == numbered(0, 300_000)
            outputs.delete(JobId(5))
            outputs.append(KEY, OUT, 300_000, numbered(300_000, 400_000))
            assert bytes_of(outputs) == numbered(0, 700_000)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_after_a_failed_sync_the_unsynced_bytes_are_asked_for_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel that could not write pages back forgets them: they must not count as stored."""

    def fails(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with closing(opened(folder)) as outputs:
        outputs.append(KEY, OUT, 0, numbered(0, 20_000))
        outputs.sync()
        outputs.append(KEY, OUT, 20_000, numbered(20_000, 2_000))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fdatasync", fails)
            with pytest.raises(OutputStoreUnavailable, match="Input/output error"):
                outputs.sync()
            assert (outputs.synced(KEY, OUT), outputs.end(KEY, OUT)) == (20_000, 20_000)
            with pytest.raises(OutputHole) as refused:
                outputs.append(KEY, OUT, 22_000, b"more")
            assert refused.value.end == 20_000
            outputs.append(KEY, OUT, 20_000, numbered(20_000, 100))
            with pytest.raises(OutputStoreUnavailable):  # a segment is synced before the next begins
                outputs.append(KEY, OUT, 20_100, numbered(20_100, 20_000))
            assert outputs.end(KEY, OUT) == 20_000
        outputs.append(KEY, OUT, 20_000, numbered(20_000, 5_000))
        assert outputs.sync() == [(KEY, OUT, 25_000)]
        assert bytes_of(outputs) == numbered(0, 25_000)
    with closing(opened(folder)) as outputs:
        assert bytes_of(outputs) == numbered(0, 25_000)


def test_the_first_bytes_are_in_a_file_that_one_can_find_and_read(folder: Path) -> None:
    with closing(opened(folder)) as outputs:
        outputs.append(KEY, OUT, 0, numbered(0, 12_000))
        outputs.append(KEY, ERR, 0, b"oops\n")
        found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
        names = ["1.0.stderr@0", "1.0.stdout", "1.0.stdout.sums", "1.0.stdout.times", "1.0.stdout@10000"]
        assert sorted(found) == [f"000001/1234/{name}" for name in names]
        assert found["000001/1234/1.0.stdout"].read_bytes() == numbered(0, 10_000)
        assert {path.stat().st_mode & 0o777 for path in found.values()} == {0o600}


def test_files_of_others_in_the_folder_are_left_alone(folder: Path) -> None:
    job_folder = folder / "000001" / "1234"
    job_folder.mkdir(parents=True)
    (job_folder / "notes.txt").write_text("mine")
    (job_folder / "1.0.stdout.swp").write_text("mine")
    with closing(opened(folder)) as outputs:
        assert outputs.streams(KEY.job) == []
        outputs.append(KEY, OUT, 0, b"abc")
        assert bytes_of(outputs) == b"abc"
    assert (job_folder / "notes.txt").read_text() == "mine"


def test_segments_whose_removal_a_crash_undid_are_removed_again(folder: Path) -> None:
    with closing(opened(folder)) as outputs:
        outputs.append(KEY, OUT, 0, numbered(0, 30_000))
        given_up = {path.name: path.read_bytes() for path in (folder / "000001" / "1234").iterdir()}
        outputs.append(KEY, OUT, 30_000, numbered(30_000, 100_000))
        outputs.sync()
        kept = {path.name for path in (folder / "000001" / "1234").iterdir()}
    back = sorted(name for name in set(given_up) - kept if not name.endswith(".sums"))
    assert len(back) >= 3
    (folder / "000001" / "1234" / back[1]).write_bytes(given_up[back[1]])
    with closing(opened(folder)) as outputs:
        gap = outputs.read(KEY, OUT, 10_000, 1)
        assert isinstance(gap, Gap) and gap.offset == 10_000 and gap.end > 90_000
        assert outputs.end(KEY, OUT) == 130_000
        assert {path.name for path in (folder / "000001" / "1234").iterdir()} == kept


def test_a_crash_that_left_a_file_longer_than_was_synced_is_taken_as_it_is(folder: Path) -> None:
    with closing(opened(folder)) as outputs:
        outputs.append(KEY, OUT, 0, numbered(0, 100))
        outputs.sync()
        outputs.append(KEY, OUT, 100, numbered(100, 50))
    with closing(opened(folder)) as outputs:
        assert outputs.end(KEY, OUT) == 150
        assert outputs.append(KEY, OUT, 100, numbered(100, 80)) == 180
        assert bytes_of(outputs) == numbered(0, 180)


def test_bytes_that_someone_removed_are_a_gap_and_output_goes_on_behind_it(folder: Path) -> None:
    whole = folder / "000001" / "1234" / "1.0.stdout"
    with closing(opened(folder)) as outputs:
        outputs.append(KEY, OUT, 0, b"abcdef")
        outputs.append(KEY, ERR, 0, b"oops")
        outputs.sync()
        os.truncate(whole, 4)
        assert outputs.read(KEY, OUT, 0, 10) == Piece(offset=0, data=b"abcd")
        assert outputs.read(KEY, OUT, 4, 10) == Gap(offset=4, end=6)
        whole.unlink()
        assert outputs.read(KEY, OUT, 0, 10) == Gap(offset=0, end=6)
        outputs.append(KEY, OUT, 6, b"ghi")
        with pytest.raises(OutputStoreUnavailable, match=r"1\.0\.stdout: the file was removed; what it held is lost"):
            outputs.sync()
        for _ in range(2):
            assert (outputs.end(KEY, OUT), outputs.synced(KEY, OUT)) == (6, 6)
        outputs.append(KEY, OUT, 6, b"ghi")
        assert outputs.sync() == [(KEY, OUT, 9)]
    for _ in range(2):
        with closing(opened(folder)) as outputs:
            assert outputs.read(KEY, OUT, 0, 10) == Gap(offset=0, end=6)
            assert outputs.read(KEY, OUT, 6, 10) == Piece(offset=6, data=b"ghi")
            assert outputs.read(KEY, OUT, 9, 10) is None
            assert outputs.read(KEY, ERR, 0, 10) == Piece(offset=0, data=b"oops")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputStoreUnavailable, match="file/output: Not a directory"):
        opened(tmp_path / "file" / "output")


def test_no_more_files_stay_open_than_the_bound(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "OPEN_FILES_MAX", 4)
    with closing(opened(folder)) as outputs:
        for job in range(20):
            outputs.append(RankKey(JobId(job), 1, 0), OUT, 0, b"abc")
        outputs.sync()
        assert sum(file.startswith(str(folder)) for file in open_files().values()) == 4


WRITER = """
import sys
from pathlib import Path
from tests.outputs.test_file_faults import ERR, KEY, LIMITS, OUT, numbered, opened

outputs = opened(Path(sys.argv[1]))
while True:
    for stream, size in ((OUT, 700), (ERR, 90)):
        end = outputs.end(KEY, stream)
        outputs.append(KEY, stream, end, numbered(end, size))
    for key, stream, synced in outputs.sync():
        print(stream.name, synced, flush=True)
"""


def test_a_writer_that_is_killed_keeps_everything_it_said_was_synced(folder: Path) -> None:
    """Kill −9 at random moments, five times over the same stream, through the head and round the tail."""
    chance = random.Random(5)
    root = Path(__file__).resolve().parents[2]
    for _ in range(5):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(folder)],
            stdout=subprocess.PIPE,
            cwd=root,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "gen")])},
        )
        with writer:
            assert writer.stdout is not None
            lines = [writer.stdout.readline() for _ in range(chance.randrange(1, 60))]
            writer.send_signal(signal.SIGKILL)
            lines += writer.stdout.readlines()
        synced = dict(line.decode().split() for line in lines if line.endswith(b"\n"))
        with closing(opened(folder)) as outputs:
            for name, offset in synced.items():
                stream = OutputStream[name]
                assert outputs.end(KEY, stream) >= int(offset)
                start = 0
                while (part := outputs.read(KEY, stream, start, 5_000)) is not None:
                    if isinstance(part, Piece):
                        assert part.data == numbered(start, len(part.data))
                    start = part.end if isinstance(part, Gap) else start + len(part.data)
                assert start == outputs.end(KEY, stream) == outputs.synced(KEY, stream)
