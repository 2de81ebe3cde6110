"""The files of a rank on its node: fetched by pieces, checked, copied, and told in words where they cannot be had."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gpufleet.v1 import node_agent_pb2 as pb

from gpufleet.jobs.runs import JobId, RankKey, StopCause
from node_agent.core.actions import CheckNode, GiveUpFiles, Order, Tell
from node_agent.core.adoption import Verdict
from node_agent.core.commands import AttemptCommand, JudgeAttempt, LaunchAttempt, StopAttempt
from node_agent.core.duties import Duties
from node_agent.core.expectations import Expectations
from node_agent.core.inventory import Refused
from node_agent.core.launch import InputFile, Process, RefusalReason
from node_agent.files import file_cache
from node_agent.files.job_files import JobFiles

KEY, OTHER = RankKey(JobId(7), 1, 0), RankKey(JobId(8), 1, 0)
DATA = b"0123456789"
DIGEST = hashlib.sha256(DATA).hexdigest()
FILE = InputFile(path="data/a.txt", digest=DIGEST, size_bytes=len(DATA))


class Call:
    """A stream of pieces of three bytes."""

    def __init__(self, data: bytes, offset: int) -> None:
        self._pieces: Iterator[Any] = iter(
            [pb.FetchBlobResponse(data=data[at : at + 3], offset=at) for at in range(offset, len(data), 3)]
        )

    async def read(self) -> Any:
        return next(self._pieces, None)

    def cancel(self) -> None:
        pass


class Stub:
    """A scheduler that has these bytes; those of each call in turn, the last ones for ever."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)
        self.offsets: list[int] = []

    def FetchBlob(self, request: pb.FetchBlobRequest) -> Call:
        self.offsets.append(request.offset)
        return Call(self.answers.pop(0) if len(self.answers) > 1 else self.answers[0], request.offset)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_cache, "RETRY_SECONDS_MIN", 0.0)


async def laid_out(files: JobFiles, stub: Stub, key: RankKey = KEY, file: InputFile = FILE) -> Any:
    holding = asyncio.create_task(files.hold(stub))  # type: ignore[arg-type]
    try:
        return await files.lay_out(key, [file])
    finally:
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)


async def test_a_file_is_fetched_once_and_each_rank_has_its_own(tmp_path: Path) -> None:
    files, stub = JobFiles("n1", 1, tmp_path, lambda: 10**6), Stub(DATA)
    assert await laid_out(files, stub) is None
    (files.folder_of(KEY) / "data/a.txt").write_bytes(b"changed")
    assert await laid_out(files, stub, OTHER) is None
    assert (files.folder_of(OTHER) / "data/a.txt").read_bytes() == DATA
    assert stub.offsets == [0]
    assert files.folder_of(KEY).stat().st_mode & 0o777 == 0o700


async def test_what_was_cut_goes_on_where_it_stood(tmp_path: Path) -> None:
    files, stub = JobFiles("n1", 1, tmp_path, lambda: 10**6), Stub(DATA[:6], DATA)
    assert await laid_out(files, stub) is None
    assert stub.offsets == [0, 6]
    assert (files.folder_of(KEY) / "data/a.txt").read_bytes() == DATA


async def test_other_bytes_are_never_placed(tmp_path: Path) -> None:
    files, stub = JobFiles("n1", 1, tmp_path, lambda: 10**6), Stub(b"x" + DATA[1:])
    refusal = await laid_out(files, stub)
    assert refusal.reason is RefusalReason.FILES_UNAVAILABLE
    assert "other bytes" in refusal.detail
    assert not list((tmp_path / "cache").iterdir())
    assert not (files.folder_of(KEY) / "data").exists()


async def test_a_scheduler_that_stays_away_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_cache, "PATIENCE_SECONDS", -1.0)
    monkeypatch.setattr(file_cache, "PIECE_WAIT_SECONDS", 0.0)
    refusal = await JobFiles("n1", 1, tmp_path, lambda: 10**6).lay_out(KEY, [FILE])
    assert refusal is not None
    assert refusal.reason is RefusalReason.FILES_UNAVAILABLE


@pytest.mark.parametrize("path", ["../a", "/etc/a", "a/../../b", "", "a//b", "a\n", "./a"])
async def test_a_path_that_leads_elsewhere_is_refused(tmp_path: Path, path: str) -> None:
    files = JobFiles("n1", 1, tmp_path, lambda: 10**6)
    refusal = await laid_out(files, Stub(DATA), file=InputFile(path=path, digest=DIGEST, size_bytes=len(DATA)))
    assert refusal.reason is RefusalReason.BAD_REQUEST


async def test_what_was_not_used_for_longest_gives_way_and_no_rank_misses_it(tmp_path: Path) -> None:
    files = JobFiles("n1", 1, tmp_path, lambda: 0)
    assert await laid_out(files, Stub(DATA)) is None
    assert not list((tmp_path / "cache").iterdir())
    assert (files.folder_of(KEY) / "data/a.txt").read_bytes() == DATA


async def test_what_a_rank_made_of_its_folder_is_removed_and_what_nobody_knows_after_a_restart(tmp_path: Path) -> None:
    files = JobFiles("n1", 1, tmp_path, lambda: 10**6)
    assert await laid_out(files, Stub(DATA)) is None
    assert await laid_out(files, Stub(DATA), OTHER) is None
    (files.folder_of(KEY) / "data").chmod(0)
    await files.remove(KEY)
    assert not files.folder_of(KEY).exists()
    await JobFiles("n1", 2, tmp_path, lambda: 10**6).sweep([])
    assert not list((tmp_path / "attempts").iterdir())
    assert not list((tmp_path / "removed").iterdir())


@pytest.mark.parametrize(
    "command", [StopAttempt(KEY, StopCause.CANCELLED, None), JudgeAttempt(KEY, Verdict.KILL)], ids=["stop", "kill"]
)
def test_what_ends_a_rank_while_its_files_are_fetched_gives_them_up(command: AttemptCommand) -> None:
    duties = Duties()
    launch = LaunchAttempt(
        key=KEY,
        process=Process(argv=("true",), env={}, cwd=""),
        expectations=Expectations(device_uuids=()),
        files=(FILE,),
    )
    assert duties.order(Order(command=launch)) == (CheckNode(launch, is_prepare=False),)
    assert duties.order(Order(command=command)) == (GiveUpFiles(KEY),)
    told = [action.report for action in duties.given_up(KEY) if isinstance(action, Tell)]
    assert {each.reason for each in told if isinstance(each, Refused)} == {"STOPPED_BEFORE_START"}
