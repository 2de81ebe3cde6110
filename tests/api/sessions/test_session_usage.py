"""What operators see and do of sessions: how each goes, who came, and a worker that is drained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from gpufleet.v1 import inference_pb2, sessions_pb2

from gpufleet.errors import Reason
from tests.api.calls import Caller
from tests.api.sessions.people import GatewayStream, gateway, worker
from tests.e2e.client import Client
from tests.e2e.fleet import Fleet
from tests.e2e.processes import until


async def _has_left(people: GatewayStream, connection: int) -> None:
    """Return once the person was told so, behind whatever else they were told of the turn."""
    while (await people.notice(connection)).reason != "LEFT":
        pass


async def test_who_came_to_a_model_is_counted_over_a_restart_of_the_scheduler(tmp_path: Path) -> None:
    request = sessions_pb2.ListSessionUsageRequest(model="visited")
    async with Fleet(tmp_path / "own") as fleet:
        async with fleet.client() as admin, gateway(fleet) as people, worker(fleet, "visited") as seats:
            await people.join(1, "visited", "ann")
            grant = await people.grant(1)
            await seats.open(grant)
            await people.join(2, "visited", "bob")
            await people.place(2)
            await people.say(2, leave=True)
            await _has_left(people, 2)
            await people.say(1, leave=True)
            await _has_left(people, 1)
            await people.join(3, "visited", "ann")
            await people.grant(3)
            before = await admin.stub.ListSessionUsage(request)
        (row,) = before.rows
        assert (row.people, row.visits, row.turns, row.give_ups) == (2, 3, 2, 1)
        assert [(each.reason, each.count) for each in row.ends] == [("LEFT", 2)]
        assert row.HasField("wait_p50") and row.wait_p95.ToMicroseconds() >= row.wait_p50.ToMicroseconds()
        assert [(each.model, each.people) for each in before.steps] == [("visited", 2)]
        assert before.step.ToSeconds() == 86_400
        await fleet.scheduler.stop()
        await fleet.scheduler.start()
        async with fleet.client() as admin:
            (again,) = (await admin.stub.ListSessionUsage(request)).rows
            assert (again.people, again.visits, again.turns, again.give_ups) == (2, 3, 2, 1)


async def test_an_operator_sees_how_each_session_goes_and_nothing_of_who_it_is(fleet: Fleet, admin: Client) -> None:
    async with gateway(fleet) as people, worker(fleet, "played") as seats:
        await people.join(1, "played", "ann")
        grant = await people.grant(1)
        await seats.open(grant)
        turn = sessions_pb2.LiveTurn(session=grant.session, epoch=grant.epoch, is_attached=True, frames_per_second=23.5)
        turn.latency.FromMilliseconds(42)
        turn.since_input.FromSeconds(3)
        report = sessions_pb2.WorkerReport(state=inference_pb2.WORKER_STATE_READY, progress=1.0, turns=[turn], seats=1)
        await seats.inbox.call.write(sessions_pb2.ConnectWorkerRequest(report=report))
        listed = sessions_pb2.ListSessionsRequest(model="played")

        async def is_told() -> bool:
            (told,) = (await admin.stub.ListSessions(listed)).sessions
            return told.frames_per_second == 23.5

        await until("its frames are told", is_told)
        (told,) = (await admin.stub.ListSessions(listed)).sessions
        assert told.latency.ToMilliseconds() == 42 and told.HasField("turn_start_time")
        assert told.worker == f"worker {seats.start[:8]}" and len(told.person) == 8 and "ann" not in told.person
        await admin.stub.DrainWorker(sessions_pb2.DrainWorkerRequest(model="played", worker_start=seats.start))
        await seats.inbox.first(lambda message: message.HasField("drain"))
        await people.say(1, leave=True)


@pytest.mark.parametrize(
    ("name", "request_", "reason", "said"),
    [
        ("DrainWorker", sessions_pb2.DrainWorkerRequest(), Reason.INVALID_ARGUMENT, "model"),
        ("DrainWorker", sessions_pb2.DrainWorkerRequest(model="m"), Reason.INVALID_ARGUMENT, "worker_start"),
        ("DrainWorker", sessions_pb2.DrainWorkerRequest(model="m", job_id=1), Reason.MODEL_NOT_FOUND, "'m'"),
        (
            "DrainWorker",
            sessions_pb2.DrainWorkerRequest(model="m", job_id=1, reason="x" * 201),
            Reason.INVALID_ARGUMENT,
            "reason",
        ),
        (
            "ListSessionUsage",
            sessions_pb2.ListSessionUsageRequest(step=Duration(seconds=60)),
            Reason.INVALID_ARGUMENT,
            "step",
        ),
        (
            "ListSessionUsage",
            sessions_pb2.ListSessionUsageRequest(step=Duration(seconds=2**63 - 1)),
            Reason.INVALID_ARGUMENT,
            "step",
        ),
        (
            "ListSessionUsage",
            sessions_pb2.ListSessionUsageRequest(start_time=Timestamp(seconds=1), step=Duration(seconds=3_600)),
            Reason.INVALID_ARGUMENT,
            "start_time",
        ),
        (
            "ListSessionUsage",
            sessions_pb2.ListSessionUsageRequest(
                start_time=Timestamp(seconds=1), end_time=Timestamp(seconds=9_000_000), step=Duration(seconds=3_600)
            ),
            Reason.INVALID_ARGUMENT,
            "step",
        ),
    ],
)
async def test_what_operators_ask_wrongly_is_named(
    fleet: Fleet, caller: Caller, name: str, request_: Any, reason: Reason, said: str
) -> None:
    error = await caller.error(f"Scheduler/{name}", request_, fleet.scheduler.token("admin"))
    assert error is not None
    assert (error.reason, said in error.message) == (reason, True), error.message
