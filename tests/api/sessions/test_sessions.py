"""Lines and turns through the contract: a gateway's people, a worker, and what each is told."""

from __future__ import annotations

import time
from typing import Any

import pytest
from gpufleet.v1 import inference_pb2, scheduler_pb2, sessions_pb2

from gpufleet.errors import Reason
from gpufleet.security.tickets import TurnTicket, make_secret, read_ticket
from tests.api.calls import Caller
from tests.api.sessions.people import gateway, worker
from tests.api.test_owners import secret_of
from tests.e2e.client import Client, refusal
from tests.e2e.fleet import Fleet
from tests.e2e.processes import until


async def test_two_people_share_one_seat(fleet: Fleet, admin: Client) -> None:
    async with gateway(fleet) as people, worker(fleet, "shared") as seats:
        await people.join(1, "shared", "ann")
        grant = await people.grant(1)
        expected = await seats.expected()
        assert (expected.session, expected.epoch, expected.identity) == (grant.session, 1, "ann")
        ticket = read_ticket(grant.ticket, seats.secret, worker_start=seats.start, now_s=time.time())
        assert isinstance(ticket, TurnTicket), ticket
        assert (ticket.session, ticket.epoch, ticket.identity) == (grant.session, 1, "ann")
        await seats.open(grant)

        await people.join(2, "shared", "bob")
        place = await people.place(2)
        assert (place.place, place.line_length) == (1, 1)
        assert 60 < place.longest_wait.seconds <= 71
        assert place.place_key.startswith("gp_")
        limited = await people.notice(1)
        assert (limited.reason, limited.is_end) == ("TURN_LIMITED", False)
        assert 60 < limited.remaining.seconds <= 70

        listed = (await admin.stub.ListSessions(sessions_pb2.ListSessionsRequest(model="shared"))).sessions
        assert [(each.id, each.state, each.place) for each in listed] == [
            (grant.session, sessions_pb2.SESSION_STATE_LIMITED, 0),
            (place.session, sessions_pb2.SESSION_STATE_WAITING, 1),
        ]
        models = (await admin.stub.ListModels(sessions_pb2.ListModelsRequest())).models
        model = next(each for each in models if each.name == "shared")
        assert (model.waiting_count, model.turn_count, [each.taken_seats for each in model.workers]) == (1, 1, [1])

        await people.say(1, leave=True)
        assert (await people.notice(1)).reason == "LEFT"
        assert (await seats.told_to_end()).session == grant.session
        assert (await people.grant(2)).session == place.session
        await people.say(2, leave=True)
        assert (await people.notice(2)).is_end


async def test_a_turn_goes_on_with_its_key_after_a_lost_connection(fleet: Fleet) -> None:
    async with worker(fleet, "resumed") as seats:
        async with gateway(fleet) as people:
            await people.join(1, "resumed", "ann")
            grant = await people.grant(1)
            await seats.open(grant)
        async with gateway(fleet) as people:
            await people.join(7, "resumed", "ann", grant.place_key)
            again = await people.grant(7)
            assert (again.session, again.epoch, again.place_key) == (grant.session, 2, grant.place_key)
            await people.say(7, leave=True)
            assert (await people.notice(7)).reason == "LEFT"


async def test_a_lost_worker_puts_its_people_in_front(fleet: Fleet) -> None:
    async with gateway(fleet) as people:
        async with worker(fleet, "lost") as seats:
            await people.join(1, "lost", "ann")
            await seats.open(await people.grant(1))
        notice = await people.notice(1)
        assert (notice.reason, notice.is_end) == ("WORKER_LOST", False)
        place = await people.place(1)
        assert (place.place, place.bound_cause, place.HasField("longest_wait")) == (1, "no worker is ready", False)
        async with worker(fleet, "lost") as another:
            grant = await people.grant(1)
            assert grant.epoch == 2
            await another.open(grant)
            await another.ended(grant.session, 1, "LEFT")
            await another.inbox.first(lambda message: message.ends_acknowledged.number == 1)
            await another.ended(grant.session, 2, "MODEL_FAILED")
            ended = await people.notice(1)
            assert (ended.reason, ended.is_end) == ("MODEL_FAILED", True)


