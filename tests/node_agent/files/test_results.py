"""What ranks leave on its way to the scheduler: nothing is deleted before a record of the scheduler permits it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from gpufleet.v1 import node_agent_pb2 as pb

from gpufleet.errors import GpufleetError, Reason
from gpufleet.jobs.runs import JobId, RankKey
from gpufleet.net.status import to_status
from node_agent.core import leavings
from node_agent.core.leavings import Bounds
from node_agent.files import results
from node_agent.files.reached_folder import NotReached
from node_agent.files.results import Results

KEY, OTHER = RankKey(JobId(1), 1, 0), RankKey(JobId(2), 1, 0)
BOUNDS = Bounds(seconds=60.0, bytes_max=2**30)

STORED = pb.StoreResultsResponse(is_stored=True)
ResultsAnswer = pb.StoreResultsResponse | grpc.aio.AioRpcError


def failure(code: grpc.StatusCode) -> grpc.aio.AioRpcError:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(code, nothing, nothing, "the disk is full")


def refusal(reason: Reason) -> grpc.aio.AioRpcError:
    status = to_status(GpufleetError(reason, "no such attempt"))
    metadata = grpc.aio.Metadata(*(status.trailing_metadata or ()))
    return grpc.aio.AioRpcError(status.code, grpc.aio.Metadata(), metadata, status.details)


class Call:
    """A StoreResults that is answered so."""

    def __init__(self, answer: Callable[[pb.StoreResultsRequest], ResultsAnswer]) -> None:
        self._answer = answer
        self.sent: list[pb.StoreResultsRequest] = []

    async def write(self, request: pb.StoreResultsRequest) -> None:
        self.sent.append(request)

    async def read(self) -> pb.StoreResultsResponse:
        answer = self._answer(self.sent[0])
        if isinstance(answer, grpc.aio.AioRpcError):
            raise answer
        return answer

    async def done_writing(self) -> None:
        pass

    def cancel(self) -> bool:
        return True


class Scheduler:
    """Answers each call by what its first message says."""

    def __init__(self, answer: Callable[[pb.StoreResultsRequest], ResultsAnswer]) -> None:
        self._answer = answer
        self.calls: list[Call] = []

    def StoreResults(self) -> Any:
        self.calls.append(Call(self._answer))
        return self.calls[-1]


def one_after_another(*answers: ResultsAnswer) -> Callable[[pb.StoreResultsRequest], ResultsAnswer]:
    """The last one for ever."""
    left = list(answers)
    return lambda first: left.pop(0) if len(left) > 1 else left[0]


@asynccontextmanager
async def held(brought: Results, scheduler: Scheduler) -> AsyncIterator[None]:
    holding = asyncio.create_task(brought.hold(scheduler))  # type: ignore[arg-type]  # it is asked nothing else
    try:
        async with asyncio.timeout(60):
            yield
    finally:
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one file; pauses are short."""
    monkeypatch.setattr(results, "RETRY_SECONDS_MAX", 0.2)
    monkeypatch.setattr(leavings, "PAUSE_SECONDS_MIN", 0.01)
    folder = tmp_path / "left"
    folder.mkdir()
    (folder / "a").write_text("left")
    return folder


def results_of(tmp_path: Path, left: Path, bounds: Bounds = BOUNDS, boot_id: str = "b1") -> Results:
    return Results("n1", 1, tmp_path, lambda key: left, lambda: bounds, boot_id)


async def test_what_cannot_be_stored_now_is_kept_and_sent_again_until_it_is(tmp_path: Path, left: Path) -> None:
    brought = results_of(tmp_path, left)
    brought.expect(KEY, ("*",))
    away = [failure(grpc.StatusCode.UNAVAILABLE)] * 5
    scheduler = Scheduler(one_after_another(*away, failure(grpc.StatusCode.RESOURCE_EXHAUSTED), STORED))
    async with held(brought, scheduler):
        await brought.bring(KEY)
    assert len(scheduler.calls) == 7
    assert all(call.sent[0].manifest for call in scheduler.calls), "what it had each time was all of it"
    assert not (tmp_path / "results" / KEY.name).exists()


@pytest.mark.parametrize("reason", [Reason.PERMISSION_DENIED, Reason.CONFLICT, Reason.METHOD_UNKNOWN])
async def test_a_refusal_permits_no_deletion(tmp_path: Path, left: Path, reason: Reason) -> None:
    brought = results_of(tmp_path, left)
    brought.expect(KEY, ("*",))
    scheduler = Scheduler(one_after_another(*[refusal(reason)] * 4, STORED))
    async with held(brought, scheduler):
        await brought.bring(KEY)
    assert len(scheduler.calls) == 5
    assert all(call.sent[0].manifest and not call.sent[0].gives_up for call in scheduler.calls)


