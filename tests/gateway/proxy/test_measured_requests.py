"""What the gateway counts of requests to programs: how they ended, how long they took, and those that got nowhere."""

from __future__ import annotations

import asyncio

import pytest

from gateway.measures import MODELS_MAX, OTHERS, Measures
from gateway.proxy import serving
from tests.e2e.processes import until
from tests.gateway.proxy.stage import Call, asked, program, stage
from tests.metrics.test_measures import Noted


async def test_requests_are_counted_timed_and_told_while_they_are_under_way() -> None:
    noted, goes_on = Noted(), asyncio.Event()

    async def waits(call: Call) -> None:
        await goes_on.wait()
        await call.reply(b"", status="404 Not Found")

    async with stage(Measures(noted)) as at, program("r1", waits) as replica:
        await at.serve("chat", replica)
        asking = asyncio.create_task(asked(at, "/m/chat/a", "PUT"))
        await until("it is under way", lambda: at.scheduler.reported("chat") == (1, 0))
        ((told,),) = [each.models for each in at.scheduler.reports[-1:]]
        assert [(each.worker_start, each.under_way) for each in told.replicas] == [(replica.info().worker_start, 1)]
        assert at.readings()["gpufleet.program.underway"] == [(1, {"model": "chat"})]
        assert at.readings()["gpufleet.program.waiting"] == [(0, {"model": "chat"})]
        goes_on.set()
        assert (await asking)[0] == 404
        await until("it has ended", lambda: bool(noted.told["gpufleet.program.requests"]))
        assert noted.told["gpufleet.program.requests"] == [(1, {"model": "chat", "method": "PUT", "status": "4xx"})]
        for name in ("duration", "wait"):
            ((seconds, labels),) = noted.told[f"gpufleet.program.request.{name}"]
            assert seconds >= 0 and labels == {"model": "chat"}
        assert at.readings()["gpufleet.program.underway"] == [(0, {"model": "chat"})]
        assert not noted.told["gpufleet.program.retries"] and not noted.told["gpufleet.program.refusals"]


async def test_what_is_tried_again_and_what_finds_no_replica_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = Noted()

    async def breaks(call: Call) -> None:
        call.keeps = False

    async with stage(Measures(noted)) as at, program("r1", breaks) as one, program("r2", breaks) as two:
        await at.serve("chat", one, two)
        assert (await asked(at, "/m/chat/a"))[0] == 502
        assert noted.told["gpufleet.program.retries"] == [(1, {"model": "chat"})]
        monkeypatch.setattr(serving, "WAIT_S_MAX", 0.01)
        await at.serve("empty")
        assert (await asked(at, "/m/empty/a"))[0] == 503
        refused = [(1, {"model": "empty", "reason": "WORKER_NOT_READY"})]
        assert noted.told["gpufleet.program.refusals"] == refused


def test_methods_and_programs_beyond_a_bound_are_told_together() -> None:
    noted = Noted()
    measures = Measures(noted)
    for number in range(MODELS_MAX + 2):
        measures.answered(f"m{number}", "BREW", 200, 0.1, 0, 0)
    labels = [each for _, each in noted.told["gpufleet.program.requests"]]
    assert {each["method"] for each in labels} == {"_OTHER"}
    assert [each["model"] for each in labels[-2:]] == [OTHERS, OTHERS]
    assert len({each["model"] for each in labels}) == MODELS_MAX + 1