async def test_a_session_is_closed_by_the_team(fleet: Fleet, admin: Client) -> None:
    async with gateway(fleet) as people, worker(fleet, "closed") as seats:
        await people.join(1, "closed", "ann")
        grant = await people.grant(1)
        await seats.open(grant)
        await admin.stub.CloseSession(sessions_pb2.CloseSessionRequest(id=grant.session, reason="maintenance"))
        notice = await people.notice(1)
        assert (notice.reason, notice.is_end) == ("CLOSED", True)
        assert notice.message.endswith("closed the session: maintenance")
        await admin.stub.StopModel(sessions_pb2.StopModelRequest(name="closed"))
        names = [each.name for each in (await admin.stub.ListModels(sessions_pb2.ListModelsRequest())).models]
        assert "closed" not in names


async def test_another_persons_model_is_changed_by_nobody_but_an_admin(fleet: Fleet, admin: Client) -> None:
    anns, bobs = await secret_of(admin, "ann@models"), await secret_of(admin, "bob@models")
    async with fleet.client(anns) as ann, fleet.client(bobs) as bob, gateway(fleet) as people:
        serve = sessions_pb2.ServeModelRequest(model=sessions_pb2.Model(name="anns"))
        await ann.stub.ServeModel(serve)
        await people.join(1, "anns", "eve")
        session = (await people.place(1)).session
        for call in (
            bob.stub.ServeModel(serve),
            bob.stub.StopModel(sessions_pb2.StopModelRequest(name="anns")),
            bob.stub.CloseSession(sessions_pb2.CloseSessionRequest(id=session)),
        ):
            assert (await refusal(call)).reason is Reason.PERMISSION_DENIED
        assert (await admin.stub.ServeModel(serve)).model.owner == "ann@models"
        await admin.stub.StopModel(sessions_pb2.StopModelRequest(name="anns"))


async def test_the_numbers_of_a_model_are_kept(fleet: Fleet, admin: Client) -> None:
    limits = sessions_pb2.SessionLimits(line_length=1)
    limits.turn.FromSeconds(5)
    model = sessions_pb2.Model(name="numbers", limits=limits)
    served = (await admin.stub.ServeModel(sessions_pb2.ServeModelRequest(model=model))).model
    assert (served.limits.turn.seconds, served.limits.idle.seconds, served.limits.line_length) == (5, 20, 1)
    async with gateway(fleet) as people:
        await people.join(1, "numbers", "ann")
        await people.place(1)
        await people.join(2, "numbers", "bob")
        refused = await people.notice(2)
        assert (refused.reason, refused.is_end) == ("LINE_FULL", True)