async def test_what_is_refused_keeps_nobody_elses_waiting(tmp_path: Path, left: Path) -> None:
    brought = results_of(tmp_path, left)
    stuck = [RankKey(JobId(number), 1, 0) for number in range(10, 10 + 3 * results.AT_ONCE)]
    for key in (*stuck, OTHER):
        brought.expect(key, ("*",))
    denied = refusal(Reason.PERMISSION_DENIED)
    scheduler = Scheduler(lambda first: STORED if first.key.job_id == OTHER.job else denied)
    async with held(brought, scheduler):
        waiting = [asyncio.create_task(brought.bring(key)) for key in stuck]
        await brought.bring(OTHER)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    assert all((tmp_path / "results" / key.name).exists() for key in stuck)


async def test_what_nobody_wants_is_settled_by_that_answer(tmp_path: Path, left: Path) -> None:
    brought = results_of(tmp_path, left)
    brought.expect(KEY, ("*",))
    scheduler = Scheduler(one_after_another(pb.StoreResultsResponse(is_unwanted=True)))
    async with held(brought, scheduler):
        await brought.bring(KEY)
    assert len(scheduler.calls) == 1


async def test_what_is_refused_for_too_long_is_lost_by_a_record_alone(tmp_path: Path, left: Path) -> None:
    brought = results_of(tmp_path, left, Bounds(seconds=0.0, bytes_max=2**30))
    brought.expect(KEY, ("*",))
    denied, lost = refusal(Reason.PERMISSION_DENIED), pb.StoreResultsResponse(is_lost=True)
    records = one_after_another(failure(grpc.StatusCode.UNAVAILABLE), lost)
    scheduler = Scheduler(lambda first: records(first) if first.gives_up else denied)
    async with held(brought, scheduler):
        await brought.bring(KEY)
    asked = [call.sent[0].gives_up for call in scheduler.calls]
    assert asked == ["", "it could not be stored for 0 s"] * 2, "it is sent once more before it is given up again"


async def test_what_was_noted_by_an_earlier_version_and_what_cannot_be_read_is_told(tmp_path: Path, left: Path) -> None:
    brought = results_of(tmp_path, left)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / KEY.name).write_text(json.dumps(["*"]))
    (tmp_path / "results" / OTHER.name).write_text("{")
    scheduler = Scheduler(one_after_another(STORED))
    async with held(brought, scheduler):
        await brought.bring(KEY)
        await brought.bring(OTHER)
    first, second = (call.sent[0] for call in scheduler.calls)
    assert first.manifest and not first.problems
    assert not second.manifest and "cannot be read on the node" in second.problems[0]


def test_of_ranks_that_no_keeper_knows_those_of_another_boot_are_still_brought(tmp_path: Path, left: Path) -> None:
    results_of(tmp_path, left, boot_id="b1").expect(KEY, ("*",))
    now = results_of(tmp_path, left, boot_id="b2")
    now.expect(OTHER, ("*",))
    third = RankKey(JobId(3), 1, 0)
    now.expect(third, ("*",))
    assert now.sweep([third]) == (KEY,)
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == [KEY.name, third.name]


async def test_what_an_ended_job_keeps_is_not_even_read(tmp_path: Path, left: Path) -> None:
    brought = results_of(tmp_path, left)
    brought.expect(KEY, (), ("*",))
    brought.expect(OTHER, (), ("*",))
    unwanted, goes_on = pb.StoreResultsResponse(is_unwanted=True), pb.StoreResultsResponse()
    scheduler = Scheduler(
        lambda first: STORED if not first.is_question else unwanted if first.key.job_id == KEY.job else goes_on
    )
    async with held(brought, scheduler):
        await brought.bring(KEY)
        await brought.bring(OTHER)
    sent = [
        (call.sent[0].key.job_id, call.sent[0].is_question, bool(call.sent[0].kept_manifest))
        for call in scheduler.calls
    ]
    assert sent == [(KEY.job, True, False), (OTHER.job, True, False), (OTHER.job, False, True)]


async def test_a_checkpoint_answers_once_it_is_stored_and_says_why_it_is_not(tmp_path: Path, left: Path) -> None:
    brought = results_of(tmp_path, left)
    brought.expect(KEY, ("*",))
    brought.expect(OTHER, ("*",), ("*",))
    quota = refusal(Reason.QUOTA_EXCEEDED)
    scheduler = Scheduler(one_after_another(failure(grpc.StatusCode.UNAVAILABLE), STORED, quota))
    async with held(brought, scheduler):
        assert await brought.checkpoint(OTHER) == (1, 4)
        for key, reason in ((OTHER, Reason.QUOTA_EXCEEDED), (KEY, Reason.INVALID_ARGUMENT)):
            with pytest.raises(NotReached) as refused:
                await brought.checkpoint(key)
            assert refused.value.reason is reason
    assert all(call.sent[0].is_checkpoint and not call.sent[0].manifest for call in scheduler.calls)
