"""A record is held open while its lines come, wherever its directory is moved, and only whole lines stay in it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gpufleet.jobs.runs import ExitCode, JobId, RankKey
from node_agent.core.outcome import AttemptEnd, Offsets
from node_agent.keeper import records
from node_agent.keeper.records import Record, RecordFile, Spares
from node_agent.keeper.state_dir import StateDir
from tests.node_agent.keeper.keeping import Node, open_files, until

KEY = RankKey(JobId(1), 1, 0)
STARTED = records.started_line(pid=9, start_ticks=8, started_us=7, pipe_ids=["pipe:[1]"])


@pytest.fixture
def state(tmp_path: Path) -> StateDir:
    state = StateDir(tmp_path / "state")
    state.prepare()
    state.keeper("k1").mkdir()
    return state


def claimed(state: StateDir) -> RecordFile:
    file = records.claim(state, Spares(state.keeper("k1")), Record(key=KEY, keeper_id="k1", boot_id="b", note=""))
    assert file is not None
    return file


def test_each_line_is_there_as_soon_as_it_is_written(state: StateDir) -> None:
    file = claimed(state)
    assert file.directory == state.attempt(KEY)
    file.append(STARTED)
    told = records.read(state.attempt(KEY))
    assert told is not None and (told.pid, told.end) == (9, None)
    end = AttemptEnd(status=ExitCode(code=3), output_ends=Offsets())
    file.append(records.ended_line(end))
    file.close()
    file.close()
    told = records.read(state.attempt(KEY))
    assert told is not None and told.end == end


def test_of_a_line_for_which_there_is_no_room_nothing_stays(state: StateDir, monkeypatch: pytest.MonkeyPatch) -> None:
    file, write = claimed(state), os.write
    before = (state.attempt(KEY) / records.FILE).read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: write(fd, data[:10]))
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            file.append(STARTED)
    assert (state.attempt(KEY) / records.FILE).read_bytes() == before
    file.append(STARTED)
    file.close()
    told = records.read(state.attempt(KEY))
    assert told is not None and told.pid == 9


async def test_a_keeper_holds_the_records_of_what_runs_and_no_others(node: Node) -> None:
    agent = await node.open()
    runs, ends = await agent.start(node.shell(1, "exit 3")), node.launch(2, "/bin/true")
    lasts = await agent.start(node.launch(3, "sleep", "1000"))
    await agent.run(ends)
    await agent.end(runs)

    def held() -> list[str]:
        return [file for file in open_files(agent.keeper_pid).values() if file.endswith(f"/{records.FILE}")]

    await until(lambda: held() == [f"{lasts.directory}/{records.FILE}"], "only the record of what runs")