@pytest.mark.parametrize(
    ("name", "request_", "reason", "said"),
    [
        ("ServeModel", sessions_pb2.ServeModelRequest(), Reason.INVALID_ARGUMENT, "model.name"),
        (
            "ServeModel",
            sessions_pb2.ServeModelRequest(model=sessions_pb2.Model(name="m", min_workers=1)),
            Reason.INVALID_ARGUMENT,
            "model.min_workers",
        ),
        (
            "ServeModel",
            sessions_pb2.ServeModelRequest(
                model=sessions_pb2.Model(name="m", limits=sessions_pb2.SessionLimits(line_length=-1))
            ),
            Reason.INVALID_ARGUMENT,
            "model.limits.line_length",
        ),
        ("StopModel", sessions_pb2.StopModelRequest(name="nobody"), Reason.MODEL_NOT_FOUND, "nobody"),
        ("CloseSession", sessions_pb2.CloseSessionRequest(id="7"), Reason.INVALID_ARGUMENT, "'7'"),
        ("CloseSession", sessions_pb2.CloseSessionRequest(id="s999999"), Reason.SESSION_NOT_FOUND, "999999"),
        ("WatchWorkers", sessions_pb2.WatchWorkersRequest(model="nobody"), Reason.MODEL_NOT_FOUND, "nobody"),
        ("ConnectWorker", sessions_pb2.ConnectWorkerRequest(), Reason.INVALID_ARGUMENT, "hello"),
        (
            "ConnectWorker",
            sessions_pb2.ConnectWorkerRequest(
                hello=sessions_pb2.WorkerHello(model="m", worker_start="w", endpoint="h:1")
            ),
            Reason.INVALID_ARGUMENT,
            "hello.ticket_secret",
        ),
        (
            "ConnectWorker",
            sessions_pb2.ConnectWorkerRequest(
                hello=sessions_pb2.WorkerHello(model="m", worker_start="w", endpoint="h:1", certificate="x")
            ),
            Reason.INVALID_ARGUMENT,
            "hello.certificate",
        ),
        (
            "ConnectWorker",
            sessions_pb2.ConnectWorkerRequest(
                hello=sessions_pb2.WorkerHello(
                    model="m", worker_start="w", endpoint="h:1", ticket_secret=b"s" * 32, worker_version="0.\n1"
                )
            ),
            Reason.INVALID_ARGUMENT,
            "hello.worker_version",
        ),
    ],
)
async def test_bad_input_is_refused_by_name(
    fleet: Fleet, caller: Caller, name: str, request_: object, reason: Reason, said: str
) -> None:
    error = await caller.error(f"Scheduler/{name}", request_, fleet.scheduler.token("admin"))
    assert error is not None
    assert (error.reason, said in error.message) == (reason, True), error.message


async def test_gateways_that_are_connected_are_shown_with_their_versions(fleet: Fleet, admin: Client) -> None:
    async def names() -> list[tuple[str, str]]:
        info = await admin.stub.GetServerInfo(scheduler_pb2.GetServerInfoRequest())
        assert all(each.address == "127.0.0.1" and each.HasField("connect_time") for each in info.gateways)
        return [(each.gateway, each.gateway_version) for each in info.gateways]

    async with gateway(fleet) as silent, gateway(fleet) as people:
        await silent.join(1, "nobody", "ann")
        await silent.notice(1)
        hello = sessions_pb2.GatewayHello(gateway="g7", gateway_version="0.2.0")
        await people.say(0, hello=hello)
        await people.say(0, hello=sessions_pb2.GatewayHello(gateway="g\x1b[2J"))
        assert "hello.gateway" in (await people.notice(0)).message
        await people.say(0, hello=sessions_pb2.GatewayHello(gateway="g8", gateway_version="1" * 65))
        assert "hello.gateway_version" in (await people.notice(0)).message
        assert {("", ""), ("g7", "0.2.0")} <= set(await names())

    async def has_gone() -> bool:
        return ("g7", "0.2.0") not in await names()

    await until("it has gone", has_gone)


async def test_the_version_of_a_worker_is_shown_with_it(fleet: Fleet, admin: Client) -> None:
    hello = sessions_pb2.WorkerHello(
        model="versioned", endpoint="127.0.0.1:8001", worker_start="v1", ticket_secret=make_secret()
    )
    hello.worker_version = "0.2.0"
    call: Any = admin.stub.ConnectWorker()
    await call.write(sessions_pb2.ConnectWorkerRequest(hello=hello))
    assert (await call.read()).HasField("welcome")

    async def is_shown() -> bool:
        models = (await admin.stub.ListModels(sessions_pb2.ListModelsRequest())).models
        return [w.worker_version for model in models if model.name == "versioned" for w in model.workers] == ["0.2.0"]

    await until("it is shown", is_shown)
    call.cancel()
    del call


