"""`agent --verify` over what a keeper writes down: well, cut off at any place, gone, and in shreds."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gpufleet.jobs.runs import ExitCode, JobId, RankKey
from node_agent.__main__ import main
from node_agent.core.outcome import AttemptEnd, LossReason, Offsets
from node_agent.keeper import records
from node_agent.keeper.records import Record
from node_agent.keeper.state_dir import StateDir
from node_agent.spool.sums import SumsWriter
from node_agent.verifying import verify

KEY = RankKey(JobId(7), 2, 0, "ab" * 8)
FIRST, SECOND = "stdout.00000000000000000000", "stdout.00000000000000000100"


def written(root: Path, *, loss: LossReason | None = None, is_live: bool = False) -> Path:
    """One attempt that wrote 150 bytes to its standard output, in two files, and a forgotten one; the spool."""
    state = StateDir(root / "keeper")
    state.prepare()
    (root / "keeper" / "keepers" / "k").mkdir()
    spares = records.Spares(state.keeper("k"))
    forgotten = RankKey(JobId(6), 1, 0, "ab" * 8)
    for key in (forgotten, KEY):
        file = records.claim(state, spares, Record(key=key, keeper_id="k", boot_id="b", note="note"))
        assert file is not None
        file.append(records.started_line(pid=9, start_ticks=8, started_us=7, pipe_ids=["1"]))
        if not is_live or key == forgotten:
            end = AttemptEnd(status=ExitCode(code=0), output_ends=Offsets(150, 0), loss=loss)
            file.append(records.ended_line(end))
        file.close()
    records.bury(state, forgotten)
    spool = state.attempt(KEY)
    (spool / FIRST).write_bytes(bytes(100))
    (spool / SECOND).write_bytes(bytes(50))
    return spool


def said(root: Path) -> list[str]:
    return verify(root / "keeper").problems


@pytest.mark.parametrize("is_live", [False, True])
def test_what_is_well_is_said_to_be_well(tmp_path: Path, capsys: pytest.CaptureFixture[str], *, is_live: bool) -> None:
    written(tmp_path, is_live=is_live)
    assert main(["--verify", "--data", str(tmp_path)]) == 0
    counts = "1 living and 0 ended" if is_live else "0 living and 1 ended"
    told = f"all is well: {counts} attempts, 1 that are forgotten; 150 bytes of output wait for the scheduler"
    assert capsys.readouterr().out.startswith(told)


@pytest.mark.parametrize("kept_bytes", range(150))
def test_a_spool_that_was_cut_off_at_any_byte_is_named(tmp_path: Path, kept_bytes: int) -> None:
    spool = written(tmp_path)
    if kept_bytes < 100:
        os.truncate(spool / FIRST, kept_bytes)
        missing = f"{100 - kept_bytes} bytes of stdout are missing from its spool, from byte {kept_bytes} on"
    else:
        os.truncate(spool / SECOND, kept_bytes - 100)
        missing = f"{150 - kept_bytes} bytes of stdout are missing from its spool, which ends at byte {kept_bytes}"
    assert said(tmp_path) == [f"attempt {KEY}: {missing}"]


def test_a_file_of_the_spool_that_is_gone_is_named_unless_the_scheduler_may_have_it(tmp_path: Path) -> None:
    spool = written(tmp_path)
    (spool / FIRST).unlink()
    assert said(tmp_path) == []
    (spool / FIRST).write_bytes(bytes(100))
    (spool / SECOND).unlink()
    assert said(tmp_path) == [f"attempt {KEY}: 50 bytes of stdout are missing from its spool, which ends at byte 100"]


def test_bytes_that_nobody_wrote_are_named(tmp_path: Path) -> None:
    spool = written(tmp_path)
    (spool / SECOND).write_bytes(bytes(51))
    assert said(tmp_path) == [f"attempt {KEY}: its spool has 1 bytes of stdout more than were written"]
    (spool / FIRST).write_bytes(bytes(101))
    assert said(tmp_path)[0] == f"attempt {KEY}: its spool has more of stdout than was written, from byte 100 on"


@pytest.mark.parametrize("at", [0, 99, 100, 149])
def test_one_flipped_bit_is_named_by_the_sums_of_the_keeper(tmp_path: Path, at: int) -> None:
    spool = written(tmp_path)
    for name in (FIRST, SECOND):
        data = (spool / name).read_bytes()
        sums = SumsWriter(spool / name)
        sums.add(memoryview(data))
        sums.save()
        sums.close()
    assert said(tmp_path) == []
    file, start, end = (spool / FIRST, 0, 99) if at < 100 else (spool / SECOND, 100, 149)
    changed = bytearray(file.read_bytes())
    changed[at - start] ^= 1
    file.write_bytes(changed)
    what = f"bytes {start} to {end} of stdout in its spool are not as they were written"
    assert said(tmp_path) == [f"attempt {KEY}: {what}"]


def test_output_of_an_attempt_that_a_reboot_ended_is_not_trusted_and_not_judged(tmp_path: Path) -> None:
    os.truncate(written(tmp_path, loss=LossReason.NODE_REBOOTED) / SECOND, 0)
    assert said(tmp_path) == []


def garbled(line: int) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        lines = file.read_bytes().splitlines(keepends=True)
        lines[line - 1] = b"\xff" + lines[line - 1][1:]
        file.write_bytes(b"".join(lines))

    return change


def of_another(file: Path) -> None:
    first, *others = file.read_text().splitlines()
    changed = json.dumps(json.loads(first) | {"key": "8.1.0"})
    file.write_text("\n".join([changed, *others, ""]))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (garbled(1), "line 1 of its record cannot be read"),
        (garbled(2), "line 2 of its record cannot be read"),
        (garbled(3), "line 3 of its record cannot be read"),
        (of_another, "line 1 of its record cannot be read"),
        (lambda file: file.write_bytes(b""), "its record is empty"),
        (lambda file: os.truncate(file, 5), "its record is empty"),
    ],
)
def test_a_record_and_a_tombstone_that_cannot_be_read_are_named(
    tmp_path: Path, change: Callable[[Path], None], what: str
) -> None:
    spool = written(tmp_path)
    change(spool / records.FILE)
    assert any(f"attempt {KEY}: {what}" in problem for problem in said(tmp_path)), said(tmp_path)
    shutil.rmtree(spool)
    (tombstone,) = (tmp_path / "keeper" / "ended").iterdir()
    change(tombstone)
    assert [problem.partition(",")[0].partition(":")[0] for problem in said(tmp_path)] == [
        f"forgotten attempt {RankKey.parse(tombstone.name)}"
    ]


def test_a_record_that_is_gone_beside_its_output_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (written(tmp_path) / records.FILE).unlink()
    assert main(["--verify", "--data", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert printed.out == f"attempt {KEY}: its record is missing\n"
    assert "troubleshooting" in printed.err


def test_a_folder_that_is_no_agents_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--verify", "--data", str(tmp_path / "nothing")]) == 1
    assert "is no agent's data folder" in capsys.readouterr().err
    assert not (tmp_path / "nothing").exists()
