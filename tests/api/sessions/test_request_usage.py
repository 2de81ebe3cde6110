"""What gateways count of requests to programs, through the contract and over a restart; what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gpufleet.v1 import sessions_pb2

from gpufleet.errors import Reason
from tests.api.calls import Caller
from tests.e2e.fleet import Fleet


def row(**said: Any) -> sessions_pb2.CountedRequests:
    return sessions_pb2.CountedRequests(**{"model": "chat", "user": "ann", "request_count": 2, **said})


def batch(*rows: sessions_pb2.CountedRequests, sequence: int = 1) -> sessions_pb2.CountRequestsRequest:
    return sessions_pb2.CountRequestsRequest(gateway_start="gateway-1", sequence=sequence, rows=rows)


async def test_a_batch_that_comes_again_after_a_restart_is_counted_once(tmp_path: Path) -> None:
    said = batch(row(prompt_tokens=5, completion_tokens=7), row(user="", failed_count=1, unknown_count=1))
    for each in said.rows:
        each.duration.FromMilliseconds(1_500)
    async with Fleet(tmp_path / "own") as fleet:
        for is_restarted in (False, True):
            async with fleet.client() as admin:
                await admin.stub.CountRequests(said)
                told = await admin.stub.ListRequestUsage(sessions_pb2.ListRequestUsageRequest())
                assert list(told.rows) == list(said.rows), is_restarted
                assert (told.total.request_count, told.total.prompt_tokens, told.total.user) == (4, 5, "")
                assert told.known_since_time.ToMicroseconds() > told.start_time.ToMicroseconds()
            if not is_restarted:
                await fleet.scheduler.stop()
                await fleet.scheduler.start()
        async with fleet.client() as admin:
            await admin.stub.CountRequests(batch(row(), sequence=2))
            asked = sessions_pb2.ListRequestUsageRequest(user="ann", model="chat")
            (ann,) = (await admin.stub.ListRequestUsage(asked)).rows
            assert (ann.request_count, ann.prompt_tokens) == (4, 5)


@pytest.mark.parametrize(
    ("name", "request_", "field"),
    [
        ("CountRequests", sessions_pb2.CountRequestsRequest(), "gateway_start"),
        ("CountRequests", sessions_pb2.CountRequestsRequest(gateway_start="a b c d e f"), "gateway_start"),
        ("CountRequests", batch(row(), sequence=0), "sequence"),
        ("CountRequests", batch(), "rows"),
        ("CountRequests", batch(*[row()] * 1_001), "rows"),
        ("CountRequests", batch(row(model="../x")), "rows[0].model"),
        ("CountRequests", batch(row(), row(user="a\nb")), "rows[1].user"),
        ("CountRequests", batch(row(user="a" * 129)), "rows[0].user"),
        ("CountRequests", batch(row(prompt_tokens=-1)), "rows[0].prompt_tokens"),
        ("CountRequests", batch(row(completion_tokens=2**62)), "rows[0].completion_tokens"),
        ("CountRequests", batch(row(failed_count=2, unknown_count=1)), "rows[0].request_count"),
        ("CountRequests", batch(row(duration={"seconds": -1})), "rows[0].duration"),
        ("ListRequestUsage", sessions_pb2.ListRequestUsageRequest(model="a/b"), "model"),
    ],
)
async def test_what_is_wrong_is_named_and_changes_nothing(
    fleet: Fleet, caller: Caller, name: str, request_: Any, field: str
) -> None:
    async with fleet.client() as admin:
        # Other tests of this fleet may have had requests counted.
        before = await admin.stub.ListRequestUsage(sessions_pb2.ListRequestUsageRequest())
        error = await caller.error(f"Scheduler/{name}", request_, fleet.scheduler.token("admin"))
        assert error is not None and error.reason is Reason.INVALID_ARGUMENT
        assert [each.field for each in error.violations] == [field]
        after = await admin.stub.ListRequestUsage(sessions_pb2.ListRequestUsageRequest())
    assert list(after.rows) == list(before.rows)