async def test_bad_input_of_one_person_ends_only_that_person(fleet: Fleet) -> None:
    async with gateway(fleet) as people, worker(fleet, "others") as seats:
        await people.join(1, "no such model", "ann")
        assert (await people.notice(1)).reason == "INVALID_ARGUMENT"
        await people.join(2, "nobody", "ann")
        refused = await people.notice(2)
        assert (refused.reason, refused.is_end) == ("MODEL_NOT_FOUND", True)
        await people.join(3, "others", "")
        assert (await people.notice(3)).reason == "INVALID_ARGUMENT"
        await people.say(4)
        assert (await people.notice(4)).reason == "INVALID_ARGUMENT"
        await people.join(5, "others", "ann")
        await seats.open(await people.grant(5))
        await people.say(5, leave=True)
        assert (await people.notice(5)).reason == "LEFT"


async def test_who_watches_workers_is_told_when_one_comes_and_goes(fleet: Fleet, admin: Client) -> None:
    await admin.stub.ServeModel(sessions_pb2.ServeModelRequest(model=sessions_pb2.Model(name="watched")))
    call: Any = admin.stub.WatchWorkers(sessions_pb2.WatchWorkersRequest(model="watched"))
    try:
        assert not (await call.read()).workers
        async with worker(fleet, "watched", seats=3) as seats:
            shown = await call.read()
            while not shown.workers[0].seats:
                shown = await call.read()
            assert [(each.worker_start, each.seats) for each in shown.workers] == [(seats.start, 3)]
        assert not (await call.read()).workers
    finally:
        call.cancel()


async def test_the_line_outlives_a_scheduler(fleet: Fleet) -> None:
    async with Fleet(fleet.folder / "restarted") as own:
        async with gateway(own) as people, worker(own, "durable") as seats:
            await people.join(1, "durable", "ann")
            grant = await people.grant(1)
            await seats.open(grant)
            await people.join(2, "durable", "bob")
            key = (await people.place(2)).place_key
            own.scheduler.kill()
        await own.scheduler.start()
        async with gateway(own) as people:
            await people.join(5, "durable", "bob", key)
            place = await people.place(5)
            assert (place.place, place.place_key) == (1, key)

            async def both_are_there() -> bool:
                async with own.client() as client:
                    listed = (await client.stub.ListSessions(sessions_pb2.ListSessionsRequest())).sessions
                    return [each.is_present for each in listed] == [False, True]

            await until("ann's turn is kept and bob waits", both_are_there)


async def test_what_a_model_says_of_itself_is_listed_and_its_picture_for_who_asks(fleet: Fleet, admin: Client) -> None:
    picture = b"\xff\xd8\xff" + bytes(100)
    said = sessions_pb2.ModelCard(
        title="T" * 100, about="about", controls="controls", keys=["ArrowLeft"], picture=picture, picture_tag="forged"
    )
    async with worker(fleet, "carded") as stream:
        report = sessions_pb2.WorkerReport(state=inference_pb2.WORKER_STATE_READY, progress=1.0, seats=1, card=said)
        await stream.inbox.call.write(sessions_pb2.ConnectWorkerRequest(report=report))

        async def card(picture_of: str = "") -> sessions_pb2.ModelCard:
            listed = await admin.stub.ListModels(sessions_pb2.ListModelsRequest(picture_of=picture_of))
            return next((each.card for each in listed.models if each.name == "carded"), sessions_pb2.ModelCard())

        async def is_told() -> bool:
            return bool((await card()).title)

        await until("the card is told", is_told)
        shown = await card()
        assert (shown.title, shown.about, shown.controls, list(shown.keys)) == (
            "T" * 80,
            "about",
            "controls",
            ["ArrowLeft"],
        )
        assert shown.picture == b"" and len(shown.picture_tag) == 16
        assert (await card(picture_of="carded")).picture == picture
        # What says nothing new keeps it, and what is no picture is none.
        await stream.report()
        report.card.picture, report.card.title = b"<script>", "other"
        await stream.inbox.call.write(sessions_pb2.ConnectWorkerRequest(report=report))

        async def is_other() -> bool:
            return (await card()).title == "other"

        await until("the newer card is told", is_other)
        assert (await card(picture_of="carded")).picture == b"" == (await card()).picture_tag.encode()
