"""What ranks leave on its way to the scheduler: nothing is given up while that is away or cannot store."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from gpufleet.v1 import node_agent_pb2 as pb

from gpufleet.jobs.runs import JobId, RankKey
from node_agent.files import results
from node_agent.files.results import Results

KEY = RankKey(JobId(1), 1, 0)


class Call:
    """A StoreResults that takes all it is sent, or fails."""

    def __init__(self, fails_with: grpc.StatusCode | None) -> None:
        self._fails_with = fails_with
        self.sent: list[pb.StoreResultsRequest] = []

    async def write(self, request: pb.StoreResultsRequest) -> None:
        self.sent.append(request)

    async def read(self) -> pb.StoreResultsResponse:
        if self._fails_with is not None:
            nothing = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(self._fails_with, nothing, nothing, "the disk is full")
        return pb.StoreResultsResponse(is_stored=True)

    async def done_writing(self) -> None:
        pass

    def cancel(self) -> bool:
        return True


class Scheduler:
    """Fails so often, and then stores."""

    def __init__(self, *fails_with: grpc.StatusCode) -> None:
        self._calls: list[grpc.StatusCode | None] = [*fails_with, None]
        self.calls: list[Call] = []

    def StoreResults(self) -> Any:
        self.calls.append(Call(self._calls.pop(0)))
        return self.calls[-1]


async def test_what_cannot_be_stored_now_is_kept_and_sent_again_until_it_is(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(results, "RETRY_SECONDS_MAX", 0.2)
    left = tmp_path / "left"
    left.mkdir()
    (left / "a").write_text("left")
    brought = Results("n1", 1, tmp_path, lambda key: left)
    brought.expect(KEY, ("*",))
    bringing = asyncio.create_task(brought.bring(KEY))
    scheduler = Scheduler(*[grpc.StatusCode.UNAVAILABLE] * 5, grpc.StatusCode.RESOURCE_EXHAUSTED)
    holding = asyncio.create_task(brought.hold(scheduler))  # type: ignore[arg-type]  # it is asked nothing else
    try:
        async with asyncio.timeout(60):
            await bringing
    finally:
        holding.cancel()
        await asyncio.gather(holding, return_exceptions=True)
    assert len(scheduler.calls) == 7
    assert all(call.sent[0].manifest for call in scheduler.calls), "what it had each time was all of it"
    assert not (tmp_path / "results" / KEY.name).exists()
